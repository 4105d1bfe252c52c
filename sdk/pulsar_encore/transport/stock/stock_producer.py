"""A producer over the C++ client.

With `block_if_queue_full` the C++ client would block the event loop, so messages over the limit
wait here, in order. With chunking it can refuse a message half-way and never returns the capacity
of its first chunks, so the limit, in chunks, is applied here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable
from functools import partial
from typing import Any, Final

import _pulsar

from ...errors import ClosedError, ConfigurationError, NotSupportedError, TransportError
from ...eventloop.close_once import CloseOnce
from ...eventloop.mailbox import Mailbox
from ...options import ProducerOptions
from ...values.message_id import MessageId
from ...values.outgoing_message import OutgoingMessage
from ..interface import TransportProducer
from .cpp_calls import CppCalls, in_thread
from .cpp_ids import StockMessageId, from_native
from .producer_config import RouterGuard, pending_limit
from .result_errors import NO_TRANSACTIONS, failure, raised

_CHUNK_BYTES: Final = 5 * 1024 * 1024  # the broker's default maxMessageSize


class StockProducer(TransportProducer):
    """One producer. It moves to the loop of each call."""

    def __init__(self, native: Any, options: ProducerOptions, router: RouterGuard | None) -> None:
        self._native = native
        self._topic: str = native.topic()
        self._router = router
        self._chunked = options.chunking_enabled
        self._waits_when_full = options.block_if_queue_full
        self._limit = pending_limit(options)
        self._mailbox = Mailbox(asyncio.get_running_loop())
        self._pending: dict[asyncio.Future[MessageId], int] = {}  # and its number of chunks
        self._pending_chunks = 0
        self._queued: deque[tuple[Any, int, asyncio.Future[MessageId]]] = deque()
        self._calls = CppCalls()
        self._closed = False
        self._close_once = CloseOnce(self._close)

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def producer_name(self) -> str:
        return str(self._native.producer_name())

    @property
    def last_sequence_id(self) -> int:
        return int(self._native.last_sequence_id())

    def is_connected(self) -> bool:
        return not self._closed and bool(self._native.is_connected())

    def publish(self, message: OutgoingMessage) -> Awaitable[MessageId]:
        if self._closed:
            raise ClosedError("the producer is closed: create another")
        if message.txn is not None:
            raise NotSupportedError(NO_TRANSACTIONS)
        self._mailbox.move(asyncio.get_running_loop())
        native = build(message)
        chunks = chunks_of(message) if self._chunked else 1
        future: asyncio.Future[MessageId] = self._mailbox.loop.create_future()
        if not self._queued and self._fits(chunks):
            self._send(native, chunks, future)
        elif self._waits_when_full:
            self._queued.append((native, chunks, future))
        else:
            full = _pulsar.Result.ProducerQueueIsFull
            future.set_exception(failure(full, f"send to {self._topic}"))
        return future

    def _fits(self, chunks: int) -> bool:
        """True if a message may be sent now. A larger one than the limit is sent alone."""
        if not self._limit or not self._pending:
            return True
        return self._pending_chunks + chunks <= self._limit

    def _send(self, native: Any, chunks: int, future: asyncio.Future[MessageId]) -> None:
        # Before the call: the C++ client may call back at once.
        self._pending[future] = chunks
        self._pending_chunks += chunks
        try:
            self._native.send_async(native, partial(self._mailbox.post, self._on_sent, future))
        except Exception as error:
            self._forget(future)
            future.set_exception(raised(error, "send"))
        if self._router is not None and self._router.failed is not None:
            refused, self._router.failed = self._router.failed, None
            self._forget(future)
            if not future.done():
                future.set_exception(refused)

    def _forget(self, future: asyncio.Future[MessageId]) -> None:
        self._pending_chunks -= self._pending.pop(future, 0)

    def _on_sent(self, future: asyncio.Future[MessageId], result: Any, native_id: Any) -> None:
        self._forget(future)
        if not (future.done() or future.get_loop().is_closed()):
            if result == _pulsar.Result.Ok:
                future.set_result(self._id_of(native_id))
            else:
                future.set_exception(failure(result, f"send to {self._topic}"))
        while self._queued and (self._queued[0][2].done() or self._fits(self._queued[0][1])):
            native, chunks, waiting = self._queued.popleft()
            if not waiting.done():  # its caller was not cancelled
                self._send(native, chunks, waiting)

    def _id_of(self, native_id: Any) -> MessageId:
        if self._chunked:
            return from_native(native_id, self._topic)
        partition = native_id.partition()
        topic = self._topic
        if partition >= 0 and not topic.endswith(f"-partition-{partition}"):
            topic = f"{topic}-partition-{partition}"
        return StockMessageId(
            partition,
            native_id.ledger_id(),
            native_id.entry_id(),
            native_id.batch_index(),
            topic=topic,
        )

    async def flush(self) -> None:
        if self._closed:
            raise ClosedError("the producer is closed: create another")
        self._mailbox.move(asyncio.get_running_loop())
        queued = [future for _, _, future in self._queued if not future.get_loop().is_closed()]
        # Not flush_async: it keeps the GIL, and a callback may wait for the GIL.
        await in_thread(self._native.flush, f"flush {self._topic}")
        if queued:
            await asyncio.wait(queued)

    async def close(self) -> None:
        await self._close_once()

    async def _close(self) -> None:
        self._mailbox.move(asyncio.get_running_loop())
        self._closed = True
        with contextlib.suppress(ClosedError, TransportError):
            await self._calls.run(self._native.close_async, "close the producer")
        self.abandon()

    def abandon(self) -> None:
        self._closed = True
        self._calls.abandon()
        queued = [future for _, _, future in self._queued]
        self._queued.clear()
        for future in (*self._pending, *queued):
            if not (future.done() or future.get_loop().is_closed()):
                future.set_exception(ClosedError("the producer was closed before the send ended"))


def chunks_of(message: OutgoingMessage) -> int:
    """Estimate a message's chunks, without compression and with the broker's default limit."""
    size = len(message.payload or b"")
    return max(1, -(-size // _CHUNK_BYTES))


def build(message: OutgoingMessage) -> Any:
    for name in ("partition_key", "ordering_key"):
        if isinstance(getattr(message, name), bytes):
            raise NotSupportedError(
                f"{name} is bytes, and the stock transport sends text keys only: give a str, such "
                "as the base64 of the bytes"
            )
    builder = _pulsar.MessageBuilder()
    try:
        if message.payload is None:
            builder.set_null_value()
        else:
            builder.content(message.payload)
        for key, value in (message.properties or {}).items():
            builder.property(key, value)
        if message.partition_key is not None:
            builder.partition_key(message.partition_key)
        if message.ordering_key is not None:
            builder.ordering_key(message.ordering_key)
        if message.sequence_id is not None:
            builder.sequence_id(message.sequence_id)
        if message.replication_clusters is not None:
            builder.replication_clusters(message.replication_clusters)
        if message.disable_replication:
            builder.disable_replication(True)
        if message.event_timestamp is not None:
            builder.event_timestamp(message.event_timestamp)
        if message.deliver_at is not None:
            builder.deliver_at(message.deliver_at)
    except TypeError as error:
        raise ConfigurationError(f"the message cannot be sent: {error}") from error
    return builder.build()
