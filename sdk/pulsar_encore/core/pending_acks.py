"""Which messages of one topic are acked in which open transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from .entry import Entry, EntryKey

CumulativeMark: TypeAlias = tuple[EntryKey, int, int]
"""The entry, batch index and batch size of a cumulative ack; index -1 stands for the entry."""


class TransactionMarks:
    """The messages of one topic that one transaction acks.

    Attributes:
        masks: The batch indexes of each entry, as a bit mask.
        letters: The same for messages with a letter in the transaction.
        cumulative: The highest cumulative ack; None for single acks.
    """

    __slots__ = ("cumulative", "letters", "masks")

    def __init__(self) -> None:
        self.masks: dict[Entry, int] = {}
        self.letters: dict[Entry, int] = {}
        self.cumulative: CumulativeMark | None = None


class PendingAcks:
    """The acks of open transactions in one topic.

    A transaction is any object that can be a dictionary key.

    Attributes:
        was_used: A message of the topic was acked in a transaction here, perhaps long ago.
    """

    __slots__ = ("_copies", "_failed", "_forgotten", "_open", "was_used")

    def __init__(self) -> None:
        self.was_used: bool = False
        self._open: dict[object, TransactionMarks] = {}
        # Open transactions whose marks a seek has cleared; True for cumulative acks. The broker
        # has their acks still.
        self._forgotten: dict[object, bool] = {}
        self._copies: dict[Entry, int] = {}
        self._failed: dict[Entry, int] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open_marks(self, txn: object) -> TransactionMarks:
        """Return the marks of a transaction. They are created at its first ack."""
        marks = self._open.get(txn)
        if marks is None:
            self.was_used = True
            marks = self._open[txn] = TransactionMarks()
        return marks

    def note_letters(self, txn: object, masks: Mapping[Entry, int]) -> None:
        """Note that a transaction has the letters of messages that it acks."""
        letters = self.open_marks(txn).letters
        for entry, mask in masks.items():
            letters[entry] = letters.get(entry, 0) | mask

    def take(self, txn: object) -> TransactionMarks | None:
        """Forget an ended transaction, and return its marks; None if a seek has cleared them."""
        self._forgotten.pop(txn, None)
        return self._open.pop(txn, None)

    def mask_of(self, txn: object, entry: Entry) -> int:
        """Return the mask of the messages of an entry that this transaction has acked."""
        marks = self._open.get(txn)
        return 0 if marks is None else marks.masks.get(entry, 0)

    def cumulative_of(self, txn: object) -> CumulativeMark | None:
        """Return the highest cumulative ack of a transaction."""
        marks = self._open.get(txn)
        return None if marks is None else marks.cumulative

    def conflicts_with(self, txn: object, *, cumulative: bool) -> bool:
        """Return True if an open transaction acks in a way that excludes acks of `txn`.

        With a cumulative ack pending, a broker loses single acks of another transaction
        (`docs/notes/wire-protocol.md#transactions`).
        """
        if cumulative:
            if any(
                not is_cumulative or each is not txn
                for each, is_cumulative in self._forgotten.items()
            ):
                return True
            own = self._open.get(txn)
            is_single = own is not None and own.cumulative is None and bool(own.masks)
            return is_single or any(
                marks.masks or marks.cumulative is not None
                for each, marks in self._open.items()
                if each is not txn
            )
        return any(self._forgotten.values()) or any(
            each.cumulative is not None for each in self._open.values()
        )

    def note_copy(self, entry: Entry, index: int) -> None:
        """Note that a copy of a message arrived while its ack was pending."""
        self._copies[entry] = self._copies.get(entry, 0) | 1 << index

    def note_failure(self, entry: Entry, mask: int) -> None:
        """Note that the broker may not know of acks: an abort there would not redeliver them."""
        self._failed[entry] = self._failed.get(entry, 0) | mask

    def take_copies(self, entry: Entry, mask: int) -> int:
        """Forget copies of the messages of a mask, and return the mask of these copies."""
        return _take(self._copies, entry, mask)

    def take_failures(self, entry: Entry, mask: int) -> int:
        """Forget failed acks of the messages of a mask, and return the mask of these messages."""
        return _take(self._failed, entry, mask)

    def clear(self) -> None:
        """Clear all marks after a seek. The transactions still end."""
        for txn, marks in self._open.items():
            is_cumulative = marks.cumulative is not None
            self._forgotten[txn] = self._forgotten.get(txn, False) or is_cumulative
        self._open.clear()
        self._copies.clear()
        self._failed.clear()


def _take(masks: dict[Entry, int], entry: Entry, mask: int) -> int:
    before = masks.pop(entry, 0)
    if before & ~mask:
        masks[entry] = before & ~mask
    return before & mask
