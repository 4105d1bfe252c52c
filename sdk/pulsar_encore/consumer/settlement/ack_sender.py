"""Sends acks in groups, limited by time, entries and messages, and keeps them while disconnected.

Grouping by time alone would limit a consumer to one unacked window per group time, because the
broker stops delivering at its window.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterable
from typing import Final

from ...core.acks import Unsent
from ...core.topic_state import TopicState
from ...errors import TransportError
from ...eventloop.alarm import now_ms
from ...options import ConsumerOptions
from ...transport.interface import AckPlan, TransportConsumer
from ..delivery.receive_queue import ReceiveQueue
from ..topic_states import RECONNECT_S, REDELIVERY_S, TopicStates
from .ack_receipts import AckReceipts

# A flush is due when the unsent acks cover a tenth of the unacked window.
_WINDOW_SHARE: Final = 10
_RETRY_S: Final = 0.2
# Entries sent in one iteration of the loop, 3 us each.
_SLICE: Final = 1_000
# A redelivery that crossed an ack arrives within `REDELIVERY_S`, if it is not queued in the
# transport after messages that the application has not taken. The transport queues at most this
# many messages plus twice the receiver queue.
_MOST_QUEUED: Final = 10_000
# Without arrivals for this long, despite permits, no message waits in the transport.
_CALM_MS: Final = 500


class AckSender:
    def __init__(
        self,
        transport_consumer: TransportConsumer,
        topic_states: TopicStates,
        options: ConsumerOptions,
        loop: asyncio.AbstractEventLoop,
        queue: ReceiveQueue,
    ) -> None:
        self._transport_consumer = transport_consumer
        self._topic_states = topic_states
        self._loop = loop
        self._group_s = options.ack_group_time_ms / 1000
        self._most_entries = options.ack_group_max_size
        self._most_messages = max(1, options.max_unacked_messages // _WINDOW_SHARE)
        self._min_due = min(self._most_messages, self._most_entries) if self._group_s else 0
        self._queue = queue
        self.receipts: AckReceipts = AckReceipts(loop, self._not_confirmed)
        self._queue_depth = _MOST_QUEUED + 2 * options.receiver_queue_size
        self._arrived_ms = 0
        self._taken = 0  # messages taken when duplicate windows last advanced
        self._unsent = 0
        # Topics whose last flush was rejected. `added` does not flush them; `flush`, a reconnect
        # and the retry timer do.
        self._rejected_topics: set[int] = set()
        self._timer: asyncio.Handle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._reconnect_timer: asyncio.TimerHandle | None = None
        self._duplicate_timer: asyncio.TimerHandle | None = None

    def added(self, state: TopicState, messages: int) -> None:
        """Note that `state` has this many more unsent acks, and flush if a limit is reached."""
        if not messages:
            return
        self._unsent = unsent = self._unsent + messages
        # There are no more entries than messages, so the messages alone rule out most flushes.
        due = unsent >= self._min_due and (
            unsent >= self._most_messages
            or len(state.acks) >= self._most_entries
            or self._group_s == 0
        )
        if due and state.number not in self._rejected_topics:
            self._flush_ready(_SLICE)
        elif self._timer is None:
            self._timer = self._loop.call_later(self._group_s, self._flush_ready, _SLICE)

    def note_arrival(self, now: int) -> None:
        self._arrived_ms = now

    def flush(self) -> bool:
        """Send all acks now. Return False if the transport rejected some; they are retried."""
        self._rejected_topics.clear()
        self._flush_ready(sys.maxsize)
        return not self._rejected_topics

    async def flush_in_steps(self) -> None:
        """Send the present acks, a thousand entries in each iteration of the loop.

        Acks that are added meanwhile do not prolong the call.
        """
        self._rejected_topics.clear()
        left = self._topic_states.unsent_acks
        while left > 0:
            before = self._topic_states.unsent_acks
            self._flush_ready(_SLICE)
            sent = before - self._topic_states.unsent_acks
            if sent <= 0:
                return
            left -= sent
            if left > 0:
                await asyncio.sleep(0)

    def _flush_ready(self, most: int) -> None:
        """Send up to `most` entries now, and the rest in the next iterations of the loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unsent = 0
        left = 0
        for state in self._topic_states:
            waiting = len(state.acks)
            if not waiting or state.number in self._rejected_topics:
                continue
            if most > 0 and not self._flush(state, most):
                self._rejected_topics.add(state.number)
            left += max(0, waiting - most)
            most = max(0, most - waiting)
        if left:
            self._timer = self._loop.call_soon(self._flush_ready, _SLICE)
        self.watch_duplicates()
        self._retry_refused()

    def _retry_refused(self) -> None:
        if self._rejected_topics and self._retry is None:
            self._retry = self._loop.call_later(max(_RETRY_S, self._group_s), self._retry_acks)

    def _retry_acks(self) -> None:
        self._retry = None
        self._rejected_topics.clear()
        self._flush_ready(_SLICE)

    def watch_duplicates(self) -> None:
        if self._duplicate_timer is None:
            self._duplicate_timer = self._loop.call_later(REDELIVERY_S, self._expire_duplicates)

    def _flush(self, state: TopicState, most: int) -> bool:
        if not self._transport_consumer.can_ack(state.number):
            return False
        unsent = state.acks.take(now_ms(self._loop), most)
        try:
            receipt = self._transport_consumer.ack(_plan(state, unsent))
        except TransportError:
            state.acks.put_back(unsent)
            return False
        except BaseException:
            state.acks.put_back(unsent)
            raise
        self.receipts.sent(state, unsent, receipt)
        state.pack_sent(unsent.parts)
        return True

    def _not_confirmed(self, state: TopicState, unsent: Unsent) -> None:
        """Retry acks after a failed receipt, though the connection works."""
        state.not_confirmed(unsent)
        self._rejected_topics.add(state.number)
        self._retry_refused()

    def disconnected(self, states: Collection[TopicState]) -> None:
        now = now_ms(self._loop)
        for state in states:
            state.acks.disconnected(now)
        self.receipts.disconnected(states)

    def uncertain(self, states: Iterable[TopicState]) -> None:
        now = now_ms(self._loop)
        for state in states:
            state.acks.maybe_disconnected(now)

    def connected(self, states: Collection[TopicState]) -> None:
        for state in states:
            state.reconnected()
        self._rejected_topics.clear()
        self._flush_ready(_SLICE)
        self.receipts.connected(states)
        if self._reconnect_timer is not None:
            self._reconnect_timer.cancel()
        self._reconnect_timer = self._loop.call_later(RECONNECT_S, self._end_reconnects)

    def _expire_duplicates(self) -> None:
        self._duplicate_timer = None
        calm = not len(self._queue) and now_ms(self._loop) - self._arrived_ms >= _CALM_MS
        if not calm and self._queue.taken - self._taken < self._queue_depth:
            # A duplicate may be queued after messages that are not taken yet.
            self.watch_duplicates()
            return
        self._taken = self._queue.taken
        left = [state.window.advance() for state in self._topic_states]
        if any(left):
            self._duplicate_timer = self._loop.call_later(REDELIVERY_S, self._expire_duplicates)

    def _end_reconnects(self) -> None:
        for state in self._topic_states:
            state.window.end_reconnect()

    async def wait_for_receipts(self, timeout_s: float) -> None:
        awaited = self.receipts.awaited
        if awaited:
            await asyncio.wait(awaited, timeout=timeout_s)

    def close(self, why: Exception) -> None:
        """Stop the timers and fail the waiting callers. No ack is sent."""
        self.receipts.fail(why)
        for timer in (self._timer, self._retry, self._reconnect_timer, self._duplicate_timer):
            if timer is not None:
                timer.cancel()


def _plan(state: TopicState, unsent: Unsent) -> AckPlan:
    """Return the acks to send.

    If the topic had acks in transactions, an individual ack leaves the withheld indexes of a batch
    unacked; a cumulative one acks them. Elsewhere a batch is acked as a whole: with acks of its
    parts alone, workers on Key_Shared were seen to wait for a message for ever after kills
    (`integration/worker/test_kills.py`).
    """
    cumulative = None
    if unsent.cumulative is not None:
        key, size, mask = unsent.cumulative
        cumulative = (*key, size, mask)
    withheld, entries = state.withheld, unsent.whole
    is_masked = withheld.has_any and state.pending_acks.was_used
    partial = [
        (
            *entry.key,
            entry.size,
            entry.remaining() | (withheld.of(entry.key) if is_masked else 0),
        )
        for entry in unsent.parts
    ]
    if is_masked:
        entries = []
        for key in unsent.whole:
            entry = state.find(key)
            if entry is not None and entry.unacked:
                # Withheld messages have come back after all others were acked.
                partial.append((*key, entry.size, entry.remaining() | withheld.of(key)))
            elif withheld.of(key):
                partial.append((*key, withheld.size_of(key), withheld.of(key)))
            else:
                entries.append(key)
    return AckPlan(state.number, cumulative, entries, partial)
