"""The messages that a consumer holds or that wait here, as an operator sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from ..core.entry import Entry
from ..core.pending_keys import PendingKey, pending_keys
from ..core.topic_state import TopicState
from ..eventloop.alarm import now_ms, wall_now_ms
from ..letters.evidence import Evidence
from ..letters.id_text import id_text
from ..message import key_if_readable
from ..values.message_id import MessageId
from .leases.lease_record import LeaseRecord


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """A message that was delivered and is not settled yet. See `Consumer.pending`.

    Attributes:
        id: ``ledger:entry:partition``, and ``:index`` in a batch.
        topic: Full name of the topic or partition.
        key: Partition key, if the message is at hand: of leases, and of messages in a worker.
        state: "in_flight" (the application holds it), "leased", "nacked" (it waits for its due
            time) or "forwarding" (a letter is being written). In a worker also "ready", "running",
            "waiting" (for `due`), "blocked" (behind another message of its key or partition) and
            "settling".
        attempt: Number of the latest delivery attempt, from 1. None for a nacked message whose
            attempts only the broker counts.
        since: When this state began, in UTC. Known for leases (their grant or last extension), for
            messages with an ack timeout (their delivery, rounded as the timeout is) and for running
            handlers. None otherwise, because no time is recorded for each message.
        due: When the nack, the lease, the ack timeout or the wait ends, in UTC; None if the state
            has no end.
        last_error: Error of the latest failed attempt in this process, if it is remembered: with a
            dead-letter policy, and for messages that a worker tries again in place.
    """

    id: str
    topic: str
    key: str | None
    state: str
    attempt: int | None
    since: datetime | None
    due: datetime | None
    last_error: str | None


class WallClock:
    """Converts times in ms on the clock of the loop to UTC."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._offset_ms = wall_now_ms(loop) - now_ms(loop)

    def at(self, loop_ms: float | None) -> datetime | None:
        if loop_ms is None:
            return None
        try:
            return datetime.fromtimestamp((self._offset_ms + loop_ms) / 1000, UTC)
        except (OverflowError, ValueError):  # a nack of a thousand years
            return None


def pending_messages(
    states: Iterable[TopicState],
    leases: Iterable[LeaseRecord],
    loop: asyncio.AbstractEventLoop,
    timeout_ms: int | None,
    limit: int,
) -> list[PendingMessage]:
    """Return up to `limit` messages: those that are held, then nacked ones, the first due first."""
    clock = WallClock(loop)
    found = pending_keys(states, limit)
    leased: dict[tuple[Entry, int], LeaseRecord] = {}
    if any(each.entry is not None for each in found):
        leased = {(each.held.entry, each.held.batch_index): each for each in leases if each.holds}
    return [_pending(each, leased, clock, timeout_ms) for each in found]


def _pending(
    found: PendingKey,
    leased: dict[tuple[Entry, int], LeaseRecord],
    clock: WallClock,
    timeout_ms: int | None,
) -> PendingMessage:
    key, due_ms, since_ms, name = None, found.due_ms, None, "nacked"
    if found.entry is not None:
        name = "forwarding" if found.is_forwarding else "in_flight"
        lease = leased.get((found.entry, max(found.key[2], 0)))
        if lease is not None and not found.is_forwarding:
            name, key = "leased", key_if_readable(lease.message)
            due_ms, since_ms = lease.due_ms, lease.due_ms - lease.length_ms
        elif due_ms is not None and timeout_ms is not None:
            since_ms = due_ms - timeout_ms
    state = found.state
    ledger, entry, index = found.key
    size = max(2, index + 1) if index >= 0 else 0  # keys of batches of one have no index
    where = MessageId(state.partition, ledger, entry, index, batch_size=size)
    return PendingMessage(
        id=id_text(where),
        topic=state.topic,
        key=key,
        state=name,
        attempt=found.attempt,
        since=clock.at(since_ms),
        due=clock.at(due_ms),
        last_error=_error_text(found.evidence),
    )


def _error_text(evidence: Evidence | None) -> str | None:
    if evidence is None:
        return None
    parts = [each for each in (evidence.error_class, evidence.error_message) if each]
    return ": ".join(parts) or evidence.reason
