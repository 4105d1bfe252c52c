"""Acks waiting to be sent: whole entries, parts of batches, a cumulative position.

Owns `Acks`, one per source. Invariant: what is acked is in one place until the transport took it:
whole (the entry is done), part, or the cumulative position; what was taken in the last moments is
`Duplicates`' to remember. A part of a batch is always sent as the entry's set of remaining indexes,
never as an id alone, so an ack cannot cover a sibling.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from .cumulative import CumulativeAck, Position
from .duplicate_window import Connection, Duplicates, Flush
from .entry import Entry, EntryKey


class Unsent(NamedTuple):
    """What one flush sends."""

    flush: Flush
    cumulative: Position | None
    whole: list[EntryKey]
    parts: list[Entry]


class Acks:
    """What one source has acked and not yet sent.

    Attributes:
        cumulative: The position acked cumulatively.

    Args:
        duplicates: Of the same source; told what was sent.
    """

    __slots__ = ("_duplicates", "_parts", "_whole", "cumulative")

    def __init__(self, duplicates: Duplicates) -> None:
        self._duplicates = duplicates
        self.cumulative: CumulativeAck = CumulativeAck(duplicates)
        self._whole: dict[EntryKey, None] = {}
        self._parts: dict[Entry, None] = {}

    def __len__(self) -> int:
        """Entries that the next flush would name."""
        return len(self._whole) + len(self._parts) + self.cumulative.due

    def add_whole(self, key: EntryKey, *, again: bool = False) -> None:
        """The entry is done.

        Args:
            key: Which.
            again: A copy of it may be on its way here (`duplicates`).
        """
        self._whole[key] = None
        if again:
            self._duplicates.settled(key)

    def add_part(self, entry: Entry) -> None:
        """A part of the entry is done."""
        if not entry.unsent_part:
            entry.unsent_part = True
            self._parts[entry] = None

    def drop_part(self, entry: Entry) -> None:
        """The entry is done: one ack of the whole says it, and no part is to be sent or counted."""
        if entry.unsent_part:
            entry.unsent_part = False
            self._parts.pop(entry, None)

    @property
    def only_unsent(self) -> dict[EntryKey, None] | None:
        """Entries whose ack waits, if nothing else says what is acked; None: ask `covers`."""
        seen = self._duplicates
        if seen.overtaken or seen.overtaken_before or seen.connection is not Connection.SURE:
            return None
        return None if self.cumulative.last is not None else self._whole

    def covers(self, key: EntryKey) -> bool:
        """Whether what comes of the entry is a duplicate: acked, and the ack was not sent, may not
        have arrived, or was overtaken."""
        if key in self._whole:
            return True
        seen, cumulative = self._duplicates, self.cumulative
        if seen.overtaken or seen.overtaken_before or seen.connection is not Connection.SURE:
            if seen.covers(key):
                return True
        return cumulative.last is not None and cumulative.covers(key)

    def take(self, now_ms: int, most: int = sys.maxsize) -> Unsent:
        """What there is to send, `most` entries of it; what the transport then refuses goes back by
        `put_back`."""
        whole = list(islice(self._whole, most))
        parts = list(islice(self._parts, most - len(whole)))
        if len(whole) + len(parts) == len(self._whole) + len(self._parts):
            self._whole.clear()
            self._parts.clear()
        for key in whole if self._whole else ():
            del self._whole[key]
        for entry in parts if self._parts else ():
            del self._parts[entry]
        for entry in parts:
            entry.unsent_part = False
        flush = Flush(now_ms)
        if whole or parts:
            self._duplicates.sent(flush, whole, [entry.key for entry in parts])
        return Unsent(flush, self.cumulative.take(flush), whole, parts)

    def put_back(self, unsent: Unsent) -> None:
        """The transport took nothing of it."""
        self._whole.update(dict.fromkeys(unsent.whole))
        for entry in unsent.parts:
            self.add_part(entry)
        if unsent.cumulative is not None:
            self.cumulative.put_back()

    def not_confirmed(self, unsent: Unsent) -> None:
        """The transport took it and does not know whether it arrived: it waits again, but for the
        parts, which may have become more since."""
        self._duplicates.forget(unsent.flush)
        self._whole.update(dict.fromkeys(unsent.whole))
        if unsent.cumulative is not None:
            self.cumulative.not_confirmed(unsent.flush)

    # Connections

    def disconnected(self, now_ms: int) -> None:
        """What was sent in the last moments may be lost, and what was not confirmed."""
        self.cumulative.disconnected(now_ms)
        self._duplicates.disconnected(now_ms)

    def doubtful(self, now_ms: int) -> None:
        """Perhaps this source was disconnected, perhaps not; what it has queued stays."""
        self.disconnected(now_ms)
        self._duplicates.doubtful()

    def reconnected(self, unfinished: Iterable[Entry]) -> None:
        """Make due again: what may be lost, a doubtful position, the sets of unfinished entries."""
        self._duplicates.reconnected(self._whole)
        self.cumulative.reconnected()
        for entry in unfinished:
            if entry.unacked < entry.size:
                self.add_part(entry)

    @property
    def lost(self) -> int:
        """Entries whose ack was sent and may be lost with the connection that is away now."""
        return self._duplicates.lost + self.cumulative.lost

    def rewound(self) -> None:
        """Everything is about to be asked for, and may overtake the acks of the last moments."""
        self._duplicates.rewound(self._whole)

    def clear(self) -> None:
        """After a seek: what was acked may rightly come again."""
        for entry in self._parts:
            entry.unsent_part = False
        self._whole.clear()
        self._parts.clear()
        self.cumulative.clear()
