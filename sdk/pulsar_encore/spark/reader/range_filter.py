"""Which messages of what comes are of a range. Pure.

Owns `RangeFilter`. A range is from behind one position up to and with another. What a broker sends
again after a reconnect, or sends because a subscription begins at an entry and not behind it, is
left
out: nothing at or before what was taken last is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...transport.interface import Delivery
from ..offsets import Position

Cut = tuple[Delivery, int, int]
"""A delivery, and which of its messages: from this one up to and without that one."""


class RangeFilter:
    """The messages of one range.

    Args:
        start: The last message before it.
        end: Its last message.
        whole: A delivery is all that comes of its entry.

    Attributes:
        done: Its end was reached: nothing of it is to come.
        last: The last position that is done with.
    """

    __slots__ = ("_end", "_end_place", "_whole", "done", "last")

    def __init__(self, start: Position, end: Position, *, whole: bool) -> None:
        self.last: Position = start
        self._end = end
        self._end_place = end.place
        self._whole = whole
        self.done: bool = start.order >= end.order

    def take(self, delivery: Delivery) -> Cut | None:
        """The part of a delivery that is in the range, if any; in order, each message once."""
        place = (delivery.ledger, delivery.entry)
        last = self.last
        if self.done or place < last.place:
            return None
        first, stop = 0, len(delivery.messages)
        if place == last.place:
            if last.batch_index < 0:
                return None
            first = _behind(delivery.indexes, last.batch_index)
        ends = self._whole or _ends_entry(delivery)
        if place >= self._end_place:
            self.done = True
            if place > self._end_place:
                return None
            if self._end.batch_index >= 0:
                stop = _behind(delivery.indexes, self._end.batch_index)
                self.done = ends or delivery.indexes[-1] >= self._end.batch_index
            else:
                self.done = ends
        if ends and stop == len(delivery.messages):
            self.last = Position(*place)
        elif stop > first:
            self.last = Position(*place, delivery.indexes[stop - 1])
        return (delivery, first, stop) if stop > first else None

    def passed(self, ledger: int, entry: int) -> None:
        """An entry that is no message; all before it has come."""
        place = (ledger, entry)
        if place > self.last.place:
            self.last = Position(*place)
        if place >= self._end_place:
            self.done = True


def _behind(indexes: Sequence[int], batch_index: int) -> int:
    """How many of the indexes are not behind this one."""
    return sum(1 for each in indexes if each <= batch_index)


def _ends_entry(delivery: Delivery) -> bool:
    """Whether nothing more of its entry comes, of an engine that splits entries."""
    return delivery.batch_size == 0 or delivery.indexes[-1] >= delivery.batch_size - 1
