"""When acks leave: grouped by time, by entries, and by messages; held while disconnected.

Owns `AckSender`. By messages, because a broker stops delivering at its unacked window: grouping by
time alone caps a consumer at one window per group time. What a source cannot send now stays where
it is, untouched, so an ack made while disconnected costs nothing and is sent after the reconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from ..core.ack_sets import Unsent
from ..core.in_flight import InFlight
from ..errors import TransportError
from ..options import ConsumerOptions
from ..timer import now_ms
from ..transport.base import AckPlan, ConsumerLink

# A flush is due when the messages acked and not sent reach this share of the broker's window.
_WINDOW_SHARE: Final = 10
_RETRY_S: Final = 0.2
# How long after a reconnect an entry may come again because its ack was lost with the connection.
_SUSPECT_S: Final = 30.0
ECHO_S: Final = 2.0  # a redelivery that an ack did not overtake arrives sooner than this


class AckSender:
    """Sends what the sources' `AckTracker`s collected.

    Args:
        link: Where acks go.
        homes: The sources, by number; shared with the consumer.
        options: Group time and size, and the broker's window.
        loop: The consumer's event loop.
    """

    def __init__(
        self,
        link: ConsumerLink,
        homes: Mapping[int, InFlight],
        options: ConsumerOptions,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._link = link
        self._homes = homes
        self._loop = loop
        self._group_s = options.ack_group_time_ms / 1000
        self._most_entries = options.ack_group_max_size
        self._most_messages = max(1, options.max_unacked_messages // _WINDOW_SHARE)
        self._unsent = 0
        self._refused: set[int] = set()  # sources that only the timer tries again
        self._timer: asyncio.TimerHandle | None = None
        self._trust_timer: asyncio.TimerHandle | None = None
        self._echo_timer: asyncio.TimerHandle | None = None

    def added(self, home: InFlight, messages: int) -> None:
        """An ack of `messages` more waits in `home`."""
        if not messages:
            return
        self._unsent += messages
        if (
            self._unsent >= self._most_messages
            or len(home.acks) >= self._most_entries
            or self._group_s == 0
        ) and home.source not in self._refused:
            self._flush_ready()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._group_s, self.flush)

    @property
    def unsent(self) -> int:
        """Entries whose ack waits to be sent."""
        return sum(len(home.acks) for home in self._homes.values())

    def flush(self) -> bool:
        """Send everything now; False when something was refused and waits for another try."""
        self._refused.clear()
        return self._flush_ready()

    def _flush_ready(self) -> bool:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unsent = 0
        for home in self._homes.values():
            if len(home.acks) and home.source not in self._refused and not self._flush(home):
                self._refused.add(home.source)
        self.watch_echoes()
        if self._refused:
            self._timer = self._loop.call_later(max(_RETRY_S, self._group_s), self.flush)
        return not self._refused

    def watch_echoes(self) -> None:
        """Forget in a while what may come again now."""
        if self._echo_timer is None:
            self._echo_timer = self._loop.call_later(ECHO_S, self._forget_echoes)

    def _flush(self, home: InFlight) -> bool:
        if not self._link.can_ack(home.source):
            return False
        unsent = home.acks.take(now_ms(self._loop))
        try:
            self._link.ack(_plan(home.source, unsent))
        except TransportError:
            home.acks.put_back(unsent)
            return False
        home.sent(unsent.parts)
        return True

    def disconnected(self, homes: Iterable[InFlight]) -> None:
        now = now_ms(self._loop)
        for home in homes:
            home.acks.disconnected(now)

    def doubtful(self, homes: Iterable[InFlight]) -> None:
        now = now_ms(self._loop)
        for home in homes:
            home.acks.doubtful(now)

    def connected(self, homes: Iterable[InFlight]) -> None:
        """Send again whatever may have been lost with the old connection."""
        for home in homes:
            home.reconnected()
        self.flush()
        self.watch_echoes()
        if self._trust_timer is not None:
            self._trust_timer.cancel()
        self._trust_timer = self._loop.call_later(_SUSPECT_S, self._trust)

    def _forget_echoes(self) -> None:
        self._echo_timer = None
        left = [home.acks.forget_echoes() for home in self._homes.values()]
        if any(left):
            self._echo_timer = self._loop.call_later(ECHO_S, self._forget_echoes)

    def _trust(self) -> None:
        for home in self._homes.values():
            home.acks.trust()

    def close(self) -> None:
        """Stop the timers; flush before if anything is to be sent."""
        for timer in (self._timer, self._trust_timer, self._echo_timer):
            if timer is not None:
                timer.cancel()


def _plan(source: int, unsent: Unsent) -> AckPlan:
    cumulative = None
    if unsent.cumulative is not None:
        key, size, mask = unsent.cumulative
        cumulative = (*key, size, mask)
    return AckPlan(
        source=source,
        cumulative=cumulative,
        entries=unsent.whole,
        partial=[(*entry.key, entry.size, entry.remaining()) for entry in unsent.parts],
    )
