"""Reading a topic from any position; a read can be cancelled and loses nothing.

Owns `Reader`, over a subscription that is not durable: what has been read needs no acknowledging.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

from ..consumer.event_publisher import EventPublisher
from ..errors import ClosedError, ConfigurationError, ReceiveTimeout
from ..eventloop.affinity import LoopAffinity, end_all, get_ident
from ..eventloop.close_once import CloseOnce
from ..eventloop.fair_yield import FairYield
from ..message import Message
from ..options import ReaderOptions, Subscription
from ..options.checks import integer
from ..transport.interface import TransportConsumer
from ..values.backoff import to_ms
from ..values.message_id import MessageId
from ..values.topic_names import full_name
from .read_queue import Part, ReadQueue

_NAME_DIGITS: Final = 10  # as many as every client's


def subscription_of(options: ReaderOptions) -> Subscription:
    """What an engine is told of a reader's options."""
    prefix = options.subscription_role_prefix
    name = f"reader-{uuid.uuid4().hex[:_NAME_DIGITS]}"
    return Subscription(
        topics=(options.topic,),
        subscription_name=f"{prefix}-{name}" if prefix else name,
        consumer_name=options.reader_name,
        schema=options.schema,
        receiver_queue_size=max(1, options.receiver_queue_size),  # 0 has always meant 1
        durable=False,
        start_message_id=options.start_message_id,
        start_message_id_inclusive=options.start_message_id_inclusive,
        read_compacted=options.is_read_compacted,
        crypto_key_reader=options.crypto_key_reader,
        crypto_failure_action=options.crypto_failure_action,
    )


class Reader:
    """Reads one topic from a chosen position; made by `Client.create_reader`.

    It belongs to the event loop it was made on: a call from another one raises `WrongLoopError`, in
    a forked child `ForkedError`.
    """

    def __init__(
        self,
        link: TransportConsumer,
        options: ReaderOptions,
        *,
        on_closed: Callable[[Reader], None] | None = None,
    ) -> None:
        self._link = link
        self._schema = options.schema
        self._on_closed = on_closed
        self.affinity: LoopAffinity = LoopAffinity("reader")
        self._fair_yield = FairYield(self.affinity.loop)
        self._event_publisher = EventPublisher(
            link,
            options.event_listener,
            self.affinity.loop,
            "reader",
            named=(full_name(options.topic),),
        )
        self._queue = ReadQueue(link, self._event_publisher)
        self._closed = False
        self._close_once = CloseOnce(self._close)
        link.start(self._queue)

    def __repr__(self) -> str:
        state = "connected" if self.is_connected() else "not connected"
        return f"<Reader of {self.topic()}, {'closed' if self._closed else state}>"

    async def read_next(
        self, timeout_millis: int | None = None, *, timeout: float | timedelta | None = None
    ) -> Message:
        """The next message.

        Args:
            timeout_millis: Longest wait in ms; None waits as long as it takes.
            timeout: Longest wait in seconds or as a timedelta, as `Consumer.receive` has it.

        Raises:
            ReceiveTimeout: Nothing came in time; no message was taken.
            ClosedError: The reader is or was closed.
            TransportError: The broker refused.
        """
        [message] = await self._read(self._queue.take_message, timeout_millis, timeout)
        return message

    async def read_entry(
        self, timeout_millis: int | None = None, *, timeout: float | timedelta | None = None
    ) -> list[Message]:
        """The messages of the next entry that were not read yet, one at least: for whoever reads
        much.

        That is a producer's batch, or what is left of it behind a start position or `read_next`.
        The stock engine hands out messages, and not entries: with it a batch may come in parts.

        Args:
            timeout_millis: Longest wait in ms; None waits as long as it takes.
            timeout: Longest wait in seconds or as a timedelta.

        Raises:
            ReceiveTimeout: Nothing came in time; no message was taken.
            ClosedError: The reader is or was closed.
            TransportError: The broker refused.
        """
        return await self._read(self._queue.take_delivery, timeout_millis, timeout)

    async def _read(
        self,
        take: Callable[[], Part],
        timeout_millis: int | None,
        timeout: float | timedelta | None,
    ) -> list[Message]:
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
            raise ReceiveTimeout(f"no message in {timeout_millis} ms on {self._link.topic}")
        return self._messages(part)

    def _messages(self, part: Part) -> list[Message]:
        delivery, at, count = part
        topic, partition = self._link.topic_of(delivery.source)
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
        """Whether something can be read right now.

        Raises:
            ClosedError: The reader is or was closed.
            TransportError: The broker did not answer.
        """
        self._check_open()
        # What came while the broker was asked counts for it as delivered, and lies here.
        return bool(self._queue) or await self._link.has_message_available() or bool(self._queue)

    async def last_message_id(self) -> MessageId:
        """Id of the topic's last message, wherever the reader is; ledger -1 on an empty topic.

        Raises:
            NotSupportedError: On the stock transport, whose readers cannot ask.
            ClosedError: The reader is or was closed.
            TransportError: The broker refused; a topic with partitions has no one last message.
        """
        self._check_open()
        return await self._link.last_message_id()

    async def seek(self, messageid: MessageId | int) -> None:
        """Go on from another position.

        Args:
            messageid: A message id (this package's or the stock client's), or a publish time in
                ms since the epoch. Whether the message of the id itself is read follows
                `start_message_id_inclusive`.

        Raises:
            ConfigurationError: It is neither.
            ClosedError: The reader is or was closed.
            TransportError: The broker refused.
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
        seeking = self.affinity.loop.create_task(self._link.seek(position))
        seeking.add_done_callback(_retrieve_exception)
        await asyncio.shield(seeking)  # cancelled half-way it would meet the next one

    async def close(self) -> None:
        """Close the reader; reads under way fail with `ClosedError`. Again does nothing."""
        if not self.affinity.over:  # else there is nobody who waits, and it is closed from here
            self.affinity.check()
        await self._close_once()

    async def _close(self) -> None:
        try:
            end_all(self.affinity.loop, lambda: self._end(ClosedError("the reader was closed")))
            await self._link.close()
        finally:
            self._notify_closed()

    def abandon(self) -> None:
        """Every call fails from now on; for the client, which was shut down."""
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
        """Full name of the topic."""
        return self._link.topic

    def is_connected(self) -> bool:
        """True while the broker holds the reader."""
        return not self._closed and self._link.is_connected()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message; ends when the reader is closed."""
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
