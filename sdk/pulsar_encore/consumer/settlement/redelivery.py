"""What comes back and when: due nacks and ack timeouts become redeliver commands.

Owns `Redelivery`: one alarm over all sources. On Shared and Key_Shared single entries are asked
for; on Exclusive and Failover a due message gives back everything unacked of its source, because
those subscriptions only know a rewind (PIP-84; as Java's client). A rewind that does not bring all
that was given back is asked for again (see `core.rewind`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from random import Random
from typing import Final, Protocol

from ...core.bucket_width import precision_bits
from ...core.due_index import DueIndex
from ...core.entry import Entry, EntryKey, set_bits
from ...core.message_key import DueBatch, MessageKey
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

# Keys of a source handled in one turn of the loop; the rest follows in the next.
_BURST: Final = 500
# What the transport refused to ask for is tried again, after twice the time with each refusal.
_RETRY_MS: Final = 200
_MOST_RETRY_MS: Final = 5_000
# A rewind that brought nothing for so long, though there was room, is asked for again, after twice
# the time with each try; after so many tries what was owed is gone from the topic.
_PATIENCE_S: Final = 1.0
_REWINDS: Final = 6
_LAST: Final = (1 << 63) - 1


class LastAttempts(Protocol):
    """Writes dead letters of batch messages that failed at their last attempt."""

    def failed(self, entry: Entry, index: int, reason: str) -> bool:
        """A message failed; return False if it has to be redelivered."""
        ...

    def all_failed(self, state: TopicState, reason: str) -> None:
        """All messages of a source that the application holds failed."""
        ...


class Redelivery:
    """The clockwork of one consumer.

    Attributes:
        offered: Called when nothing that stays here need wait any longer.
        last: Dead-letters a batch message that failed and is known by id only, if this was its last
            attempt; None without a dead-letter policy.

    Args:
        link: Where redeliver commands go.
        sources: Of the consumer.
        options: Precision, the backoff of ack timeouts.
        loop: The consumer's event loop.
        alarm: Rings when something is due.
        acks: Has to send what is acked before a rewind is asked for.
        queue: Loses what a rewind brings again.
        rng: Source of backoff jitter.
    """

    def __init__(
        self,
        link: TransportConsumer,
        sources: TopicStates,
        options: ConsumerOptions,
        loop: asyncio.AbstractEventLoop,
        alarm: Alarm,
        acks: AckSender,
        queue: ReceiveQueue,
        rng: Random,
    ) -> None:
        self._link = link
        self._sources = sources
        self._options = options
        self._loop = loop
        self._alarm = alarm
        self._acks = acks
        self._queue = queue
        self._rng = rng
        self._patience: dict[int, _Patience] = {}
        self._watch: asyncio.TimerHandle | None = None
        self._refused: dict[int, tuple[int, int]] = {}  # by source: until when (ms), pause in ms
        self.offered: Callable[[], None] = _nobody
        self.last: LastAttempts | None = None
        alarm.start(self._ring)

    # What waits

    def wait(self, entry: Entry, index: int, delay_ms: int, *, narrow: bool = False) -> None:
        """A message waits here and comes again after its delay.

        Args:
            entry: The record of its entry.
            index: Its place in there.
            delay_ms: From now.
            narrow: In as narrow a bucket as the delay allows, whatever the precision of nacks is.
        """
        state: TopicState = entry.source
        due_ms, bits = self._due(delay_ms)
        if state.in_order and state.stays(entry, index, due_ms, bits):
            return
        if state.nack(entry, index, due_ms, precision_bits(delay_ms) if narrow else bits):
            self._alarm.at(state.next_due())

    def give_back(self, state: TopicState, keys: Iterable[MessageKey]) -> None:
        """Messages that are held come again at once (Shared and Key_Shared)."""
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
        self._ask(state, state.timeouts, due)
        self._alarm.at(state.next_due())  # of what could not be asked for

    def wait_unseen(self, state: TopicState, key: EntryKey, delay_ms: int) -> None:
        """The same of an entry that there is no record of here."""
        state.nack_unseen(key, *self._due(delay_ms))
        self._alarm.at(state.next_due())

    def waits(self, state: TopicState) -> None:
        """Something of a source may be due earlier than before."""
        self._alarm.at(state.next_due())

    def _due(self, delay_ms: int) -> tuple[int, int]:
        """(due ms, bucket bits) of what is to wait from now."""
        bits = precision_bits(delay_ms, self._options.negative_ack_precision_bit_cnt)
        return due_in_ms(self._loop, delay_ms), bits

    def connected(self, states: Iterable[TopicState]) -> None:
        """What could not be asked for while these were away is asked for now, without a pause."""
        for state in states:
            if self._refused.pop(state.number, None) is not None:
                self._alarm.at(state.next_due())

    # What is due

    def _ring(self, now: int) -> int | None:
        heads = []
        for state in self._sources:
            if self._refused and self._refused.get(state.number, (0, 0))[0] > now:
                heads.append(self._refused[state.number][0])
                continue
            if len(state.timeouts):
                self._time_out(state, state.take_timeouts(now, _BURST), now)
            if len(state.nacks):
                self._ask(state, state.nacks, state.take_nacks(now, _BURST))
            head = state.next_due()
            if head is not None:
                until, _ = self._refused.get(state.number, (head, 0))
                heads.append(max(head, until))
        return min(heads, default=None)

    def _time_out(self, state: TopicState, due: DueBatch, now: int) -> None:
        if due.indexes and self.last is not None:
            due = _without_dead(self.last, state, due)
        if not due:
            return
        if state.attempts.remembers:  # an attempt that timed out counts where the broker forgets
            evidence, wall_now = evidence_of(None, "ack timeout"), wall_now_ms(self._loop)
            for key in due:
                state.attempts.remember(key, wall_now, evidence)
        name = "ack_timeout_redelivery_backoff"
        backoff = backoff_of(self._options.ack_timeout_redelivery_backoff, name)
        if backoff is None:
            self._ask(state, state.timeouts, due)
            return
        for ledger, number, index in due:
            entry = state.find((ledger, number))
            if entry is not None:
                at = max(index, 0)
                delay = backoff.delay_ms(state.attempts.count(entry, at), self._rng)
                state.nack(entry, at, now + state.lead_ms + delay, precision_bits(delay))
        state.timeouts.done(due)

    def _ask(self, state: TopicState, index: DueIndex, due: DueBatch) -> None:
        """What is due comes again: by name, or with all that is unacked of its source."""
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
            if unsent:  # or the broker would send what is acked of these along, and to anybody
                self._acks.flush()
            try:
                if unsent and not self._link.can_ack(state.number):
                    raise NotConnected("what is acked beside it cannot be sent yet")
                self._link.redeliver(state.number, groups)
            except TransportError as error:
                self._put_back(state, index, due, now, error)
                return
            self._refused.pop(state.number, None)
        index.done(due)

    def _put_back(
        self, state: TopicState, index: DueIndex, due: DueBatch, now: int, error: TransportError
    ) -> None:
        """The transport asked for nothing: all of it is due still, and is tried in a while."""
        state.not_asked(due, now)
        if index is not state.nacks:
            index.done(due)  # they wait as nacks now
        _, pause = self._refused.get(state.number, (0, _RETRY_MS // 2))
        pause = min(2 * pause, _MOST_RETRY_MS)
        self._refused[state.number] = (now + pause, pause)
        logger.debug("%s: redelivery refused, again in %d ms: %s", state.topic, pause, error)

    # Rewinds

    def redeliver_all(self, state: TopicState | None = None) -> None:
        """Everything unacked comes again, pending nacks included: of one source, or of all.

        A transport that cannot rewind one source alone rewinds those beside it as well. With
        nothing given back there is nothing to ask for on Exclusive and Failover: all that is
        unacked is on its way here, and a rewind would only bring it twice.
        """
        rewound = self._sources.beside(state)
        if self._options.ordered_leases:
            self._offer_all(rewound)
            return
        if not any(each.shared or each.unacked or each.owed for each in rewound):
            return
        for each in rewound:
            if each.shared and self.last is not None:
                self.last.all_failed(each, "redeliver_unacknowledged_messages")
            each.release_all()
        self._rewind(state)
        # Last: the room that this gives back must not bring more before the rewind.
        self._queue.drop(rewound)

    def _offer_all(self, states: Iterable[TopicState]) -> None:
        """The same where a key keeps its order: what is here stays here. Given back, it would come
        again behind what is on its way."""
        for state in states:
            if len(state.nacks):  # by an id, of what was not here
                due = state.take_nacks(_LAST - state.lead_ms, len(state.nacks))
                self._ask(state, state.nacks, due)
            state.stay_all()
        self.offered()

    def rewind_again(self, state: TopicState) -> None:
        """Something that was given back is missing: what is here stays here, the rest comes."""
        for each in self._sources.beside(state):
            each.rewound_beside()
        self._rewind(state)

    def _rewind(self, state: TopicState | None) -> None:
        self._acks.flush()  # what leaves after the rewind would come again with it
        self._acks.watch_duplicates()
        self._sources.asked_all()
        self._link.redeliver_all(None if state is None else state.number)
        if self._watch is None:
            self._watch = self._loop.call_later(_PATIENCE_S, self._look)

    def _look(self) -> None:
        """Ask again where a rewind has brought nothing for too long."""
        self._watch = None
        impatient = False
        for state in self._sources:
            if state.rewind is None or not state.rewind.owed:
                self._patience.pop(state.number, None)
                continue
            impatient = True
            patience = self._patience.setdefault(state.number, _Patience(self._loop.time()))
            taken = self._queue.taken
            if patience.moved(state.rewind.came, self._loop.time(), taken):
                continue
            if len(self._queue) and taken - patience.taken < self._behind():
                continue  # it may come behind what the application has not taken yet
            if not patience.over(self._loop.time() - _PATIENCE_S):
                continue
            if patience.rewinds < _REWINDS:
                patience.again(self._loop.time(), taken)
                self.rewind_again(state)
            else:
                self._patience.pop(state.number)
                gone = state.rewind.give_up()
                logger.info(
                    "%s: %d entries did not come again after %d rewinds: they are gone from the "
                    "topic, or another consumer has them",
                    state.topic,
                    gone,
                    _REWINDS,
                )
        if impatient and self._watch is None:
            self._watch = self._loop.call_later(_PATIENCE_S, self._look)

    def _behind(self) -> int:
        """Messages of other sources that may come before what a rewind brings."""
        return 2 * self._options.receiver_queue_size * len(self._sources)

    def close(self) -> None:
        """Ask for nothing more."""
        self._alarm.close()
        if self._watch is not None:
            self._watch.cancel()


def _without_dead(last: LastAttempts, state: TopicState, due: DueBatch) -> DueBatch:
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


def _nobody() -> None:
    """Nothing stays here."""


class _Patience:
    """How long a source has been silent, and how often it was asked again for that."""

    __slots__ = ("came", "rewinds", "since", "taken")

    def __init__(self, now: float) -> None:
        self.came = -1
        self.since = now
        self.taken = 0  # messages that the application had taken by then, of any source
        self.rewinds = 0

    def moved(self, came: int, now: float, taken: int) -> bool:
        """Whether more came than at the last look."""
        if came == self.came:
            return False
        self.came, self.since, self.taken, self.rewinds = came, now, taken, 0
        return True

    def over(self, now: float) -> bool:
        return now - self.since >= _PATIENCE_S * ((1 << self.rewinds) - 1)

    def again(self, now: float, taken: int) -> None:
        self.since, self.taken = now, taken
        self.rewinds += 1
