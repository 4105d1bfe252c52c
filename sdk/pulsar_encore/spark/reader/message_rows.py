"""Conversion of messages into Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from ...errors import UnreadableError
from ...letters.letter_reader import LetterFacts
from ...message import RawMessage
from ...transport.interface import Delivery
from ...values.message_id import MessageId
from ..compat import arrow_type
from ..source_columns import LAST_US, LETTER, Column
from .column_values import ColumnValues
from .letter_columns import letter_values
from .message_blocks import MessageBlock, blocks
from .payloads import Payloads
from .range_filter import DeliverySlice
from .values.value_decoder import ValueDecoder

_MIN_ARRAY_MESSAGES: Final = 48  # of an entry; from here on, building their ids at once pays
_MAX_CACHED_BATCH: Final = 4096  # largest batch for which the ids are cached
_MAX_BYTES: Final = 4 * 1024 * 1024
_LETTER_KEYS: Final = {each.key for each in LETTER}


class MessageRows:
    """Collects the rows of one topic or partition, column by column.

    `schema` has columns of the value, as `values` decodes it, and of `columns`. `max_rows` is for
    one record batch.
    """

    def __init__(
        self,
        schema: StructType,
        columns: Sequence[Column],
        prefix: str,
        values: ValueDecoder,
        topic: str,
        partition: int,
        max_rows: int,
    ) -> None:
        self._values = values
        self._topic = topic
        self._partition = partition
        self._max_rows = max_rows
        self._arrow = pa.schema(
            [pa.field(field.name, arrow_type(field.dataType), field.nullable) for field in schema]
        )
        keys = {prefix + each.key: each.key for each in columns}
        self._names = {each.name: keys[each.name] for each in self._arrow if each.name in keys}
        self._collected = {
            key: ColumnValues(self._arrow.field(name).type)
            for name, key in self._names.items()
            if key != "topic"
        }
        self._letters = [key for key in self._collected if key in _LETTER_KEYS]
        self._collectors = [
            (_COLLECT[key], values) for key, values in self._collected.items() if key in _COLLECT
        ]
        self._payloads = Payloads()
        #: False if the schema has no column of the value.
        self.has_values: bool = any(each.name not in keys for each in self._arrow)

    def add(self, slices: Iterable[DeliverySlice]) -> Iterator[pa.RecordBatch]:
        """Collect messages and yield the record batches that become full."""
        for block in blocks(slices, self._max_rows):
            if len(self._payloads) and len(self._payloads) + block.count > self._max_rows:
                yield self.flush()
            self._add(block)
            payloads = self._payloads
            if len(payloads) >= self._max_rows or payloads.size >= _MAX_BYTES:
                yield self.flush()

    def flush_rest(self) -> Iterator[pa.RecordBatch]:
        if len(self._payloads):
            yield self.flush()

    def _add(self, block: MessageBlock) -> None:
        if not self.has_values:  # the value may be unreadable
            self._payloads.add([None] * block.count)
        elif block.plain is not None:
            self._payloads.add_plain(block.plain)
        else:
            self._payloads.add(
                [None if each.has_null_value() else each.data() for each in block.messages]
            )
        for collect, into in self._collectors:
            collect(block, self._partition, into)
        if self._letters:
            self._add_letters(block)
        self._values.note(block, partial(_ids, block, self._partition))

    def _add_letters(self, block: MessageBlock) -> None:
        ids = _ids(block, self._partition)
        for message, message_id in zip(block.messages, ids, strict=True):
            letter = letter_values(LetterFacts(_LetterMessage(message, message_id)), self._topic)
            for key in self._letters:
                self._collected[key].add(letter[key])

    def flush(self) -> pa.RecordBatch:
        payloads, self._payloads = self._payloads, Payloads()
        value_arrays: dict[str, pa.Array] = {}
        kept_rows: list[bool] | None = None
        if self.has_values:
            value_arrays, kept_rows = self._values.columns(payloads)
        arrays = []
        for field in self._arrow:
            key = self._names.get(field.name)
            if key is None:
                arrays.append(value_arrays[field.name])
            elif key == "topic":
                arrays.append(pa.repeat(pa.scalar(self._topic, field.type), len(payloads)))
            else:
                arrays.append(self._collected[key].take())
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._arrow)
        return batch if kept_rows is None else batch.filter(pa.array(kept_rows))


class _LetterMessage:
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


def _ids(block: MessageBlock, partition: int) -> Iterator[MessageId]:
    indexes = iter(block.indexes)
    for delivery, count in zip(block.deliveries, block.counts, strict=True):
        chunk = delivery.first_chunk
        for index in islice(indexes, count):
            yield MessageId(
                partition,
                delivery.ledger,
                delivery.entry,
                index,
                batch_size=delivery.batch_size,
                first_chunk=None if chunk is None else MessageId(partition, *chunk),
            )


def _id_ends(batch_size: int) -> tuple[list[bytes], pa.Array]:
    """Return the part of each serialized id that depends on the batch index."""
    start = len(MessageId(-1, 0, 0).serialize())
    ids = (MessageId(-1, 0, 0, index, batch_size=batch_size) for index in range(batch_size))
    ends = [each.serialize()[start:] for each in ids]
    return ends, pa.array(ends, pa.binary())


_cached_id_ends = lru_cache(maxsize=64)(_id_ends)


_Collect = Callable[[MessageBlock, int, ColumnValues], None]


def _message_ids(block: MessageBlock, partition: int, into: ColumnValues) -> None:
    if block.deliveries[0].batch_size == 0:
        into.extend([each.serialize() for each in _ids(block, partition)])
        return
    at = 0
    for delivery, count in zip(block.deliveries, block.counts, strict=True):
        start = MessageId(partition, delivery.ledger, delivery.entry).serialize()
        indexes = block.indexes[at : at + count]
        at += count
        size = delivery.batch_size
        ends, ends_array = (_cached_id_ends if size <= _MAX_CACHED_BATCH else _id_ends)(size)
        if count < _MIN_ARRAY_MESSAGES:
            into.extend([start + ends[index] for index in indexes])
            continue
        if count < delivery.batch_size:
            ends_array = ends_array.take(pa.array(indexes))
        into.append(pc.binary_join_element_wise(pa.scalar(start), ends_array, pa.scalar(b"")))


def _of_each(read: Callable[[RawMessage], Any], absent: Any) -> _Collect:
    """Read a field of each message; plain messages all have the value `absent`."""

    def collect(block: MessageBlock, partition: int, into: ColumnValues) -> None:
        if block.plain is not None:
            into.repeat(absent, block.count)
        else:
            into.extend([read(each) for each in block.messages])

    return collect


def _of_entry(read: Callable[[RawMessage], Any]) -> _Collect:
    def collect(block: MessageBlock, partition: int, into: ColumnValues) -> None:
        into.extend([read(each) for each in block.firsts], block.counts)

    return collect


def _of_delivery(read: Callable[[Delivery], Any]) -> _Collect:
    def collect(block: MessageBlock, partition: int, into: ColumnValues) -> None:
        into.extend([read(each) for each in block.deliveries], block.counts)

    return collect


def _publish_time(message: RawMessage) -> int:
    return min(message.publish_timestamp() * 1000, LAST_US)


def _event_time(message: RawMessage) -> int | None:
    """In us; None if missing or beyond Spark's range, as in nanoseconds."""
    time_us = message.event_timestamp() * 1000
    return time_us if 0 < time_us <= LAST_US else None


def _key(message: RawMessage) -> bytes | None:
    """Return the key. The stock transport does not tell a text key from base64 of bytes."""
    try:
        return message.partition_key_bytes()
    except UnreadableError:
        return message.partition_key().encode()


def _key_is_bytes(message: Any) -> bool | None:
    """None without a key, and on the stock transport."""
    metadata = getattr(message, "metadata", None)
    if metadata is None or not metadata.HasField("partition_key"):
        return None
    return bool(metadata.partition_key_b64_encoded)


def _schema_version(message: RawMessage) -> bytes | None:
    return message.schema_version().encode("latin-1") or None


def _sequence_ids(block: MessageBlock, partition: int, into: ColumnValues) -> None:
    if block.plain is not None and block.plain.sequence_ids is not None:
        into.append(pa.array(block.plain.sequence_ids))
    else:
        into.extend([_sequence_id(each) for each in block.messages])


def _sequence_id(message: Any) -> int | None:
    """The message's own sequence id, or that of its entry; None on the stock transport."""
    metadata = getattr(message, "metadata", None)
    if metadata is None:
        return None
    entry = message.entry_metadata
    found: int = metadata.sequence_id if metadata.HasField("sequence_id") else entry.sequence_id
    return found if found < 1 << 63 else found - (1 << 64)  # signed, as in Java


_COLLECT: Final[dict[str, _Collect]] = {
    "key": _of_each(_key, None),
    "keyIsBytes": _of_each(_key_is_bytes, None),
    "messageId": _message_ids,
    "publishTime": _of_entry(_publish_time),
    "eventTime": _of_each(_event_time, None),
    "messageProperties": _of_each(lambda message: list(message.properties().items()) or (), ()),
    "partition": lambda block, partition, into: into.repeat(partition, block.count),
    "ledgerId": _of_delivery(lambda delivery: delivery.ledger),
    "entryId": _of_delivery(lambda delivery: delivery.entry),
    "batchIndex": lambda block, partition, into: into.extend(block.indexes),
    "redeliveryCount": _of_delivery(lambda delivery: delivery.redelivery_count),
    "producerName": _of_entry(lambda message: message.producer_name()),
    "sequenceId": _sequence_ids,
    "schemaVersion": _of_entry(_schema_version),
    "orderingKey": _of_each(lambda message: message.ordering_key_bytes(), None),
    "nullValue": _of_each(lambda message: message.has_null_value(), False),
}
