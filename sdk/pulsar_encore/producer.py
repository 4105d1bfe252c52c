"""Publishing: the public `Producer`, over a producer of the transport."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self

from .consumer.event_publisher import ProducerEventPublisher
from .errors import (
    ClosedError,
    ConfigurationError,
    PulsarException,
    Result,
    TransactionAbortedError,
)
from .eventloop.affinity import LoopAffinity, get_ident, running_loop
from .eventloop.alarm import wall_due_in_ms
from .eventloop.close_once import CloseOnce
from .options import ProducerOptions
from .options.checks import boolean, integer, string_map
from .transaction import Transaction, transport_transaction_of
from .transport.interface import TransportProducer
from .values.message_id import MessageId
from .values.outgoing_message import OutgoingMessage
from .values.type_variables import T_contra

if TYPE_CHECKING:
    from .observability.meters import SendMeter

_MAX_MS: Final = 2**63 - 1


class ContentError(ConfigurationError, TypeError):
    """The content does not fit the producer's schema (also a TypeError, as in `pulsar-client`)."""

    __module__ = "pulsar_encore"


class Producer(Generic[T_contra]):
    """Publishes to one topic. `Client.create_producer` creates it.

    The type parameter is the type of the values that its schema encodes.

    A producer belongs to the event loop that created it. When that loop is closed, the next loop
    that uses the producer takes it over. A call from another loop raises `WrongLoopError`, a call
    in a forked child `ForkedError`.

    Example:
        ```python
        async with client.create_producer("orders") as producer:
            message_id = await producer.send(b"42", partition_key="customer-7")
        ```
    """

    def __init__(
        self,
        transport_producer: TransportProducer,
        options: ProducerOptions,
        *,
        on_closed: Callable[[Producer], None] | None = None,
        event_publisher: ProducerEventPublisher | None = None,
        make_meter: Callable[[str], SendMeter] | None = None,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self._logger = logger_of(__name__)
        self._transport_producer = transport_producer
        self._event_publisher = event_publisher
        self._schema = options.schema
        # For key-value pairs whose key is the partition key.
        self._encode_with_key: Any = getattr(options.schema, "encode_with_key", None)
        self._on_closed = on_closed
        self.affinity: LoopAffinity = LoopAffinity("producer")
        self._pending_sends: set[asyncio.Future[MessageId]] = set()
        self._closed = False
        self._close_once = CloseOnce(self._close)
        self._make_meter = make_meter
        self._meter = make_meter and make_meter(self.topic())
        if event_publisher is not None:
            event_publisher.events.start()

    def __repr__(self) -> str:
        state = "connected" if self.is_connected() else "not connected"
        return f"<Producer of {self.topic()}, {'closed' if self._closed else state}>"

    async def send(
        self,
        content: T_contra | None,
        properties: dict[str, str] | None = None,
        partition_key: str | bytes | None = None,
        ordering_key: str | bytes | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        *,
        txn: Transaction | None = None,
    ) -> MessageId:
        """Send a message and wait until the broker has stored it.

        Several sends can be in flight; the broker stores them in the order of the calls. After a
        cancelled send, the message may or may not be stored.

        Args:
            content: The object that the schema encodes; bytes if there is no schema. None publishes
                a tombstone.
            properties: Application properties.
            partition_key: Key for partition routing, Key_Shared and compaction. The native
                transport also accepts bytes.
            ordering_key: Key that replaces `partition_key` for Key_Shared.
            sequence_id: Sequence id to use in place of the producer's next one.
            replication_clusters: Clusters to replicate to, in place of the namespace's.
            disable_replication: Do not replicate this message.
            event_timestamp: Time of the event, set by the application, in ms since the epoch.
            deliver_at: Earliest delivery on Shared and Key_Shared, in ms since the epoch.
            deliver_after: The same, relative to now by the clock of the event loop.
            txn: The transaction that the message belongs to (native transport). It becomes visible
                at the commit. After a lost connection, it is sent again only on topics that
                deduplicate; else it fails, and the transaction is aborted. A cancelled send also
                makes the commit abort.

        Returns:
            The id of the stored message.

        Raises:
            ConfigurationError: if an argument is wrong. Nothing was sent.
            NotSupportedError: if a key is bytes, or `txn` is given, on the stock transport. Nothing
                was sent.
            TransactionStateError: if `txn` is not open, or belongs to another client. Nothing was
                sent.
            TransactionAbortedError: if `txn` timed out or was aborted before the message was sent.
            ClosedError: if the producer is closed.
            TransportError: if the broker refused the message or did not answer within
                `send_timeout_millis`.
        """
        message = self._outgoing(
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
            txn,
        )
        meter = self._meter
        if meter is None:
            return await self._transport_producer.publish(message)
        # Here, because each further coroutine around a send would cost as much as its measurement.
        begun_s = meter.begin()
        try:
            message_id = await self._transport_producer.publish(message)
        except BaseException as error:
            meter.failed(begun_s, error)
            raise
        meter.stored(begun_s, len(message.payload or b""))
        return message_id

    def send_async(
        self,
        content: T_contra | None,
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
        *,
        txn: Transaction | None = None,
    ) -> None:
        """Send a message without waiting, as in the synchronous `pulsar-client`.

        Args:
            content: This and the other arguments are those of `send`.
            callback: Called on the event loop as ``callback(result, message_id)``: `Result.Ok` and
                the id of the stored message, or the `Result` of the error and None. Not called if
                that loop is closed first.

        Raises:
            ConfigurationError: if an argument is wrong. Nothing was sent.
            NotSupportedError, TransactionStateError: as `send`. Nothing was sent.
            ClosedError: if the producer is closed.
        """
        message = self._outgoing(
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
            txn,
        )
        meter = self._meter
        sending = asyncio.ensure_future(self._transport_producer.publish(message))
        self._pending_sends.add(sending)
        if meter is not None:
            size = len(message.payload or b"")
            sending.add_done_callback(partial(_measure, meter, meter.begin(), size))
        sending.add_done_callback(partial(self._complete_send, callback))

    def _begin_sends(
        self, messages: Iterable[OutgoingMessage], txn: Transaction
    ) -> list[asyncio.Future[MessageId]]:
        self._check_open()
        transport_transaction, meter = transport_transaction_of(txn), self._meter
        sends: list[asyncio.Future[MessageId]] = []
        for message in messages:
            # A copy, because a message may be sent again in another transaction.
            message = replace(message, txn=transport_transaction)
            try:
                send: asyncio.Future[MessageId] = asyncio.ensure_future(
                    self._transport_producer.publish(message)
                )
            except Exception as error:
                send = self.affinity.loop.create_future()
                send.set_exception(error)
            if meter is not None:
                size = len(message.payload or b"")
                send.add_done_callback(partial(_measure, meter, meter.begin(), size))
            sends.append(send)
        return sends

    def _complete_send(
        self, callback: Callable[..., Any] | None, sending: asyncio.Future[MessageId]
    ) -> None:
        self._pending_sends.discard(sending)
        if sending.cancelled():
            return  # the loop is being closed: no callback can run
        error = sending.exception()
        if callback is None:
            if error is not None:
                # The error of the transaction's end, or its log line, has the cause.
                is_aborted = isinstance(error, TransactionAbortedError)
                level = logging.DEBUG if is_aborted else logging.WARNING
                self._logger.log(level, "send_async to %s failed: %s", self.topic(), error)
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
        txn: Transaction | None,
    ) -> OutgoingMessage:
        self._check_open()
        if self._encode_with_key is None or content is None:
            payload = self._encode(content)
        else:
            payload, partition_key = self._encode_pair(content, partition_key)
        return OutgoingMessage(
            payload=payload,
            properties=string_map(properties, "properties") or None,
            partition_key=_checked_key(partition_key, "partition_key"),
            ordering_key=_checked_key(ordering_key, "ordering_key"),
            sequence_id=_optional_integer(sequence_id, "sequence_id"),
            replication_clusters=_checked_clusters(replication_clusters),
            disable_replication=disable_replication is not None
            and boolean(disable_replication, "disable_replication"),
            event_timestamp=_optional_integer(event_timestamp, "event_timestamp"),
            deliver_at=_deliver_at_ms(self.affinity.loop, deliver_at, deliver_after),
            txn=None if txn is None else transport_transaction_of(txn),
        )

    def _outgoing_checked(
        self, content: Any, properties: dict[str, str] | None, key: str | bytes | None
    ) -> OutgoingMessage:
        message = self._outgoing(
            content, properties, key, None, None, None, None, None, None, None, None
        )
        self._transport_producer.check(message)
        return message

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

    def _encode_pair(self, pair: Any, given: Any) -> tuple[bytes | None, Any]:
        """Return the payload of a key-value pair, and the partition key of its message."""
        try:
            payload, key = self._encode_with_key(pair)
        except Exception as error:
            raise ContentError(f"content does not fit {self._schema}: {error}") from error
        if key is None:
            return payload, given
        if given is not None:
            raise ContentError(
                f"partition_key must be None, got {given!r}: with {self._schema} the key of the "
                "pair is the partition key"
            )
        return payload, key

    async def flush(self) -> None:
        """Send the current batch now and wait until all pending messages are stored.

        The callbacks of `send_async` have been called when this returns.

        Raises:
            ClosedError: if the producer is closed.
            TransportError: if a message could not be stored.
        """
        self._check_open()
        sending = list(self._pending_sends)
        await self._transport_producer.flush()
        if sending:
            await asyncio.wait(sending)

    async def close(self) -> None:
        """Close the producer; pending sends fail with `ClosedError`. A second call does nothing."""
        self._bind_to_running_loop()
        await self._close_once()

    async def _close(self) -> None:
        self._end()
        try:
            await self._transport_producer.close()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Mark the producer as closed, without a command to the broker."""
        self._end()
        on_closed, self._on_closed = self._on_closed, None
        if on_closed is not None:
            on_closed(self)

    def _end(self) -> None:
        self._closed = True
        if self._event_publisher is not None:
            self._event_publisher.events.close()

    def topic(self) -> str:
        """Return the full name of the topic."""
        return self._transport_producer.topic

    def producer_name(self) -> str:
        """Return the name that was given, or the name that the broker chose."""
        return self._transport_producer.producer_name

    def last_sequence_id(self) -> int:
        """Return the sequence id of the last stored message, or -1 before the first.

        Messages of earlier producers with the same name count. Of a partitioned topic it is the
        highest id of all partitions, and another partition may lack a message with a lower one.
        """
        return self._transport_producer.last_sequence_id

    def is_connected(self) -> bool:
        """Return True if the producer is registered at the broker."""
        return not self._closed and self._transport_producer.is_connected()

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
        """Move to the running loop if the own loop is closed; else check the loop."""
        if self.affinity.thread != get_ident() and not self.affinity.is_here():
            if self.affinity.loop_is_closed and running_loop() is not None:
                self.affinity = self.affinity.to_running_loop()
                self._pending_sends.clear()  # their callbacks belonged to the closed loop
                if self._make_meter is not None:
                    self._meter = self._make_meter(self.topic())
                if self._event_publisher is not None:
                    self._event_publisher.moved(self.affinity.loop)
            self.affinity.check()

    def _check_open(self) -> None:
        self._bind_to_running_loop()
        if self._closed:
            raise ClosedError("the producer is closed: create another")


def prepared(
    producer: Producer[Any],
    content: Any,
    properties: dict[str, str] | None,
    key: str | bytes | None,
) -> OutgoingMessage:
    """Encode a message for `begin_sends`.

    Raises:
        ConfigurationError, ClosedError: as `Producer.send`.
        MessageTooBig: if each send of it would raise this error.
    """
    return producer._outgoing_checked(content, properties, key)


def begin_sends(
    producer: Producer[Any], messages: Iterable[OutgoingMessage], txn: Transaction
) -> list[asyncio.Future[MessageId]]:
    """Send prepared messages in a transaction, in order.

    Returns:
        A future for each message. One that was refused has failed already.
    """
    return producer._begin_sends(messages, txn)


def _measure(
    meter: SendMeter, begun_s: float, size: int, sending: asyncio.Future[MessageId]
) -> None:
    """Measure an ended send of `send_async`."""
    if sending.cancelled():
        meter.failed(begun_s, asyncio.CancelledError())
    elif (error := sending.exception()) is not None:
        meter.failed(begun_s, error)
    else:
        meter.stored(begun_s, size)


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


def _deliver_at_ms(
    loop: asyncio.AbstractEventLoop, deliver_at: Any, deliver_after: Any
) -> int | None:
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
    return wall_due_in_ms(loop, deliver_after // timedelta(milliseconds=1))
