"""The public `Reader`, over a non-durable subscription: messages that are read need no ack."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Final, Generic, Self

from ..consumer.event_publisher import EventPublisher
from ..errors import ClosedError, ConfigurationError, ReceiveTimeout
from ..eventloop.affinity import LoopAffinity, end_all, get_ident
from ..eventloop.close_once import CloseOnce
from ..eventloop.fair_yield import FairYield
from ..eventloop.shielded_work import shielded
from ..message import Message
from ..options import ReaderOptions, Subscription
from ..options.checks import integer
from ..transport.interface import TransportConsumer
from ..values.backoff import to_ms
from ..values.message_id import MessageId
from ..values.topic_names import full_name
from ..values.type_variables import T_co
from .read_queue import Part, ReadQueue

_NAME_DIGITS: Final = 10  # as in the other clients


def subscription_of(options: ReaderOptions) -> Subscription:
    prefix = options.subscription_role_prefix
    name = f"reader-{uuid.uuid4().hex[:_NAME_DIGITS]}"
    return Subscription(
        topics=(options.topic,),
        subscription_name=f"{prefix}-{name}" if prefix else name,
        consumer_name=options.reader_name,
        schema=options.schema,
        receiver_queue_size=max(1, options.receiver_queue_size),  # 0 is accepted and means 1
        durable=False,
        start_message_id=options.start_message_id,
        start_message_id_inclusive=options.start_message_id_inclusive,
        read_compacted=options.is_read_compacted,
        crypto_key_reader=options.crypto_key_reader,
        crypto_failure_action=options.crypto_failure_action,
    )


class Reader(Generic[T_co]):
    """Reads one topic from a chosen position. `Client.create_reader` creates it.

    The type parameter is the type of the values, as of `Message`.

    A cancelled read loses no message. A reader belongs to the event loop that created it: a call
    from another loop raises `WrongLoopError`, a call in a forked child `ForkedError`.

    Example:
        ```python
        async with client.create_reader("orders", MessageId.earliest) as reader:
            while await reader.has_message_available():
                message = await reader.read_next()
        ```
    """

    def __init__(
        self,
        transport_consumer: TransportConsumer,
        options: ReaderOptions,
        *,
        on_closed: Callable[[Reader], None] | None = None,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self._transport_consumer = transport_consumer
        self._schema = options.schema
        self._on_closed = on_closed
        self.affinity: LoopAffinity = LoopAffinity("reader")
        self._fair_yield = FairYield(self.affinity.loop)
        self._event_publisher = EventPublisher(
            transport_consumer,
            options.event_listener,
            self.affinity.loop,
            "reader",
            named=(full_name(options.topic),),
            logger_of=logger_of,
        )
        self._queue = ReadQueue(transport_consumer, self._event_publisher)
        self._closed = False
        self._close_once = CloseOnce(self._close)
        transport_consumer.start(self._queue)

    def __repr__(self) -> str:
        state = "connected" if self.is_connected() else "not connected"
        return f"<Reader of {self.topic()}, {'closed' if self._closed else state}>"

    async def read_next(
        self, timeout_millis: int | None = None, *, timeout: float | timedelta | None = None
    ) -> Message[T_co]:
        """Return the next message.

        Args:
            timeout_millis: Longest wait, in ms; None waits without limit.
            timeout: Longest wait, in s or as a timedelta, as in `Consumer.receive`.

        Raises:
            ReceiveTimeout: if no message arrived in time. No message was taken.
            ClosedError: if the reader is closed.
            TransportError: if the broker refused the reader.
        """
        [message] = await self._read(self._queue.take_message, timeout_millis, timeout)
        return message

    async def read_entry(
        self, timeout_millis: int | None = None, *, timeout: float | timedelta | None = None
    ) -> list[Message[T_co]]:
        """Return the unread messages of the next entry, at least one.

        An entry is one message or a producer's batch. This is faster than `read_next` for each
        message. A batch is incomplete if the start position or `read_next` is inside it. The C++
        client delivers messages and not entries, so on the stock transport a batch may arrive in
        several parts.

        Args:
            timeout_millis: Longest wait, in ms; None waits without limit.
            timeout: Longest wait, in s or as a timedelta.

        Raises:
            ReceiveTimeout: if no message arrived in time. No message was taken.
            ClosedError: if the reader is closed.
            TransportError: if the broker refused the reader.
        """
        return await self._read(self._queue.take_delivery, timeout_millis, timeout)

    async def _read(
        self,
        take: Callable[[], Part],
        timeout_millis: int | None,
        timeout: float | timedelta | None,
    ) -> list[Message[T_co]]:
        self._check_open()
        if timeout is not None:
            if timeout_millis is not None:
                raise ConfigurationError("give timeout or timeout_millis, not both")
            timeout_millis = to_ms(timeout, "timeout")
        elif timeout_millis is not None:
            integer(timeout_millis, "timeout_millis", low=0, unit="ms")
        if self._fair_yield.clock() >= self._fair_yield.ends:
            await self._fair_yield.end()
        timeout_s = None if timeout_millis is None else timeout_millis / 1000
        part = await self._queue.get(take, timeout_s)
        if part is None:
            raise ReceiveTimeout(
                f"no message in {timeout_millis} ms on {self._transport_consumer.topic}"
            )
        return self._messages(part)

    def _messages(self, part: Part) -> list[Message[T_co]]:
        delivery, at, count = part
        topic, partition = self._transport_consumer.topic_of(delivery.topic_number)
        chunk = delivery.first_chunk
        id_class: type[MessageId] = getattr(delivery.messages[at], "id_class", MessageId)
        first = None if chunk is None else id_class(partition, *chunk, topic=topic)
        size = delivery.batch_size
        return [
            Message.of_reader(
                delivery.messages[index],
                self._schema,
                id_class(
                    partition,
                    delivery.ledger,
                    delivery.entry,
                    delivery.indexes[index] if size else -1,
                    batch_size=size,
                    topic=topic,
                    first_chunk=first,
                ),
                delivery.redelivery_count,
            )
            for index in range(at, at + count)
        ]

    async def has_message_available(self) -> bool:
        """Return True if a message can be read now.

        Raises:
            ClosedError: if the reader is closed.
            TransportError: if the broker did not answer.
        """
        self._check_open()
        # Messages that arrive during the request count as delivered at the broker, so the queue is
        # checked before and after it.
        return (
            bool(self._queue)
            or await self._transport_consumer.has_message_available()
            or bool(self._queue)
        )

    async def last_message_id(self) -> MessageId:
        """Return the id of the topic's last message, independent of the reader's position.

        Its ledger is -1 on an empty topic.

        Raises:
            NotSupportedError: on the stock transport, where readers cannot request it.
            ClosedError: if the reader is closed.
            TransportError: if the broker refused, or the topic is partitioned and has no single
                last message.
        """
        self._check_open()
        return await self._transport_consumer.last_message_id()

    async def seek(self, messageid: MessageId | int) -> None:
        """Continue from another position.

        Args:
            messageid: A message id (of this package or of `pulsar-client`), or a publish time in ms
                since the epoch. `start_message_id_inclusive` decides if the message of the id
                itself is read.

        Raises:
            ConfigurationError: if it is neither.
            ClosedError: if the reader is closed.
            TransportError: if the broker refused the seek.
        """
        self._check_open()
        if isinstance(messageid, int):
            position: MessageId | int = integer(messageid, "messageid", low=0, unit="ms")
        else:
            try:
                position = MessageId.wrap(messageid)
            except ConfigurationError as error:
                raise ConfigurationError(
                    "messageid must be a MessageId, or a publish time in ms since the epoch as an "
                    f"int, got {type(messageid).__name__}"
                ) from error
        seeking = self.affinity.loop.create_task(self._transport_consumer.seek(position))
        seeking.add_done_callback(_retrieve_exception)
        await shielded(seeking)  # a cancelled seek would collide with the next one

    async def close(self) -> None:
        """Close the reader; pending reads fail with `ClosedError`. A second call does nothing."""
        if not self.affinity.loop_is_closed:  # otherwise nothing waits: any loop may close it
            self.affinity.check()
        await self._close_once()

    async def _close(self) -> None:
        try:
            end_all(self.affinity.loop, lambda: self._end(ClosedError("the reader was closed")))
            await self._transport_consumer.close()
        finally:
            self._notify_closed()

    def abandon(self) -> None:
        """Mark the reader as closed, without a command to the broker (for `Client.shutdown`)."""
        shut_down = ClosedError("the client was shut down")
        end_all(self.affinity.loop, lambda: self._end(shut_down), self._notify_closed)

    def _end(self, error: Exception) -> None:
        self._closed = True
        self._event_publisher.close()
        self._queue.end(error)

    def _notify_closed(self) -> None:
        on_closed, self._on_closed = self._on_closed, None
        if on_closed is not None:
            on_closed(self)

    def topic(self) -> str:
        """Return the full name of the topic."""
        return self._transport_consumer.topic

    def is_connected(self) -> bool:
        """Return True if the reader is connected to the broker."""
        return not self._closed and self._transport_consumer.is_connected()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T_co]:
        """Return the next message. The iteration ends when the reader is closed."""
        try:
            return await self.read_next()
        except ClosedError:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self.affinity.thread != get_ident():
            self.affinity.check()
        if self._closed:
            raise ClosedError("the reader is closed: create another")


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
