"""Key_Shared: every key belongs to one consumer at a time.

Entries that were read ahead wait in the queue of the consumer that owns their slot. If another
consumer still holds earlier entries of the slot, they wait until those are released (PIP-379).
"""

from __future__ import annotations

from heapq import heappop, heappush

from .attached_consumers import Delivery, SubscribedConsumer, SubscriptionType
from .cursor import Cursor
from .dispatch import SharedDispatch
from .key_ranges import AutoSplit, StickyRanges
from .rule_settings import BrokerRules
from .topic_log import TopicLog

TURN_AHEAD = 100  # entries kept ready per consumer, so that a slow key does not stop the reading


class KeySharedDispatch(SharedDispatch):
    """Shared, with consumers selected by the hash of the key.

    Args:
        sticky: Use the ranges that the consumers declared.
        out_of_order: `allowOutOfOrderDelivery`: two consumers may hold the same key.
    """

    type = SubscriptionType.KEY_SHARED

    def __init__(
        self,
        log: TopicLog,
        cursor: Cursor,
        rules: BrokerRules,
        durable: bool,
        *,
        sticky: bool,
        out_of_order: bool,
    ) -> None:
        super().__init__(log, cursor, rules, durable)
        self.sticky = sticky
        self._out_of_order = out_of_order
        self._look_ahead = rules.look_ahead
        self._layout: AutoSplit[SubscribedConsumer] | StickyRanges[SubscribedConsumer] = AutoSplit(
            []
        )
        self._slot_of = StickyRanges.slot if sticky else AutoSplit.slot
        self._slot_holders: dict[int, tuple[SubscribedConsumer, int]] = {}
        self._slot_queues: dict[int, list[int]] = {}
        self._waiting = 0

    def add(self, consumer: SubscribedConsumer, wall_now_ms: int) -> None:
        super().add(consumer, wall_now_ms)
        self._redistribute()

    def remove(self, consumer: SubscribedConsumer, wall_now_ms: int) -> None:
        super().remove(consumer, wall_now_ms)
        self._redistribute()

    def _redistribute(self) -> None:
        """Assign all waiting entries to the current owners."""
        waiting = self._replay
        self._replay = []
        for consumer in self.consumers:
            waiting.extend(consumer.queue)
            consumer.queue.clear()
        for queued in self._slot_queues.values():
            waiting.extend(queued)
        self._slot_queues.clear()
        self._waiting = 0
        self._layout = StickyRanges(self.consumers) if self.sticky else AutoSplit(self.consumers)
        for seq in waiting:
            self._enqueue(seq)

    def _is_queued(self, seq: int) -> bool:
        return super()._is_queued(seq) or seq in self._slot_queues.get(self._slot(seq), ())

    def _slot(self, seq: int) -> int:
        return self._slot_of(self._log.at(seq).key_hash)

    def _enqueue(self, seq: int) -> None:
        if self._cursor.is_settled(seq):
            return
        owner = self._layout.owner(self._slot(seq))
        # An entry without an owner waits in `_replay` until the consumers change.
        heappush(self._replay if owner is None else owner.queue, seq)
        self._waiting += 1

    def dispatch(self, wall_now_ms: int, limit: int) -> list[Delivery]:
        """Read ahead, then serve every ready consumer from its own queue."""
        out: list[Delivery] = []
        for seq in self._delayed.pop_due(wall_now_ms):
            self._enqueue(seq)
        while not self._blocked and len(out) < limit:
            previous = len(out)
            ready = [consumer for consumer in self.consumers if consumer.ready]
            while (
                ready
                and self._waiting < self._look_ahead
                and min(len(consumer.queue) for consumer in ready) < TURN_AHEAD
            ):
                read = self._read_log(wall_now_ms)
                if read is None:
                    break
                self._enqueue(read)
            for consumer in ready:
                self._serve(consumer, limit - len(out), wall_now_ms, out)
            if len(out) == previous:
                break
        return out

    def _serve(
        self, consumer: SubscribedConsumer, limit: int, wall_now_ms: int, out: list[Delivery]
    ) -> int:
        queue = consumer.queue
        sent = 0
        # As on Pulsar, permits count entries within one read.
        limit = min(limit, TURN_AHEAD, consumer.permits)
        while queue and sent < limit and not consumer.blocked and not self._blocked:
            seq = heappop(queue)
            self._waiting -= 1
            if self._cursor.is_settled(seq):
                continue
            slot = self._slot(seq)
            holder = self._slot_holders.get(slot)
            if holder is not None and holder[0] is not consumer and not self._out_of_order:
                self._slot_queues.setdefault(slot, []).append(seq)
                self._waiting += 1
                continue
            self._slot_holders[slot] = (consumer, holder[1] + 1 if holder else 1)
            self._hold(consumer, seq, out)
            sent += 1
        return sent

    def _release_held(self, consumer: SubscribedConsumer, left: int, seq: int) -> None:
        super()._release_held(consumer, left, seq)
        self._unhold(self._slot(seq))

    def _drop_held(self, consumer: SubscribedConsumer) -> list[int]:
        seqs = super()._drop_held(consumer)
        for seq in seqs:
            self._unhold(self._slot(seq))
        return seqs

    def _unhold(self, slot: int) -> None:
        holder = self._slot_holders.get(slot)
        if holder is None:
            return
        if holder[1] > 1:
            self._slot_holders[slot] = (holder[0], holder[1] - 1)
            return
        del self._slot_holders[slot]
        for seq in self._slot_queues.pop(slot, ()):
            self._waiting -= 1
            self._enqueue(seq)
