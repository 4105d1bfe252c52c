"""The cumulative ack of one source: how far everything is acked, and how sure that is.

Owns `CumulativeAck`. A position only moves forward. It is in doubt until it was sent long enough
ago with the connection still there; what it covers and comes again before that is a duplicate, what
comes after was rewound on purpose.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from .duplicate_window import UNCERTAIN_MS, Connection, Duplicates, Flush
from .entry import EntryKey


class Position(NamedTuple):
    """Everything up to `key` is acked; `mask` -1: all of that entry, else bit 1 = still unacked."""

    key: EntryKey
    size: int
    mask: int


class CumulativeAck:
    """The position acked, whether it has to be sent, and those that were sent a moment ago.

    Attributes:
        due: It waits to be sent.
        last: The position; None where nothing was acked cumulatively.

    Args:
        duplicates: Of the same source: what is known of its connection.
    """

    __slots__ = ("_certain", "_duplicates", "_sent", "due", "last")

    def __init__(self, duplicates: Duplicates) -> None:
        self._duplicates = duplicates
        self.last: Position | None = None
        self.due: bool = False
        self._sent: deque[tuple[Flush, Position]] = deque()  # in the last moments, or unconfirmed
        self._certain: Position | None = None  # the last one sent before those

    def advance(self, key: EntryKey, size: int, mask: int) -> bool:
        """Ack everything up to `key`; False when that was acked cumulatively before."""
        last = self.last
        if last is not None and key <= last.key:
            if key < last.key or last.mask == -1:
                return False
            if mask != -1:
                mask &= last.mask
                if mask == last.mask:
                    return False
        self.last = Position(key, size, mask)
        self.due = True
        return True

    def covers(self, key: EntryKey) -> bool:
        """Whether all of the entry is acked by a position in doubt."""
        last = self._in_doubt(key)
        return last is not None and (key < last.key or last.mask == -1)

    def remaining_of(self, key: EntryKey) -> int:
        """The indexes that a position inside this entry left unacked, as a mask; -1: all."""
        last = self._in_doubt(key)
        return last.mask if last is not None and last.key == key else -1

    def _in_doubt(self, key: EntryKey) -> Position | None:
        """The position that covers `key`, all of it or in part, and may not have arrived."""
        last = self.last
        if last is None or key > last.key or not (self.due or self._duplicates.in_doubt):
            return None
        certain = self._certain
        if certain is not None and (
            key < certain.key or certain == last or (key == certain.key and certain.mask == -1)
        ):
            return None
        return last

    def retract(self, key: EntryKey) -> None:
        """An entry came that nothing in doubt covers: a position past it was taken back.

        By an operator's cursor reset; acks from there on are news to the broker.
        """
        last = self.last
        if last is not None and (key < last.key or (key == last.key and last.mask == -1)):
            self.clear()

    def take(self, flush: Flush) -> Position | None:
        """What there is to send, now; what the transport then refuses goes back by `put_back`."""
        if not self.due:
            return None
        self.due = False
        assert self.last is not None
        self._grow_certain(flush.at_ms)
        if self._duplicates.connection is Connection.LOST:
            self._sent.clear()  # all that is sent until the reconnect is sent again by the last
        self._sent.append((flush, self.last))
        return self.last

    def put_back(self) -> None:
        """What was taken last was not sent."""
        self.due = True
        self._sent.pop()

    def not_confirmed(self, flush: Flush) -> None:
        """Whether what left with it arrived is not known: it waits again, or what is past it."""
        self._sent = deque(each for each in self._sent if each[0] is not flush)
        self.due = self.last is not None

    def _grow_certain(self, now_ms: int) -> None:
        """Positions sent long enough ago, with the connection still there, have arrived."""
        sent = self._sent
        if self._duplicates.connection is not Connection.LOST:
            while sent and sent[0][0].at_ms < now_ms - UNCERTAIN_MS:
                self._certain = sent.popleft()[1]

    def disconnected(self, now_ms: int) -> None:
        """What was sent in the last moments may be lost; call it while the loss is not noted."""
        self._grow_certain(now_ms)

    def reconnected(self) -> None:
        """Send again what may be lost."""
        if self._sent:
            self.due = True
            self._sent.clear()

    @property
    def lost(self) -> int:
        """Positions that may be lost with the connection that is away now."""
        return len(self._sent) if self._duplicates.connection is Connection.LOST else 0

    def clear(self) -> None:
        """Nothing is acked cumulatively."""
        self.last = self._certain = None
        self.due = False
        self._sent.clear()
