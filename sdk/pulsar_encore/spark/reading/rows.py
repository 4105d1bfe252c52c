"""Messages as columns of Arrow.

Owns `Rows`, which gathers the messages of one topic, column by column, and makes record batches of
them; only what was asked for is looked at. The usual messages of a batch, which have nothing but a
value and a sequence id of their own, are read from its bytes without an object or a metadata for
each; all others are asked as `RawMessage`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import repeat
from struct import Struct
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from ...ids import MessageId
from ...letters.reading import Letter
from ...message import RawMessage
from ...transport.base import Delivery
from ...transport.native.consumer.messages import BatchMessage
from ..columns import LETTER, Column
from .cutting import Cut
from .letters import letter_values
from .values.base import Values

_U32: Final = Struct(">I")
_PAYLOAD_SIZE: Final = 0x18
_SEQUENCE: Final = 0x40
_NO_HEAD: Final = b"\xff\xff\xff\xff"  # of a metadata: no batch is so large
_MOST_BYTES: Final = 4 * 1024 * 1024
_LETTER_KEYS: Final = {each.key for each in LETTER}


class Part(NamedTuple):
    """What is taken of a delivery.

    Attributes:
        delivery: The entry.
        messages: Those that are taken.
        indexes: Theirs in the batch; -1 alone for a message that is its entry.
        plain: None of them has more than a value and a sequence id of its own.
    """

    delivery: Delivery
    messages: Sequence[RawMessage]
    indexes: Sequence[int]
    plain: bool


class Rows:
    """Gathers rows of one topic.

    Args:
        schema: Of the rows: the value's columns, by `values`, and some of `columns`.
        columns: Those beside the value.
        prefix: Of their names.
        values: What becomes of the values.
        topic: Full name, of the partition if any.
        partition: Its number, or -1.
        most_rows: Of one record batch.
    """

    def __init__(
        self,
        schema: StructType,
        columns: Sequence[Column],
        prefix: str,
        values: Values,
        topic: str,
        partition: int,
        most_rows: int,
    ) -> None:
        self._values = values
        self._topic = topic
        self._partition = partition
        self._most_rows = most_rows
        self._arrow = pa.schema(
            [
                pa.field(field.name, to_arrow_type(field.dataType, timezone="UTC"), field.nullable)
                for field in schema
            ]
        )
        by_name = {prefix + each.key: each for each in columns}
        asked = [by_name[field.name].key for field in schema if field.name in by_name]
        self._names = {prefix + key: key for key in asked}
        self._gathered: dict[str, list[Any]] = {
            key: [] for key in asked if key not in _LETTER_KEYS and key != "topic"
        }
        self._letters = [key for key in asked if key in _LETTER_KEYS]
        self._gathered.update((key, []) for key in self._letters)
        self._gatherers = [
            (self._gathered[key], _GATHER[key])
            for key in asked
            if key in _GATHER and key in self._gathered
        ]
        self._data: list[bytes | None] = []
        self._size = 0
        self._has_values = any(field.name not in by_name for field in schema)

    def add(self, cuts: Iterable[Cut]) -> Iterator[pa.RecordBatch]:
        """Gather some messages; gives the record batches that are full."""
        for delivery, first, stop in cuts:
            room = self._most_rows
            for at in range(first, stop, room):
                self._add(delivery, at, min(stop, at + room))
                if len(self._data) >= self._most_rows or self._size >= _MOST_BYTES:
                    yield self.flush()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What was gathered and is not in a record batch yet, if anything."""
        if self._data:
            yield self.flush()

    def _add(self, delivery: Delivery, first: int, stop: int) -> None:
        messages: Sequence[RawMessage] = delivery.messages
        indexes: Sequence[int] = delivery.indexes
        if first or stop < len(messages):
            messages, indexes = messages[first:stop], indexes[first:stop]
        if delivery.batch_size == 0:
            indexes = (-1,)
        data: list[bytes | None]
        if type(messages[0]) is BatchMessage:
            data, size, plain = _of_batch(messages)
        else:
            data, plain = [each.data() for each in messages], False
            size = sum(len(each) for each in data if each is not None)
        if not plain:
            data = [
                None if each.has_null_value() else value
                for each, value in zip(messages, data, strict=True)
            ]
        self._data += data
        self._size += size
        part = Part(delivery, messages, indexes, plain)
        for gathered, gather in self._gatherers:
            gathered.extend(gather(part, self._partition))
        if self._letters:
            self._add_letters(part)
        self._values.note(part.messages, partial(_ids, part, self._partition))

    def _add_letters(self, part: Part) -> None:
        ids = _ids(part, self._partition)
        for message, message_id in zip(part.messages, ids, strict=True):
            told = letter_values(Letter(_Written(message, message_id)), self._topic)
            for key in self._letters:
                self._gathered[key].append(told[key])

    def flush(self) -> pa.RecordBatch:
        """All that was gathered."""
        count = len(self._data)
        made: dict[str, pa.Array] = {}
        kept: list[bool] | None = None
        if self._has_values:
            made, kept = self._values.columns(self._data)
        arrays = []
        for field in self._arrow:
            key = self._names.get(field.name)
            if key is None:
                arrays.append(made[field.name])
            elif key == "topic":
                arrays.append(pa.repeat(pa.scalar(self._topic, field.type), count))
            else:
                arrays.append(_array(self._gathered[key], field.type))
        for gathered in self._gathered.values():
            gathered.clear()
        self._data = []
        self._size = 0
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._arrow)
        return batch if kept is None else batch.filter(pa.array(kept))


def _array(gathered: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_map(kind) and not any(gathered):
        nothing = pa.array([0] * (len(gathered) + 1), pa.int32())
        empty = pa.array([], kind.key_type), pa.array([], kind.item_type)
        return pa.MapArray.from_arrays(nothing, *empty).cast(kind)
    return pa.array(gathered, kind)


def _of_batch(messages: Sequence[Any]) -> tuple[list[bytes | None], int, bool]:
    """The payloads of messages of one batch, their size, and whether none has more of its own.

    Messages of the same size begin alike up to their sequence id, if they have one: what begins as
    the last plain one is plain if that id fills the rest of its metadata.
    """
    data: list[bytes | None] = []
    add = data.append
    buffer = messages[0][0].buffer
    head, width, number, length = _NO_HEAD, 0, 0, 0
    plain, total = True, 0
    for message in messages:
        at = message[1]
        if buffer.startswith(head, at):
            stop = at + width
            if not number or (
                buffer[stop - 1] < 0x80
                and (number == 1 or min(buffer[stop - number : stop - 1]) >= 0x80)
            ):
                add(buffer[stop : stop + length])
                total += length
                continue
        (size,) = _U32.unpack_from(buffer, at)
        stop = at + 4 + size
        found, behind = _plain_size(buffer, at + 4, stop)
        if found < 0:
            plain = False
            value = message.data()
            add(value)
            total += len(value)
        else:
            add(buffer[stop : stop + found])
            total += found
            head, width, number, length = buffer[at:behind], stop - at, stop - behind, found
    return data, total, plain


def _plain_size(buffer: bytes, at: int, end: int) -> tuple[int, int]:
    """Of a metadata that says a payload's size and perhaps a sequence id: that size, and where the
    sequence id begins, or the end. (-1, end) of any other."""
    if end - at < 2 or buffer[at] != _PAYLOAD_SIZE:
        return -1, end
    at += 1
    found = shift = 0
    while at < end:
        byte = buffer[at]
        found |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if byte < 0x80:
            break
    if at == end:
        return found, end
    if buffer[at] != _SEQUENCE:
        return -1, end
    behind = at + 1
    at = behind
    while at < end and buffer[at] >= 0x80:
        at += 1
    return (found, behind) if at == end - 1 else (-1, end)


class _Written:
    """A message with its id, as a letter is read (`letters.reading.Written`)."""

    __slots__ = ("_id", "_message")

    def __init__(self, message: RawMessage, message_id: MessageId) -> None:
        self._message = message
        self._id = message_id

    def properties(self) -> dict[str, str]:
        return self._message.properties()

    def message_id(self) -> MessageId:
        return self._id

    def publish_timestamp(self) -> int:
        return self._message.publish_timestamp()


def _ids(part: Part, partition: int) -> Iterator[MessageId]:
    delivery = part.delivery
    for index in part.indexes:
        yield MessageId(
            partition,
            delivery.ledger,
            delivery.entry,
            index,
            batch_size=delivery.batch_size,
            first_chunk=None
            if delivery.first_chunk is None
            else MessageId(partition, *delivery.first_chunk),
        )


@lru_cache(maxsize=64)
def _id_ends(batch_size: int) -> list[bytes]:
    """The bytes of an id that say where in a batch it is, for each of its messages."""
    start = len(MessageId(-1, 0, 0).serialize())
    ids = (MessageId(-1, 0, 0, index, batch_size=batch_size) for index in range(batch_size))
    return [each.serialize()[start:] for each in ids]


# A function for each column: of a part and the partition's number, a value for each message.


def _message_ids(part: Part, partition: int) -> Iterable[bytes]:
    delivery = part.delivery
    if delivery.batch_size == 0:
        return [each.serialize() for each in _ids(part, partition)]
    start = MessageId(partition, delivery.ledger, delivery.entry).serialize()
    ends = _id_ends(delivery.batch_size)
    return [start + ends[index] for index in part.indexes]


def _of_each(read: Callable[[RawMessage], Any], absent: Any) -> Any:
    """What is a message's own, and `absent` where it has nothing but a value."""

    def gather(part: Part, partition: int) -> Iterable[Any]:
        if part.plain:
            return repeat(absent, len(part.messages))
        return [read(each) for each in part.messages]

    return gather


def _of_entry(read: Callable[[RawMessage], Any]) -> Any:
    """What all messages of an entry have in common."""

    def gather(part: Part, partition: int) -> Iterable[Any]:
        return repeat(read(part.messages[0]), len(part.messages))

    return gather


def _of_place(read: Callable[[Delivery, int], Any]) -> Any:
    """What the delivery says."""

    def gather(part: Part, partition: int) -> Iterable[Any]:
        return repeat(read(part.delivery, partition), len(part.messages))

    return gather


def _event_time(message: RawMessage) -> int | None:
    """In us."""
    return message.event_timestamp() * 1000 or None


def _schema_version(message: RawMessage) -> bytes | None:
    return message.schema_version().encode("latin-1") or None


def _sequence_id(part: Part, partition: int) -> Iterable[int | None]:
    return [_sequence(each) for each in part.messages]


def _sequence(message: Any) -> int | None:
    """Its own, or that of its entry; the stock library does not say."""
    own = getattr(message, "metadata", None)
    if own is None:
        return None
    entry = message.entry_metadata
    found: int = own.sequence_id if own.HasField("sequence_id") else entry.sequence_id
    return found


_GATHER: Final[dict[str, Callable[[Part, int], Iterable[Any]]]] = {
    "key": _of_each(lambda message: message.partition_key_bytes(), None),
    "messageId": _message_ids,
    "publishTime": _of_entry(lambda message: message.publish_timestamp() * 1000),
    "eventTime": _of_each(_event_time, None),
    "messageProperties": _of_each(lambda message: list(message.properties().items()), ()),
    "partition": _of_place(lambda delivery, partition: partition),
    "ledgerId": _of_place(lambda delivery, partition: delivery.ledger),
    "entryId": _of_place(lambda delivery, partition: delivery.entry),
    "batchIndex": lambda part, partition: part.indexes,
    "redeliveryCount": _of_place(lambda delivery, partition: delivery.redelivery_count),
    "producerName": _of_entry(lambda message: message.producer_name()),
    "sequenceId": _sequence_id,
    "schemaVersion": _of_entry(_schema_version),
    "orderingKey": _of_each(lambda message: message.ordering_key_bytes(), None),
    "nullValue": _of_each(lambda message: message.has_null_value(), False),
}
