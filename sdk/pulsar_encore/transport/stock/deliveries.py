"""Group lists of native messages into deliveries by entry.

Reading an id costs as much as receiving the message. If the queue's order proves which messages lie
between two ids, only these are read. Otherwise the bytes of each id are compared with the entry's
first id, and parsed only if more than the batch index differs.
"""

from __future__ import annotations

from typing import Any, Final

from ...values.message_id import MessageId
from ...values.topic_names import full_name
from ..interface import Delivery

_SINGLE_INDEX: Final = (0,)  # the index of an unbatched message
_BATCH_INDEX_TAG: Final = 0x20  # field 4, varint


class TopicNames:
    """The topics and partitions of one consumer, numbered as first seen."""

    def __init__(self, topics: tuple[str, ...]) -> None:
        self._declared = topics
        self._by_topic: dict[str, int] = {}
        self._names: list[tuple[str, int]] = []
        self._by_ledger: dict[int, int] = {}
        self._non_persistent: set[int] = set()

    def __len__(self) -> int:
        return len(self._names)

    def number_of(self, ledger: int, partition: int, native: Any) -> int:
        """Return the number of a message's topic."""
        topic_number = self._by_ledger.get(ledger)
        if topic_number is None:
            topic = native.topic_name()
            topic_number = self.add(topic, partition)
            if topic.startswith("persistent://"):
                self._by_ledger[ledger] = topic_number
        return topic_number

    def add(self, topic: str, partition: int) -> int:
        topic_number = self._by_topic.get(topic)
        if topic_number is None:
            topic_number = self._by_topic[topic] = len(self._names)
            self._names.append((topic, partition))
            if topic.startswith("non-persistent://"):
                self._non_persistent.add(topic_number)
        return topic_number

    def is_non_persistent(self, topic_number: int) -> bool:
        return topic_number in self._non_persistent

    def name(self, topic_number: int) -> tuple[str, int]:
        return self._names[topic_number]

    def find(self, topic: str, partition: int) -> int | None:
        """Return the topic number of an id, by its topic or the only declared topic."""
        if topic:
            full = partition_name(topic, partition)
            if full in self._by_topic:
                return self._by_topic[full]
            if any(full == partition_name(each, partition) for each in self._declared):
                return self.add(full, partition)
            return None
        if len(self._declared) != 1:
            return None
        return self.add(partition_name(self._declared[0], partition), partition)


def partition_name(topic: str, partition: int) -> str:
    topic = full_name(topic)
    if partition >= 0 and not topic.endswith(f"-partition-{partition}"):
        topic = f"{topic}-partition-{partition}"
    return topic


def _varint_size(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)


class Grouper:
    """Turns native messages, in order, into deliveries: one for each run of an entry.

    Args:
        one_queue: True for one unpartitioned topic on a Shared type. Two messages of an entry in
            one list, both with the redelivery count 0, are then of one delivery. If their
            distances in the list and in the batch are equal, the ids between them need not be read.
    """

    def __init__(self, topic_numbers: TopicNames, *, one_queue: bool) -> None:
        self._topics = topic_numbers
        self._one_queue = one_queue

    def group(self, natives: list[Any]) -> list[Delivery]:
        deliveries: list[Delivery] = []
        at = 0
        while at < len(natives):
            native = natives[at]
            native_id = native.message_id()
            data = native_id.serialize()
            if native_id.batch_index() < 0:
                plain = self._plain(native, native_id, len(data))
                if plain is not None:
                    deliveries.append(plain)
                    at += 1
                    continue
            message_id = MessageId.wrap_bytes(data)
            delivery = self._begin(native, message_id)
            index = max(0, message_id.batch_index())
            end = self._run_end(natives, at, delivery, index)
            if end is None:
                delivery.indexes, end = _matching_indexes(natives, at, data, message_id)
            else:
                delivery.indexes = range(index, index + end - at)
            delivery.messages = natives[at:end]
            deliveries.append(delivery)
            at = end
        return deliveries

    def _plain(self, native: Any, native_id: Any, size: int) -> Delivery | None:
        """Return the delivery of an unbatched message; None if it is chunked."""
        ledger, entry = native_id.ledger_id(), native_id.entry_id()
        partition = native_id.partition()
        expected = 2 + _varint_size(ledger) + _varint_size(entry)
        if partition != -1:
            expected += 1 + _varint_size(partition)
        if size != expected:
            return None  # the id has more fields
        topic_number = self._topics.number_of(ledger, partition, native)
        return Delivery(
            topic_number, ledger, entry, 0, native.redelivery_count(), _SINGLE_INDEX, (native,)
        )

    def _begin(self, native: Any, message_id: MessageId) -> Delivery:
        first = message_id.first_chunk
        return Delivery(
            self._topics.number_of(message_id.ledger_id(), message_id.partition(), native),
            message_id.ledger_id(),
            message_id.entry_id(),
            message_id.batch_size if message_id.batch_index() >= 0 else 0,
            native.redelivery_count(),
            (),
            (),
            first_chunk=None if first is None else (first.ledger_id(), first.entry_id()),
        )

    def _run_end(self, natives: list[Any], at: int, delivery: Delivery, index: int) -> int | None:
        """Return the end of the entry's run by its last message, or None if uncertain."""
        if not self._one_queue or delivery.redelivery_count or delivery.batch_size < 2:
            return None
        last = min(len(natives) - 1, at + delivery.batch_size - 1 - index)
        if last == at:
            return at + 1
        native_id = natives[last].message_id()
        if (
            native_id.entry_id() == delivery.entry
            and native_id.ledger_id() == delivery.ledger
            and native_id.batch_index() == index + last - at
            and natives[last].redelivery_count() == 0
        ):
            return last + 1
        return None


def _matching_indexes(
    natives: list[Any], at: int, data: bytes, message_id: MessageId
) -> tuple[list[int], int]:
    """Return the indexes of the messages of one delivery from `at` on, and their end."""
    # A redelivery can continue a batch at the index where an earlier delivery ended: the queue of
    # several topics keeps the first messages of a batch over a reconnect, and messages that were
    # acked meanwhile are not sent again. Only the redelivery count shows that.
    count = natives[at].redelivery_count()
    indexes = [max(0, message_id.batch_index())]
    prefix, suffix, index_at = _id_template(data, message_id)
    end = at + 1
    while end < len(natives):
        data = natives[end].message_id().serialize()
        if not (data.startswith(prefix) and data.endswith(suffix)):
            break
        index, after = data[index_at], index_at + 1
        if index > 0x7F:
            index = index & 0x7F | data[after] << 7
            after += 1
        if len(data) - after != len(suffix) or index >= 0x4000 or index <= indexes[-1]:
            break
        if natives[end].redelivery_count() != count:
            break
        indexes.append(index)
        end += 1
    return indexes, end


def _id_template(data: bytes, message_id: MessageId) -> tuple[bytes, bytes, int]:
    """Return the bytes around the batch index in the ids of an entry, and the index's offset.

    For an unbatched message they match no other id.
    """
    index = message_id.batch_index()
    if index < 0 or message_id.batch_size < 2 or index >= 0x4000:
        return data, data, len(data) - 1
    bare = MessageId(message_id.partition(), message_id.ledger_id(), message_id.entry_id())
    prefix = bare.serialize() + bytes((_BATCH_INDEX_TAG,))
    at = len(prefix)
    end = at + (1 if index < 0x80 else 2)
    return prefix, data[end:], at
