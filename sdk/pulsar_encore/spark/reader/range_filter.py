"""Selection of the messages that belong to a range, each once.

The broker sends messages again after a reconnect, and a subscription begins at a whole entry.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...transport.interface import Delivery
from ..offsets import Position

DeliverySlice = tuple[Delivery, int, int]
"""A delivery and a slice of its messages: the first index and the index after the last."""


class RangeFilter:
    """Selects the messages from after `start` up to and including `end`.

    With `whole`, a delivery holds all messages of its entry. `last` is the last position that is
    finished.
    """

    __slots__ = ("_end", "_end_key", "_whole", "done", "last")

    def __init__(self, start: Position, end: Position, *, whole: bool) -> None:
        self.last: Position = start
        self._end = end
        self._end_key = end.entry_key
        self._whole = whole
        self.done: bool = start.order >= end.order

    def take(self, delivery: Delivery) -> DeliverySlice | None:
        """Return the part of a delivery that is in the range and was not taken before."""
        entry_key = (delivery.ledger, delivery.entry)
        last = self.last
        if self.done or entry_key < last.entry_key:
            return None
        first, stop = 0, len(delivery.messages)
        if entry_key == last.entry_key:
            if last.batch_index < 0:
                return None
            first = _count_up_to(delivery.indexes, last.batch_index)
        is_complete = self._whole or _ends_entry(delivery)
        if entry_key >= self._end_key:
            self.done = True
            if entry_key > self._end_key:
                return None
            if self._end.batch_index >= 0:
                stop = _count_up_to(delivery.indexes, self._end.batch_index)
                self.done = is_complete or delivery.indexes[-1] >= self._end.batch_index
            else:
                self.done = is_complete
        if is_complete and stop == len(delivery.messages):
            self.last = Position(*entry_key)
        elif stop > first:
            self.last = Position(*entry_key, delivery.indexes[stop - 1])
        return (delivery, first, stop) if stop > first else None

    def skip(self, ledger: int, entry: int) -> None:
        """Pass an entry without messages; everything before it has been received."""
        entry_key = (ledger, entry)
        if entry_key > self.last.entry_key:
            self.last = Position(*entry_key)
        if entry_key >= self._end_key:
            self.done = True


def _count_up_to(indexes: Sequence[int], batch_index: int) -> int:
    return sum(1 for each in indexes if each <= batch_index)


def _ends_entry(delivery: Delivery) -> bool:
    """Return True for the last delivery of an entry, on a transport that splits entries."""
    return delivery.batch_size == 0 or delivery.indexes[-1] >= delivery.batch_size - 1
