"""Whether a worker is ready, and why not."""

from __future__ import annotations

from typing import Any

from .health import Health, LongHandler
from .worker_core import CoreSnapshot
from .worker_options import HELD_LIMIT, WorkerOptions


def health_of(
    snapshot: CoreSnapshot,
    options: WorkerOptions,
    state: str,
    *,
    connected: bool,
    has_paused_topics: bool,
    stuck: int,
    abandoned: int,
    long_handlers: tuple[LongHandler, ...],
) -> Health:
    """Return the health of a worker with a consumer. Its first reasons are those of `ready`.

    Args:
        stuck: Number of slots whose handler ignores its cancellation.
        abandoned: Number of handlers that were left behind.
    """
    reasons = _stops(snapshot)
    if state not in ("running", "paused"):
        reasons.append(f"the worker is {state}")
    if stuck >= options.concurrency:
        reasons.append("each slot has a handler that ignores its cancellation")
    held_keys: tuple[str, ...] = ()
    is_full = snapshot.bytes >= options.max_bytes
    has_work = snapshot.ready or snapshot.running or snapshot.settling or snapshot.committing
    if snapshot.held_back >= HELD_LIMIT or (is_full and not has_work):
        held_keys = tuple(map(_key_text, snapshot.held_group_examples))
        bound = "" if snapshot.held_back >= HELD_LIMIT else " and fill max_bytes"
        reasons.append(
            f"{snapshot.held_back} messages are held back by failures{bound}, so no more are "
            "taken" + ("; the first keys: " + ", ".join(held_keys) if held_keys else "")
        )
    return Health(
        ready=not reasons,
        reasons=(*reasons, *_remarks(snapshot, state, connected, has_paused_topics)),
        state=state,
        connected=connected,
        running=snapshot.running,
        waiting=snapshot.waiting,
        blocked=snapshot.blocked,
        held_keys=held_keys,
        long_handlers=long_handlers,
        stuck_handlers=abandoned + stuck,
    )


def _remarks(
    snapshot: CoreSnapshot, state: str, connected: bool, has_paused_topics: bool
) -> list[str]:
    """Return the reasons that leave a worker ready.

    Every process has them in an outage of the broker or of a dependency. If they made a worker
    unready, a rollout that could end the outage would stop, because no new process is ready.
    """
    remarks = []
    if snapshot.is_breaker_open:
        remarks.append(f"the breaker is open: {_shown(snapshot.breaker_error)}")
    if state == "paused":
        remarks.append("the worker is paused")
    elif has_paused_topics:
        remarks.append("a topic is paused")
    if not connected:
        remarks.append("the consumer is not connected to its broker")
    return remarks


def _stops(snapshot: CoreSnapshot) -> list[str]:
    reasons = []
    if snapshot.is_reject_limit_reached:
        reasons.append(
            f"{snapshot.rejects_in_row} messages in a row were rejected: "
            f"{_shown(snapshot.reject_error)}"
        )
    if snapshot.unsettled:
        reasons.append(
            f"{snapshot.unsettled} messages cannot be settled: a letter or the state cannot be "
            "written"
        )
    return reasons


def _shown(error: BaseException | None) -> str:
    """Return `repr(error)`, which is code of the application and may raise.

    A probe would fail with it, and an orchestrator would restart a process that works.
    """
    try:
        return repr(error)
    except Exception:
        return type(error).__name__


def _key_text(group: Any) -> str:
    """Return a key with its topic, or a partition."""
    return group if isinstance(group, str) else f"{group[1]!r} of {group[0]}"
