"""One warning before the broker's unacked window stalls the consumer.

At `maxUnackedMessagesPerConsumer` unacked messages a broker silently stops delivering. Nacked
messages that wait for their redelivery count: `docs/notes/wire-protocol.md#flow-permits`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ..transport.interface import TransportConsumer
from .topic_states import TopicStates

_WARN_SHARE: Final = 0.8


class UnackedWindowMonitor:
    """Watches the unacked window of one consumer.

    Attributes:
        size: Unacked messages at which the broker stops delivering.
    """

    def __init__(
        self,
        transport_consumer: TransportConsumer,
        topic_states: TopicStates,
        size: int,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self._logger = logger_of(__name__)
        self._transport_consumer = transport_consumer
        self._topic_states = topic_states
        self.size = size
        self._warned = False

    def warn_if_nearly_full(self) -> None:
        """Log a warning, once per consumer."""
        if self._warned:
            return
        unacked = self._topic_states.unacked
        if unacked < self.size * _WARN_SHARE:
            return
        self._warned = True
        self._logger.warning(
            "%s/%s: %d messages are unacked (held, queued, or nacked and waiting); at %d the "
            "broker stops delivering to this consumer. Ways out: shorter nack delays, fewer "
            "messages held at once, more consumers, or a larger maxUnackedMessagesPerConsumer at "
            "the broker (tell it here too, as max_unacked_messages).",
            self._transport_consumer.topic,
            self._transport_consumer.subscription_name,
            unacked,
            self.size,
        )
