"""Which messages of one topic are acked in which open transaction."""

from __future__ import annotations

from typing import TypeAlias

from .entry import Entry, EntryKey

CumulativeMark: TypeAlias = tuple[EntryKey, int, int]
"""The entry, batch index and batch size of a cumulative ack; index -1 stands for the entry."""


class TransactionMarks:
    """The messages of one topic that one transaction acks.

    Attributes:
        masks: The batch indexes of each entry, as a bit mask.
        cumulative: The highest cumulative ack; None for single acks.
    """

    __slots__ = ("cumulative", "masks")

    def __init__(self) -> None:
        self.masks: dict[Entry, int] = {}
        self.cumulative: CumulativeMark | None = None


class PendingAcks:
    """The acks of open transactions in one topic.

    A transaction is any object that can be a dictionary key.
    """

    __slots__ = ("_copies", "_open")

    def __init__(self) -> None:
        self._open: dict[object, TransactionMarks] = {}
        self._copies: dict[Entry, int] = {}

    def __len__(self) -> int:
        return len(self._open)

    def of(self, txn: object) -> TransactionMarks:
        """Return the marks of a transaction, empty ones if it has none."""
        marks = self._open.get(txn)
        if marks is None:
            marks = self._open[txn] = TransactionMarks()
        return marks

    def take(self, txn: object) -> TransactionMarks | None:
        """Forget an ended transaction, and return its marks."""
        return self._open.pop(txn, None)

    def has(self, txn: object, entry: Entry, index: int) -> bool:
        """Return True if this transaction has acked the message."""
        marks = self._open.get(txn)
        return marks is not None and bool(marks.masks.get(entry, 0) >> index & 1)

    def cumulative_of(self, txn: object) -> CumulativeMark | None:
        """Return the highest cumulative ack of a transaction."""
        marks = self._open.get(txn)
        return None if marks is None else marks.cumulative

    def conflicts_with(self, txn: object, *, cumulative: bool) -> bool:
        """Return True if an open transaction acks in a way that excludes acks of `txn`.

        With a cumulative ack pending, a broker loses single acks of another transaction
        (`docs/notes/wire-protocol.md#transactions`).
        """
        others = [marks for each, marks in self._open.items() if each is not txn and marks.masks]
        if cumulative:
            own = self._open.get(txn)
            return bool(others) or (own is not None and own.cumulative is None and bool(own.masks))
        return any(each.cumulative is not None for each in self._open.values())

    def note_copy(self, entry: Entry, index: int) -> None:
        """Note that a copy of a message arrived while its ack was pending."""
        self._copies[entry] = self._copies.get(entry, 0) | 1 << index

    def take_copies(self, entry: Entry) -> int:
        """Forget the copies of an entry, and return their indexes as a mask."""
        return self._copies.pop(entry, 0)

    def clear(self) -> None:
        """Forget all marks after a seek. The transactions still end."""
        self._open.clear()
        self._copies.clear()
