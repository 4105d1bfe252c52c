"""Delays between attempts to connect again.

They double, and up to one half is taken off at random, so that clients that lost a broker together
do not return together. Java takes off a tenth, and nothing from the first delay, so a thousand
clients return at once (`docs/notes/wire-protocol.md#reconnect-backoff`).
"""

from __future__ import annotations

from random import Random
from typing import Final

#: Longest delay while a caller waits for the result, in s.
LONGEST_WAITED_FOR_S: Final = 2.0

_JITTER: Final = 0.5
# Longest delay if the connection is accepted each time, and lost soon.
_MAX_FLAPPING_S: Final = 3.0


class ReconnectBackoff:
    """The delays of one attachment or request. `first_s` is the first one without its random
    part."""

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
        """Note the loss of a connection that worked for a time in s.

        The delays start over only if that is longer than the next delay, so a connection that is
        lost at once is retried less and less often, but at least every few seconds.
        """
        if worked_s >= self._next_s:
            self._next_s = self._first_s
        else:
            self._next_s = min(self._next_s, _MAX_FLAPPING_S)

    def reset(self) -> None:
        self._next_s = self._first_s
