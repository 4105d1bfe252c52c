"""Indexes that a batch arrived without.

They are acked, or pending in the transaction of another process (PIP-31). An abort of it brings
them back. So an ack of the others must not cover them, or they would be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .entry import EntryKey

MOST: Final = 10_000
_TRIES: Final = 8  # looks for a batch that can be forgotten


class WithheldIndexes:
    """Bit masks of withheld indexes by batch, oldest first.

    It keeps about ten thousand, and all that are in use.

    Attributes:
        has_any: A batch has arrived without messages since the last `clear`.

    Args:
        in_use: Returns True if the ack of a batch is still to come. Such a batch is not forgotten.
    """

    __slots__ = ("_found", "_in_use", "has_any")

    def __init__(self, in_use: Callable[[EntryKey], bool]) -> None:
        self.has_any: bool = False
        self._in_use = in_use
        self._found: dict[EntryKey, tuple[int, int]] = {}  # number of messages, and the mask

    def __len__(self) -> int:
        return len(self._found)

    def of(self, key: EntryKey) -> int:
        return self._found.get(key, (0, 0))[1]

    def size_of(self, key: EntryKey) -> int:
        """Return the number of messages of a batch with withheld indexes, otherwise 0."""
        return self._found.get(key, (0, 0))[0]

    def note(self, key: EntryKey, size: int, mask: int) -> None:
        """Set the withheld indexes of a batch to a bit mask, 0 for none."""
        self._found.pop(key, None)
        if not mask:
            return
        self.has_any = True
        self._found[key] = size, mask
        for _ in range(_TRIES):
            if len(self._found) <= MOST:
                break
            oldest = next(iter(self._found))
            kept = self._found.pop(oldest)
            if self._in_use(oldest):
                self._found[oldest] = kept

    def clear(self) -> None:
        self.has_any = False
        self._found.clear()
