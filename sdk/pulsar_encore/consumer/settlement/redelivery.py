"""Redelivery of due nacks and ack timeouts.

On Shared and Key_Shared single entries are requested. On Exclusive and Failover one due message
rewinds its whole topic (`rewinds.py`).
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
from ..topic_states import TopicStates
from .ack_sender import AckSender
from .rewinds import Rewinds

_BURST: Final = 500  # keys of a topic handled in one iteration of the loop
# Delay before a rejected request is retried, doubled with each rejection.
_RETRY_MS: Final = 200
_MAX_RETRY_MS: Final = 5_000
_LAST: Final = (1 << 63) - 1


class LastAttemptHandler(Protocol):
    """Dead-letters batch messages whose last attempt failed in a call that has no payload.

    These calls are an ack timeout and `redeliver_unacknowledged_messages`. Implemented by
    `forwarding.last_attempts.LastAttempts`.
    """

    def dead_letter_if_last(self, entry: Entry, index: int, reason: str) -> bool:
        """Dead-letter a failed message, or return False if it has to be redelivered."""
        ...

    def fail_all(self, state: TopicState, reason: str) -> None:
        """Dead-letter every held message of a topic that is at its last attempt."""
        ...


class Redelivery:
    """The redelivery of one consumer's messages.

    Attributes:
        all_due: Called when no message is held back any longer (ordered leases).
    """

    def __init__(
        self,
        transport_consumer: TransportConsumer,
        topic_states: TopicStates,
        options: ConsumerOptions,
        loop: asyncio.AbstractEventLoop,
        alarm: Alarm,
        acks: AckSender,
        rewinds: Rewinds,
        rng: Random,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self._logger = logger_of(__name__)
        self._transport_consumer = transport_consumer
        self._topic_states = topic_states
        self._options = options
        self._loop = loop
        self._alarm = alarm
        self._acks = acks
        self._rewinds = rewinds
        self._rng = rng
        # By topic number, after a rejected request: time of the next try and delay before it (ms).
        self._retry_at: dict[int, tuple[int, int]] = {}
        self.all_due: Callable[[], None] = _ignore_all_due
        self.last: LastAttemptHandler | None = None
        alarm.start(self._ring)

    # Waiting messages

    def schedule(self, entry: Entry, index: int, delay_ms: int, *, narrow: bool = False) -> None:
        """Nack a message: it is redelivered after its delay.

        Args:
            narrow: Use the narrowest bucket for the delay, whatever precision nacks have.
        """
        state: TopicState = entry.topic_state
        due_ms, bits = self._due(delay_ms)
        if state.in_order and state.hold_back(entry, index, due_ms, bits):
            return
        if state.nack(entry, index, due_ms, precision_bits(delay_ms) if narrow else bits):
            self._alarm.at(state.next_due())

    def request_now(self, state: TopicState, keys: Iterable[MessageKey]) -> None:
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

    def schedule_unseen(self, state: TopicState, key: EntryKey, delay_ms: int) -> None:
        """Nack an entry without a record."""
        state.nack_unseen(key, *self._due(delay_ms))
        self._alarm.at(state.next_due())

    def rearm(self, state: TopicState) -> None:
        """Set the alarm for a message that may be due earlier."""
        self._alarm.at(state.next_due())

    def _due(self, delay_ms: int) -> tuple[int, int]:
        bits = precision_bits(delay_ms, self._options.negative_ack_precision_bit_cnt)
        return due_in_ms(self._loop, delay_ms), bits

    def connected(self, states: Iterable[TopicState]) -> None:
        """Retry rejected requests at once."""
        for state in states:
            if self._retry_at.pop(state.number, None) is not None:
                self._alarm.at(state.next_due())

    # Due messages

    def _ring(self, now: int) -> int | None:
        heads = []
        for state in self._topic_states:
            if self._retry_at and self._retry_at.get(state.number, (0, 0))[0] > now:
                heads.append(self._retry_at[state.number][0])
                continue
            if len(state.timeouts):
                self._time_out(state, state.take_timeouts(now, _BURST), now)
            if len(state.nacks):
                self._request(state, state.nacks, state.take_nacks(now, _BURST))
            head = state.next_due()
            if head is not None:
                until, _ = self._retry_at.get(state.number, (head, 0))
                heads.append(max(head, until))
        return min(heads, default=None)

    def _time_out(self, state: TopicState, due: DueBatch, now: int) -> None:
        if due.indexes and self.last is not None:
            due = _dead_letter_last(self.last, state, due)
        if not due:
            return
        if state.attempts.remembers or state.attempts.failures:
            # The broker may forget its count (see `core.attempts`), and on Exclusive and Failover
            # it counts nothing.
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
        if not due:
            return
        if self._rewinds.begin_if_unshared(state):
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
            self._retry_at.pop(state.number, None)
        index.done(due)

    def _put_back(
        self, state: TopicState, index: DueIndex, due: DueBatch, now: int, error: TransportError
    ) -> None:
        """Retry a rejected request later; its messages stay due."""
        state.request_failed(due, now)
        if index is not state.nacks:
            index.done(due)  # they wait as nacks now
        _, pause = self._retry_at.get(state.number, (0, _RETRY_MS // 2))
        pause = min(2 * pause, _MAX_RETRY_MS)
        self._retry_at[state.number] = (now + pause, pause)
        self._logger.debug(
            "%s: a redelivery request was rejected, retrying in %d ms: %s",
            state.topic,
            pause,
            error,
        )

    def redeliver_all(self) -> None:
        """Redeliver every unacked message, pending nacks included."""
        if self._options.ordered_leases:
            self._make_all_due()
            return
        if self.last is not None:
            for state in self._topic_states:
                if state.shared:
                    self.last.fail_all(state, "redeliver_unacknowledged_messages")
        self._rewinds.begin(None)

    def _make_all_due(self) -> None:
        """Queue every held or held-back message again, for ordered leases.

        If the broker redelivered them, they would arrive after later messages of their keys.
        """
        for state in self._topic_states:
            if len(state.nacks):  # nacks by id, of messages that are not in this process
                due = state.take_nacks(_LAST - state.lead_ms, len(state.nacks))
                self._request(state, state.nacks, due)
            state.requeue_all()
        self.all_due()

    def close(self) -> None:
        self._alarm.close()


def _dead_letter_last(last: LastAttemptHandler, state: TopicState, due: DueBatch) -> DueBatch:
    """Dead-letter messages at their last attempt; return the other timeouts."""
    left = []
    for ledger, number, mask in due.indexes:
        entry = state.find((ledger, number))
        if entry is not None:
            for index in set_bits(mask):
                if last.dead_letter_if_last(entry, index, "ack timeout"):
                    mask ^= 1 << index
        if mask:
            left.append((ledger, number, mask))
    return DueBatch(due.entries, left)


def _ignore_all_due() -> None:
    """Default of `all_due`."""
