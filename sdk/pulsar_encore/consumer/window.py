"""The broker's unacked window: how full it is, and one warning before it stalls the consumer.

A broker stops delivering to a consumer with `maxUnackedMessagesPerConsumer` messages unacked,
without a word; what is nacked and waits counts like what is held (consumer-semantics notes 6.8,
wire notes 5.2).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from ..core.in_flight import InFlight
from ..transport.base import ConsumerLink

logger: logging.Logger = logging.getLogger(__name__)

_WARN_SHARE: Final = 0.8


class Window:
    """Counts what fills the window of one consumer, and warns once."""

    def __init__(self, link: ConsumerLink, homes: Mapping[int, InFlight], size: int) -> None:
        self._link = link
        self._homes = homes
        self.size = size
        self._warned = False

    @property
    def unacked(self) -> int:
        return sum(home.unacked for home in self._homes.values())

    @property
    def nacked(self) -> int:
        return sum(len(home.nacks) for home in self._homes.values())

    def watch(self) -> None:
        """Warn, the first time, when it is nearly full."""
        if self._warned or self.unacked < self.size * _WARN_SHARE:
            return
        self._warned = True
        logger.warning(
            "%s/%s: %d messages are unacked (held, queued, or nacked and waiting); at %d the "
            "broker stops delivering to this consumer. Ways out: shorter nack delays, fewer "
            "messages held at once, more consumers, or a larger maxUnackedMessagesPerConsumer at "
            "the broker (tell it here too, as max_unacked_messages).",
            self._link.topic,
            self._link.subscription_name,
            self.unacked,
            self.size,
        )
