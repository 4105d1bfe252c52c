"""The public `Message`: a view of a message that the transport holds, decoded on access."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol

from .errors import ConfigurationError, NotSupportedError, UnreadableError
from .eventloop.awaitables import Settling, settles
from .values.crypto_keys import ContextFields, EncryptionContext
from .values.message_id import MessageId
from .values.type_variables import T_co

if TYPE_CHECKING:
    from .core.entry import Entry


class RawMessage(Protocol):
    """One message as the transport holds it. Its fields are decoded on access.

    If the transport cannot read a key or the properties, it raises `UnreadableError` and no other
    error. A transport with its own subclass of `MessageId` names it in the attribute `id_class`.
    """

    def data(self) -> bytes: ...
    def length(self) -> int: ...
    def properties(self) -> dict[str, str]: ...
    def partition_key(self) -> str: ...
    def partition_key_bytes(self) -> bytes | None: ...
    def ordering_key(self) -> str: ...
    def ordering_key_bytes(self) -> bytes | None: ...
    def publish_timestamp(self) -> int: ...
    def event_timestamp(self) -> int: ...
    def topic_name(self) -> str: ...
    def schema_version(self) -> str: ...
    def int_schema_version(self) -> int: ...
    def producer_name(self) -> str: ...
    def sequence_id(self) -> int | None:
        """Return the sequence id of the entry; None if the transport does not show it."""

    def has_null_value(self) -> bool: ...
    def encryption_context(self) -> ContextFields | None: ...


class DetachedMessage(Protocol):
    """A message that a handler has detached: a `Lease`."""

    @property
    def handle(self) -> str: ...
    async def ack(self) -> None: ...
    async def nack(
        self, delay: float | timedelta | None = None, *, error: BaseException | str | None = None
    ) -> None: ...
    async def extend(self, seconds: float | timedelta) -> None: ...


class HandlerContext(Protocol):
    """One call of a worker's handler, which serves some methods of its message.

    Attributes:
        consumer: Settles a message that no consumer holds, in tests; None otherwise.
    """

    @property
    def consumer(self) -> MessageConsumer | None: ...
    @property
    def stopping(self) -> asyncio.Event: ...
    def begin_nack(self, error: BaseException | str | None) -> float:
        """Note a nack by the handler; raise if it would break the order of the worker.

        Returns:
            The delay of a nack without one, in seconds.
        """

    def note_rejection(self, reason: BaseException | str) -> None:
        """Note that the handler has dead-lettered the message."""

    def extend(self, seconds: float | timedelta) -> None: ...
    def detach(self, lease: float | timedelta) -> DetachedMessage: ...
    def publish(
        self,
        value: Any,
        *,
        topic: str | None = None,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None: ...


class MessageConsumer(Protocol):
    """The consumer of a message, as its methods use it: `Consumer`."""

    def acknowledge(self, message: Message) -> Settling: ...
    def negative_acknowledge(
        self,
        message: Message,
        delay: float | timedelta | None = None,
        *,
        error: BaseException | str | None = None,
    ) -> Settling: ...
    async def reject(
        self, message: Message, reason: BaseException | str, *, keep: bool = False
    ) -> None: ...
    def extend(self, message: Message, seconds: float | timedelta) -> Settling: ...
    def attempts_by_letters(self, message: Message) -> int: ...


class MessageSource(Protocol):
    """The data that several messages share. `at` is the place of a message, never None."""

    def data(self, at: Any) -> bytes: ...
    def message(self, at: Any) -> RawMessage: ...


def unopened(messages: Sequence[RawMessage]) -> tuple[Iterable[Any], Iterable[Any]]:
    """Return the source and the place of each message. Without a source, return the messages and
    None for each.

    The messages of a whole batch, and those of a run of plain entries, have the attributes `source`
    and `places`. To make an object for each of them would take a seventh of the time of receiving
    and acking it.
    """
    places = getattr(messages, "places", None)
    if places is None:
        return messages, repeat(None)
    return repeat(messages.source), places  # type: ignore[attr-defined]


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Held(NamedTuple):
    """The data that is needed to settle a delivered message.

    Attributes:
        batch_index: Index in the batch; 0 if the message is the entry.
        failed: Delivery attempts that failed before this one.
        delivery_number: Number of this delivery (`Entry.delivery_number`).
    """

    entry: Entry
    batch_index: int
    failed: int
    delivery_number: int


class Message(Generic[T_co]):
    """One message, received by a consumer or a reader.

    The type parameter is the type of its value: ``Order`` with ``schema=Json(Order)``.

    The methods are those of `pulsar-client`. `redelivery_count` differs: it counts the attempts of
    this message, also in a batch, plus redeliveries of the batch that other consumers requested.
    """

    __slots__ = (
        "_call",
        "_count",
        "_delivery_number",
        "_entry",
        "_id",
        "_index",
        "_opened",
        "_place_in_source",
        "_raw_source",
        "_schema",
    )
    # The slots are empty until they are needed, so that making a message does not set them.
    _call: HandlerContext | None  # only in a worker
    _opened: RawMessage

    def __init__(
        self,
        raw: Any,
        schema: Any,
        entry: Entry | None,
        index: int,
        count: int,
        delivery_number: int = 0,
        at: Any = None,
    ) -> None:
        self._raw_source: Any = raw  # with `at`, a `MessageSource`
        self._place_in_source: Any = at
        self._schema = schema
        self._entry = entry
        self._index = index
        self._count = count
        self._delivery_number = delivery_number

    @property
    def _raw(self) -> RawMessage:
        """The transport's message, made at the first access if there is a source."""
        if self._place_in_source is None:
            raw: RawMessage = self._raw_source
            return raw
        # Kept, because it holds the decoded metadata. It has its own slot, so that other threads
        # never see a new `_raw_source` with an old `_place_in_source`.
        opened: RawMessage | None = getattr(self, "_opened", None)
        if opened is None:
            opened = self._opened = self._raw_source.message(self._place_in_source)
        return opened

    @classmethod
    def of_entry(
        cls, entry: Entry, schema: Any, indexes: Sequence[int], raws: Sequence[RawMessage]
    ) -> list[Message]:
        """Return several messages of one entry at their first delivery.

        A call of `__init__` for each message would cost a third more.
        """
        messages: list[Message] = []
        new, add, count = object.__new__, messages.append, entry.redelivered
        for index, source, at in zip(indexes, *unopened(raws), strict=False):
            message = new(cls)
            message._raw_source = source
            message._place_in_source = at
            message._schema = schema
            message._entry = entry
            message._index = index
            message._count = count
            message._delivery_number = 0
            add(message)
        return messages

    @classmethod
    def of_reader(
        cls, raw: RawMessage, schema: Any, message_id: MessageId, redelivery_count: int = 0
    ) -> Message:
        message = cls(raw, schema, None, message_id.batch_index(), redelivery_count)
        message._id = message_id
        return message

    def data(self) -> bytes:
        """Return the payload; b"" if the message has no value."""
        at, source = self._place_in_source, self._raw_source
        payload: bytes = source.data() if at is None else source.data(at)
        return payload

    def value(self) -> T_co:
        """Decode the payload with the schema of the subscription.

        Returns:
            Bytes if there is no schema, else the decoded object. None if the message has no value
            (`has_null_value`) and the schema is a class of `pulsar-client` or a codec with
            ``null=True``. An empty payload is not null: the schema decodes it, as in Java.
            `StringSchema` gives "", and a record schema raises its own error, such as
            `JSONDecodeError`.

        Raises:
            DecodeError: if a codec such as `Json` does not decode the payload, or the message has
                no value and the codec does not have ``null=True``.
            SchemaVersionError: if the schema version of the message could not be fetched. Nack the
                message to try again at its redelivery.
        """
        raw, schema = self._raw, self._schema
        # The metadata decides, not the size of the payload, as in Java's `getValue`.
        if raw.has_null_value():
            decode_null = getattr(schema, "decode_null", None)
            return None if decode_null is None else decode_null(raw)  # type: ignore[return-value]
        if schema is None:
            return raw.data()  # type: ignore[return-value]
        # If the transport knows the schema version that wrote the message, it decodes the payload.
        decode = getattr(raw, "value", None)
        return schema.decode_message(raw) if decode is None else decode()  # type: ignore[no-any-return]

    def properties(self) -> dict[str, str]:
        """Return the application properties.

        Raises:
            UnreadableError: on the stock transport, if a property is not text; on any transport, if
                the metadata of a batch message is broken.
        """
        return self._raw.properties()

    def partition_key(self) -> str:
        """Return the partition key, or "" if the message has no key.

        A key that was sent as bytes is returned as base64, as by Java's `getKey`.

        Raises:
            UnreadableError: on the stock transport, if the key is not text; on any transport, if
                the metadata of a batch message is broken.
        """
        return self._raw.partition_key()

    def partition_key_bytes(self) -> bytes | None:
        """Return the partition key as bytes, or None if the message has no key.

        A text key is encoded as UTF-8.

        Raises:
            UnreadableError: on the stock transport, which cannot tell binary keys from text; on any
                transport, if the metadata of a batch message is broken.
        """
        return self._raw.partition_key_bytes()

    def ordering_key(self) -> str:
        """Return the ordering key, or "" if there is none; base64 if the key is not UTF-8.

        Raises:
            UnreadableError: on the stock transport, if the key is not UTF-8; on any transport, if
                the metadata of a batch message is broken.
        """
        return self._raw.ordering_key()

    def ordering_key_bytes(self) -> bytes | None:
        """Return the ordering key as bytes, or None if the message has no such key.

        A text key is encoded as UTF-8.

        Raises:
            UnreadableError: on the stock transport, if the key is not UTF-8; on any transport, if
                the metadata of a batch message is broken.
        """
        return self._raw.ordering_key_bytes()

    def publish_timestamp(self) -> int:
        """Return when the producer published the message, in ms since the epoch."""
        return self._raw.publish_timestamp()

    def event_timestamp(self) -> int:
        """Return the event time that the application set, in ms since the epoch, or 0."""
        return self._raw.event_timestamp()

    def message_id(self) -> MessageId:
        try:
            return self._id
        except AttributeError:
            self._id: MessageId = self._make_id()
            return self._id

    def _make_id(self) -> MessageId:
        entry = self._entry
        assert entry is not None  # `of_reader` sets the id
        topic_state = entry.topic_state
        chunk = entry.first_chunk
        id_class: type[MessageId] = getattr(self._raw, "id_class", MessageId)
        return id_class(
            topic_state.partition,
            entry.key[0],
            entry.key[1],
            self._index if entry.batched else -1,
            batch_size=entry.size if entry.batched else 0,
            topic=topic_state.topic,
            first_chunk=chunk and id_class(topic_state.partition, *chunk, topic=topic_state.topic),
        )

    def topic_name(self) -> str:
        """Return the full name of the topic or partition."""
        return self._raw.topic_name()

    def redelivery_count(self) -> int:
        """Return how many delivery attempts of this message failed before, 0 at the first delivery.

        For a batch message, the count adds the attempts that failed at this consumer and the
        redeliveries of the batch that other consumers of the subscription requested. The broker
        counts a batch as a whole, so the count may include attempts at siblings.

        On Exclusive and Failover the broker counts nothing. There a nack or an ack timeout counts
        only if the consumer has a dead letter policy, a redelivery backoff or a `state`. Without
        them the count stays 0, as in Java's client.

        A message that `reconsume_later` sent is a new message and counts from 0. Its property
        `RECONSUMETIMES` (`letters.RECONSUME_TIMES`) says how often it was sent. A nack that
        overflowed to the retry letter topic keeps counting.
        """
        return self._count

    def schema_version(self) -> str:
        return self._raw.schema_version()

    def int_schema_version(self) -> int:
        """Return the schema version as a number; negative if the message has none."""
        return self._raw.int_schema_version()

    def producer_name(self) -> str:
        return self._raw.producer_name()

    def has_null_value(self) -> bool:
        """Return True if the message was sent without a value, such as a tombstone.

        Source: `null_value` of MessageMetadata, or of SingleMessageMetadata in a batch.
        """
        return self._raw.has_null_value()

    def encryption_context(self) -> EncryptionContext | None:
        """Return how the message was encrypted, or None. Call it while the message is held."""
        context = self._raw.encryption_context()
        return None if context is None else EncryptionContext(context)

    # Settling

    @settles
    def ack(self) -> Coroutine[Any, Any, None]:
        """Ack the message, as `Consumer.acknowledge` does.

        Raises:
            NotSupportedError: for a message of a reader.
        """
        return self._consumer("ack").acknowledge(self)

    @settles
    def nack(
        self,
        delay: float | timedelta | None = None,
        *,
        error: BaseException | str | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Nack the message, as `Consumer.negative_acknowledge` does.

        Args:
            delay: Time until the redelivery, in seconds or as a timedelta; None for the
                subscription's delay, and in a handler of a worker for that of its
                `RetryPolicy.backoff`.
            error: The reason, kept as evidence in case the message is dead-lettered.

        Raises:
            ConfigurationError: in a handler of a worker with an order, which a nack would break.
            NotSupportedError: for a message of a reader.
        """
        context = self._handler_context()
        if context is not None:
            backoff_s = context.begin_nack(error)
            delay = backoff_s if delay is None else delay
        return self._consumer("nack").negative_acknowledge(self, delay, error=error)

    async def reject(self, reason: BaseException | str) -> None:
        """Dead-letter the message now, as `Consumer.reject` does.

        In a handler of a worker, the message stays held if the letter cannot be written. The error
        is then a failed attempt.

        Args:
            reason: The exception, or a text. It is kept as evidence on the letter.

        Raises:
            ConfigurationError: if the consumer has no `dead_letter_policy`.
            NotSupportedError: for a message of a reader.
            TransportError: if the broker did not confirm the letter.
        """
        context = self._handler_context()
        await self._consumer("reject").reject(self, reason, keep=context is not None)
        if context is not None:
            context.note_rejection(reason)

    @settles
    def extend(self, seconds: float | timedelta) -> Coroutine[Any, Any, None]:
        """Give the present attempt this much time from now.

        In a handler of a worker, this moves the handler's timeout. Otherwise it moves the ack
        timeout of the message (`unacked_messages_timeout_ms`), if there is one. It takes effect
        when the call returns. Leases have their own `Lease.extend`.

        Raises:
            ConfigurationError: if `seconds` is not above 0.
            NotSupportedError: for a message of a reader.
        """
        return self._consumer("extend").extend(self, seconds)

    @property
    def attempt(self) -> int:
        """Number of this delivery attempt, from 1.

        For a message of the consumer's retry letter topic, the attempts before its letters count
        too. On Exclusive and Failover the number stays 1 after a nack or an ack timeout, unless the
        consumer has a dead letter policy, a redelivery backoff or a `state`.
        """
        entry = self._entry
        if entry is not None and entry.topic_state.letters:
            return self._count + 1 + self._consumer("attempt").attempts_by_letters(self)
        return self._count + 1

    @property
    def key(self) -> str | None:
        """The partition key, or None if the message has no key. See `partition_key`."""
        return self._raw.partition_key() or None

    @property
    def published_at(self) -> datetime:
        """When the producer published the message, in UTC."""
        return _EPOCH + timedelta(milliseconds=self._raw.publish_timestamp())

    def _consumer(self, call: str) -> MessageConsumer:
        entry = self._entry
        if entry is None:
            context = self._handler_context()
            if context is not None and context.consumer is not None:
                return context.consumer
            raise NotSupportedError(
                f"message.{call} needs a message of a consumer: one of a reader has nothing to "
                "settle. Use Client.subscribe to receive messages that are acked"
            )
        consumer = _consumer_of(entry)
        assert consumer is not None  # set when the consumer is made
        return consumer

    # In a handler of a worker

    @property
    def stopping(self) -> asyncio.Event:
        """Set when the worker drains, so that a long handler can end early.

        Raises:
            ConfigurationError: outside a handler of a worker.
        """
        return self._need_context(
            "stopping", "end your own loop when your program gets its signal"
        ).stopping

    def detach(self, lease: float | timedelta = 3600) -> DetachedMessage:
        """Keep the message under a lease after the handler returns, and free the handler's slot.

        Args:
            lease: Length of the lease, in seconds or as a timedelta, up to 30 days.

        Returns:
            The lease. Its `handle` is a text for `Consumer.lease`.

        Raises:
            ConfigurationError: outside a handler of a worker, on Exclusive and Failover, and for an
                invalid length.
        """
        context = self._need_context("detach", "call Consumer.detach(message, lease)")
        return context.detach(lease)

    def publish(
        self,
        value: Any,
        topic: str | None = None,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Collect a message to publish when the handler has returned, before the ack.

        Args:
            value: The value of the new message.
            topic: Topic of the new message; None for the worker's `publish` topic.
            key: Partition key of the new message.
            properties: Properties of the new message.

        Raises:
            ConfigurationError: outside a handler of a worker.
        """
        context = self._need_context("publish", "use a producer (Client.create_producer)")
        context.publish(value, topic=topic, key=key, properties=properties)

    def _need_context(self, call: str, way_out: str) -> HandlerContext:
        context = self._handler_context()
        if context is None:
            raise ConfigurationError(
                f"message.{call} works in a handler of a Worker only, and this message is in none. "
                f"Outside a worker, {way_out}"
            )
        return context

    def _handler_context(self) -> HandlerContext | None:
        return getattr(self, "_call", None)

    def __repr__(self) -> str:
        return f"<Message {self.message_id()} of {self._raw.length()} bytes>"


def held(message: Message) -> Held | None:
    """Return the data that settles a message, or None for a message of a reader."""
    entry = message._entry
    if entry is None:
        return None
    return Held(entry, message._index, message._count, message._delivery_number)


def set_handler_context(message: Message, context: HandlerContext | None) -> None:
    """Let the call of a worker's handler serve a message, until it is set to None."""
    message._call = context


def handler_context_of(message: Message) -> HandlerContext | None:
    return message._handler_context()


def next_attempt_of(message: Message) -> Message:
    """Return the message of the delivery that `TopicState.fail_in_place` has begun."""
    entry, index = message._entry, message._index
    assert entry is not None
    count, number = entry.topic_state.attempts.count(entry, index), entry.delivery_number(index)
    return Message(message._raw, message._schema, entry, index, count, number)


async def fetch_schema(message: Message[Any]) -> None:
    """Fetch the schema version of a message, if `value` raised SchemaVersionError for it."""
    fetch = getattr(message._raw, "fetch_schema", None)
    if fetch is not None:
        await fetch()


def _consumer_of(entry: Entry) -> MessageConsumer | None:
    consumer: MessageConsumer | None = entry.topic_state.owner.consumer
    return consumer


def is_held(message: Message[Any], owner: object) -> bool | None:
    """Return True if `owner` still holds the message, and False if it was settled or redelivered.

    None if another owner received the message.
    """
    entry = message._entry
    if entry is None or (state := entry.topic_state).owner is not owner:
        return None
    return bool(state.holds(entry, message._index, message._delivery_number))


def size_of(message: Message) -> int:
    return message._raw.length()


def key_if_readable(message: Message) -> str | None:
    """Return the partition key; None if there is none or the transport cannot read it."""
    try:
        return message.partition_key() or None
    except UnreadableError:
        return None


def has_siblings(message: Message) -> bool:
    """Return True if a received message is one of several messages of its entry."""
    entry = message._entry
    return entry is not None and entry.size > 1


def batch_of(message: Message) -> Entry | None:
    """Return the batch of a received message; None if the message is alone in its entry."""
    entry = message._entry
    return None if entry is None or entry.size == 1 else entry


def of_one_entry(items: Sequence[object], at: int, end: int) -> tuple[Entry | None, list[int]]:
    """Return the entry of `items[at]`, and batch indexes of messages of that entry.

    The indexes are those of the items from `at` on, up to `end` or to the first item that is not a
    message of the entry. The entry is None if `items[at]` is not a message of a consumer.
    """
    entry: Entry | None = None
    indexes: list[int] = []
    for position in range(at, end):
        message = items[position]
        if type(message) is not Message or message._entry is None:
            break
        if entry is not None and message._entry is not entry:
            break
        entry = message._entry
        indexes.append(message._index)
    return entry, indexes


def has_schema(message: Message[Any]) -> bool:
    return message._schema is not None


def raw_of(message: Message) -> RawMessage:
    return message._raw
