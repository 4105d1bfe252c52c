"""A snapshot of a consumer: what is here, what waits, how full the broker's window is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.message_states import QUEUED
from .event_publisher import EventPublisher
from .events import Failed, Retrying
from .topic_states import TopicStates
from .unacked_window import UnackedWindowMonitor

if TYPE_CHECKING:  # a consumer that keeps no state loads none of its modules
    from ..state.rocks import StoreStatistics
    from .nack_spilling import NackIndexStatistics


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """Counts of messages, all at one moment.

    Attributes:
        queued: Received, not yet handed to the application.
        in_flight: Handed over, not settled.
        nacked: Waiting here for their redelivery time.
        unsent_acks: Entries whose ack was made and not yet sent.
        unacked: queued + in_flight + nacked: what counts against the broker's window.
        unacked_window: `max_unacked_messages`; at that many the broker stops delivering.
        connected: Whether the subscription is connected.
        transport: Name of the transport: "native", "stock" or another's.
        ended_topics: Full names of topics and partitions that were terminated and are acked to
            their end, as far as the transport is told; the stock one is not.
        inactive_topics: On Failover, of those whose messages another consumer gets; likewise.
        leased: Leases that are out; their messages are in flight.
        state_trouble: Why due times or attempts are in memory only that should be on disk, such as
            a full one, or may go with the power with `durability="power"`; None when nothing does,
            and without a `state`.
        retrying: Topics that are not attached because attempts failed, with the broker's reason:
            the last `Retrying` event of each, those of letter producers included. Empty if the
            first attempt after a loss has not ended yet, and on the stock transport.
        failure: Why the consumer has ended for good; None while it has not.
        nack_index: The indexes of waiting nacks, with the option `nack_index`; None without it.
        store: Counts of the directory of `state` since this process opened it, for all consumers
            that share it: writes, operations, failures, unwritten, lost, syncs and others. None
            without a `state`, and after the consumer was closed.
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
    state_trouble: str | None = None
    retrying: tuple[Retrying, ...] = ()
    failure: Failed | None = None
    nack_index: NackIndexStatistics | None = None
    store: StoreStatistics | None = None

    @property
    def window_share(self) -> float:
        """How full the broker's unacked window is, 0 to 1 (and above, when prefetched past it)."""
        return self.unacked / self.unacked_window


def snapshot(
    sources: TopicStates,
    window: UnackedWindowMonitor,
    event_publisher: EventPublisher,
    connected: bool,
    transport: str,
    leased: int = 0,
    state_trouble: str | None = None,
    nack_index: NackIndexStatistics | None = None,
    store: StoreStatistics | None = None,
) -> Statistics:
    """The counts of all sources of a consumer, now."""
    queued = sources.count(QUEUED)
    return Statistics(
        queued=queued,
        # HELD or LEAVING: the other states that count as unacked. Not by another walk over all.
        in_flight=sources.unacked - sources.nacked - queued,
        nacked=sources.nacked,
        unsent_acks=sources.unsent_acks,
        unacked=sources.unacked,
        unacked_window=window.size,
        connected=connected,
        transport=transport,
        ended_topics=event_publisher.ended_topics,
        inactive_topics=event_publisher.inactive_topics,
        leased=leased,
        state_trouble=state_trouble,
        retrying=event_publisher.retries,
        failure=event_publisher.failure,
        nack_index=nack_index,
        store=store,
    )
