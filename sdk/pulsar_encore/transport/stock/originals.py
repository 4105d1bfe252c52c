"""Native messages and ids that the C++ client needs back for acks and for chunked messages.

The C++ client acks a part of a batch only through the ids that it delivered, and all chunks of a
message only through the id of the whole (`docs/notes/cpp-client.md#acks`).

A payload is kept for one second, so that a held message does not pin it. A chunked message is kept
until acked, and is redelivered from here, because the C++ client cannot request all its chunks. Its
id outlives its record: an ack without it would leave all chunks but the last unacked for ever.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from copy import copy
from typing import Any, Final

import _pulsar
from sortedcontainers import SortedDict

from ..interface import Delivery

_PAYLOAD_KEEP_S: Final = 1.0
_REQUEST_WAIT_S: Final = 10.0  # a redelivery arrives sooner, or another consumer has it
_MAX_ENTRIES: Final = 50_000  # the broker's unacked window; a released entry costs a duplicate
_MAX_CHUNKED_BYTES: Final = 256 * 1024 * 1024
_MAX_SPARE_IDS: Final = 10_000
_MAX_COMPACTED: Final = 3_000  # messages compacted in one call, 0.5 us each


class CppOriginal:
    """The native messages or ids of one entry."""

    __slots__ = (
        "_natives",
        "chunked",
        "crowded_out",
        "is_chunked",
        "kept_at",
        "key",
        "topic_number",
    )

    def __init__(self, topic_number: int, key: tuple[int, int]) -> None:
        self.topic_number: int = topic_number
        self.key: tuple[int, int] = key
        self._natives: dict[int, Any] = {}
        self.is_chunked: bool = False
        self.chunked: Delivery | None = None
        self.crowded_out: bool = False  # its payload was dropped for `_MAX_CHUNKED_BYTES`
        self.kept_at: float = 0.0

    def put(self, delivery: Delivery, now: float) -> None:
        """Keep a delivery's messages. Older ids share an older state of the batch."""
        self._natives.update(zip(delivery.indexes, delivery.messages, strict=True))
        self.kept_at = now
        if delivery.first_chunk is not None:
            # A copy: the receiver may replace the messages.
            self.is_chunked, self.chunked, self.crowded_out = True, copy(delivery), False

    def __len__(self) -> int:
        return len(self._natives)

    def id_of(self, index: int) -> Any | None:
        """Return the `_pulsar.MessageId` of a batch index (0 for a chunked message), or None."""
        native = self._natives.get(index)
        return native.message_id() if isinstance(native, _pulsar.Message) else native

    def take_acked(self, remaining: int) -> Iterator[Any]:
        for index in [each for each in self._natives if not remaining >> each & 1]:
            yield self.id_of(index)
            del self._natives[index]

    def compact(self) -> None:
        self._natives = {index: self.id_of(index) for index in self._natives}
        self.chunked = None

    def release(self) -> None:
        """Drop everything: another reference to this record must not pin messages."""
        self._natives = {}
        self.chunked = None


class CppOriginals:
    """The native messages and ids of a consumer's unfinished batches and chunked messages."""

    def __init__(self) -> None:
        self._by_source: dict[int, SortedDict[tuple[int, int], CppOriginal]] = {}
        self._order: OrderedDict[CppOriginal, None] = OrderedDict()  # by `kept_at`
        self._with_payload: OrderedDict[CppOriginal, None] = OrderedDict()
        self._requested: OrderedDict[CppOriginal, float] = OrderedDict()  # the time, oldest first
        self._all_requested_at: float | None = None
        self._chunked: OrderedDict[CppOriginal, int] = OrderedDict()  # payload bytes, oldest first
        self._chunked_bytes = 0
        # Ids of chunked messages without a record: acked ones, which may need a second ack after a
        # reconnect, and released ones, which this consumer may still hold.
        self._spare_ids: OrderedDict[tuple[int, tuple[int, int]], Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def keep(self, delivery: Delivery, now: float) -> None:
        """Keep the native messages of a delivery if it is part of a batch or chunked.

        An entry released for `_MAX_ENTRIES` is acked as a whole or at its redelivery.
        """
        chunked = delivery.first_chunk is not None
        if delivery.batch_size <= 1 and not chunked:
            return
        entries = self._by_source.setdefault(delivery.topic_number, SortedDict())
        key = (delivery.ledger, delivery.entry)
        original = entries.get(key)
        if original is None:
            if len(self._order) >= _MAX_ENTRIES:
                self._release(next(iter(self._order)))
            original = entries[key] = CppOriginal(delivery.topic_number, key)
        original.put(delivery, now)
        self._requested.pop(original, None)
        self._order[original] = None
        self._order.move_to_end(original)
        if chunked:
            self._keep_payload(original, delivery.messages[0].length())
        else:
            self._with_payload[original] = None
            self._with_payload.move_to_end(original)

    def _keep_payload(self, original: CppOriginal, size: int) -> None:
        self._drop_payload(original)
        self._chunked[original] = size
        self._chunked_bytes += size
        while self._chunked_bytes > _MAX_CHUNKED_BYTES and len(self._chunked) > 1:
            oldest = next(iter(self._chunked))
            self._drop_payload(oldest)
            oldest.compact()
            oldest.crowded_out = True

    def _drop_payload(self, original: CppOriginal) -> None:
        self._chunked_bytes -= self._chunked.pop(original, 0)

    def find(self, topic_number: int, key: tuple[int, int]) -> CppOriginal | None:
        entries = self._by_source.get(topic_number)
        return None if entries is None else entries.get(key)

    def chunked_id(self, topic_number: int, key: tuple[int, int]) -> Any | None:
        """Return the id that acks all chunks of a message; None if the entry is not chunked."""
        original = self.find(topic_number, key)
        if original is None:
            return self._spare_ids.get((topic_number, key))
        return original.id_of(0) if original.is_chunked else None

    def take_acked(self, topic_number: int, key: tuple[int, int], remaining: int) -> Iterator[Any]:
        """Yield, once each, the ids of a batch's indexes that are not in the mask `remaining`."""
        original = self.find(topic_number, key)
        if original is not None:
            yield from original.take_acked(remaining)
            if not len(original):
                self._release(original)

    def pop(self, topic_number: int, key: tuple[int, int]) -> None:
        original = self.find(topic_number, key)
        if original is not None:
            self._release(original)

    def pop_through(self, topic_number: int, key: tuple[int, int]) -> None:
        """Release every entry up to `key`, which a cumulative ack covers."""
        for each in list(self._by_source.get(topic_number, SortedDict()).irange(maximum=key)):
            self.pop(topic_number, each)

    def _release(self, original: CppOriginal) -> None:
        del self._by_source[original.topic_number][original.key]
        del self._order[original]
        self._with_payload.pop(original, None)
        self._requested.pop(original, None)
        self._drop_payload(original)
        if original.is_chunked:
            id_key = (original.topic_number, original.key)
            self._spare_ids[id_key] = original.id_of(0)
            self._spare_ids.move_to_end(id_key)
            if len(self._spare_ids) > _MAX_SPARE_IDS:
                self._spare_ids.popitem(last=False)
        original.release()

    def note_requested(self, topic_number: int, key: tuple[int, int], now: float) -> None:
        original = self.find(topic_number, key)
        if original is not None:
            self._requested[original] = now
            self._requested.move_to_end(original)

    def note_all_requested(self, now: float) -> None:
        self._all_requested_at = now

    def compact(self, now: float) -> float | None:
        """Drop old payloads and requested entries. Return seconds until the next call, or None."""
        with_payload, left = self._with_payload, _MAX_COMPACTED
        while left > 0 and with_payload and self._payload_s(now) <= 0:
            oldest, _ = with_payload.popitem(last=False)
            left -= 1 + len(oldest)
            oldest.compact()
        while left > 0 and self._requested and self._requested_s(now) <= 0:
            left -= 1
            self._release(next(iter(self._requested)))
        while left > 0 and self._all_requested_s(now) <= 0:
            if not self._release_older_than(self._all_requested_at or 0.0):
                self._all_requested_at = None
            left -= 1
        soonest = min(self._payload_s(now), self._requested_s(now), self._all_requested_s(now))
        return None if soonest == float("inf") else min(max(0.0, soonest), _PAYLOAD_KEEP_S)

    def _release_older_than(self, time: float) -> bool:
        """Release the oldest entry; False if none is older than `time`."""
        oldest = next(iter(self._order), None)
        if oldest is None or oldest.kept_at > time:
            return False
        self._release(oldest)
        return True

    def _payload_s(self, now: float) -> float:
        oldest = next(iter(self._with_payload), None)
        return float("inf") if oldest is None else oldest.kept_at + _PAYLOAD_KEEP_S - now

    def _requested_s(self, now: float) -> float:
        return next(iter(self._requested.values()), float("inf")) + _REQUEST_WAIT_S - now

    def _all_requested_s(self, now: float) -> float:
        return (
            float("inf")
            if self._all_requested_at is None
            else self._all_requested_at + _REQUEST_WAIT_S - now
        )

    def lose_payloads(self) -> None:
        """Drop chunked messages, which the broker redelivers after a reconnect."""
        for original in self._chunked:
            original.compact()
        self._chunked.clear()
        self._chunked_bytes = 0

    def clear(self) -> None:
        for original in self._chunked:
            original.chunked = None
        self._by_source.clear()
        self._order.clear()
        self._with_payload.clear()
        self._requested.clear()
        self._all_requested_at = None
        self._chunked.clear()
        self._chunked_bytes = 0
        self._spare_ids.clear()
