"""Delays between attempts to connect again.

They double, and up to one half is taken off at random, so that clients that lost a broker together
do not return together. Java takes off a tenth, and nothing from the first delay: a thousand clients
of a broker that went down would all return at once
(`docs/notes/wire-protocol.md#reconnect-backoff`).
"""

from __future__ import annotations

from random import Random
from typing import Final

#: Longest delay while a caller waits for the result, in s.
LONGEST_WAITED_FOR_S: Final = 2.0

_JITTER: Final = 0.5
# Longest delay of a connection that is accepted each time, and lost soon.
_MAX_FLAPPING_S: Final = 3.0


class ReconnectBackoff:
    """The delays of one attachment or request.

    Args:
        first_s: The first delay, in s, before the random part is taken off.
        most_s: The longest delay, in s.
    """

    def __init__(self, first_s: float, most_s: float, rng: Random) -> None:
        self._first_s = first_s
        self._max_s = most_s
        self._rng = rng
        self._next_s = first_s

    def next(self) -> float:
        delay = self._next_s
        self._next_s = min(self._max_s, 2 * delay)
        return delay * (1 - _JITTER * self._rng.random())

    def on_loss(self, worked_s: float) -> None:
        """Note that a connection is lost that worked for a time in s.

        The delays start over only if that is longer than the next delay. A connection that is lost
        as soon as it works is retried less and less often, but at least every few seconds, because
        it works.
        """
        if worked_s >= self._next_s:
            self._next_s = self._first_s
        else:
            self._next_s = min(self._next_s, _MAX_FLAPPING_S)

    def reset(self) -> None:
        """Start over, because the obstacle is another one now."""
        self._next_s = self._first_s
