"""Exclusive and Failover: one consumer reads in order, and a rewind reads again from the cursor.

Nothing is held one by one and no counts are kept: what was sent and not acked comes again only by a
rewind (REDELIVER, another active consumer, a reconnect). Delivery times are ignored
(consumer-semantics.md 9.1).
"""

from __future__ import annotations

from .consumers import Consumer, Delivery, Rules, SubscriptionType
from .cursor import Cursor
from .hashing import ring_index
from .topics import Topic


class SingleActive:
    """The rule of the types with one active consumer."""

    def __init__(self, kind: SubscriptionType, topic: Topic, cursor: Cursor, rules: Rules) -> None:
        self.type = kind
        self.consumers: list[Consumer] = []
        self.active: Consumer | None = None
        self._topic = topic
        self._cursor = cursor
        self._delay_ms = rules.failover_delay_ms if kind is SubscriptionType.FAILOVER else 0
        self._read = cursor.mark
        self._not_before_ms = 0

    def add(self, consumer: Consumer, wall_now_ms: int) -> None:
        """A consumer joins and may become the active one."""
        self.consumers.append(consumer)
        self._elect(wall_now_ms)

    def remove(self, consumer: Consumer, wall_now_ms: int) -> None:
        """A consumer leaves; another may become active."""
        self.consumers.remove(consumer)
        self._elect(wall_now_ms)

    def rewind(self) -> None:
        """Read again from the first entry that is not acked."""
        self._read = self._cursor.mark

    def settled(self, seq: int) -> None:
        """Nothing to do: nothing is held."""

    def partly_settled(self, seq: int, left: int) -> None:
        """Nothing to do: nothing is held."""

    def redeliver(self, consumer: Consumer, seqs: list[int] | None) -> None:
        """Rewind, whatever ids were given; ignored from a consumer that is not active."""
        if consumer is self.active:
            self.rewind()

    def dispatch(self, wall_now_ms: int, limit: int) -> list[Delivery]:
        """Send the active consumer what its permits allow."""
        out: list[Delivery] = []
        consumer = self.active
        if consumer is None or not consumer.writable or wall_now_ms < self._not_before_ms:
            return out
        topic, cursor = self._topic, self._cursor
        seq = max(self._read, cursor.mark)
        while consumer.permits > 0 and seq < topic.end and len(out) < limit:
            if not cursor.is_acked(seq):
                entry = topic.entries[seq - topic.base]
                mask = cursor.remaining(seq) if cursor.has_partial else None
                consumer.permits -= entry.messages if mask is None else mask.bit_count()
                out.append((consumer, entry, 0, mask))
            seq += 1
        self._read = seq
        return out

    def wake_ms(self, wall_now_ms: int) -> int | None:
        """When a new active consumer may start, wall ms."""
        return self._not_before_ms if wall_now_ms < self._not_before_ms else None

    def _elect(self, wall_now_ms: int) -> None:
        """Choose within the top priority: partitions spread over it, else a hash ring."""
        self.consumers.sort(key=lambda c: (c.priority, c.name))
        before = self.active
        self.active = None
        if self.consumers:
            top = [c for c in self.consumers if c.priority == self.consumers[0].priority]
            partition = self._topic.partition
            at = (
                partition % len(top)
                if partition >= 0
                else ring_index([c.name for c in top], self._topic.name)
            )
            self.active = top[at]
        if self.active is not before:
            self.rewind()
            self._not_before_ms = wall_now_ms + self._delay_ms
