"""A received message: a light view that decodes on access.

Owns `Message`. It carries no payload of its own: the transport's raw message decodes what is asked
for, and the settlement state lives in the entry's record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .values.crypto_keys import ContextFields, EncryptionContext
from .values.message_id import MessageId

if TYPE_CHECKING:
    from .core.entry import Entry


class RawMessage(Protocol):
    """One message as the transport holds it; everything is decoded on access.

    The two keys are there as text, which never fails where there are bytes, and as bytes. What a
    transport cannot read, `properties` included, is its `UnreadableError` and nothing else.

    A transport whose ids are of a subclass of `MessageId` names it in the attribute `id_class`.
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


class Held(NamedTuple):
    """What settling needs to know of a message that was handed over.

    Attributes:
        entry: The record of its entry.
        batch_index: Its place in there, 0 for a message that is its entry.
        failed: Attempts at it that failed before this hand-over, as `redelivery_count` says.
        hand_over: Its number (`Entry.hand_over_number`).
    """

    entry: Entry
    batch_index: int
    failed: int
    hand_over: int


class Message:
    """One message, as received by a consumer or a reader.

    The methods are stock's. `redelivery_count` counts attempts at this message, also in a batch.
    Redeliveries of the batch that other consumers requested are included.
    """

    __slots__ = ("_count", "_entry", "_hand_over", "_id", "_index", "_raw", "_schema")

    def __init__(
        self,
        raw: RawMessage,
        schema: Any,
        entry: Entry | None,
        index: int,
        count: int,
        hand_over: int = 0,
    ) -> None:
        self._raw = raw
        self._schema = schema
        self._entry = entry
        self._index = index
        self._count = count
        self._hand_over = hand_over

    @classmethod
    def of_entry(
        cls, entry: Entry, schema: Any, indexes: Sequence[int], raws: Sequence[RawMessage]
    ) -> list[Message]:
        """Several messages of one entry, at their first look; as `__init__`, without a call for
        each, which costs a third."""
        messages: list[Message] = []
        new, add, count = object.__new__, messages.append, entry.redelivered
        for index, raw in zip(indexes, raws, strict=True):
            message = new(cls)
            message._raw = raw
            message._schema = schema
            message._entry = entry
            message._index = index
            message._count = count
            message._hand_over = 0
            add(message)
        return messages

    @classmethod
    def of_reader(
        cls, raw: RawMessage, schema: Any, message_id: MessageId, redelivery_count: int = 0
    ) -> Message:
        """A message that nobody has to settle."""
        message = cls(raw, schema, None, message_id.batch_index(), redelivery_count)
        message._id = message_id
        return message

    def data(self) -> bytes:
        """The payload; b"" if the message has no value."""
        return self._raw.data()

    def value(self) -> Any:
        """Decode the payload with the schema of the subscription.

        Returns:
            None if the message has no value (`has_null_value`), whatever the schema is; the payload
            as bytes without a schema; else the object that the schema decodes. An empty payload is
            not null: the schema decodes it, as in Java. `StringSchema` gives "", and a schema of
            records raises its own error, such as `JSONDecodeError`.

        Raises:
            SchemaVersionError: The version it was written with could not be fetched. The message is
                held as any other: nack it, and it is tried again when it comes back.
        """
        raw, schema = self._raw, self._schema
        # The metadata decides, not the size of the payload. Java's `getValue` has the same rule.
        if raw.has_null_value():
            return None
        if schema is None:
            return raw.data()
        # A transport that knows which version wrote the message decodes it itself.
        decode = getattr(raw, "value", None)
        return schema.decode_message(raw) if decode is None else decode()

    def properties(self) -> dict[str, str]:
        """The application's properties.

        Raises:
            UnreadableError: On the stock transport, where they are no text.
        """
        return self._raw.properties()

    def partition_key(self) -> str:
        """The key, "" when absent; of a key that was sent as bytes their base64, as Java's
        `getKey` has it.

        Raises:
            UnreadableError: On the stock transport, where it is no text.
        """
        return self._raw.partition_key()

    def partition_key_bytes(self) -> bytes | None:
        """The key as bytes, of a text its UTF-8; None when absent.

        Raises:
            UnreadableError: On the stock transport, which cannot tell keys of bytes from text.
        """
        return self._raw.partition_key_bytes()

    def ordering_key(self) -> str:
        """The ordering key, "" when absent; where it is no UTF-8 its base64.

        Raises:
            UnreadableError: On the stock transport, where it is no UTF-8.
        """
        return self._raw.ordering_key()

    def ordering_key_bytes(self) -> bytes | None:
        """The ordering key as bytes, of a text its UTF-8; None when absent.

        Raises:
            UnreadableError: On the stock transport, where it is no UTF-8.
        """
        return self._raw.ordering_key_bytes()

    def publish_timestamp(self) -> int:
        """When the producer published it, ms since the epoch."""
        return self._raw.publish_timestamp()

    def event_timestamp(self) -> int:
        """The application's own time, ms since the epoch; 0 when absent."""
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
        source = entry.source
        chunk = entry.first_chunk
        id_class: type[MessageId] = getattr(self._raw, "id_class", MessageId)
        return id_class(
            source.partition,
            entry.key[0],
            entry.key[1],
            self._index if entry.batched else -1,
            batch_size=entry.size if entry.batched else 0,
            topic=source.topic,
            first_chunk=chunk and id_class(source.partition, *chunk, topic=source.topic),
        )

    def topic_name(self) -> str:
        """Full name of the topic, or of the partition."""
        return self._raw.topic_name()

    def redelivery_count(self) -> int:
        """Attempts at this message that failed before, as far as this consumer knows; 0 at first.

        For a message of a batch, these are the attempts that failed at this consumer, plus the
        redeliveries of the batch that other consumers of the subscription requested. The broker
        counts the batch as a whole, so a message that nobody tried may show the attempts at its
        siblings elsewhere.

        What `reconsume_later` sent on is a new message and counts from 0: how often it was sent on
        is in its property `RECONSUMETIMES` (`letters.RECONSUME_TIMES`). A nack that was parked
        counts on.
        """
        return self._count

    def schema_version(self) -> str:
        return self._raw.schema_version()

    def int_schema_version(self) -> int:
        """The schema version as a number, -1 or less when the message has none."""
        return self._raw.int_schema_version()

    def producer_name(self) -> str:
        return self._raw.producer_name()

    def has_null_value(self) -> bool:
        """Return True if the message was sent without a value, such as a tombstone.

        Source: `null_value` of MessageMetadata, or of SingleMessageMetadata in a batch.
        """
        return self._raw.has_null_value()

    def encryption_context(self) -> EncryptionContext | None:
        """How it was encrypted, or None. Read it while the message is there."""
        context = self._raw.encryption_context()
        return None if context is None else EncryptionContext(context)

    def __repr__(self) -> str:
        return f"<Message {self.message_id()} of {self._raw.length()} bytes>"


def held(message: Message) -> Held | None:
    """What settling needs to know of a message; None of a reader's, which nobody settles."""
    entry = message._entry
    if entry is None:
        return None
    return Held(entry, message._index, message._count, message._hand_over)


def size_of(message: Message) -> int:
    """Bytes of a message's payload, which is not decoded for that."""
    return message._raw.length()


def of_one_entry(items: Sequence[object], at: int, end: int) -> tuple[Entry | None, list[int]]:
    """The entry of the message at `at` of a list, and the indexes of the messages of it from there
    on, before `end`; None of what is no message with an entry."""
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


def raw_of(message: Message) -> RawMessage:
    """Return what the transport holds of a message."""
    return message._raw
