"""Delays between attempts to connect again. Pure: the random source is handed in.

Owns `ReconnectBackoff`: they double, and up to a half is taken off at random, so that what was lost
together does not come back together. Java takes off a tenth, and nothing of the first: a thousand
clients of a broker that went down would all be there again at once
(`docs/notes/wire-protocol.md#reconnect-backoff`).
"""

from __future__ import annotations

from random import Random
from typing import Final

#: In s, while somebody waits for it, and what was not there may be there by then.
LONGEST_WAITED_FOR_S: Final = 2.0

_JITTER: Final = 0.5
_MAX_FLAPPING_S: Final = 3.0  # the longest delay of what works each time, and not for long


class ReconnectBackoff:
    """The delays of one thing that is tried again and again.

    Args:
        first_s: The first, in s, before something is taken off.
        most_s: The longest, in s.
        rng: Spreads them.
    """

    def __init__(self, first_s: float, most_s: float, rng: Random) -> None:
        self._first_s = first_s
        self._max_s = most_s
        self._rng = rng
        self._next_s = first_s

    def next(self) -> float:
        """The delay before the next attempt, in s."""
        delay = self._next_s
        self._next_s = min(self._max_s, 2 * delay)
        return delay * (1 - _JITTER * self._rng.random())

    def worked(self, for_s: float) -> None:
        """It worked for so long, in s.

        Begun anew only when that is longer than the delay that would come now: what is lost again
        as soon as it works is tried less and less often, but every few seconds, because it works.
        """
        if for_s >= self._next_s:
            self._next_s = self._first_s
        else:
            self._next_s = min(self._next_s, _MAX_FLAPPING_S)

    def reset(self) -> None:
        """What was in the way is another thing now."""
        self._next_s = self._first_s
