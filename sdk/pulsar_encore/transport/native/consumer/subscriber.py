"""Subscribes one topic at a broker, for one attachment after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from ....errors import (
    BrokerMetadataError,
    ClosedError,
    NotAllowedError,
    NotConnected,
    PulsarException,
    TopicNotFound,
    TransportTimeout,
    UnknownError,
)
from ....values.message_id import MessageId
from ....wire import pb
from ..connection.handlers import ConsumerHandler
from ..connection.session import Session
from .broker_consumer import BrokerConsumer
from .position_queries import PositionQueries
from .read_position import ReadPosition
from .subscribe_commands import SubscribeCommands

# Errors by which brokers refuse a topic that was deleted or has another number of partitions.
_PERHAPS_MISSING: Final = (TopicNotFound, NotAllowedError, BrokerMetadataError, UnknownError)


class Subscriber:
    """Sends SUBSCRIBE for one topic.

    Args:
        position: None for a durable subscription.
        on_missing: Called when the broker does not know, or refuses, a topic that was attached
            before.

    Attributes:
        missing_s: Loop time at which a broker first reported the topic missing since the last
            attachment; None if none did.
        may_create: The next attempts to attach may create the topic.
        early_notices: Notices that were read together with the answer to SUBSCRIBE.
    """

    def __init__(
        self,
        broker: BrokerConsumer,
        handler: ConsumerHandler,
        commands: SubscribeCommands,
        queries: PositionQueries,
        position: ReadPosition | None,
        ids: Iterator[int],
        epoch: Callable[[], int],
        moved_to_new_cluster: Callable[[], bool],
        on_missing: Callable[[], None],
        *,
        is_new: bool,
        creates: bool,
    ) -> None:
        self.missing_s: float | None = None
        self.may_create: bool = creates and commands.creates
        self.early_notices: list[Callable[[], None]] = []
        self._broker = broker
        self._topic = broker.topic
        # A non-persistent topic exists only while it is used, so it may be created again.
        self._stored = not broker.topic.startswith("non-persistent://")
        self._handler = handler
        self._commands = commands
        self._queries = queries
        self._position = position
        self._ids = ids
        self._epoch = epoch
        self._moved_to_new_cluster = moved_to_new_cluster
        self._on_missing = on_missing
        self._is_new = is_new
        self._was_attached = False

    async def subscribe(self, session: Session) -> tuple[int, int]:
        """Subscribe on a session.

        Returns:
            The consumer id, and the consumer epoch in SUBSCRIBE.

        Raises:
            PulsarException: if the broker refused. Then neither side keeps anything.
        """
        position = self._position
        if position is not None and position.starts_at_last:
            position.begin_at(await self._find_last(session))
        if position is not None and position.sought_time_ms is not None:
            await self._seek_again(session, position.sought_time_ms)
        consumer_id = next(self._ids)
        session.attach_consumer(consumer_id, self._handler)
        self.early_notices.clear()
        epoch = self._epoch()
        try:
            await self._ask(session, consumer_id, partial(self._command, consumer_id))
        except _PERHAPS_MISSING as error:
            self._note_missing(error)
            raise
        if self._broker.is_ended:
            self.abandon(session, consumer_id)
            raise ClosedError("the consumer was closed")
        if not session.holds_consumer(consumer_id):
            # CLOSE_CONSUMER, or the end of the connection, was read together with the answer.
            raise NotConnected(f"{self._topic}: it was closed as soon as it was attached")
        self._was_attached, self._is_new, self.missing_s = True, False, None
        self.may_create = self._commands.creates and not self._stored
        return consumer_id, epoch

    def abandon(self, session: Session, consumer_id: int) -> None:
        """Close a consumer at the broker without waiting for the answer."""
        session.detach_consumer(consumer_id)
        if not session.closed:
            request_id = session.requests.new_id()
            session.send(pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id))

    def _note_missing(self, error: PulsarException) -> None:
        """Note that the broker does not know the topic, or refuses it under this name."""
        if self._was_attached:
            if isinstance(error, TopicNotFound) and self.missing_s is None:
                self.missing_s = self._broker.loop.time()
                self._is_new = True
            self._on_missing()

    async def _ask(
        self, session: Session, consumer_id: int, make: Callable[[int], pb.CommandSubscribe]
    ) -> None:
        """Send SUBSCRIBE. If it fails, neither side keeps the consumer."""
        doing = f"subscribe {self._commands.name!r} to {self._topic}"
        try:
            await session.request(make, doing, self._broker.timeout_s)
        except NotConnected:
            raise
        except (asyncio.CancelledError, TransportTimeout):
            # The broker may still make the consumer and send messages to it.
            self.abandon(session, consumer_id)
            raise
        except PulsarException:
            session.detach_consumer(consumer_id)
            raise

    def _command(self, consumer_id: int, request_id: int) -> pb.CommandSubscribe:
        return self._commands.command(
            self._topic,
            consumer_id,
            request_id,
            self._epoch(),
            None if self._position is None else self._position.start,
            creates=self.may_create or (self._commands.creates and self._moved_to_new_cluster()),
            from_start=self._is_new,
        )

    async def _seek_again(self, session: Session, publish_time_ms: int) -> None:
        """Seek a reader to a time again, because no message arrived since the first seek.

        The broker dropped the reader's subscription, and its position, with the connection. It
        keeps the subscription of this method while the seek closes the consumer, and the next
        SUBSCRIBE continues at its position.
        """
        consumer_id = next(self._ids)
        session.attach_consumer(consumer_id, self._handler)
        await self._ask(session, consumer_id, partial(self._command, consumer_id))
        try:
            await session.request(
                lambda request_id: pb.CommandSeek(
                    consumer_id=consumer_id,
                    request_id=request_id,
                    message_publish_time=publish_time_ms,
                ),
                f"seek on {self._topic}",
                self._broker.timeout_s,
            )
        except BaseException:
            self.abandon(session, consumer_id)
            raise

    async def _find_last(self, session: Session) -> MessageId:
        """Return the last message id now, or the beginning of an empty topic.

        Only a consumer can ask. With the reader's subscription name, the reader might continue at
        the position of this consumer.
        """
        consumer_id = next(self._ids)
        await self._ask(
            session,
            consumer_id,
            lambda request_id: self._commands.probe(
                self._topic, consumer_id, request_id, creates=self.may_create
            ),
        )
        try:
            last = await self._queries.last_id_by(session, consumer_id)
        finally:
            self.abandon(session, consumer_id)
        return MessageId.earliest if last.entry_id() < 0 else last
