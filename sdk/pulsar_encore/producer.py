"""Publishing: arguments checked by name, content encoded by the schema, sent in call order.

Owns `Producer`. Nothing is handed to the transport before every argument is known to be right.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from .consumer.event_publisher import ProducerEventPublisher
from .errors import ClosedError, ConfigurationError, PulsarException, Result
from .eventloop.affinity import LoopAffinity, get_ident, running_loop
from .eventloop.close_once import CloseOnce
from .options import ProducerOptions
from .options.checks import boolean, integer, string_map
from .transport.interface import TransportProducer
from .values.message_id import MessageId
from .values.outgoing_message import OutgoingMessage

logger: logging.Logger = logging.getLogger(__name__)

_MAX_MS: Final = 2**63 - 1


class ContentError(ConfigurationError, TypeError):
    """The content does not fit the producer's schema (also a TypeError, as in stock)."""


class Producer:
    """Publishes to one topic; made by `Client.create_producer`.

    It belongs to the event loop it was made on, and to the next that uses it once that is closed: a
    call from another one beside it raises `WrongLoopError`, in a forked child `ForkedError`.
    """

    def __init__(
        self,
        link: TransportProducer,
        options: ProducerOptions,
        *,
        on_closed: Callable[[Producer], None] | None = None,
        event_publisher: ProducerEventPublisher | None = None,
    ) -> None:
        self._link = link
        self._event_publisher = event_publisher
        self._schema = options.schema
        self._on_closed = on_closed
        self.affinity: LoopAffinity = LoopAffinity("producer")
        self._pending_sends: set[asyncio.Future[MessageId]] = set()
        self._closed = False
        self._close_once = CloseOnce(self._close)
        if event_publisher is not None:
            event_publisher.events.start()

    def __repr__(self) -> str:
        state = "connected" if self.is_connected() else "not connected"
        return f"<Producer of {self.topic()}, {'closed' if self._closed else state}>"

    async def send(
        self,
        content: Any,
        properties: dict[str, str] | None = None,
        partition_key: str | bytes | None = None,
        ordering_key: str | bytes | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> MessageId:
        """Send a message and wait until the broker has stored it.

        Several sends may be under way at once; they are stored in the order of the calls. When
        cancelled, the message may or may not be stored.

        Args:
            content: What the schema encodes, bytes without a schema; None publishes a tombstone.
            properties: Application properties, strings to strings.
            partition_key: Chooses the partition, and is the key for KeyShared and compaction; bytes
                where the transport has binary keys.
            ordering_key: Overrides `partition_key` for KeyShared; bytes likewise.
            sequence_id: Own sequence id instead of the producer's.
            replication_clusters: Clusters to replicate to, instead of the namespace's.
            disable_replication: Do not replicate this message.
            event_timestamp: The application's own time, ms since the epoch.
            deliver_at: Not to be delivered (Shared, KeyShared) before, ms since the epoch.
            deliver_after: The same, from now.

        Raises:
            ConfigurationError: An argument is wrong; nothing was sent.
            NotSupportedError: A key of bytes, on the stock transport; nothing was sent.
            ClosedError: The producer is or was closed.
            TransportError: The broker refused, or did not answer in `send_timeout_millis`.
        """
        self._check_open()
        return await self._link.publish(
            self._outgoing(
                content,
                properties,
                partition_key,
                ordering_key,
                sequence_id,
                replication_clusters,
                disable_replication,
                event_timestamp,
                deliver_at,
                deliver_after,
            )
        )

    def send_async(
        self,
        content: Any,
        callback: Callable[[Any, MessageId | None], Any] | None,
        properties: dict[str, str] | None = None,
        partition_key: str | bytes | None = None,
        ordering_key: str | bytes | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> None:
        """Send a message without waiting for it, as the synchronous stock client has it.

        Args:
            content: This and the others as for `send`.
            callback: Called on the event loop as ``callback(result, message_id)``: a `Result`,
                `Result.Ok` when it is stored, and its id, None when it is not. Not called any more
                once that loop is closed.

        Raises:
            ConfigurationError: An argument is wrong; nothing was sent.
            ClosedError: The producer is or was closed.
        """
        self._check_open()
        stored = self._link.publish(
            self._outgoing(
                content,
                properties,
                partition_key,
                ordering_key,
                sequence_id,
                replication_clusters,
                disable_replication,
                event_timestamp,
                deliver_at,
                deliver_after,
            )
        )
        sending = asyncio.ensure_future(stored)
        self._pending_sends.add(sending)
        sending.add_done_callback(partial(self._complete_send, callback))

    def _complete_send(
        self, callback: Callable[..., Any] | None, sending: asyncio.Future[MessageId]
    ) -> None:
        self._pending_sends.discard(sending)
        if sending.cancelled():
            return  # the loop is being closed, and nobody is there to be told
        error = sending.exception()
        if callback is None:
            if error is not None:
                logger.warning("send_async to %s failed: %s", self.topic(), error)
        elif error is None:
            callback(Result.Ok, sending.result())
        elif isinstance(error, PulsarException):
            callback(error.error(), None)
        else:
            callback(Result.UnknownError, None)

    def _outgoing(
        self,
        content: Any,
        properties: dict[str, str] | None,
        partition_key: str | bytes | None,
        ordering_key: str | bytes | None,
        sequence_id: int | None,
        replication_clusters: list[str] | None,
        disable_replication: bool | None,
        event_timestamp: int | None,
        deliver_at: int | None,
        deliver_after: timedelta | None,
    ) -> OutgoingMessage:
        return OutgoingMessage(
            payload=self._encode(content),
            properties=string_map(properties, "properties") or None,
            partition_key=_checked_key(partition_key, "partition_key"),
            ordering_key=_checked_key(ordering_key, "ordering_key"),
            sequence_id=_optional_integer(sequence_id, "sequence_id"),
            replication_clusters=_checked_clusters(replication_clusters),
            disable_replication=disable_replication is not None
            and boolean(disable_replication, "disable_replication"),
            event_timestamp=_optional_integer(event_timestamp, "event_timestamp"),
            deliver_at=_deliver_at_ms(deliver_at, deliver_after),
        )

    def _encode(self, content: Any) -> bytes | None:
        if content is None:
            return None
        if self._schema is None:
            if isinstance(content, bytes):
                return content
            raise ContentError(
                f"content must be bytes, got {type(content).__name__}: encode it, or create the "
                "producer with a schema such as schema.StringSchema()"
            )
        try:
            data = self._schema.encode(content)
        except Exception as error:
            raise ContentError(f"content does not fit {self._schema}: {error}") from error
        if not isinstance(data, bytes):
            raise ContentError(f"{self._schema} must encode to bytes, gave {type(data).__name__}")
        return data

    async def flush(self) -> None:
        """Send what is being batched now, and wait until all of it is stored; by then the callbacks
        of `send_async` were called.

        Raises:
            ClosedError: The producer is closed.
            TransportError: Something could not be stored.
        """
        self._check_open()
        sending = list(self._pending_sends)
        await self._link.flush()
        if sending:
            await asyncio.wait(sending)

    async def close(self) -> None:
        """Close the producer; sends under way fail with `ClosedError`. Again does nothing."""
        self._bind_to_running_loop()
        await self._close_once()

    async def _close(self) -> None:
        self._end()
        try:
            await self._link.close()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Every call fails from now on; for the client, which was shut down."""
        self._end()
        on_closed, self._on_closed = self._on_closed, None
        if on_closed is not None:
            on_closed(self)

    def _end(self) -> None:
        self._closed = True
        if self._event_publisher is not None:
            self._event_publisher.events.close()

    def topic(self) -> str:
        """Full name of the topic it publishes to."""
        return self._link.topic

    def producer_name(self) -> str:
        """The name given, or the one the broker chose."""
        return self._link.producer_name

    def last_sequence_id(self) -> int:
        """Sequence id of the last message stored, also by an earlier producer of this name; -1
        when there is none."""
        return self._link.last_sequence_id

    def is_connected(self) -> bool:
        """True while the broker holds the producer."""
        return not self._closed and self._link.is_connected()

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

    def _bind_to_running_loop(self) -> None:
        if self.affinity.thread != get_ident() and not self.affinity.is_here():
            if self.affinity.over and running_loop() is not None:
                self.affinity = self.affinity.moved()
                self._pending_sends.clear()  # nobody is left to be told
                if self._event_publisher is not None:
                    self._event_publisher.moved(self.affinity.loop)
            self.affinity.check()

    def _check_open(self) -> None:
        self._bind_to_running_loop()
        if self._closed:
            raise ClosedError("the producer is closed: create another")


def _checked_key(value: Any, name: str) -> str | bytes | None:
    if value is not None and not isinstance(value, (str, bytes)):
        raise ConfigurationError(f"{name} must be str, bytes or None, got {type(value).__name__}")
    return value


def _optional_integer(value: Any, name: str) -> int | None:
    return None if value is None else integer(value, name, low=0, high=_MAX_MS)


def _checked_clusters(value: Any) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise ConfigurationError("replication_clusters must be a list of cluster names")
    return list(value)


def _deliver_at_ms(deliver_at: Any, deliver_after: Any) -> int | None:
    if deliver_after is None:
        return _optional_integer(deliver_at, "deliver_at")
    if deliver_at is not None:
        raise ConfigurationError("give deliver_at or deliver_after, not both")
    if not isinstance(deliver_after, timedelta):
        raise ConfigurationError(
            f"deliver_after must be a timedelta, got {type(deliver_after).__name__}"
        )
    if deliver_after < timedelta(0):
        raise ConfigurationError(f"deliver_after must not be negative, got {deliver_after}")
    return time.time_ns() // 1_000_000 + deliver_after // timedelta(milliseconds=1)
