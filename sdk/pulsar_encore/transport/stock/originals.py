"""Native messages and ids that the stock library needs back: to ack parts, and for chunked ones.

Owns `Originals`. The library acks part of a batch only through the ids it delivered, and all chunks
of a message only through the id of the whole (stock-client notes, section 3). Invariant: a payload
is kept for a second only, so that a long wait does not pin it, but for chunked messages: the
library cannot ask for all their chunks again, so they come again from here. Ids that were acked are
let go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from copy import copy
from typing import Any, Final

import _pulsar
from sortedcontainers import SortedDict

from ..base import Delivery

_PAYLOAD_S: Final = 1.0
_MAX_ENTRIES: Final = 50_000  # the broker's unacked window; forgetting one costs a duplicate
_MAX_CHUNKED_BYTES: Final = 256 * 1024 * 1024


class Original:
    """What is kept of one entry."""

    __slots__ = ("_natives", "chunked", "crowded_out", "is_chunked", "kept_at")

    def __init__(self) -> None:
        self._natives: dict[int, Any] = {}
        self.is_chunked = False
        self.chunked: Delivery | None = None  # the delivery, with its payload, of a chunked message
        self.crowded_out = False  # its payload had to go
        self.kept_at = 0.0

    def put(self, delivery: Delivery, now: float) -> None:
        """What came last is what counts: older ids share an older state of their batch."""
        self._natives.update(zip(delivery.indexes, delivery.messages, strict=True))
        self.kept_at = now
        if delivery.first_chunk is not None:
            # A copy: who gets the delivery may dress its messages.
            self.is_chunked, self.chunked, self.crowded_out = True, copy(delivery), False

    def id_of(self, index: int) -> Any | None:
        """The `_pulsar.MessageId` of a batch index (0 for a chunked message), if it is here."""
        native = self._natives.get(index)
        return native.message_id() if isinstance(native, _pulsar.Message) else native

    def take_acked(self, remaining: int) -> Iterator[Any]:
        """Ids of all indexes that are not in the mask `remaining`; each is given once."""
        for index in [each for each in self._natives if not remaining >> each & 1]:
            yield self.id_of(index)
            del self._natives[index]

    def compact(self) -> None:
        """Keep the ids only."""
        self._natives = {index: self.id_of(index) for index in self._natives}
        self.chunked = None


class Originals:
    """What is kept of all unfinished batches and chunked messages of one consumer."""

    def __init__(self) -> None:
        self._by_source: dict[int, SortedDict[tuple[int, int], Original]] = {}
        self._count = 0
        self._fresh: deque[Original] = deque()
        self._chunked: dict[Original, int] = {}  # payload bytes, oldest first
        self._chunked_bytes = 0

    def keep(self, delivery: Delivery, now: float) -> None:
        """Keep what a delivery brought, if it is part of a batch or chunked."""
        chunked = delivery.first_chunk is not None
        if delivery.batch_size <= 1 and not chunked:
            return
        entries = self._by_source.setdefault(delivery.source, SortedDict())
        key = (delivery.ledger, delivery.entry)
        kept = entries.get(key)
        if kept is None:
            if self._count >= _MAX_ENTRIES:
                self.pop(delivery.source, entries.peekitem(0)[0])
            kept = entries[key] = Original()
            self._count += 1
        kept.put(delivery, now)
        if chunked:
            self._keep_payload(kept, delivery.messages[0].length())
        else:
            self._fresh.append(kept)

    def _keep_payload(self, kept: Original, size: int) -> None:
        self._drop_payload(kept)
        self._chunked[kept] = size
        self._chunked_bytes += size
        while self._chunked_bytes > _MAX_CHUNKED_BYTES and len(self._chunked) > 1:
            oldest = next(iter(self._chunked))
            self._drop_payload(oldest)
            oldest.compact()
            oldest.crowded_out = True

    def _drop_payload(self, kept: Original) -> None:
        self._chunked_bytes -= self._chunked.pop(kept, 0)

    def find(self, source: int, key: tuple[int, int]) -> Original | None:
        """What is kept of an entry."""
        entries = self._by_source.get(source)
        return None if entries is None else entries.get(key)

    def pop(self, source: int, key: tuple[int, int]) -> Original | None:
        """`find`, and let go: the entry is acked as a whole."""
        entries = self._by_source.get(source)
        kept = None if entries is None else entries.pop(key, None)
        if kept is not None:
            self._count -= 1
            self._drop_payload(kept)
            kept.chunked = None
        return kept

    def pop_through(self, source: int, key: tuple[int, int]) -> None:
        """Let go of everything up to an entry: it is acked cumulatively."""
        entries = self._by_source.get(source)
        while entries and entries.peekitem(0)[0] <= key:
            self.pop(source, entries.peekitem(0)[0])

    def compact(self, now: float) -> None:
        """Let go of payloads that have been here for long enough."""
        fresh = self._fresh
        while fresh and fresh[0].kept_at < now - _PAYLOAD_S:
            fresh.popleft().compact()

    def lose_payloads(self) -> None:
        """The connection is gone: chunked messages come again from the broker."""
        for kept in self._chunked:
            kept.compact()
        self._chunked.clear()
        self._chunked_bytes = 0

    def clear(self) -> None:
        """After a seek nothing from before is acked any more."""
        self._by_source.clear()
        self._fresh.clear()
        self._chunked.clear()
        self._count = self._chunked_bytes = 0
