"""The memory bound for decompressed payloads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class MemoryBudget:
    """Bytes of large decompressed payloads of all topics that were delivered and not yet taken.

    Args:
        most: The bound in bytes. A larger payload is admitted when no other is held.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.used: int = 0
        # Callbacks of refused `reserve` calls, oldest first, with the size that each needs.
        self._waiting: OrderedDict[Callable[[], None], int] = OrderedDict()

    def reserve(self, size: int, granted: Callable[[], None]) -> bool:
        """Reserve `size` bytes.

        Returns:
            False if the budget does not allow it now. `granted` is called once the bytes have been
            reserved.
        """
        if self._waiting or not self._admits(size):
            self._waiting[granted] = size
            return False
        self.used += size
        return True

    def release(self, size: int) -> None:
        """Release bytes, and reserve them for the callers that wait, oldest first."""
        self.used -= size
        while self._waiting:
            granted, needed = next(iter(self._waiting.items()))
            if not self._admits(needed):
                break
            del self._waiting[granted]
            self.used += needed
            granted()

    def cancel(self, granted: Callable[[], None]) -> None:
        """Withdraw a request that waits."""
        if self._waiting.pop(granted, None) is not None:
            self.release(0)  # the next request may need less

    def _admits(self, size: int) -> bool:
        return not self.used or self.used + size <= self._most
