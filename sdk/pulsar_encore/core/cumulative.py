"""The cumulative ack of one topic: its position, and whether the broker has it.

The position only moves forward. It is uncertain until it was sent long enough ago and the
connection has held. While it is uncertain, a delivery that it covers is a duplicate. A later
delivery was rewound on purpose.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from .duplicate_window import UNCERTAIN_MS, Connection, DuplicateWindow, Flush
from .entry import EntryKey


class Position(NamedTuple):
    """Everything up to `key` is acked; `mask` -1: all of that entry, else bit 1 = still unacked."""

    key: EntryKey
    size: int
    mask: int


class CumulativeAck:
    __slots__ = ("_certain", "_sent", "_window", "due", "last")

    def __init__(self, window: DuplicateWindow) -> None:
        self._window = window
        self.last: Position | None = None
        self.due: bool = False
        self._sent: deque[tuple[Flush, Position]] = deque()  # just sent, or unconfirmed
        self._certain: Position | None = None  # the last one sent before those

    def advance(self, key: EntryKey, size: int, mask: int) -> bool:
        """Ack everything up to `key`; return False if it was acked cumulatively before."""
        if self.includes(key, mask):
            return False
        last = self.last
        if last is not None and key == last.key and mask != -1:
            mask &= last.mask
        self.last = Position(key, size, mask)
        self.due = True
        return True

    def includes(self, key: EntryKey, mask: int) -> bool:
        """Return True if everything up to `key` was acked cumulatively before.

        Args:
            mask: The indexes of the entry that stay unacked; -1 if the whole entry is acked.
        """
        last = self.last
        if last is None or key > last.key:
            return False
        if key < last.key or last.mask == -1:
            return True
        return mask != -1 and mask & last.mask == last.mask

    def covers(self, key: EntryKey) -> bool:
        last = self._uncertain(key)
        return last is not None and (key < last.key or last.mask == -1)

    def remaining_of(self, key: EntryKey) -> int:
        """Return the unacked indexes of an entry that an uncertain position is in; -1 for all."""
        last = self._uncertain(key)
        return last.mask if last is not None and last.key == key else -1

    def _uncertain(self, key: EntryKey) -> Position | None:
        """Return the position if it covers `key` or a part, and the broker may not have it."""
        last = self.last
        if last is None or key > last.key or not (self.due or self._window.is_open):
            return None
        certain = self._certain
        if certain is not None and (
            key < certain.key or certain == last or (key == certain.key and certain.mask == -1)
        ):
            return None
        return last

    def retract(self, key: EntryKey) -> None:
        """Forget a position that covers a delivered entry, after `covers` was False for the entry.

        An operator has reset the cursor, so acks from there on are new to the broker.
        """
        last = self.last
        if last is not None and (key < last.key or (key == last.key and last.mask == -1)):
            self.clear()

    def take(self, flush: Flush) -> Position | None:
        if not self.due:
            return None
        self.due = False
        assert self.last is not None
        self._grow_certain(flush.at_ms)
        if self._window.connection is Connection.LOST:
            self._sent.clear()  # the last position sent until the reconnect repeats these
        self._sent.append((flush, self.last))
        return self.last

    def put_back(self) -> None:
        self.due = True
        self._sent.pop()

    def not_confirmed(self, flush: Flush) -> None:
        self._sent = deque(each for each in self._sent if each[0] is not flush)
        self.due = self.last is not None

    def _grow_certain(self, now_ms: int) -> None:
        sent = self._sent
        if self._window.connection is not Connection.LOST:
            while sent and sent[0][0].at_ms < now_ms - UNCERTAIN_MS:
                self._certain = sent.popleft()[1]

    def disconnected(self, now_ms: int) -> None:
        """Note the positions that have arrived; call this before the window learns of the loss."""
        self._grow_certain(now_ms)

    def reconnected(self) -> None:
        if self._sent:
            self.due = True
            self._sent.clear()

    @property
    def lost(self) -> int:
        return len(self._sent) if self._window.connection is Connection.LOST else 0

    def clear(self) -> None:
        self.last = self._certain = None
        self.due = False
        self._sent.clear()
