"""What one subscription has acknowledged: a low-water mark, holes above it, and parts of batches.

Invariants: everything below `mark` is acked, `mark` itself is not; `_acked` holds only places above
`mark`; `_partial` holds masks (1 = still to be delivered) of entries that are neither wholly
acked nor untouched. Knows nothing of consumers, permits or redelivery.
"""

from __future__ import annotations


class Cursor:
    """The acknowledged part of a log, by sequence number.

    Args:
        mark: First place that is not acked.
    """

    __slots__ = ("_acked", "_partial", "mark")

    def __init__(self, mark: int) -> None:
        self.mark: int = mark
        self._acked: set[int] = set()
        self._partial: dict[int, int] = {}

    def is_acked(self, seq: int) -> bool:
        """Whether the whole entry is acked."""
        return seq < self.mark or seq in self._acked

    def remaining(self, seq: int) -> int | None:
        """The mask of a partly acked entry; None when none of it is acked."""
        return self._partial.get(seq) if self._partial else None

    @property
    def has_partial(self) -> bool:
        """Whether any entry is partly acked (saves the look-up for most subscriptions)."""
        return bool(self._partial)

    def ack(self, seq: int) -> bool:
        """Ack a whole entry; False when it was acked before."""
        if seq < self.mark or seq in self._acked:
            return False
        if self._partial:
            self._partial.pop(seq, None)
        if seq == self.mark:
            self.mark = seq + 1
            self._close_holes()
        else:
            self._acked.add(seq)
        return True

    def _close_holes(self) -> None:
        acked = self._acked
        while acked and self.mark in acked:
            acked.discard(self.mark)
            self.mark += 1

    def ack_indexes(self, seq: int, size: int, mask: int) -> int | None:
        """AND a mask (1 = still unacked) into an entry of `size` indexes.

        Returns:
            The bits left, 0 once the entry is wholly acked; None when it was wholly acked before.
        """
        if self.is_acked(seq):
            return None
        full = (1 << size) - 1
        left = self._partial.get(seq, full) & mask
        if not left:
            self.ack(seq)
        elif left != full:
            self._partial[seq] = left
        return left

    def forget_partial_of(self, seq: int) -> None:
        """Nothing single is acked of an entry any more, unless all of it is."""
        self._partial.pop(seq, None)

    def ack_below(self, seq: int) -> None:
        """Ack everything before a place; never moves back."""
        if seq <= self.mark:
            return
        self.mark = seq
        self._acked = {at for at in self._acked if at >= seq}
        self._partial = {at: mask for at, mask in self._partial.items() if at >= seq}
        self._close_holes()

    def reset(self, seq: int) -> None:
        """Seek: forget everything and start at a place."""
        self.mark = seq
        self._acked.clear()
        self._partial.clear()

    def forget_partial(self) -> None:
        """What a topic unload does: partial acks are not read back (consumer-semantics.md 6.8)."""
        self._partial.clear()

    def backlog(self, end: int) -> int:
        """Entries before `end` that are not wholly acked."""
        return end - self.mark - len(self._acked)
