"""Messages as columns of Arrow.

Owns `Rows`, which gathers the messages of one topic, column by column, and makes record batches of
them; only what was asked for is looked at. The usual messages of a batch, which have nothing but a
value and a sequence id of their own, are read from its bytes all at once (`plain`); all others are
asked as `RawMessage`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from ...ids import MessageId
from ...letters.reading import Letter
from ...message import RawMessage
from ...transport.base import Delivery
from ...transport.native.consumer.messages import BatchMessage, BatchMessages
from ..columns import LETTER, Column
from .cutting import Cut
from .gathered import Gathered
from .letters import letter_values
from .payloads import Payloads
from .plain import Plain, plain_messages
from .values.base import Values

_MANY: Final = 48  # messages of a batch, for which it pays to look at all at once
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
    plain: Plain | None


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
        keys = {prefix + each.key: each.key for each in columns}
        self._names = {each.name: keys[each.name] for each in self._arrow if each.name in keys}
        self._gathered = {
            key: Gathered(self._arrow.field(name).type)
            for name, key in self._names.items()
            if key != "topic"
        }
        self._letters = [key for key in self._gathered if key in _LETTER_KEYS]
        self._gatherers = [
            (_GATHER[key], gathered) for key, gathered in self._gathered.items() if key in _GATHER
        ]
        self._payloads = Payloads()
        self._has_values = any(each.name not in keys for each in self._arrow)

    def add(self, cuts: Iterable[Cut]) -> Iterator[pa.RecordBatch]:
        """Gather some messages; gives the record batches that are full."""
        for delivery, first, stop in cuts:
            room = self._most_rows
            for at in range(first, stop, room):
                self._add(delivery, at, min(stop, at + room))
                payloads = self._payloads
                if len(payloads) >= self._most_rows or payloads.size >= _MOST_BYTES:
                    yield self.flush()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What was gathered and is not in a record batch yet, if anything."""
        if len(self._payloads):
            yield self.flush()

    def _add(self, delivery: Delivery, first: int, stop: int) -> None:
        part = _part(delivery, first, stop)
        if part.plain is not None:
            self._payloads.add_plain(part.plain)
        else:
            self._payloads.add(
                [None if each.has_null_value() else each.data() for each in part.messages]
            )
        for gather, into in self._gatherers:
            gather(part, self._partition, into)
        if self._letters:
            self._add_letters(part)
        self._values.note(part.messages, partial(_ids, part, self._partition))

    def _add_letters(self, part: Part) -> None:
        ids = _ids(part, self._partition)
        for message, message_id in zip(part.messages, ids, strict=True):
            told = letter_values(Letter(_Written(message, message_id)), self._topic)
            for key in self._letters:
                self._gathered[key].add(told[key])

    def flush(self) -> pa.RecordBatch:
        """All that was gathered."""
        payloads, self._payloads = self._payloads, Payloads()
        made: dict[str, pa.Array] = {}
        kept: list[bool] | None = None
        if self._has_values:
            made, kept = self._values.columns(payloads)
        arrays = []
        for field in self._arrow:
            key = self._names.get(field.name)
            if key is None:
                arrays.append(made[field.name])
            elif key == "topic":
                arrays.append(pa.repeat(pa.scalar(self._topic, field.type), len(payloads)))
            else:
                arrays.append(self._gathered[key].take())
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._arrow)
        return batch if kept is None else batch.filter(pa.array(kept))


def _part(delivery: Delivery, first: int, stop: int) -> Part:
    """Those messages of a delivery, and how they are best read."""
    messages: Sequence[Any] = delivery.messages
    indexes: Sequence[int] = delivery.indexes
    if first or stop < len(messages):
        messages, indexes = messages[first:stop], indexes[first:stop]
    if delivery.batch_size == 0:
        return Part(delivery, messages, (-1,), None)
    if isinstance(messages, BatchMessages) and len(messages) >= _MANY:
        plain = plain_messages(messages.batch.buffer, messages.starts)
        if plain is not None:
            return Part(delivery, messages, indexes, plain)
    if isinstance(messages[0], BatchMessage):
        messages = [each.decoded() for each in messages]
    return Part(delivery, messages, indexes, None)


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
def _id_ends(batch_size: int) -> pa.Array:
    """The bytes of an id that say where in a batch it is, for each of its messages."""
    start = len(MessageId(-1, 0, 0).serialize())
    ids = (MessageId(-1, 0, 0, index, batch_size=batch_size) for index in range(batch_size))
    return pa.array([each.serialize()[start:] for each in ids], pa.binary())


# A function for each column: gathers, of a part and the partition's number, a value for each
# message.

_Gather = Callable[[Part, int, Gathered], None]


def _message_ids(part: Part, partition: int, into: Gathered) -> None:
    delivery = part.delivery
    if len(part.indexes) < _MANY:
        into.extend([each.serialize() for each in _ids(part, partition)])
        return
    start = MessageId(partition, delivery.ledger, delivery.entry).serialize()
    ends = _id_ends(delivery.batch_size)
    if len(part.indexes) < delivery.batch_size:
        ends = ends.take(pa.array(part.indexes))
    into.append(pc.binary_join_element_wise(pa.scalar(start), ends, pa.scalar(b"")))


def _of_each(read: Callable[[RawMessage], Any], absent: Any) -> _Gather:
    """What is a message's own, and `absent` where it has nothing but a value."""

    def gather(part: Part, partition: int, into: Gathered) -> None:
        if part.plain is not None:
            into.repeat(absent, len(part.messages))
        else:
            into.extend([read(each) for each in part.messages])

    return gather


def _of_entry(read: Callable[[RawMessage], Any]) -> _Gather:
    """What all messages of an entry have in common."""

    def gather(part: Part, partition: int, into: Gathered) -> None:
        into.repeat(read(part.messages[0]), len(part.messages))

    return gather


def _of_place(read: Callable[[Delivery, int], Any]) -> _Gather:
    """What the delivery says."""

    def gather(part: Part, partition: int, into: Gathered) -> None:
        into.repeat(read(part.delivery, partition), len(part.messages))

    return gather


def _event_time(message: RawMessage) -> int | None:
    """In us."""
    return message.event_timestamp() * 1000 or None


def _schema_version(message: RawMessage) -> bytes | None:
    return message.schema_version().encode("latin-1") or None


def _sequence_ids(part: Part, partition: int, into: Gathered) -> None:
    if part.plain is not None and part.plain.sequence_ids is not None:
        into.append(pa.array(part.plain.sequence_ids))
    else:
        into.extend([_sequence_id(each) for each in part.messages])


def _sequence_id(message: Any) -> int | None:
    """Its own, or that of its entry; the stock library does not say."""
    own = getattr(message, "metadata", None)
    if own is None:
        return None
    entry = message.entry_metadata
    found: int = own.sequence_id if own.HasField("sequence_id") else entry.sequence_id
    return found


_GATHER: Final[dict[str, _Gather]] = {
    "key": _of_each(lambda message: message.partition_key_bytes(), None),
    "messageId": _message_ids,
    "publishTime": _of_entry(lambda message: message.publish_timestamp() * 1000),
    "eventTime": _of_each(_event_time, None),
    "messageProperties": _of_each(lambda message: list(message.properties().items()), ()),
    "partition": _of_place(lambda delivery, partition: partition),
    "ledgerId": _of_place(lambda delivery, partition: delivery.ledger),
    "entryId": _of_place(lambda delivery, partition: delivery.entry),
    "batchIndex": lambda part, partition, into: into.extend(part.indexes),
    "redeliveryCount": _of_place(lambda delivery, partition: delivery.redelivery_count),
    "producerName": _of_entry(lambda message: message.producer_name()),
    "sequenceId": _sequence_ids,
    "schemaVersion": _of_entry(_schema_version),
    "orderingKey": _of_each(lambda message: message.ordering_key_bytes(), None),
    "nullValue": _of_each(lambda message: message.has_null_value(), False),
}
