"""Exclusive and Failover: one consumer reads in order.

Unacked entries are sent again only after a rewind: REDELIVER, another active consumer, or a
reconnect. Delivery times are ignored (consumer-semantics.md 9.1).

Entries are read in blocks, one per ms, and a block is sent whole. A REDELIVER during a read goes
wrong as on Pulsar 4.2 (wire-protocol.md 5.5): the block of that read is discarded, but when the
read completes, some blocks later, its end becomes the read position again. The entries in between
are skipped until the next rewind.
"""

from __future__ import annotations

from typing import NamedTuple

from ...wire.key_hashes import murmur3
from .attached_consumers import Delivery, SubscribedConsumer, SubscriptionType
from .cursor import Cursor
from .key_ranges import ring_index
from .rule_settings import BrokerRules
from .topic_log import LogEntry, TopicLog

READ_ENTRIES = 100  # per read, as Pulsar's dispatcherMaxReadBatchSize
READ_MS = 1
LATEST_BLOCK = 6  # an overtaking read completes after at most this many blocks of the rewind


class _Block(NamedTuple):
    """Unacked entries, and the start of the next read."""

    entries: list[LogEntry]
    end: int


class _LateRead(NamedTuple):
    """A read in flight at a rewind: its end, and the blocks until it completes."""

    end: int
    blocks: int


class Overtaking:
    """Decides which rewinds of a subscription are overtaken, and after how many blocks.

    The choice is a hash: every run that creates topics in the same order behaves the same.
    """

    def __init__(self, rules: BrokerRules, ledger: int) -> None:
        self.share: float = rules.rewind_overtaken
        self._seed = f"{rules.rewind_seed} {ledger}"
        self._rewinds = 0

    def next(self) -> int:
        """Return after how many blocks the next rewind is overtaken; 0 for never."""
        self._rewinds += 1
        hashed = murmur3(f"{self._seed} {self._rewinds}".encode())
        return hashed % LATEST_BLOCK + 1 if hashed // LATEST_BLOCK % 1000 < self.share * 1000 else 0


class SingleActive:
    def __init__(
        self,
        kind: SubscriptionType,
        log: TopicLog,
        cursor: Cursor,
        rules: BrokerRules,
        overtaking: Overtaking,
    ) -> None:
        self.type = kind
        self.consumers: list[SubscribedConsumer] = []
        self.active: SubscribedConsumer | None = None
        self._log = log
        self._cursor = cursor
        self._delay_ms = rules.failover_delay_ms if kind is SubscriptionType.FAILOVER else 0
        self._read = cursor.mark
        self._not_before_ms = 0
        self._overtaking = overtaking
        self._late: _LateRead | None = None

    def add(self, consumer: SubscribedConsumer, wall_now_ms: int) -> None:
        self.consumers.append(consumer)
        self._elect(wall_now_ms)

    def remove(self, consumer: SubscribedConsumer, wall_now_ms: int) -> None:
        self.consumers.remove(consumer)
        self._elect(wall_now_ms)

    def rewind(self) -> None:
        self._read = self._cursor.mark
        self._late = None

    def acked(self, seq: int) -> None:
        """Do nothing: no entry is held."""

    def partly_acked(self, seq: int, left: int) -> None:
        """Do nothing: no entry is held."""

    def pending(self, seq: int, left: int) -> None:
        """Do nothing: no entry is held."""

    def discard(self, seq: int) -> None:
        """Do nothing: no entry is held."""

    def give_back(self, seqs: list[int]) -> None:
        """Rewind after an aborted transaction."""
        if self.active is not None:
            self.redeliver(self.active, None)

    def redeliver(self, consumer: SubscribedConsumer, seqs: list[int] | None) -> None:
        """Rewind, whatever the ids are. An inactive consumer is ignored."""
        if consumer is not self.active:
            return
        read_in_flight = self._next_block(READ_ENTRIES) if self._ready else None
        self.rewind()
        if read_in_flight is not None and read_in_flight.entries:
            blocks = self._overtaking.next()
            self._late = _LateRead(read_in_flight.end, blocks) if blocks else None

    def dispatch(self, wall_now_ms: int, limit: int) -> list[Delivery]:
        out: list[Delivery] = []
        consumer = self.active
        cursor = self._cursor
        while (
            consumer is not None
            and self._ready
            and wall_now_ms >= self._not_before_ms
            and len(out) < limit
        ):
            block = self._next_block(min(READ_ENTRIES, limit - len(out)))
            for entry in block.entries:
                mask = cursor.remaining(entry.seq) if cursor.has_partial else None
                consumer.permits -= entry.messages if mask is None else mask.bit_count()
                out.append((consumer, entry, 0, mask))
            self._read = block.end
            self._complete_late_read()
            if not block.entries:
                break
            if self._overtaking.share:
                self._not_before_ms = wall_now_ms + READ_MS
        return out

    @property
    def _ready(self) -> bool:
        return self.active is not None and self.active.permits > 0 and self.active.writable

    def _next_block(self, most: int) -> _Block:
        """Return the next block. Permits count entries here."""
        assert self.active is not None
        log, cursor = self._log, self._cursor
        most = min(most, self.active.permits)
        seq = max(self._read, cursor.mark)
        entries: list[LogEntry] = []
        while len(entries) < most and seq < log.readable_end:
            entry = log.entries[seq - log.base]
            if entry.hidden:
                cursor.ack(seq)
            elif not cursor.is_settled(seq):
                entries.append(entry)
            seq += 1
        return _Block(entries, seq)

    def _complete_late_read(self) -> None:
        """Count a sent block. Without permits the late read completes at once."""
        late = self._late
        if late is None:
            return
        if late.blocks > 1 and self._ready:
            self._late = late._replace(blocks=late.blocks - 1)
            return
        self._late = None
        self._read = max(self._read, late.end)

    def wake_ms(self, wall_now_ms: int) -> int | None:
        is_waiting = wall_now_ms < self._not_before_ms and self._ready
        return self._not_before_ms if is_waiting else None

    def _elect(self, wall_now_ms: int) -> None:
        """Choose the active consumer of the top priority: by partition number, else hash ring."""
        self.consumers.sort(key=lambda c: (c.priority, c.name))
        previous = self.active
        self.active = None
        if self.consumers:
            top = [c for c in self.consumers if c.priority == self.consumers[0].priority]
            partition = self._log.partition
            at = (
                partition % len(top)
                if partition >= 0
                else ring_index([c.name for c in top], self._log.name)
            )
            self.active = top[at]
        if self.active is not previous:
            self.rewind()
            self._not_before_ms = wall_now_ms + self._delay_ms
