"""One warning before the broker's unacked window stalls the consumer.

At `maxUnackedMessagesPerConsumer` unacked messages a broker silently stops delivering. Nacked
messages that wait for their redelivery count: `docs/notes/wire-protocol.md#flow-permits`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..transport.interface import TransportConsumer
from .topic_states import TopicStates

if TYPE_CHECKING:  # only a client with observers imports this module
    from ..observability.observations import WindowFilling

_WARN_SHARE: Final = 0.8
_CALM_SHARE: Final = 0.6  # observers are told again after the share was below


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
        filling: Callable[[WindowFilling], None] | None = None,
    ) -> None:
        self._logger = logger_of(__name__)
        self._transport_consumer = transport_consumer
        self._topic_states = topic_states
        self.size = size
        self._warned = False
        self._filling = filling
        self._is_armed = True

    def warn_if_nearly_full(self, arrived: int = 0) -> None:
        """Log a warning, once per consumer, and tell the observers each time.

        Args:
            arrived: Messages that have arrived since the last call.
        """
        if self._filling is not None:
            self._tell(self._filling, arrived)
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

    def _tell(self, filling: Callable[[WindowFilling], None], arrived: int) -> None:
        unacked = self._topic_states.unacked
        # Acks need no check of their own: the share before these arrivals shows what they did.
        if unacked - arrived < self.size * _CALM_SHARE:
            self._is_armed = True
        if not self._is_armed or unacked < self.size * _WARN_SHARE:
            return
        self._is_armed = False
        from ..observability.observations import WindowFilling  # lazy: only for observers

        filling(
            WindowFilling(
                topic=self._transport_consumer.topic,
                subscription=self._transport_consumer.subscription_name,
                unacked=unacked,
                size=self.size,
            )
        )
