"""The settings that the rules obey: what a subscription may do, and which topics there may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionRules:
    """What a subscription obeys.

    Args:
        max_unacked_per_consumer: Shared and Key_Shared stop here and go on at half; 0 for no limit.
        max_unacked_per_subscription: The same over all consumers.
        batch_index_ack: `acknowledgmentAtBatchIndexLevelEnabled`.
        reset_count_on_partial_ack: A partial ack makes the redelivery count 0, as Pulsar does.
        delayed_delivery: Hold back entries with a delivery time.
        delayed_tick_ms: Granularity of that.
        delayed_strict: Never early, rather than up to a tick early.
        failover_delay_ms: How long a new active Failover consumer waits for the old one's acks.
        look_ahead: Key_Shared reads so many entries ahead that wait for their consumer.
        rewind_overtaken: Exclusive and Failover: share of the REDELIVERs that meet a read under way
            and are overtaken by it, so that a block of entries is skipped; 0 for never.
        rewind_seed: Decides which ones.
    """

    max_unacked_per_consumer: int = 50_000
    max_unacked_per_subscription: int = 200_000
    batch_index_ack: bool = True
    reset_count_on_partial_ack: bool = True
    delayed_delivery: bool = True
    delayed_tick_ms: int = 1000
    delayed_strict: bool = False
    failover_delay_ms: int = 1000
    look_ahead: int = 20_000
    rewind_overtaken: float = 0.75
    rewind_seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicRules:
    """What the catalogue of topics obeys.

    Args:
        namespaces: The ones that exist; None accepts any.
        auto_create: Topics appear when asked for.
        auto_create_partitions: So many partitions for those; 0 for none.
        entries_per_ledger: A ledger is closed when it holds so many.
    """

    namespaces: tuple[str, ...] | None
    auto_create: bool
    auto_create_partitions: int
    entries_per_ledger: int
