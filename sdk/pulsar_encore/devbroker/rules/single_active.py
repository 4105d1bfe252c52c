"""Exclusive and Failover: one consumer reads in order, and a rewind reads again from the cursor.

Nothing is held one by one and no counts are kept: what was sent and not acked comes again only by a
rewind (REDELIVER, another active consumer, a reconnect). Delivery times are ignored
(consumer-semantics.md 9.1).

Entries are read in blocks, one a ms, and a block that was read is sent whole. A REDELIVER that
meets a read under way goes wrong as on Pulsar 4.2 (wire-protocol.md 5.5): the block that is being
read belongs to nobody, but its end becomes the read position again when the read completes, some
blocks later. What lies between is skipped until the next rewind.
"""

from __future__ import annotations

from typing import NamedTuple

from ...wire.key_hashes import murmur3
from .attached_consumers import Delivery, SubscribedConsumer, SubscriptionType
from .cursor import Cursor
from .key_ranges import ring_index
from .rule_settings import SubscriptionRules
from .topic_log import LogEntry, TopicLog

READ_ENTRIES = 100  # of one read, as Pulsar's dispatcherMaxReadBatchSize
READ_MS = 1
LATEST_BLOCK = 6  # an overtaking read completes after at most so many of the rewound ones


class _Block(NamedTuple):
    """What one read gives: the entries that are not acked, and where the next one starts."""

    entries: list[LogEntry]
    end: int


class _LateRead(NamedTuple):
    """A read that a rewind has met under way: where it ends, and blocks until it completes."""

    end: int
    blocks: int


class Overtaking:
    """Which rewinds of a subscription are overtaken, and by how late a read.

    Chance without chance: topics differ, and do the same in every run that makes them in order.

    Args:
        rules: `rewind_overtaken` and `rewind_seed`.
        ledger: Tells topics apart.
    """

    def __init__(self, rules: SubscriptionRules, ledger: int) -> None:
        self.share: float = rules.rewind_overtaken
        self._seed = f"{rules.rewind_seed} {ledger}"
        self._rewinds = 0

    def next(self) -> int:
        """After how many blocks the next rewind is overtaken; 0 when it is not."""
        self._rewinds += 1
        hashed = murmur3(f"{self._seed} {self._rewinds}".encode())
        return hashed % LATEST_BLOCK + 1 if hashed // LATEST_BLOCK % 1000 < self.share * 1000 else 0


class SingleActive:
    """The rule of the types with one active consumer."""

    def __init__(
        self,
        kind: SubscriptionType,
        log: TopicLog,
        cursor: Cursor,
        rules: SubscriptionRules,
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
        """A consumer joins and may become the active one."""
        self.consumers.append(consumer)
        self._elect(wall_now_ms)

    def remove(self, consumer: SubscribedConsumer, wall_now_ms: int) -> None:
        """A consumer leaves; another may become active."""
        self.consumers.remove(consumer)
        self._elect(wall_now_ms)

    def rewind(self) -> None:
        """Read again from the first entry that is not acked."""
        self._read = self._cursor.mark
        self._late = None

    def acked(self, seq: int) -> None:
        """Nothing to do: nothing is held."""

    def partly_acked(self, seq: int, left: int) -> None:
        """Nothing to do: nothing is held."""

    def redeliver(self, consumer: SubscribedConsumer, seqs: list[int] | None) -> None:
        """Rewind, whatever ids were given; ignored from a consumer that is not active."""
        if consumer is not self.active:
            return
        read_in_flight = self._next_block(READ_ENTRIES) if self._ready else None
        self.rewind()
        if read_in_flight is not None and read_in_flight.entries:
            blocks = self._overtaking.next()
            self._late = _LateRead(read_in_flight.end, blocks) if blocks else None

    def dispatch(self, wall_now_ms: int, limit: int) -> list[Delivery]:
        """Send the active consumer what its permits allow: one block, or all if none overtakes."""
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
        """The read that the active consumer's permits allow; they count entries here."""
        assert self.active is not None
        log, cursor = self._log, self._cursor
        most = min(most, self.active.permits)
        seq = max(self._read, cursor.mark)
        entries: list[LogEntry] = []
        while len(entries) < most and seq < log.end:
            if not cursor.is_acked(seq):
                entries.append(log.entries[seq - log.base])
            seq += 1
        return _Block(entries, seq)

    def _complete_late_read(self) -> None:
        """One more block is out; without permits the late read has all the time it needs."""
        late = self._late
        if late is None:
            return
        if late.blocks > 1 and self._ready:
            self._late = late._replace(blocks=late.blocks - 1)
            return
        self._late = None
        self._read = max(self._read, late.end)

    def wake_ms(self, wall_now_ms: int) -> int | None:
        """When the next read completes or a new active consumer may start, wall ms."""
        is_waiting = wall_now_ms < self._not_before_ms and self._ready
        return self._not_before_ms if is_waiting else None

    def _elect(self, wall_now_ms: int) -> None:
        """Choose within the top priority: partitions spread over it, else a hash ring."""
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
