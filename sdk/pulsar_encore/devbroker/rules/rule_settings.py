"""Settings of the rules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerRules:
    """Settings of the rules; `BrokerSettings` documents the fields."""

    namespaces: tuple[str, ...] | None = ("public/default",)
    auto_create: bool = True
    auto_create_partitions: int = 0
    entries_per_ledger: int = 50_000
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
