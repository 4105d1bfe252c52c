"""The messages of a worker, with what its core knows about each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from ..consumer.pending_messages import PendingMessage, WallClock
from ..letters.id_text import id_text
from ..message import key_if_readable
from .scheduler import (
    BLOCKED,
    COMMITTING,
    READY,
    RUNNING,
    SET_ASIDE,
    SETTLING,
    UNSETTLED,
    WAITING,
    Job,
)

STATE_NAMES: Final[Mapping[int, str]] = {
    BLOCKED: "blocked",
    READY: "ready",
    RUNNING: "running",
    WAITING: "waiting",
    SET_ASIDE: "waiting",
    SETTLING: "settling",
    UNSETTLED: "settling",
    COMMITTING: "settling",
}


def worker_pending(
    listed: Iterable[PendingMessage],
    jobs: Iterable[Job],
    started_s: Mapping[Job, float],
    loop: asyncio.AbstractEventLoop,
) -> list[PendingMessage]:
    """Return the pending messages of a consumer with the states of a worker's jobs.

    Args:
        started_s: When the handler call of each running job began, on the loop's clock.
    """
    clock = WallClock(loop)
    # A chunked message is known here by its last chunk, as in its acks.
    known = {
        (each.topic, id_text(each.message.message_id()).rpartition(";")[2]): each for each in jobs
    }
    found = []
    for each in listed:
        job = known.get((each.topic, each.id))
        if job is None or each.state != "in_flight":
            found.append(each)
            continue
        began_s = started_s.get(job)
        found.append(
            replace(
                each,
                key=key_if_readable(job.message),
                state=STATE_NAMES.get(job.state, each.state),
                attempt=job.attempt,
                since=None if began_s is None else clock.at(began_s * 1000),
                due=clock.at(job.due_ms) if job.state in (WAITING, UNSETTLED) else None,
            )
        )
    return found
