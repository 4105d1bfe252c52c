"""Dispatching on Shared, and the interface of all dispatchers.

Invariant of Shared and Key_Shared: every entry from the cursor's mark to `_read` is in exactly one
state: acked, held by one consumer, waiting for redelivery or for its consumer, or delayed.

All chunks of a message go to the consumer that holds any of them. Pulsar's own rule, which may stop
delivery (wire-protocol.md 6.4), is not copied.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Protocol

from .attached_consumers import Delivery, SubscribedConsumer, SubscriptionType
from .cursor import Cursor
from .delayed import DelayedEntries
from .rule_settings import BrokerRules
from .topic_log import TopicLog

TURN = 20  # entries per consumer and round-robin turn, as on Pulsar


class Dispatcher(Protocol):
    """The dispatching rule of one subscription type."""

    type: SubscriptionType
    consumers: list[SubscribedConsumer]

    def add(self, consumer: SubscribedConsumer, wall_now_ms: int) -> None: ...
    def remove(self, consumer: SubscribedConsumer, wall_now_ms: int) -> None: ...
    def acked(self, seq: int) -> None: ...
    def partly_acked(self, seq: int, left: int) -> None: ...
    def pending(self, seq: int, left: int) -> None: ...
    def discard(self, seq: int) -> None: ...
    def give_back(self, seqs: list[int]) -> None: ...
    def redeliver(self, consumer: SubscribedConsumer, seqs: list[int] | None) -> None: ...
    def dispatch(self, wall_now_ms: int, limit: int) -> list[Delivery]: ...
    def wake_ms(self, wall_now_ms: int) -> int | None: ...


class SharedDispatch:
    """Round robin over the consumers of the highest priority that have permits."""

    type = SubscriptionType.SHARED

    def __init__(self, log: TopicLog, cursor: Cursor, rules: BrokerRules, durable: bool) -> None:
        self.consumers: list[SubscribedConsumer] = []
        self._log = log
        self._cursor = cursor
        self._max_consumer = (rules.max_unacked_per_consumer or 2**62) if durable else 2**62
        self._max_total = (rules.max_unacked_per_subscription or 2**62) if durable else 2**62
        self._delays = rules.delayed_delivery
        self._reset_on_partial = rules.reset_count_on_partial_ack
        self._read = cursor.mark
        self._replay: list[int] = []
        self._delayed = DelayedEntries(rules.delayed_tick_ms, rules.delayed_strict)
        self._counts: dict[int, int] = {}
        # The consumer that holds chunks of a message, and how many.
        self._chunks: dict[str, tuple[SubscribedConsumer, int]] = {}
        self._unacked = 0
        self._blocked = False
        self._turn = 0
        self._next_turn = 0

    def add(self, consumer: SubscribedConsumer, wall_now_ms: int) -> None:
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda c: c.priority)

    def remove(self, consumer: SubscribedConsumer, wall_now_ms: int) -> None:
        """Remove a consumer. Its entries go to the others with the same redelivery counts."""
        self.consumers.remove(consumer)
        for seq in self._drop_held(consumer):
            self._enqueue(seq)
        for seq in consumer.queue:
            heappush(self._replay, seq)
        consumer.queue.clear()
        self._unblock_total()

    def acked(self, seq: int) -> None:
        """Release an entry that any consumer acked in full."""
        if self._counts:
            self._counts.pop(seq, None)
        for consumer in self.consumers:
            left = consumer.held.pop(seq, None)
            if left is not None:
                self._release_held(consumer, left, seq)
                return

    def partly_acked(self, seq: int, left: int) -> None:
        """Count a partial ack of an entry with `left` unacked indexes."""
        if self._reset_on_partial:
            self._counts.pop(seq, None)
        for consumer in self.consumers:
            previous = consumer.held.get(seq)
            if previous is not None:
                consumer.held[seq] = left
                self._subtract_unacked(consumer, previous - left)
                return

    def pending(self, seq: int, left: int) -> None:
        """Release an entry that is acked in a transaction, or all but `left` indexes of it."""
        for consumer in self.consumers:
            previous = consumer.held.get(seq)
            if previous is None:
                continue
            if left:
                consumer.held[seq] = left
                self._subtract_unacked(consumer, previous - left)
            else:
                del consumer.held[seq]
                self._release_held(consumer, previous, seq)
            return

    def discard(self, seq: int) -> None:
        """Forget who holds an entry, as Pulsar does at the refused ack of a transaction.

        The invariant breaks: the entry is delivered again only after all consumers have left.
        """
        self.pending(seq, 0)

    def give_back(self, seqs: list[int]) -> None:
        """Redeliver the entries of an aborted transaction to any consumer, with count + 1."""
        for seq in sorted(seqs):
            self.pending(seq, 0)
            self._counts[seq] = self._counts.get(seq, 0) + 1
            if seq < self._read and not self._is_queued(seq):
                self._enqueue(seq)

    def _is_queued(self, seq: int) -> bool:
        return seq in self._replay or any(seq in each.queue for each in self.consumers)

    def redeliver(self, consumer: SubscribedConsumer, seqs: list[int] | None) -> None:
        """Release held entries (None: all of them), and count redeliveries."""
        everything = seqs is None
        held = consumer.held
        for seq in sorted(held if seqs is None else set(seqs)):
            left = held.pop(seq, None)
            if left is None:
                continue
            self._counts[seq] = self._counts.get(seq, 0) + 1
            self._release_held(consumer, left, seq)
            self._enqueue(seq)
        if everything:
            consumer.blocked = False

    def dispatch(self, wall_now_ms: int, limit: int) -> list[Delivery]:
        out: list[Delivery] = []
        if self._delayed:
            for seq in self._delayed.pop_due(wall_now_ms):
                self._enqueue(seq)
        while len(out) < limit and not self._blocked:
            consumer = self._next_consumer()
            if consumer is None:
                break
            most = min(TURN, limit - len(out))
            if self._serve(consumer, most, wall_now_ms, out):
                self._turn = self._next_turn
                continue
            waiting = [each for each in self.consumers if each.queue and each.ready]
            if not any(self._serve(each, most, wall_now_ms, out) for each in waiting):
                break
        return out

    def wake_ms(self, wall_now_ms: int) -> int | None:
        return self._delayed.wake_ms()

    def _next_consumer(self) -> SubscribedConsumer | None:
        """Return the next ready consumer in turn, of the highest priority that has one."""
        consumers = self.consumers
        count = len(consumers)
        best = None
        for step in range(count):
            consumer = consumers[(self._turn + step) % count]
            if consumer.ready and (best is None or consumer.priority < best[0].priority):
                best = (consumer, self._turn + step + 1)
        if best is None:
            return None
        self._next_turn = best[1] % count
        return best[0]

    def _serve(
        self, consumer: SubscribedConsumer, limit: int, wall_now_ms: int, out: list[Delivery]
    ) -> int:
        sent = 0
        while sent < limit and consumer.permits > 0 and not consumer.blocked and not self._blocked:
            seq = self._take(consumer, wall_now_ms)
            if seq is None:
                break
            self._hold(consumer, seq, out)
            sent += 1
        return sent

    def _take(self, consumer: SubscribedConsumer, wall_now_ms: int) -> int | None:
        """Return the next entry: from the consumer's queue, redeliveries, or the log."""
        is_settled = self._cursor.is_settled
        for waiting in (consumer.queue, self._replay):
            while waiting:
                seq = heappop(waiting)
                if not is_settled(seq) and (not self._chunks or self._is_for(consumer, seq)):
                    return seq
        while (read := self._read_log(wall_now_ms)) is not None:
            if not self._chunks or self._is_for(consumer, read):
                return read
        return None

    def _is_for(self, consumer: SubscribedConsumer, seq: int) -> bool:
        """True if the consumer may get an entry; else queue it for the holder of its chunks."""
        holder = self._chunks.get(self._log.at(seq).chunked)
        if holder is None or holder[0] is consumer:
            return True
        heappush(holder[0].queue, seq)
        return False

    def _read_log(self, wall_now_ms: int) -> int | None:
        cursor = self._cursor
        log = self._log
        if self._read < cursor.mark:
            self._read = cursor.mark
        while self._read < log.readable_end:
            seq = self._read
            self._read = seq + 1
            if cursor.is_settled(seq):
                continue
            entry = log.entries[seq - log.base]
            if entry.hidden:
                cursor.ack(seq)
                continue
            due = entry.deliver_at_ms
            if due and self._delays and self._delayed.add(seq, due, wall_now_ms):
                continue
            return seq
        return None

    def _hold(self, consumer: SubscribedConsumer, seq: int, out: list[Delivery]) -> None:
        entry = self._log.entries[seq - self._log.base]
        cursor = self._cursor
        mask = cursor.remaining(seq) if cursor.has_partial else None
        left = entry.messages if mask is None else mask.bit_count()
        consumer.held[seq] = left
        if entry.chunked:
            _, count = self._chunks.get(entry.chunked, (consumer, 0))
            self._chunks[entry.chunked] = (consumer, count + 1)
        consumer.permits -= left
        consumer.unacked += left
        self._unacked += left
        if consumer.unacked >= self._max_consumer:
            consumer.blocked = True
        if self._unacked >= self._max_total:
            self._blocked = True
        out.append((consumer, entry, self._counts.get(seq, 0) if self._counts else 0, mask))

    def _enqueue(self, seq: int) -> None:
        heappush(self._replay, seq)

    def _release_held(self, consumer: SubscribedConsumer, left: int, seq: int) -> None:
        self._subtract_unacked(consumer, left)
        self._release_chunk(seq)

    def _release_chunk(self, seq: int) -> None:
        if not self._chunks:
            return
        chunked = self._log.at(seq).chunked
        if chunked in self._chunks:
            consumer, count = self._chunks[chunked]
            if count > 1:
                self._chunks[chunked] = (consumer, count - 1)
            else:
                del self._chunks[chunked]

    def _subtract_unacked(self, consumer: SubscribedConsumer, messages: int) -> None:
        consumer.unacked -= messages
        self._unacked -= messages
        if consumer.blocked and consumer.unacked <= self._max_consumer // 2:
            consumer.blocked = False
        self._unblock_total()

    def _unblock_total(self) -> None:
        if self._blocked and self._unacked <= self._max_total // 2:
            self._blocked = False

    def _drop_held(self, consumer: SubscribedConsumer) -> list[int]:
        seqs = sorted(consumer.held)
        consumer.held.clear()
        for seq in seqs:
            self._release_chunk(seq)
        self._unacked -= consumer.unacked
        consumer.unacked = 0
        consumer.blocked = False
        return seqs
