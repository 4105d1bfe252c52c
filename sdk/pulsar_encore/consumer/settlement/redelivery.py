"""Redelivery: due nacks and ack timeouts become redeliver commands.

On Shared and Key_Shared single entries are requested. On Exclusive and Failover a due message
causes a rewind of its topic, because those subscriptions have no other redelivery (PIP-84; as in
Java's client). A rewind that does not bring every unacked message is repeated (see
`core.rewind_check`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from random import Random
from typing import Final, Protocol

from ...core.bucket_width import precision_bits
from ...core.due_index import DueIndex
from ...core.entry import Entry, EntryKey
from ...core.message_key import DueBatch, MessageKey, set_bits
from ...core.topic_state import TopicState
from ...errors import NotConnected, TransportError
from ...eventloop.alarm import Alarm, due_in_ms, now_ms, wall_now_ms
from ...letters.evidence import evidence_of
from ...options import ConsumerOptions
from ...transport.interface import TransportConsumer
from ...values.backoff import backoff_of
from ..delivery.receive_queue import ReceiveQueue
from ..topic_states import TopicStates
from .ack_sender import AckSender

logger: logging.Logger = logging.getLogger(__name__)

# Keys of a topic handled in one iteration of the loop.
_BURST: Final = 500
# Delay before a rejected request is retried. It doubles with each rejection.
_RETRY_MS: Final = 200
_MAX_RETRY_MS: Final = 5_000
# A rewind that brought nothing for this long, despite permits, is repeated, with a doubled wait
# each time. After `_MAX_REWINDS` the missing entries count as gone from the topic.
_REWIND_TIMEOUT_S: Final = 1.0
_MAX_REWINDS: Final = 6
_LAST: Final = (1 << 63) - 1


class LastAttempts(Protocol):
    """Dead-letters batch messages that failed at their last attempt."""

    def failed(self, entry: Entry, index: int, reason: str) -> bool:
        """Dead-letter a failed message, or return False if it has to be redelivered."""
        ...

    def all_failed(self, state: TopicState, reason: str) -> None:
        """Handle every message of a topic that the application holds as failed."""
        ...


class Redelivery:
    """The redelivery of one consumer's messages.

    Attributes:
        all_due: Called when no message is held back any longer (ordered leases).
        last: Dead-letters a batch message that failed at its last attempt and is known by id only;
            None without a dead-letter policy.
    """

    def __init__(
        self,
        transport_consumer: TransportConsumer,
        topic_states: TopicStates,
        options: ConsumerOptions,
        loop: asyncio.AbstractEventLoop,
        alarm: Alarm,
        acks: AckSender,
        queue: ReceiveQueue,
        rng: Random,
    ) -> None:
        self._transport_consumer = transport_consumer
        self._topic_states = topic_states
        self._options = options
        self._loop = loop
        self._alarm = alarm
        self._acks = acks
        self._queue = queue
        self._rng = rng
        self._rewind_watches: dict[int, _RewindWatch] = {}
        self._watch: asyncio.TimerHandle | None = None
        # By topic number: retry time in ms, and delay in ms.
        self._refused: dict[int, tuple[int, int]] = {}
        self.all_due: Callable[[], None] = _ignore_all_due
        self.last: LastAttempts | None = None
        alarm.start(self._ring)

    # Waiting messages

    def wait(self, entry: Entry, index: int, delay_ms: int, *, narrow: bool = False) -> None:
        """Nack a message, so that it is redelivered after its delay.

        Args:
            narrow: Use the narrowest bucket for the delay, whatever precision nacks have.
        """
        state: TopicState = entry.topic_state
        due_ms, bits = self._due(delay_ms)
        if state.in_order and state.hold_back(entry, index, due_ms, bits):
            return
        if state.nack(entry, index, due_ms, precision_bits(delay_ms) if narrow else bits):
            self._alarm.at(state.next_due())

    def give_back(self, state: TopicState, keys: Iterable[MessageKey]) -> None:
        """Redeliver held messages at once (Shared and Key_Shared)."""
        whole: dict[int, list[int]] = {}
        parts: dict[tuple[int, int], int] = {}
        for ledger, entry, index in keys:
            if index < 0:
                whole.setdefault(ledger, []).append(entry)
            else:
                parts[ledger, entry] = parts.get((ledger, entry), 0) | 1 << index
        due = DueBatch(
            [(ledger, sorted(entries)) for ledger, entries in sorted(whole.items())],
            [(ledger, entry, mask) for (ledger, entry), mask in sorted(parts.items())],
        )
        self._request(state, state.timeouts, due)
        self._alarm.at(state.next_due())  # for rejected requests

    def wait_unseen(self, state: TopicState, key: EntryKey, delay_ms: int) -> None:
        """Nack an entry without a record, so that it is redelivered after its delay."""
        state.nack_unseen(key, *self._due(delay_ms))
        self._alarm.at(state.next_due())

    def waits(self, state: TopicState) -> None:
        """Set the alarm again, because a message of a topic may be due earlier."""
        self._alarm.at(state.next_due())

    def _due(self, delay_ms: int) -> tuple[int, int]:
        """Return the due time in ms and the bucket bits of a delay from now."""
        bits = precision_bits(delay_ms, self._options.negative_ack_precision_bit_cnt)
        return due_in_ms(self._loop, delay_ms), bits

    def connected(self, states: Iterable[TopicState]) -> None:
        """Request the messages that could not be requested while disconnected, without a delay."""
        for state in states:
            if self._refused.pop(state.number, None) is not None:
                self._alarm.at(state.next_due())

    # Due messages

    def _ring(self, now: int) -> int | None:
        heads = []
        for state in self._topic_states:
            if self._refused and self._refused.get(state.number, (0, 0))[0] > now:
                heads.append(self._refused[state.number][0])
                continue
            if len(state.timeouts):
                self._time_out(state, state.take_timeouts(now, _BURST), now)
            if len(state.nacks):
                self._request(state, state.nacks, state.take_nacks(now, _BURST))
            head = state.next_due()
            if head is not None:
                until, _ = self._refused.get(state.number, (head, 0))
                heads.append(max(head, until))
        return min(heads, default=None)

    def _time_out(self, state: TopicState, due: DueBatch, now: int) -> None:
        if due.indexes and self.last is not None:
            due = _dead_letter_last(self.last, state, due)
        if not due:
            return
        if state.attempts.remembers:  # such attempts count where the broker does not count them
            evidence, wall_now = evidence_of(None, "ack timeout"), wall_now_ms(self._loop)
            for key in due:
                state.attempts.remember(key, wall_now, evidence)
        name = "ack_timeout_redelivery_backoff"
        backoff = backoff_of(self._options.ack_timeout_redelivery_backoff, name)
        if backoff is None:
            self._request(state, state.timeouts, due)
            return
        for ledger, number, index in due:
            entry = state.find((ledger, number))
            if entry is not None:
                at = max(index, 0)
                delay = backoff.delay_ms(state.attempts.count(entry, at), self._rng)
                state.nack(entry, at, now + state.lead_ms + delay, precision_bits(delay))
        state.timeouts.done(due)

    def _request(self, state: TopicState, index: DueIndex, due: DueBatch) -> None:
        """Request due messages: single entries, or a rewind of their topic."""
        if not due:
            return
        if not state.shared:
            self.redeliver_all(state)
            index.done(due)
            return
        unsent = state.has_unsent_part(due)
        now = now_ms(self._loop)
        groups = state.release(due, now)
        if groups:
            # Otherwise the broker would also send acked messages of these entries, to any consumer.
            if unsent:
                self._acks.flush()
            try:
                if unsent and not self._transport_consumer.can_ack(state.number):
                    raise NotConnected("acks of the same entries cannot be sent yet")
                self._transport_consumer.redeliver(state.number, groups)
            except TransportError as error:
                self._put_back(state, index, due, now, error)
                return
            self._refused.pop(state.number, None)
        index.done(due)

    def _put_back(
        self, state: TopicState, index: DueIndex, due: DueBatch, now: int, error: TransportError
    ) -> None:
        """Keep all messages due after a rejected request, and retry it later."""
        state.request_failed(due, now)
        if index is not state.nacks:
            index.done(due)  # they wait as nacks now
        _, pause = self._refused.get(state.number, (0, _RETRY_MS // 2))
        pause = min(2 * pause, _MAX_RETRY_MS)
        self._refused[state.number] = (now + pause, pause)
        logger.debug("%s: redelivery refused, again in %d ms: %s", state.topic, pause, error)

    # Rewinds

    def redeliver_all(self, state: TopicState | None = None) -> None:
        """Redeliver every unacked message of one topic or of all, pending nacks included.

        A transport that cannot rewind one topic alone rewinds all Exclusive and Failover topics.
        Without unacked messages in this consumer, these topics need no rewind: the broker's unacked
        messages are already on their way, and a rewind would deliver them twice.
        """
        rewound = self._topic_states.rewound_with(state)
        if self._options.ordered_leases:
            self._make_all_due(rewound)
            return
        if not any(each.shared or each.unacked or each.outstanding for each in rewound):
            return
        for each in rewound:
            if each.shared and self.last is not None:
                self.last.all_failed(each, "redeliver_unacknowledged_messages")
            each.release_all()
        self._rewind(state)
        # This comes last: the permits that it returns must not bring messages before the rewind.
        self._queue.drop(rewound)

    def _make_all_due(self, states: Iterable[TopicState]) -> None:
        """Make every held or held-back message due in the queue, for ordered leases.

        The messages stay in this process. Redelivered by the broker, they would arrive behind later
        messages of their keys.
        """
        for state in states:
            if len(state.nacks):  # nacks by id, of messages that are not in this process
                due = state.take_nacks(_LAST - state.lead_ms, len(state.nacks))
                self._request(state, state.nacks, due)
            state.requeue_all()
        self.all_due()

    def rewind_again(self, state: TopicState) -> None:
        """Repeat a rewind because entries are missing. Messages that arrived are kept."""
        for each in self._topic_states.rewound_with(state):
            each.rewound_with_others()
        self._rewind(state)

    def _rewind(self, state: TopicState | None) -> None:
        # An ack that is sent after the rewind does not keep its message from being redelivered.
        self._acks.flush()
        self._acks.watch_duplicates()
        self._topic_states.rewind_requested()
        self._transport_consumer.redeliver_all(None if state is None else state.number)
        if self._watch is None:
            self._watch = self._loop.call_later(_REWIND_TIMEOUT_S, self._check_rewinds)

    def _check_rewinds(self) -> None:
        """Repeat the rewinds that have brought nothing for too long."""
        self._watch = None
        is_watching = False
        for state in self._topic_states:
            if state.rewind is None or not state.rewind.outstanding:
                self._rewind_watches.pop(state.number, None)
                continue
            is_watching = True
            rewind_watch = self._rewind_watches.setdefault(
                state.number, _RewindWatch(self._loop.time())
            )
            taken = self._queue.taken
            if rewind_watch.moved(state.rewind.came, self._loop.time(), taken):
                continue
            if len(self._queue) and taken - rewind_watch.taken < self._behind():
                continue  # the missing entries may be behind messages that are not taken yet
            if not rewind_watch.over(self._loop.time() - _REWIND_TIMEOUT_S):
                continue
            if rewind_watch.rewinds < _MAX_REWINDS:
                rewind_watch.record_rewind(self._loop.time(), taken)
                self.rewind_again(state)
            else:
                self._rewind_watches.pop(state.number)
                missing_count = state.rewind.give_up()
                logger.info(
                    "%s: %d entries were not redelivered after %d rewinds: they are gone from the "
                    "topic, or another consumer has them",
                    state.topic,
                    missing_count,
                    _MAX_REWINDS,
                )
        if is_watching and self._watch is None:
            self._watch = self._loop.call_later(_REWIND_TIMEOUT_S, self._check_rewinds)

    def _behind(self) -> int:
        """Return how many messages of other topics may arrive before those of a rewind."""
        return 2 * self._options.receiver_queue_size * len(self._topic_states)

    def close(self) -> None:
        self._alarm.close()
        if self._watch is not None:
            self._watch.cancel()


def _dead_letter_last(last: LastAttempts, state: TopicState, due: DueBatch) -> DueBatch:
    """Dead-letter messages at their last attempt; return the other timeouts."""
    left = []
    for ledger, number, mask in due.indexes:
        entry = state.find((ledger, number))
        if entry is not None:
            for index in set_bits(mask):
                if last.failed(entry, index, "ack timeout"):
                    mask ^= 1 << index
        if mask:
            left.append((ledger, number, mask))
    return DueBatch(due.entries, left)


def _ignore_all_due() -> None:
    """Default of `all_due`: no message is held back."""


class _RewindWatch:
    """How long a rewind has brought nothing, and how often it was repeated."""

    __slots__ = ("came", "rewinds", "since_s", "taken")

    def __init__(self, now: float) -> None:
        self.came = -1
        self.since_s = now
        self.taken = 0  # messages of any topic that the application had taken by then
        self.rewinds = 0

    def moved(self, came: int, now: float, taken: int) -> bool:
        if came == self.came:
            return False
        self.came, self.since_s, self.taken, self.rewinds = came, now, taken, 0
        return True

    def over(self, now: float) -> bool:
        return now - self.since_s >= _REWIND_TIMEOUT_S * ((1 << self.rewinds) - 1)

    def record_rewind(self, now: float, taken: int) -> None:
        self.since_s, self.taken = now, taken
        self.rewinds += 1
