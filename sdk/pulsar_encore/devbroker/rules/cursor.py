"""The acks of one subscription.

Invariants: every entry below `mark` is acked, `mark` itself is not. `_acked` has the acked entries
above `mark`. `_partial` has the masks (1 = unacked) of entries that are acked in part. `withheld`
has the masks of entries with pending acks of transactions (0 = the whole entry is pending).
"""

from __future__ import annotations


class Cursor:
    """The acked part of a log, by sequence number."""

    __slots__ = ("_acked", "_partial", "mark", "withheld")

    def __init__(self, mark: int) -> None:
        self.mark: int = mark
        self._acked: set[int] = set()
        self._partial: dict[int, int] = {}
        self.withheld: dict[int, int] = {}

    def is_acked(self, seq: int) -> bool:
        return seq < self.mark or seq in self._acked

    def is_settled(self, seq: int) -> bool:
        """True if an entry has nothing to deliver: every index is acked or pending."""
        if seq < self.mark or seq in self._acked:
            return True
        return seq in self.withheld and not self.remaining(seq)

    def partial(self, seq: int) -> int | None:
        """Return the mask of a partly acked entry, or None."""
        return self._partial.get(seq)

    def remaining(self, seq: int) -> int | None:
        """Return the mask of an entry that is acked or pending in part, or None."""
        mask = self._partial.get(seq) if self._partial else None
        if not self.withheld:
            return mask
        pending = self.withheld.get(seq)
        if mask is None or pending is None:
            return pending if mask is None else mask
        return mask & pending

    @property
    def has_partial(self) -> bool:
        """True if any entry is acked or pending in part. Saves most lookups."""
        return bool(self._partial or self.withheld)

    def ack(self, seq: int) -> bool:
        """Ack a whole entry; return False if it was acked before."""
        if seq < self.mark or seq in self._acked:
            return False
        if self._partial:
            self._partial.pop(seq, None)
        if self.withheld:
            self.withheld.pop(seq, None)
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
        """AND a mask (1 = unacked) into an entry of `size` indexes.

        Returns:
            The unacked bits; None if the entry was acked before.
        """
        if self.is_acked(seq):
            return None
        full = (1 << size) - 1
        left = self._partial.get(seq, full) & mask
        if not left:
            self.ack(seq)
        elif left != full:
            self._partial[seq] = left
            if seq in self.withheld:
                self.withheld[seq] &= mask
        return left

    def forget_partial_of(self, seq: int) -> None:
        self._partial.pop(seq, None)

    def ack_below(self, seq: int) -> None:
        """Ack every entry before `seq`."""
        if seq <= self.mark:
            return
        self.mark = seq
        self._acked = {at for at in self._acked if at >= seq}
        self._partial = {at: mask for at, mask in self._partial.items() if at >= seq}
        self._close_holes()

    def reset(self, seq: int) -> None:
        self.mark = seq
        self._acked.clear()
        self._partial.clear()

    def forget_partial(self) -> None:
        """Drop all partial acks, as at an unload (consumer-semantics.md 6.8)."""
        self._partial.clear()

    def backlog(self, end: int) -> int:
        return end - self.mark - len(self._acked)
