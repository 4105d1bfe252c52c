"""Subscriptions: a cursor, consumers and the dispatcher that serves them.

Invariant: an entry before the end of the log is acked, held by a live consumer, or will be
delivered to a consumer with permits.
"""

from __future__ import annotations

from collections.abc import Iterable

from .attached_consumers import (
    Delivery,
    Notice,
    NoticeKind,
    SubscribedConsumer,
    SubscriptionType,
)
from .cursor import Cursor
from .dispatch import Dispatcher, SharedDispatch
from .key_ranges import check_ranges
from .key_shared_dispatch import KeySharedDispatch
from .pending_acks import AckedId, EndedAcks, PendingAcks
from .refusal import Refusal
from .rule_settings import BrokerRules
from .single_active import Overtaking, SingleActive
from .topic_log import TopicLog
from .transactions import TransactionId

_BEFORE_FIRST = 2**64 - 1  # -1 as an unsigned number


class Subscription:
    """A named subscription of one topic.

    Args:
        durable: False for a reader's cursor, which is deleted with its consumer.
        start: First entry to deliver.
    """

    def __init__(
        self,
        log: TopicLog,
        name: str,
        rules: BrokerRules,
        *,
        durable: bool = True,
        start: int = 0,
    ) -> None:
        self.log = log
        self.name = name
        self.durable = durable
        self.cursor: Cursor = Cursor(max(start, log.base))
        self._rules = rules
        self._overtaking = Overtaking(rules, log.id_before(log.end)[0])
        self._dispatcher: Dispatcher | None = None
        self._pending = PendingAcks(log, self.cursor, f"[{log.name}][{name}]")

    @property
    def consumers(self) -> list[SubscribedConsumer]:
        return list(self._dispatcher.consumers) if self._dispatcher else []

    @property
    def type(self) -> SubscriptionType | None:
        return self._dispatcher.type if self._dispatcher and self._dispatcher.consumers else None

    @property
    def active(self) -> SubscribedConsumer | None:
        rule = self._dispatcher
        return rule.active if isinstance(rule, SingleActive) else None

    @property
    def backlog(self) -> int:
        return self.cursor.backlog(self.log.end)

    def add_consumer(
        self,
        consumer: SubscribedConsumer,
        kind: SubscriptionType,
        wall_now_ms: int,
        *,
        sticky: bool = False,
        out_of_order: bool = False,
    ) -> list[Notice]:
        """Connect a consumer."""
        rule = self._dispatcher
        if rule is not None and rule.consumers:
            self._check_joins(rule, kind, sticky)
        elif kind is SubscriptionType.KEY_SHARED:
            rule = KeySharedDispatch(
                self.log,
                self.cursor,
                self._rules,
                self.durable,
                sticky=sticky,
                out_of_order=out_of_order,
            )
        elif kind is SubscriptionType.SHARED:
            rule = SharedDispatch(self.log, self.cursor, self._rules, self.durable)
        else:
            rule = SingleActive(kind, self.log, self.cursor, self._rules, self._overtaking)
        if sticky:
            check_ranges(consumer.ranges, [r for c in rule.consumers for r in c.ranges])
        self._dispatcher = rule
        previous = self.active
        rule.add(consumer, wall_now_ms)
        return self._changes(previous, consumer) + self.end_of_topic()

    def _check_joins(self, rule: Dispatcher, kind: SubscriptionType, sticky: bool) -> None:
        if rule.type is not kind:
            raise Refusal(
                "ConsumerBusy",
                f"subscription {self.name!r} is {rule.type.name} and has consumers; "
                f"a {kind.name} consumer cannot join",
            )
        if kind is SubscriptionType.EXCLUSIVE:
            raise Refusal("ConsumerBusy", f"subscription {self.name!r} is exclusive and taken")
        if isinstance(rule, KeySharedDispatch) and rule.sticky is not sticky:
            raise Refusal(
                "ConsumerBusy", f"subscription {self.name!r} uses another key-shared mode"
            )

    def remove_consumer(self, consumer: SubscribedConsumer, wall_now_ms: int) -> list[Notice]:
        """Disconnect a consumer, and redeliver its entries."""
        rule = self._dispatcher
        if rule is None or consumer not in rule.consumers:
            return []
        previous = self.active
        rule.remove(consumer, wall_now_ms)
        if not rule.consumers:
            # Redelivery counts are lost with the last consumer (consumer-semantics.md 3.8).
            self._dispatcher = None
        return self._changes(previous, None)

    def _changes(
        self, previous: SubscribedConsumer | None, newcomer: SubscribedConsumer | None
    ) -> list[Notice]:
        """Return notices of the active Failover consumer: all on a change, else one."""
        if self.type is not SubscriptionType.FAILOVER:
            return []
        active = self.active
        return [
            Notice(c, NoticeKind.ACTIVE if c is active else NoticeKind.STANDBY)
            for c in self.consumers
            if active is not previous or c is newcomer
        ]

    def end_of_topic(self) -> list[Notice]:
        """Return notices, once for each consumer, that a terminated topic is acked."""
        if not self.log.terminated or self.backlog:
            return []
        unnotified = [consumer for consumer in self.consumers if not consumer.end_notified]
        for consumer in unnotified:
            consumer.end_notified = True
        return [Notice(consumer, NoticeKind.END_OF_TOPIC) for consumer in unnotified]

    def flow(self, consumer: SubscribedConsumer, permits: int) -> None:
        consumer.permits += permits

    def ack(self, ledger: int, entry: int, mask: int | None = None) -> None:
        """Ack an entry, or the indexes with bit 0."""
        seq = self.log.locate(ledger, entry)
        if seq is None:
            return
        if mask is None or self._rules.batch_index_ack:
            self._ack_seq(seq, mask)

    def _ack_seq(self, seq: int, mask: int | None) -> None:
        rule = self._dispatcher
        if mask is None:
            if self.cursor.ack(seq) and rule is not None:
                rule.acked(seq)
            return
        left = self.cursor.ack_indexes(seq, self.log.at(seq).messages, mask)
        if left is None or rule is None:
            return
        if left:
            if self.cursor.withheld:
                left = self.cursor.remaining(seq) or 0
            rule.partly_acked(seq, left.bit_count())
        else:
            rule.acked(seq)

    def ack_cumulative(self, ledger: int, entry: int, mask: int | None = None) -> None:
        """Ack every entry up to an id. Ignored on Shared and Key_Shared, as on Pulsar.

        The mask replaces earlier partial acks of the entry, also of later indexes (seen on 4.2.4).
        """
        if self._dispatcher is not None and self._dispatcher.type.shares:
            return
        if entry in (-1, _BEFORE_FIRST):
            self.cursor.ack_below(self.log.locate_from(ledger, 0))
            return
        seq = self.log.locate(ledger, entry)
        if seq is None:
            return
        if mask is None:
            self.cursor.ack_below(seq + 1)
            return
        self.cursor.ack_below(seq)
        if self._rules.batch_index_ack:
            self.cursor.forget_partial_of(seq)
            self.cursor.ack_indexes(seq, self.log.at(seq).messages, mask)

    def ack_in_transaction(self, txn: TransactionId, ids: list[AckedId]) -> None:
        """Ack entries or indexes when the transaction commits, and withhold them until its end.

        Raises:
            Refusal: TransactionConflict. As on Pulsar, the whole entries of the refused ACK are no
                longer held by their consumer, though none is acked.
            UnansweredAck: an index of an entry that is pending as a whole.
        """
        rule = self._dispatcher
        shares = rule is not None and rule.type.shares
        try:
            seqs = self._pending.add(txn, ids, shares)
        except Refusal:
            if rule is not None:
                self._discard(rule, ids)
            raise
        if rule is not None:
            for seq in seqs:
                left = self.cursor.remaining(seq) or 0
                rule.pending(seq, left.bit_count())

    def _discard(self, rule: Dispatcher, ids: list[AckedId]) -> None:
        for each in ids:
            seq = self.log.locate(each.ledger, each.entry)
            if seq is not None and each.mask is None:
                rule.discard(seq)

    def ack_cumulative_in_transaction(self, txn: TransactionId, acked: AckedId) -> None:
        """Ack every entry up to an id when the transaction commits. Not for Shared.

        Raises:
            Refusal: TransactionConflict.
        """
        self._pending.set_cumulative(txn, acked)

    def end_transaction(self, txn: TransactionId, commit: bool, low_water: int) -> None:
        """Apply the pending acks of a transaction, or redeliver their messages.

        After individual acks, the acks of one late transaction are aborted, too.
        """
        ended = self._pending.end(txn, commit)
        if ended is None:
            return
        if commit:
            self._apply(ended)
        elif ended.entries:
            self._give_back(ended)
        if not ended.entries:
            return
        late = self._pending.late(txn[0], low_water)
        swept = self._pending.end(late, commit=False) if late is not None else None
        if swept is not None and self.type is not None and self.type.shares:
            # Pulsar does not rewind Exclusive and Failover here.
            self._give_back(swept)

    def _apply(self, ended: EndedAcks) -> None:
        cumulative = ended.cumulative
        if cumulative is not None:
            self.ack_cumulative(cumulative.ledger, cumulative.entry, cumulative.mask)
        for seq, mask in ended.entries.items():
            if seq >= self.log.base:
                self._ack_seq(seq, mask)

    def _give_back(self, ended: EndedAcks) -> None:
        if self._dispatcher is not None:
            is_acked = self.cursor.is_acked
            self._dispatcher.give_back([seq for seq in ended.entries if not is_acked(seq)])

    def redeliver(
        self,
        consumer: SubscribedConsumer,
        ids: Iterable[tuple[int, int]] | None = None,
        epoch: int | None = None,
    ) -> None:
        """Release held ids for redelivery; None or empty releases all.

        Exclusive and Failover rewind instead. `epoch` raises the epoch of the consumer.
        """
        if epoch is not None and epoch > (consumer.epoch or 0):
            consumer.epoch = epoch
        if self._dispatcher is None:
            return
        wanted = list(ids or ())
        found = (self.log.locate(ledger, entry) for ledger, entry in wanted)
        seqs = [seq for seq in found if seq is not None] if wanted else None
        self._dispatcher.redeliver(consumer, seqs)

    def seek(
        self, seq: int, wall_now_ms: int, mask: int | None = None
    ) -> tuple[list[SubscribedConsumer], list[Notice]]:
        """Move the cursor. Return the consumers that this closes, and notices.

        Args:
            mask: Indexes of the entry at `seq` to deliver (bit 1).
        """
        rule = self._dispatcher
        closed: list[SubscribedConsumer] = []
        notices: list[Notice] = []
        if rule is not None:
            active = self.active
            closed = self.consumers if rule.type.shares else [active] if active else []
            for consumer in closed:
                notices += self.remove_consumer(consumer, wall_now_ms)
        self.cursor.reset(max(seq, self.log.base))
        if mask is not None and self.log.base <= seq < self.log.end:
            self.cursor.ack_indexes(seq, self.log.at(seq).messages, mask)
        if isinstance(rule, SingleActive):
            rule.rewind()  # for the standby that has just become active
        return closed, notices

    def unload(self) -> list[SubscribedConsumer]:
        """Remove all consumers, and lose counts and partial acks."""
        closed = self.consumers
        self._dispatcher = None
        self.cursor.forget_partial()
        self._pending.restore()
        return closed

    def dispatch(self, wall_now_ms: int, limit: int = 1000) -> list[Delivery]:
        return self._dispatcher.dispatch(wall_now_ms, limit) if self._dispatcher else []

    def wake_ms(self, wall_now_ms: int) -> int | None:
        """Return when to call `dispatch` again, in wall ms, or None."""
        return self._dispatcher.wake_ms(wall_now_ms) if self._dispatcher else None
