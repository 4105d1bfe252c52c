"""A topic and a subscription without a network, for the tests of the pure rules."""

from __future__ import annotations

import itertools

from pulsar_encore.devbroker.rules.attached_consumers import SubscribedConsumer, SubscriptionType
from pulsar_encore.devbroker.rules.rule_settings import BrokerRules
from pulsar_encore.devbroker.rules.subscriptions import Subscription
from pulsar_encore.devbroker.rules.topic_log import LogEntry, TopicLog

EXCLUSIVE = SubscriptionType.EXCLUSIVE
SHARED = SubscriptionType.SHARED
FAILOVER = SubscriptionType.FAILOVER
KEY_SHARED = SubscriptionType.KEY_SHARED

Got = list[tuple[str, int, int, int | None]]
"""Consumer name, entry number, redelivery count, mask."""


class Bench:
    """A subscription from the earliest entry, with short methods for its operations."""

    def __init__(
        self,
        kind: SubscriptionType = SHARED,
        *,
        partition: int = -1,
        per_ledger: int = 1000,
        **rules: object,
    ) -> None:
        self.kind = kind
        name = "persistent://public/default/t"
        ledgers = itertools.count(7).__next__
        self.topic = TopicLog(name, ledgers, entries_per_ledger=per_ledger, partition=partition)
        defaults: dict[str, object] = {"failover_delay_ms": 0, "rewind_overtaken": 0, **rules}
        self.sub = Subscription(self.topic, "s", BrokerRules(**defaults))  # type: ignore[arg-type]
        self.now_ms = 0

    def publish(self, count: int = 1, **fields: object) -> list[LogEntry]:
        """Append entries."""
        return [
            self.topic.append(LogEntry(b"", **fields))  # type: ignore[arg-type]
            for _ in range(count)
        ]

    def join(self, name: str, permits: int = 0, **fields: object) -> SubscribedConsumer:
        """Connect a consumer."""
        consumer = SubscribedConsumer(name, **fields)  # type: ignore[arg-type]
        self.sub.add_consumer(consumer, self.kind, self.now_ms)
        if permits:
            self.sub.flow(consumer, permits)
        return consumer

    def deliver(self) -> Got:
        """Return all deliveries that the subscription sends now."""
        got: Got = []
        while True:
            new = self.sub.dispatch(self.now_ms)
            if not new:
                return got
            got += [(c.name, e.seq, count, mask) for c, e, count, mask in new]

    def id(self, seq: int) -> tuple[int, int]:
        """Return the id of an entry by its number."""
        entry = self.topic.at(seq)
        return entry.ledger, entry.entry

    def ack(self, seq: int, mask: int | None = None) -> None:
        """Ack entries by their numbers."""
        self.sub.ack(*self.id(seq), mask)

    def nack(self, consumer: SubscribedConsumer, *seqs: int) -> None:
        """Ask for redelivery of entries by their numbers."""
        self.sub.redeliver(consumer, [self.id(seq) for seq in seqs])
