"""The answers of `/live` and `/ready`, from the views of the workers. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from ..worker.health import Health, Report

_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response."""

    status: int
    body: bytes
    content_type: str = _JSON


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerView:
    """A worker as a probe sees it.

    Attributes:
        health: Its latest health; None if its event loop has never answered.
        silent_s: Seconds since a question that its event loop has not answered; 0 if it answered.
        is_loop_closed: True if the event loop was closed before the worker ended.
    """

    name: str
    health: Health | None
    report: Report | None = None
    silent_s: float = 0.0
    is_loop_closed: bool = False


def live_answer(views: list[WorkerView], limit_s: float) -> Answer:
    """Return 503 if a restart of the process helps: a silent event loop, or a worker's end."""
    dead = {view.name: _death(view, limit_s) for view in views}
    workers = [
        {"name": view.name, "live": not dead[view.name], "reasons": _listed(dead[view.name])}
        for view in views
    ]
    is_live = not any(dead.values())
    return json_answer(200 if is_live else 503, {"live": is_live, "workers": workers})


def ready_answer(views: list[WorkerView], limit_s: float) -> Answer:
    """Return 503 unless every worker is ready; the body has the reasons and counts of each."""
    workers = [_readiness(view, limit_s) for view in views]
    is_ready = all(each["ready"] for each in workers)
    reasons = [f"{each['name']}: {reason}" for each in workers for reason in each["reasons"]]
    status = 200 if is_ready else 503
    return json_answer(status, {"ready": is_ready, "reasons": reasons, "workers": workers})


def json_answer(status: int, body: Any) -> Answer:
    return Answer(status, f"{json.dumps(body)}\n".encode())  # a line of its own after curl


def text_answer(status: int, sentence: str) -> Answer:
    return Answer(status, f"{sentence}\n".encode(), _TEXT)


def unknown_path(path: str) -> Answer:
    hint = " (/pending needs debug=True)" if path == "/pending" else ""
    known = "/live, /ready or /metrics"
    return text_answer(404, f"There is no {path[:100]!a} here: ask for {known}{hint}.")


def _death(view: WorkerView, limit_s: float) -> str:
    if view.is_loop_closed:
        return "the event loop of the worker is closed"
    if view.silent_s >= limit_s:
        return f"the event loop has not answered for {view.silent_s:.1f} s"
    if view.health is not None and view.health.state in ("ended", "failed"):
        return f"the worker has {view.health.state}"
    return ""


def _readiness(view: WorkerView, limit_s: float) -> dict[str, Any]:
    health = view.health
    death = _death(view, limit_s)
    is_silent = view.is_loop_closed or view.silent_s >= limit_s
    if health is None:
        reason = death or "the event loop has not answered yet"
        return {"name": view.name, "ready": False, "state": "starting", "reasons": [reason]}
    return {
        "name": view.name,
        "ready": health.ready and not death,
        "state": health.state,
        # The key and the error of a message may be personal data: only `/pending` shows them.
        "reasons": [*(_listed(death) if is_silent else ()), *map(_without_error, health.reasons)],
        "connected": health.connected,
        "running": health.running,
        "waiting": health.waiting,
        "blocked": health.blocked,
        "stuck_handlers": health.stuck_handlers,
        "long_handlers": len(health.long_handlers),
        "counts": _counts(view.report),
    }


def _counts(report: Report | None) -> dict[str, int]:
    return {} if report is None else {k: v for k, v in asdict(report).items() if k != "name"}


def _listed(reason: str) -> list[str]:
    return [reason] if reason else []


def _without_error(reason: str) -> str:
    """Return a reason of `Health` without the error or the keys that follow its sentence."""
    if reason.startswith("the worker "):  # the broker's refusal names no message
        return reason
    return reason.partition("; the first keys: ")[0].partition(": ")[0]
