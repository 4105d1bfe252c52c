"""Redeliveries that were no attempts: the broker counts them, nobody had looked at the message.

Owns `Unlooked`, one per source, for messages that are their entry: in a batch only our own looks
count. Every copy that came and was not handed out (given back while it was queued, a letter too
early, a second copy of what is here) is one redelivery too many in the broker's count. Kept until
the message is acked here, and bounded: the oldest is forgotten first, then the broker's count is
believed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from .entry import EntryKey

LIMIT: Final = 50_000  # the broker's unacked window


class Unlooked:
    """How many, by entry. About 250 bytes each."""

    def __init__(self) -> None:
        # Ordered: a plain dict walks over all that was forgotten to find its first.
        self._copies: OrderedDict[EntryKey, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._copies)

    def add(self, key: EntryKey) -> None:
        """One more copy of the entry came, and nobody looks at it."""
        self._copies[key] = self._copies.pop(key, 0) + 1
        if len(self._copies) > LIMIT:
            self._copies.popitem(last=False)

    def attempts(self, key: EntryKey, redelivery_count: int) -> int:
        """What the broker's count of a copy that came now leaves of attempts.

        A count below ours began anew (unload, last consumer gone): what was before is forgotten.
        """
        copies = self._copies.get(key, 0)
        if copies > redelivery_count:
            copies = redelivery_count
            if copies:
                self._copies[key] = copies
            else:
                del self._copies[key]
        return redelivery_count - copies

    def forget(self, key: EntryKey) -> None:
        """The entry is acked."""
        self._copies.pop(key, None)

    def clear(self) -> None:
        self._copies.clear()
