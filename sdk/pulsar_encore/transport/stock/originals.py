"""Native messages and ids that the stock library needs back: to ack parts, and for chunked ones.

Owns `CppOriginals`. The library acks part of a batch only through the ids it delivered, and all
chunks of a message only through the id of the whole (`docs/notes/cpp-client.md#acks`). What is
acked is let go at once; and so, in a while, is what was asked for again and did not come: another
consumer has it. Should it come later, its new ids are kept. Invariant: a payload is kept for a
second only, so that a long wait does not pin it, but for chunked messages: the library cannot ask
for all their chunks again, so they come again from here. Their ids outlive them: an ack without, of
the last chunk alone, would leave the others with nobody.
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
_REQUEST_WAIT_S: Final = 10.0  # what was asked for comes again sooner, or to another consumer
_MAX_ENTRIES: Final = 50_000  # the broker's unacked window; forgetting one costs a duplicate
_MAX_CHUNKED_BYTES: Final = 256 * 1024 * 1024
_MAX_SPARE_IDS: Final = 10_000
_MAX_COMPACTED: Final = 3_000  # messages compacted in one go, 0.5 us each


class CppOriginal:
    """What is kept of one entry."""

    __slots__ = (
        "_natives",
        "chunked",
        "crowded_out",
        "is_chunked",
        "kept_at",
        "key",
        "source",
    )

    def __init__(self, source: int, key: tuple[int, int]) -> None:
        self.source: int = source
        self.key: tuple[int, int] = key
        self._natives: dict[int, Any] = {}
        self.is_chunked: bool = False
        self.chunked: Delivery | None = None  # the delivery, with its payload, of a chunked message
        self.crowded_out: bool = False  # its payload had to go
        self.kept_at: float = 0.0

    def put(self, delivery: Delivery, now: float) -> None:
        """What came last is what counts: older ids share an older state of their batch."""
        self._natives.update(zip(delivery.indexes, delivery.messages, strict=True))
        self.kept_at = now
        if delivery.first_chunk is not None:
            # A copy: who gets the delivery may dress its messages.
            self.is_chunked, self.chunked, self.crowded_out = True, copy(delivery), False

    def __len__(self) -> int:
        return len(self._natives)

    def id_of(self, index: int) -> Any | None:
        """The `_pulsar.MessageId` of a batch index (0 for a chunked message), if it is here."""
        native = self._natives.get(index)
        return native.message_id() if isinstance(native, _pulsar.Message) else native

    def take_acked(self, remaining: int) -> Iterator[Any]:
        for index in [each for each in self._natives if not remaining >> each & 1]:
            yield self.id_of(index)
            del self._natives[index]

    def compact(self) -> None:
        """Keep the ids only."""
        self._natives = {index: self.id_of(index) for index in self._natives}
        self.chunked = None

    def release(self) -> None:
        """Keep nothing: whoever still has this record must not pin what it held."""
        self._natives = {}
        self.chunked = None


class CppOriginals:
    """What is kept of all unfinished batches and chunked messages of one consumer."""

    def __init__(self) -> None:
        self._by_source: dict[int, SortedDict[tuple[int, int], CppOriginal]] = {}
        self._order: OrderedDict[CppOriginal, None] = OrderedDict()  # by `kept_at`
        # Entries whose payload is still kept, in the same order.
        self._with_payload: OrderedDict[CppOriginal, None] = OrderedDict()
        self._requested: OrderedDict[CppOriginal, float] = OrderedDict()  # when, oldest first
        self._all_requested_at: float | None = None
        self._chunked: OrderedDict[CppOriginal, int] = OrderedDict()  # payload bytes, oldest first
        self._chunked_bytes = 0
        # Ids of chunked messages without a record: acked, and perhaps once more after a loss of the
        # connection; or perhaps with another consumer, and perhaps still held here.
        self._spare_ids: OrderedDict[tuple[int, tuple[int, int]], Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def keep(self, delivery: Delivery, now: float) -> None:
        """Keep what a delivery brought, if it is part of a batch or chunked.

        Beyond the bound the oldest of all is let go: what is acked of it leaves with the whole
        entry, or when it comes again.
        """
        chunked = delivery.first_chunk is not None
        if delivery.batch_size <= 1 and not chunked:
            return
        entries = self._by_source.setdefault(delivery.source, SortedDict())
        key = (delivery.ledger, delivery.entry)
        original = entries.get(key)
        if original is None:
            if len(self._order) >= _MAX_ENTRIES:
                self._release(next(iter(self._order)))
            original = entries[key] = CppOriginal(delivery.source, key)
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

    def find(self, source: int, key: tuple[int, int]) -> CppOriginal | None:
        """What is kept of an entry."""
        entries = self._by_source.get(source)
        return None if entries is None else entries.get(key)

    def chunked_id(self, source: int, key: tuple[int, int]) -> Any | None:
        """The id that acks all chunks of a message; None of an entry that is no chunked message."""
        original = self.find(source, key)
        if original is None:
            return self._spare_ids.get((source, key))
        return original.id_of(0) if original.is_chunked else None

    def take_acked(self, source: int, key: tuple[int, int], remaining: int) -> Iterator[Any]:
        """Ids of all indexes of a batch that are not in the mask `remaining`; each is given once.

        With the last one the record goes: what else the batch has was acked by others.
        """
        original = self.find(source, key)
        if original is not None:
            yield from original.take_acked(remaining)
            if not len(original):
                self._release(original)

    def pop(self, source: int, key: tuple[int, int]) -> None:
        """Let go of an entry: it is acked as a whole."""
        original = self.find(source, key)
        if original is not None:
            self._release(original)

    def pop_through(self, source: int, key: tuple[int, int]) -> None:
        """Let go of everything up to an entry: it is acked cumulatively."""
        for each in list(self._by_source.get(source, SortedDict()).irange(maximum=key)):
            self.pop(source, each)

    def _release(self, original: CppOriginal) -> None:
        del self._by_source[original.source][original.key]
        del self._order[original]
        self._with_payload.pop(original, None)
        self._requested.pop(original, None)
        self._drop_payload(original)
        if original.is_chunked:
            id_key = (original.source, original.key)
            self._spare_ids[id_key] = original.id_of(0)
            self._spare_ids.move_to_end(id_key)
            if len(self._spare_ids) > _MAX_SPARE_IDS:
                self._spare_ids.popitem(last=False)
        original.release()

    def asked(self, source: int, key: tuple[int, int], now: float) -> None:
        """An entry was asked for again, and may go to another consumer."""
        original = self.find(source, key)
        if original is not None:
            self._requested[original] = now
            self._requested.move_to_end(original)

    def asked_all(self, now: float) -> None:
        """As `asked`, of all that is here."""
        self._all_requested_at = now

    def compact(self, now: float) -> float | None:
        """Let go of payloads that have been here for long enough, and of what did not come again.

        Returns:
            Seconds until it should be called again; None when there is nothing left to do.
        """
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
        """The oldest of all; False when none is older."""
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
        """The connection is gone: chunked messages come again from the broker."""
        for original in self._chunked:
            original.compact()
        self._chunked.clear()
        self._chunked_bytes = 0

    def clear(self) -> None:
        """After a seek nothing from before is acked any more, or comes from here."""
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
