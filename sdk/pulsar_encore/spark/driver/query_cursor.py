"""The durable subscription of a query, which follows the checkpoint.

The checkpoint decides which messages are read. The subscription only makes the brokers keep unread
messages and shows the true backlog. Its Exclusive consumer makes the brokers reject a second query,
and gets no permits. If an ack fails, the next ack covers it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Container, Mapping
from typing import Final

from ...client import Client, transport_of
from ...errors import (
    ConfigurationError,
    ConsumerBusy,
    EncoreError,
    NotAllowedError,
    TopicNotFound,
    TransportError,
)
from ...options import ConsumerType, InitialPosition, Subscription
from ...transport.interface import TransportConsumer
from ...values.message_id import MessageId
from ..admin import Admin
from ..offsets import EARLIEST, Position
from ..reader.range_fetch import FetchBuffer, ack_up_to
from ..source_options import ReadOptions

log: Final = logging.getLogger("pulsar_encore.spark")

_BUSY_TIMEOUT_S: Final = (
    20.0  # by then the brokers have closed the connection of a driver that was killed
)
_RETRY_DELAY_S: Final = 0.5
_ACK_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.2
# Shown by `pulsar-admin topics stats`, so that an operator can find the driver.
_CONSUMER_NAME: Final = f"spark-{socket.gethostname()}-{os.getpid()}"


class QueryCursors:
    """The subscription of one query on each of its topics. Used on the runtime's loop only."""

    def __init__(self, client: Client, options: ReadOptions, admin: Admin | None) -> None:
        self._admin = admin
        assert options.cursor.subscription is not None
        self._transport = transport_of(client)
        self._can_check_existence = (
            admin is not None or self._transport.capabilities.name == "native"
        )
        if not (self._can_check_existence or options.cursor.create):
            raise ConfigurationError(
                "subscriptionCreate=false needs admin.url with pulsar.client.transport=stock: "
                "only the web service tells which subscriptions there are"
            )
        self._options = options
        self._name: str = options.cursor.subscription
        self._consumers: dict[str, TransportConsumer] = {}
        self._buffers: dict[str, FetchBuffer] = {}  # they get no messages, but learn of errors
        self._acked: dict[str, Position] = {}
        self._preexisting: set[str] = set()
        # By topic, when the query attached.
        self._first_positions: dict[str, Position] = {}

    async def position(self, topic: str, begin: Position | None) -> Position | None:
        """Attach to the subscription of a topic and return the last acked message, if known.

        A new subscription begins at `begin`, or at the end of the topic for None.

        Raises:
            ConsumerBusy: if another query holds the subscription.
            ConfigurationError: if it does not exist and must not be created.
        """
        if topic not in self._consumers:
            self._consumers[topic] = await self._attach(topic, begin)
        acked = await self._consumers[topic].acked_position()
        if acked is None:
            return None
        found = _position_of(acked)
        self._first_positions.setdefault(topic, found)
        return found

    async def _attach(self, topic: str, begin: Position | None) -> TransportConsumer:
        subscription = Subscription(
            topics=(topic,),
            subscription_name=self._name,
            consumer_type=ConsumerType.Exclusive,
            receiver_queue_size=0,
            consumer_name=_CONSUMER_NAME,
            initial_position=InitialPosition.Latest if begin is None else InitialPosition.Earliest,
            force_topic_creation=False,
        )
        if await self._exists(topic):
            self._preexisting.add(topic)
        elif not self._options.cursor.create:
            raise ConfigurationError(
                f"{topic} has no subscription {self._name!r}: check the name, or set "
                "subscriptionCreate=true"
            )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _BUSY_TIMEOUT_S
        while True:
            try:
                consumer = await self._transport.subscribe(subscription)
                break
            # NotAllowedError: the broker has not yet removed the consumer of `_exists`.
            except (ConsumerBusy, NotAllowedError) as error:
                if loop.time() < deadline:
                    await asyncio.sleep(_RETRY_DELAY_S)
                    continue
                if isinstance(error, NotAllowedError):
                    raise
                raise ConsumerBusy(
                    f"the subscription {self._name!r} of {topic} is in use: "
                    f"{await self._describe_holder(topic)}; stop it, or name another subscription"
                ) from error
        self._buffers[topic] = buffer = FetchBuffer(loop)
        consumer.start(buffer)  # a queue of 0 requests no messages
        return consumer

    async def _describe_holder(self, topic: str) -> str:
        unknown_holder = (
            "another query or consumer holds it (`pulsar-admin topics stats` names it, and so does "
            "this error if admin.url is set)"
        )
        if self._admin is None:
            return unknown_holder
        try:
            held_by = await self._admin.holders(topic, self._name)
        except TransportError as error:
            return f"another query or consumer holds it (admin.url does not answer: {error})"
        return f"{' and '.join(held_by)} holds it" if held_by else unknown_holder

    async def _exists(self, topic: str) -> bool:
        """Return True if a topic has the subscription; False also if that cannot be told.

        Without a web service, try a non-durable subscription of the same name: the broker rejects
        it if a durable one exists.
        """
        if not self._can_check_existence:
            return False
        if self._admin is not None:
            return self._name in (await self._admin.ledgers(topic)).subscriptions
        request = Subscription(
            topics=(topic,),
            subscription_name=self._name,
            consumer_type=ConsumerType.Exclusive,
            receiver_queue_size=0,
            durable=False,
            # The earliest, because a consumer that subscribes while this one is removed may
            # inherit its position.
            start_message_id=MessageId.earliest,
            force_topic_creation=False,
        )
        try:
            consumer = await self._transport.subscribe(request)
        except (NotAllowedError, ConsumerBusy):
            return True
        await consumer.close()
        return False

    def existed_before(self, topic: str) -> bool | None:
        """True if an attached topic had the subscription before; None if that cannot be told."""
        return topic in self._preexisting if self._can_check_existence else None

    async def drop_failed(self) -> list[str]:
        """Drop subscriptions that cannot be attached again, and return their topics.

        The subscription or the topic was deleted. A new subscription keeps no old message.
        """
        failed = [topic for topic, buffer in self._buffers.items() if buffer.failed]
        for topic in failed:
            await self.forget(topic)
        return failed

    @property
    def attached(self) -> Container[str]:
        return self._consumers

    async def has_kept(self, topic: str, start: Position, first: int | None = None) -> bool:
        """Return True if the brokers have kept all messages after `start`.

        They have if the subscription is not ahead of `start`. A time-to-live or backlog quota that
        deletes unacked messages moves the subscription forward. The end of a ledger that was acked
        completely moves it to the beginning of the next ledger. An expiry while no query runs that
        ends at the beginning of a ledger looks the same and is not detected.

        Args:
            start: The last message that was read. Its ledger may be gone.
            first: The first stored ledger, if known.
        """
        acked = await self._acked_position(topic)
        if acked is None:
            return False
        position = _position_of(acked)
        if position.order <= start.order:
            return True
        # A subscription created ahead of the last message read has not kept the messages between.
        kept = topic in self._preexisting or self._first_positions[topic].order <= start.order
        is_first = first is None or position.ledger == first
        return kept and is_first and position.entry < 0

    async def _acked_position(self, topic: str) -> MessageId | None:
        """Return the acked position; None if unknown, such as while attaching again fails."""
        consumer, buffer = self._consumers.get(topic), self._buffers.get(topic)
        if consumer is None or buffer is None:
            return None
        request = asyncio.ensure_future(consumer.acked_position())
        try:
            while not request.done() and not buffer.failed:
                await asyncio.wait([request], timeout=_POLL_S)
            return request.result() if request.done() and not buffer.failed else None
        finally:
            request.cancel()

    async def commit(self, positions: Mapping[str, Position]) -> None:
        """Ack up to the positions in the checkpoint. Failures are logged."""
        await asyncio.gather(
            *(
                self._commit(topic, position)
                for topic, position in positions.items()
                if topic in self._consumers
                and position.order > self._acked.get(topic, EARLIEST).order
            )
        )

    async def _commit(self, topic: str, position: Position) -> None:
        if position.ledger < 0:
            return
        try:
            async with asyncio.timeout(_ACK_TIMEOUT_S):
                await ack_up_to(self._consumers[topic], position)
        except (TimeoutError, EncoreError) as error:
            timed_out = isinstance(error, TimeoutError)
            reason = f"no answer within {_ACK_TIMEOUT_S:g} s" if timed_out else error
            log.warning("%s: %s is not acked yet: %s", topic, position, reason)
        else:
            self._acked[topic] = position

    async def forget(self, topic: str) -> None:
        self._buffers.pop(topic, None)
        self._acked.pop(topic, None)
        self._first_positions.pop(topic, None)
        self._preexisting.discard(topic)
        consumer = self._consumers.pop(topic, None)
        if consumer is not None:
            await consumer.close()

    async def close(self, *, delete: bool) -> None:
        consumers, self._consumers = self._consumers, {}
        for topic, consumer in consumers.items():
            if delete:
                try:
                    await consumer.unsubscribe()
                except (TransportError, TopicNotFound) as error:
                    log.warning(
                        "%s: the subscription %s is not deleted: %s", topic, self._name, error
                    )
            await consumer.close()


def _position_of(acked: MessageId) -> Position:
    if acked.ledger_id() < 0:
        return EARLIEST
    return Position(acked.ledger_id(), acked.entry_id())
