"""Reading a topic without a subscription; a read can be cancelled and loses nothing.

Owns `Reader`. What has been read needs no acknowledging.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from .backoff import to_ms
from .closing import CloseOnce
from .errors import ClosedError, ConfigurationError, ReceiveTimeout
from .ids import MessageId
from .loops import Place, get_ident
from .message import Message
from .options import ReaderOptions
from .options.checks import integer
from .transport.base import Delivery, ReaderLink
from .turn import Turn


class Reader:
    """Reads one topic from a chosen position; made by `Client.create_reader`.

    It belongs to the event loop it was made on: a call from another one raises `WrongLoopError`, in
    a forked child `ForkedError`.
    """

    def __init__(
        self,
        link: ReaderLink,
        options: ReaderOptions,
        *,
        on_closed: Callable[[Reader], None] | None = None,
    ) -> None:
        self._link = link
        self._schema = options.schema
        self._on_closed = on_closed
        self.place: Place = Place("reader")
        self._turn = Turn(self.place.loop)
        self._closed = False
        self._close_once = CloseOnce(self._close)

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
        self._check_open()
        if timeout is not None:
            if timeout_millis is not None:
                raise ConfigurationError("give timeout or timeout_millis, not both")
            timeout_millis = to_ms(timeout, "timeout")
        elif timeout_millis is not None:
            integer(timeout_millis, "timeout_millis", low=0, unit="ms")
        if self._turn.clock() >= self._turn.ends:
            await self._turn.end()
        delivery = await self._link.read_next(timeout_millis)
        if delivery is None:
            raise ReceiveTimeout(f"no message in {timeout_millis} ms on {self._link.topic}")
        return self._message(delivery)

    def _message(self, delivery: Delivery) -> Message:
        topic = self._link.topic_of(delivery.source)
        partition = _partition_of(topic)
        chunk = delivery.first_chunk
        message_id = MessageId(
            partition,
            delivery.ledger,
            delivery.entry,
            delivery.indexes[0] if delivery.batch_size else -1,
            batch_size=delivery.batch_size,
            topic=topic,
            first_chunk=None if chunk is None else MessageId(partition, *chunk, topic=topic),
        )
        return Message.of_reader(
            delivery.messages[0], self._schema, message_id, delivery.redelivery_count
        )

    async def has_message_available(self) -> bool:
        """Whether something can be read right now.

        Raises:
            ClosedError: The reader is or was closed.
            TransportError: The broker did not answer.
        """
        self._check_open()
        return await self._link.has_message_available()

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
        seeking = self.place.loop.create_task(self._link.seek(position))
        seeking.add_done_callback(_retrieve)
        await asyncio.shield(seeking)  # cancelled half-way it would meet the next one

    async def close(self) -> None:
        """Close the reader; reads under way fail with `ClosedError`. Again does nothing."""
        if not self.place.over:  # else there is nobody who waits, and it is closed from here
            self.place.check()
        await self._close_once()

    async def _close(self) -> None:
        self._closed = True
        try:
            await self._link.close()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Every call fails from now on; for the client, which was shut down."""
        self._closed = True
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
        if self.place.runner._thread_id != get_ident():
            self.place.check()
        if self._closed:
            raise ClosedError("the reader is closed: create another")


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _partition_of(topic: str) -> int:
    number: Any = topic.rpartition("-partition-")[2]
    return int(number) if "-partition-" in topic and number.isdecimal() else -1
