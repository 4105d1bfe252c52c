"""Acks that wait to be sent: whole entries, parts of batches, a cumulative position.

Until the transport has taken an ack, it is in exactly one of the three. A part of a batch is always
sent as the entry's set of remaining indexes, never as an id alone, so that an ack cannot cover a
sibling.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from .cumulative import CumulativeAck, Position
from .duplicate_window import DuplicateWindow, Flush
from .entry import Entry, EntryKey


class Unsent(NamedTuple):
    flush: Flush
    cumulative: Position | None
    whole: list[EntryKey]
    parts: list[Entry]


class Acks:
    """Acks of one topic that have not been sent; `window` learns of every flush."""

    __slots__ = ("_parts", "_whole", "_window", "cumulative")

    def __init__(self, window: DuplicateWindow) -> None:
        self._window = window
        self.cumulative: CumulativeAck = CumulativeAck(window)
        self._whole: dict[EntryKey, None] = {}
        self._parts: dict[Entry, None] = {}

    def __len__(self) -> int:
        return len(self._whole) + len(self._parts) + self.cumulative.due

    def add_whole(self, key: EntryKey, *, copy_expected: bool = False) -> None:
        """Add the ack of a whole entry; `copy_expected` if another copy may be in flight."""
        self._whole[key] = None
        if copy_expected:
            self._window.acked(key)

    def add_part(self, entry: Entry) -> None:
        if not entry.unsent_part:
            entry.unsent_part = True
            self._parts[entry] = None

    def drop_part(self, entry: Entry) -> None:
        if entry.unsent_part:
            entry.unsent_part = False
            self._parts.pop(entry, None)

    @property
    def only_unsent(self) -> dict[EntryKey, None] | None:
        """Unsent acks, if `covers` depends on nothing else; otherwise None."""
        if self.cumulative.last is not None or not self._window.covers_nothing:
            return None
        return self._whole

    def covers(self, key: EntryKey) -> bool:
        """Return True if the entry is acked, and the ack is not sent, may be lost, or was
        overtaken."""
        if key in self._whole:
            return True
        if not self._window.covers_nothing and self._window.covers(key):
            return True
        cumulative = self.cumulative
        return cumulative.last is not None and cumulative.covers(key)

    def take(self, now_ms: int, most: int = sys.maxsize) -> Unsent:
        """Return at most `most` entries to send; `put_back` takes them if the transport refuses."""
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
            self._window.sent(flush, whole, [entry.key for entry in parts])
        return Unsent(flush, self.cumulative.take(flush), whole, parts)

    def put_back(self, unsent: Unsent) -> None:
        self._whole.update(dict.fromkeys(unsent.whole))
        for entry in unsent.parts:
            self.add_part(entry)
        if unsent.cumulative is not None:
            self.cumulative.put_back()

    def not_confirmed(self, unsent: Unsent) -> None:
        """Make acks due again after their receipt failed.

        The caller adds parts, because more of these batches may have been acked since.
        """
        self._window.forget(unsent.flush)
        self._whole.update(dict.fromkeys(unsent.whole))
        if unsent.cumulative is not None:
            self.cumulative.not_confirmed(unsent.flush)

    # Connections

    def disconnected(self, now_ms: int) -> None:
        self.cumulative.disconnected(now_ms)
        self._window.disconnected(now_ms)

    def maybe_disconnected(self, now_ms: int) -> None:
        """Treat recent acks as lost, because this topic or another one has lost its connection."""
        self.disconnected(now_ms)
        self._window.connection_unclear()

    def reconnected(self, unfinished: Iterable[Entry]) -> None:
        self._window.reconnected(self._whole)
        self.cumulative.reconnected()
        for entry in unfinished:
            if entry.unacked < entry.size:
                self.add_part(entry)

    @property
    def lost(self) -> int:
        """Entries whose ack may be lost with the connection that is down now."""
        return self._window.lost + self.cumulative.lost

    def rewound(self) -> None:
        self._window.rewound(self._whole)

    def clear(self) -> None:
        for entry in self._parts:
            entry.unsent_part = False
        self._whole.clear()
        self._parts.clear()
        self.cumulative.clear()
