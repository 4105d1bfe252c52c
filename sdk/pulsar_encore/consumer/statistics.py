"""Counts of a consumer's messages, leases and acks at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .events import Failed, Retrying

if TYPE_CHECKING:  # a consumer without `state` imports none of these modules
    from ..state.rocks import StoreStatistics
    from .nack_disk_index import NackIndexStatistics


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """A snapshot of the counts and the state of a consumer, made by `Consumer.statistics`.

    Attributes:
        queued: Messages that arrived and are not delivered to the application yet.
        in_flight: Messages that were delivered and are not settled.
        nacked: Messages that wait in this process for their due time.
        unsent_acks: Entries whose ack is not sent yet.
        unacked: The sum of `queued`, `in_flight` and `nacked`, which counts against the unacked
            window.
        unacked_window: The option `max_unacked_messages`, at which the broker stops delivering.
        connected: True if the subscription is connected.
        transport: Name of the transport: "native", "stock" or the name of another one.
        ended_topics: Full names of topics and partitions that are terminated and fully acked. Empty
            on the stock transport, which does not report them.
        inactive_topics: On Failover, full names of topics and partitions whose messages another
            consumer receives. Empty on the stock transport.
        leased: Active leases. Their messages are part of `in_flight`.
        state_failure: Why due times or attempts that belong on disk are only in memory (such as a
            full disk), or may be lost in a power cut with `durability="power"`. None if everything
            is written, and without `state`.
        retrying: The last `Retrying` event of each topic whose attempts to attach fail, letter
            topics included. Empty until the first attempt after a loss has failed, and on the stock
            transport.
        failure: Why the consumer has ended for good, or None.
        nack_index: Counts of the indexes on disk, with the option `nack_index`; None without it.
        store: Counts of the state directory since this process opened it, over all consumers that
            share it: writes, operations, failures and others. None without `state` and after
            `close`.

    Example:
        Alert before the broker stops delivering::

            if consumer.statistics().window_share > 0.8:
                alert("the unacked window is nearly full")
    """

    queued: int
    in_flight: int
    nacked: int
    unsent_acks: int
    unacked: int
    unacked_window: int
    connected: bool
    transport: str = ""
    ended_topics: tuple[str, ...] = ()
    inactive_topics: tuple[str, ...] = ()
    leased: int = 0
    state_failure: str | None = None
    retrying: tuple[Retrying, ...] = ()
    failure: Failed | None = None
    nack_index: NackIndexStatistics | None = None
    store: StoreStatistics | None = None

    @property
    def window_share(self) -> float:
        """Return the used share of the unacked window; above 1 with prefetched messages."""
        return self.unacked / self.unacked_window
