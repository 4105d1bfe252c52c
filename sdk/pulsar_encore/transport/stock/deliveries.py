"""From lists of native messages to deliveries: which entry, which index, of which topic.

Owns `Grouper`. Reading an id costs four native calls; messages of one batch differ only in one number of
their serialized id, so the bytes are compared with those of the message before, and parsed only when
they differ elsewhere. What does not match exactly takes the general parser.
"""

from __future__ import annotations

from typing import Any, Final

from ...ids import MessageId
from ..base import Delivery

_BATCH_INDEX_TAG: Final = 0x20  # field 4, varint


class StockDelivery(Delivery):
    """A delivery with the native ids: only they can ack a part of a batch."""

    __slots__ = ("ids",)

    ids: list[Any]


class Sources:
    """The topics and partitions of one consumer, numbered as they are first seen."""

    def __init__(self, topics: tuple[str, ...]) -> None:
        self._declared = topics
        self._by_topic: dict[str, int] = {}
        self._names: list[tuple[str, int]] = []
        self._by_ledger: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._names)

    def of(self, message_id: MessageId, native: Any) -> int:
        """Source of a native message. Ledgers belong to one topic, so its name is read once each."""
        ledger = message_id.ledger_id()
        source = self._by_ledger.get(ledger)
        if source is None:
            topic = native.topic_name()
            source = self.add(topic, message_id.partition())
            if topic.startswith("persistent://"):
                self._by_ledger[ledger] = source
        return source

    def add(self, topic: str, partition: int) -> int:
        source = self._by_topic.get(topic)
        if source is None:
            source = self._by_topic[topic] = len(self._names)
            self._names.append((topic, partition))
        return source

    def name(self, source: int) -> tuple[str, int]:
        return self._names[source]

    def find(self, topic: str, partition: int) -> int | None:
        """The source of an id: by its topic, or without one by what can only be meant."""
        if topic:
            full = full_name(topic, partition)
            if full in self._by_topic:
                return self._by_topic[full]
            if any(full == full_name(each, partition) for each in self._declared):
                return self.add(full, partition)
            return None
        if len(self._declared) != 1:
            return None
        return self.add(full_name(self._declared[0], partition), partition)


def full_name(topic: str, partition: int) -> str:
    """`persistent://tenant/namespace/name`, of the partition where the id names one."""
    if "://" not in topic:
        parts = topic.split("/")
        topic = "persistent://" + (topic if len(parts) == 3 else f"public/default/{topic}")
    if partition >= 0 and not topic.endswith(f"-partition-{partition}"):
        topic = f"{topic}-partition-{partition}"
    return topic


class Grouper:
    """Turns native messages, in order, into deliveries; one for each run of one entry."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def group(self, natives: list[Any]) -> list[Delivery]:
        deliveries: list[Delivery] = []
        prefix, suffix, at = b"", b"", 0
        delivery: StockDelivery | None = None
        indexes: list[int] = []
        messages: list[Any] = []
        ids: list[Any] = []
        for native in natives:
            native_id = native.message_id()
            data = native_id.serialize()
            if delivery is not None and data.startswith(prefix) and data.endswith(suffix):
                index = data[at]
                end = at + 1
                if index > 0x7F:
                    index = index & 0x7F | data[end] << 7
                    end += 1
                if len(data) - end == len(suffix) and index < 0x4000 and index > indexes[-1]:
                    indexes.append(index)
                    messages.append(native)
                    ids.append(native_id)
                    continue
            message_id = MessageId.wrap(native_id)
            delivery = self._begin(native, message_id)
            deliveries.append(delivery)
            indexes = delivery.indexes = [max(0, message_id.batch_index())]
            messages = delivery.messages = [native]
            ids = delivery.ids = [native_id]
            prefix, suffix, at = _template(data, message_id)
        return deliveries

    def _begin(self, native: Any, message_id: MessageId) -> StockDelivery:
        first = message_id.first_chunk
        size = message_id.batch_size if message_id.batch_index() >= 0 else 0
        return StockDelivery(
            self._sources.of(message_id, native),
            message_id.ledger_id(),
            message_id.entry_id(),
            size,
            native.redelivery_count(),
            (),
            (),
            first_chunk=None if first is None else (first.ledger_id(), first.entry_id()),
        )


def _template(data: bytes, message_id: MessageId) -> tuple[bytes, bytes, int]:
    """What the ids of this entry share: (bytes up to the index, bytes after it, where it stands).

    For a message that is no batch nothing matches: its own id cannot come twice in a row.
    """
    index = message_id.batch_index()
    if index < 0 or message_id.batch_size < 2 or index >= 0x4000:
        return data, data, len(data) - 1
    bare = MessageId(message_id.partition(), message_id.ledger_id(), message_id.entry_id())
    prefix = bare.serialize() + bytes((_BATCH_INDEX_TAG,))
    at = len(prefix)
    end = at + (1 if index < 0x80 else 2)
    return prefix, data[end:], at
