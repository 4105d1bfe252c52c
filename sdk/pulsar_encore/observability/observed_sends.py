"""A transport's producer whose sends are reported to observers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from functools import partial

from ..errors import ConfigurationError
from ..options.checks import string_map
from ..transport.interface import TransportProducer
from ..values.message_id import MessageId
from ..values.outgoing_message import OutgoingMessage
from .observations import Sending
from .observer_list import ObserverList


class ObservedTransportProducer(TransportProducer):
    """Reports each message to `Observer.sending` and `Observer.sent`.

    The producers of letters use the transport's producers directly, so letters are not reported.
    """

    def __init__(
        self, inner: TransportProducer, observers: ObserverList, logger: logging.Logger
    ) -> None:
        self._logger = logger
        self._inner = inner
        self._sending = observers.sending
        self._observe_sent = observers.sent

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def producer_name(self) -> str:
        return self._inner.producer_name

    @property
    def last_sequence_id(self) -> int:
        return self._inner.last_sequence_id

    def is_connected(self) -> bool:
        return self._inner.is_connected()

    def check(self, message: OutgoingMessage) -> None:
        self._inner.check(message)

    def publish(self, message: OutgoingMessage) -> Awaitable[MessageId]:
        # `Producer` has copied the caller's dict, so observers may change this one.
        sending = Sending(
            self._inner.topic,
            message.properties or {},
            0 if message.payload is None else len(message.payload),
            message.partition_key,
        )
        if self._sending is not None:
            given = dict(sending.properties)
            self._sending(sending)
            message.properties = self._checked(sending, given) or None
        if self._observe_sent is None:
            return self._inner.publish(message)
        try:
            stored = asyncio.ensure_future(self._inner.publish(message))
        except BaseException as error:
            self._observe_sent(sending, error)
            raise
        # A callback is called in any case. The code of a cancelled task may never begin.
        stored.add_done_callback(partial(self._sent, sending))
        return stored

    def _checked(self, sending: Sending, given: dict[str, str]) -> dict[str, str]:
        """Return the properties to send: those `given` if an observer has made them invalid."""
        try:
            return string_map(sending.properties, "properties")
        except ConfigurationError as error:
            self._logger.error("an observer has changed the properties of a message: %s", error)
            sending.properties = given
            return given

    def _sent(self, sending: Sending, stored: asyncio.Future[MessageId]) -> None:
        error: BaseException | None
        if stored.cancelled():
            error = asyncio.CancelledError("the send was cancelled; the message may be stored")
        else:
            error = stored.exception()
        if error is None:
            sending.message_id = stored.result()
        if self._observe_sent is not None:
            self._observe_sent(sending, error)

    async def flush(self) -> None:
        await self._inner.flush()

    async def close(self) -> None:
        await self._inner.close()
