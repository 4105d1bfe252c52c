"""The history of a run: its events in order of time.

Times are from one monotonic clock. The checker reads nothing but events, so a recorder (the player,
or a test) keeps these rules:
- A settlement that can be refused is recorded after it was accepted.
- A nack has the time before its call, an ack the time after its call.
- Deliveries to a consumer are recorded in the order in which they were made.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

PRODUCED: Final = "produced"  # number, topic, position, key
RECEIVED: Final = "received"  # who, number, topic, count
ACKED: Final = "acked"  # who, number
ACKED_CUMULATIVE: Final = "acked_cumulative"  # who, number
NACKED: Final = "nacked"  # who, number, delay
RECONSUMED: Final = "reconsumed"  # who, number, delay
LETTER: Final = "letter"  # number: found on the dead letter topic
REFUSED: Final = "refused"  # who, number, note: the call raised
JOINED: Final = "joined"  # who
CLOSED: Final = "closed"  # who
CRASHED: Final = "crashed"  # who
CONNECTED: Final = "connected"  # who
DISCONNECTED: Final = "disconnected"  # who
REDELIVER_ALL: Final = "redeliver_all"  # who
SEEK: Final = "seek"  # who, number (after it) or -1 (the beginning); duration in s
FAULT: Final = "fault"  # who (or -1), topic (or ""), note: cut, unload, delete, stop, kill
HEALED: Final = "healed"  # as FAULT
PAUSED: Final = "paused"  # who
RESUMED: Final = "resumed"  # who
IDLE: Final = "idle"  # who, delay: time without a message
LAG: Final = "lag"  # delay: how late the loop or a control message was
STATISTICS: Final = "statistics"  # who, counts
BACKLOG: Final = "backlog"  # count: entries in the backlog at the end
WORK_ENDED: Final = "work_ended"  # note: done, or silence
FAILED: Final = "failed"  # who, note: a call raised an unexpected error
DRAINER: Final = 1000  # `who` of the witness that reads the backlog at the end

Position = tuple[int, int, int]  # ledger, entry, batch index (0 for an unbatched message)


@dataclass(slots=True)
class Event:
    """One event. The comments above list the fields of each kind."""

    at: float
    what: str
    who: int = -1
    number: int = -1
    topic: str = ""
    position: Position | None = None
    key: str = ""
    count: int = 0
    delay: float = 0.0
    note: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"{self.at:9.3f} {self.what:16}"]
        if self.who >= 0:
            parts.append("drainer" if self.who == DRAINER else f"consumer {self.who}")
        if self.number >= 0:
            parts.append(f"message {self.number}")
        if self.topic:
            parts.append(self.topic.rpartition("/")[2])
        if self.position is not None:
            parts.append(":".join(str(part) for part in self.position))
        if self.key:
            parts.append(f"key {self.key}")
        if self.what == BACKLOG:
            parts.append(f"{self.count} entries")
        elif self.count:
            parts.append(f"redelivery count {self.count}")
        if self.delay:
            parts.append(f"{self.delay:.3f} s")
        if self.note:
            parts.append(self.note)
        if self.counts:
            parts.append(", ".join(f"{name} {count}" for name, count in self.counts.items()))
        return "  ".join(parts)


class Recorder:
    """Records events with the time since its creation."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._began = time.monotonic()

    def now(self) -> float:
        """Return the seconds since the history began."""
        return time.monotonic() - self._began

    def late(self, lags: Iterable[tuple[float, float]]) -> None:
        """Record late control messages since the history began, given as (monotonic time, delay in
        s).
        """
        for moment, delay in lags:
            if moment >= self._began:
                self.add(LAG, at=moment - self._began, delay=delay, note="control")

    def add(self, what: str, *, at: float | None = None, **fields: object) -> Event:
        """Record an event, now or at an earlier result of `now`."""
        event = Event(self.now() if at is None else at, what, **fields)  # type: ignore[arg-type]
        self.events.append(event)
        return event
