"""Message ids, how they are serialized, and how they compare.

`MessageId` is an immutable value without a C++ object. An id that is rebuilt from bytes keeps its
batch index, so acking it never acks its siblings (`pulsar-client` acks the whole batch).
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from .. import stock
from ..errors import ConfigurationError

_U64: Final = (1 << 64) - 1
_I64_MAX: Final = (1 << 63) - 1

#: Largest batch size or batch index that is accepted where only a number says it. Acking or seeking
#: by such an id takes memory for each message. The headers of a larger batch would take 100 MB.
MAX_BATCH_SIZE: Final = 1 << 24

# Field numbers of MessageIdData: `docs/notes/wire-protocol.md#message-ids`.
_LEDGER, _ENTRY, _PARTITION, _BATCH_INDEX, _BATCH_SIZE, _FIRST_CHUNK = 1, 2, 3, 4, 6, 7
_LEDGER_TAG, _ENTRY_TAG, _PARTITION_TAG = b"\x08", b"\x10", b"\x18"
_BATCH_INDEX_TAG, _BATCH_SIZE_TAG, _FIRST_CHUNK_TAG = b"\x20", b"\x30", b"\x3a"


class MessageId:
    """The position of one message: ledger, entry and the index in a batch.

    Args:
        partition: Partition number; -1 on a topic without partitions.
        ledger_id: Ledger; -1 for the earliest position.
        entry_id: Entry in the ledger.
        batch_index: Index in the batch; -1 if the message is the entry.
        batch_size: Messages in the batch; 0 if it is not a batch or the size is not known.
        topic: Full name of the topic or partition, or "".
        first_chunk: For a chunked message, the id of its first chunk.

    Equality and hash use ledger, entry, partition and batch index. The order is by ledger, entry,
    batch index and partition; an id without a batch index covers all indexes of its entry and comes
    after them. Ids of `pulsar-client` compare by the same rules, with one exception: `<`, `<=`, `>`
    and `>=` with a `pulsar.MessageId` on the left use the order of `pulsar-client`, unless the id
    on the right came from the stock transport.

    Example:
        ```python
        stored = message.message_id().serialize()
        later = MessageId.deserialize(stored, topic=message.topic_name())
        await consumer.acknowledge(later)
        ```
    """

    __slots__ = (
        "_batch_index",
        "_batch_size",
        "_entry",
        "_first_chunk",
        "_ledger",
        "_partition",
        "_topic",
    )

    earliest: ClassVar[MessageId]
    latest: ClassVar[MessageId]

    def __init__(
        self,
        partition: int = -1,
        ledger_id: int = -1,
        entry_id: int = -1,
        batch_index: int = -1,
        *,
        batch_size: int = 0,
        topic: str = "",
        first_chunk: MessageId | None = None,
    ) -> None:
        kind = type(ledger_id)
        if not (kind is int is type(entry_id) is type(partition) is type(batch_index)):
            _check_numbers(
                partition=partition,
                ledger_id=ledger_id,
                entry_id=entry_id,
                batch_index=batch_index,
            )
        self._partition = partition
        self._ledger = ledger_id
        self._entry = entry_id
        self._batch_index = batch_index
        self._batch_size = batch_size
        self._topic = topic
        self._first_chunk = first_chunk

    def ledger_id(self) -> int:
        return self._ledger

    def entry_id(self) -> int:
        return self._entry

    def batch_index(self) -> int:
        return self._batch_index

    def partition(self) -> int:
        return self._partition

    @property
    def batch_size(self) -> int:
        """Messages in the batch; 0 if it is not a batch or the size is not known."""
        return self._batch_size

    @property
    def topic(self) -> str:
        """Full topic name as received, or "" (serialized ids do not contain it)."""
        return self._topic

    @property
    def first_chunk(self) -> MessageId | None:
        return self._first_chunk

    def serialize(self) -> bytes:
        """Return the protobuf `MessageIdData`, which every Pulsar client can read."""
        out = _LEDGER_TAG + _varint_of(self._ledger) + _ENTRY_TAG + _varint_of(self._entry)
        if self._partition != -1:
            out += _PARTITION_TAG + _varint_of(self._partition)
        if self._batch_index != -1:
            out += _BATCH_INDEX_TAG + _varint_of(self._batch_index)
        if self._batch_size > 0:
            out += _BATCH_SIZE_TAG + _varint_of(self._batch_size)
        if self._first_chunk is not None:
            first = self._first_chunk.serialize()
            out += _FIRST_CHUNK_TAG + _varint_of(len(first)) + first
        return out

    @staticmethod
    def deserialize(message_id_bytes: bytes, topic: str | None = None) -> MessageId:
        """Rebuild an id from the `serialize` bytes of any Pulsar client.

        Args:
            message_id_bytes: Protobuf `MessageIdData`.
            topic: Full topic name. A consumer of several topics needs it to ack or nack the id.

        Raises:
            ConfigurationError: if the bytes are not a message id.
        """
        if not isinstance(message_id_bytes, (bytes, bytearray, memoryview)):
            raise ConfigurationError(
                f"message_id_bytes must be bytes, got {type(message_id_bytes).__name__}"
            )
        return _parse(bytes(message_id_bytes), topic or "")

    @classmethod
    def wrap(cls, msg_id: Any) -> MessageId:
        """Return an id of this package or of `pulsar-client` as a `MessageId`.

        Raises:
            ConfigurationError: if it is neither.
        """
        if isinstance(msg_id, MessageId):
            return msg_id
        serialize = getattr(msg_id, "serialize", None)
        if serialize is None:
            raise ConfigurationError(
                f"expected a MessageId (or the stock client's), got {type(msg_id).__name__}"
            )
        return _parse(serialize(), "")

    @staticmethod
    def wrap_bytes(data: bytes) -> MessageId:
        """Rebuild an id from `bytes`, without the check and the copy of `deserialize`."""
        return _parse(data, "")

    def with_topic(self, topic: str) -> MessageId:
        """Return the same id with a topic name."""
        return MessageId(
            self._partition,
            self._ledger,
            self._entry,
            self._batch_index,
            batch_size=self._batch_size,
            topic=topic,
            first_chunk=self._first_chunk,
        )

    @property
    def _msg_id(self) -> Any:
        """The id as an object of the C++ client, for its seek and comparisons.

        It lacks the shared state of its batch, so an ack with it makes the C++ client ack the whole
        entry: `docs/notes/cpp-client.md#acks`.
        """
        native_class = stock.library().MessageId
        for name in ("earliest", "latest"):
            if self == getattr(MessageId, name):
                return getattr(native_class, name)
        native = native_class.deserialize(self.serialize())
        if self._topic:
            native.topic_name(self._topic)
        return native

    def __reduce__(self) -> tuple[Any, ...]:
        return (MessageId.deserialize, (self.serialize(), self._topic))

    def __str__(self) -> str:
        """Return `L:E:P`, `L:E:P:I` in a batch, `first;last` for chunks, as Java's client does."""
        plain = f"{self._ledger}:{self._entry}:{self._partition}"
        first = self._first_chunk
        if first is not None:
            return f"{first.ledger_id()}:{first.entry_id()}:{first.partition()};{plain}"
        if self._batch_index >= 0 and self._batch_size != 1:  # a batch of one is no batch
            return f"{plain}:{self._batch_index}"
        return plain

    def __repr__(self) -> str:
        return f"MessageId({self})"

    def _identity(self) -> tuple[int, int, int, int]:
        return (self._ledger, self._entry, self._partition, self._batch_index)

    def _order(self) -> tuple[int, int, int, int]:
        index = self._batch_index if self._batch_index >= 0 else _I64_MAX
        return (self._ledger, self._entry, index, self._partition)

    # All six methods are defined, because the ids of the stock transport also inherit from
    # `pulsar.MessageId`, which has its own version of each.

    def __eq__(self, other: object) -> bool:
        ours = other if isinstance(other, MessageId) else _from_stock(other)
        return NotImplemented if ours is None else self._identity() == ours._identity()

    def __ne__(self, other: object) -> bool:
        ours = other if isinstance(other, MessageId) else _from_stock(other)
        return NotImplemented if ours is None else self._identity() != ours._identity()

    def __lt__(self, other: object) -> bool:
        ours = other if isinstance(other, MessageId) else _from_stock(other)
        return NotImplemented if ours is None else self._order() < ours._order()

    def __le__(self, other: object) -> bool:
        ours = other if isinstance(other, MessageId) else _from_stock(other)
        return NotImplemented if ours is None else self._order() <= ours._order()

    def __gt__(self, other: object) -> bool:
        ours = other if isinstance(other, MessageId) else _from_stock(other)
        return NotImplemented if ours is None else self._order() > ours._order()

    def __ge__(self, other: object) -> bool:
        ours = other if isinstance(other, MessageId) else _from_stock(other)
        return NotImplemented if ours is None else self._order() >= ours._order()

    def __hash__(self) -> int:
        return hash(self._identity())


def _from_stock(other: object) -> MessageId | None:
    if stock.is_one(other, "pulsar.MessageId", "_pulsar.MessageId"):
        return MessageId.wrap(other)
    return None


def _check_numbers(**numbers: Any) -> None:
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigurationError(
                f"MessageId's {name} must be an int, got {type(value).__name__}; "
                "MessageId.deserialize reads an id from bytes"
            )


def check_batch(message_id: MessageId) -> MessageId:
    """Raise ConfigurationError if an id of the application has a batch size or index over 2**24."""
    for name, value in (
        ("batch size", message_id.batch_size),
        ("batch index", message_id.batch_index()),
    ):
        if value > MAX_BATCH_SIZE:
            raise ConfigurationError(
                f"{message_id!r} has a {name} of {value}, and no batch has more than "
                f"{MAX_BATCH_SIZE} messages: pass the id of a message that was received"
            )
    return message_id


MessageId.earliest = MessageId(-1, -1, -1)
MessageId.latest = MessageId(-1, _I64_MAX, _I64_MAX)


def _varint_of(value: int) -> bytes:
    if 0 <= value < 0x80:
        return value.to_bytes()
    if 0 <= value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    value &= _U64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ConfigurationError(
                "these bytes are not a serialized message id: pass what MessageId.serialize() gave"
            )
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _U64, at
        shift += 7


def _signed(value: int) -> int:
    return value - (1 << 64) if value > _I64_MAX else value


def _parse(data: bytes, topic: str, *, is_chunk: bool = False) -> MessageId:
    fields: dict[int, int] = {}
    first_chunk: MessageId | None = None
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        field, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            fields[field] = _signed(value)
        elif kind == 2:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ConfigurationError("the serialized message id is cut short")
            if field == _FIRST_CHUNK:
                if is_chunk:
                    raise ConfigurationError("a message id's first chunk has no first chunk itself")
                first_chunk = _parse(data[at : at + size], topic, is_chunk=True)
            at += size
        else:
            raise ConfigurationError("these bytes are not a serialized message id")
    if _LEDGER not in fields or _ENTRY not in fields:
        raise ConfigurationError("these bytes are not a message id: ledger or entry is missing")
    return MessageId(
        fields.get(_PARTITION, -1),
        fields[_LEDGER],
        fields[_ENTRY],
        max(-1, fields.get(_BATCH_INDEX, -1)),
        batch_size=max(0, fields.get(_BATCH_SIZE, 0)),
        topic=topic,
        first_chunk=first_chunk,
    )
