"""Check a history: a pure function of its events, without code of a client or broker.

`check` looks for these findings:
- Every message that was produced and whose topic still exists ends acked or dead-lettered.
  Otherwise it is `stuck` if the witness received it at the end, or `lost` if no consumer did.
- On Exclusive and Failover, a consumer receives messages in order without a `gap`, and `went back`
  needs a rewind. A cumulative ack covers no message that was never delivered (`uncovered`).
- On Key_Shared, the first deliveries of a key's messages are in order (`key order`).
- A nack or a `reconsume_later` is never `early`, and not `late` while its consumer is idle.
- A dead letter had all its attempts (`dead early`), a failing message gets no more (`attempts`),
  and there is one letter (`two letters`).
- An acked message is delivered again only if a rule allows it (`acked again`). The uses of each
  rule are counted.
- The statistics at the end agree with the history (`statistics`), no call is refused to the
  consumer that holds the message (`refused`), and no call raises unexpectedly (`failed`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from . import event_record as r
from .event_record import DRAINER, Event
from .workload import Workload

EARLY_S: Final = 0.001  # difference of two readings of one clock
LATE_S: Final = 2.0  # with an idle consumer; the package's own bound is a tenth of this
LATE_RESTARTED_S: Final = 12.0  # a restarted broker reads old entries after about 5 s
LATE_LETTER_S: Final = 4.0  # the broker's timer for delays has a resolution of 1 s
FLUSH_EXACT_S: Final = 0.3  # as `FLUSH_S`, for a client that waits for receipts
FLUSH_S: Final = 1.0  # an ack made this long before a lost connection was sent
NOTICED_S: Final = 0.3  # a client notices a lost connection within this time
SETTLES_S: Final = 3.0  # a requested rewind has taken effect, repetition included
NONE: Final = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A broken promise.

    Args:
        kind: One of the kinds above.
        number: Message number, -1 for none.
        text: The observation.
        at: Time in the history, in s.
        who: Consumer, -1 for none.
        messages: Number of messages that are affected.
    """

    kind: str
    text: str
    number: int = NONE
    at: float = 0.0
    who: int = NONE
    messages: int = 1

    def __str__(self) -> str:
        return f"{self.at:.3f} {self.kind}: {self.text}"


@dataclass(kw_only=True, slots=True)
class Verdict:
    """The result of checking a history.

    Attributes:
        findings: Broken promises, in order of time.
        doubles: Deliveries of acked messages, by the rule that allows them, or `not allowed`.
        produced: Messages in all.
        handed: Deliveries in all.
        late_s: Longest wait beyond a nack's delay.
        took_s: Length of the history.
    """

    findings: list[Finding] = field(default_factory=list)
    doubles: Counter[str] = field(default_factory=Counter)
    produced: int = 0
    handed: int = 0
    late_s: float = 0.0
    took_s: float = 0.0

    def messages(self, kind: str) -> int:
        """Return the number of messages that findings of a kind affect."""
        return sum(each.messages for each in self.findings if each.kind == kind)

    def kinds(self) -> Counter[str]:
        """Count the findings by kind."""
        return Counter(finding.kind for finding in self.findings)


@dataclass(slots=True)
class _Wait:
    """A nack or a reconsume, until its message is delivered again."""

    at: float
    due: float
    letter: bool
    blocked_at: float = float("-inf")  # when another consumer was last known to have the message


@dataclass(slots=True)
class _Message:
    number: int
    topic: str
    position: r.Position
    key: str
    rank: int = 0
    deliveries: int = 0
    failures: int = 0
    letters: int = 0
    acked_at: float | None = None
    acked_by: int = NONE
    settled: list[tuple[float, int]] = field(
        default_factory=list
    )  # acks and reconsumes, with the consumer
    # nacks and reconsumes, with the consumer
    failed: list[tuple[float, int]] = field(default_factory=list)
    delivered_at: dict[int, float] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    waits: dict[int, _Wait] = field(default_factory=dict)
    last_at: float = 0.0
    last_who: int = NONE
    # two consumers held it at once, or its letter arrived while it was held
    duplicated: bool = False

    def has_copy(self, event: Event) -> bool:
        """True if another consumer has a copy, so that two letters may be made of the message."""
        letters = any(wait.letter for wait in self.waits.values())
        return bool(self.held) or (letters and event.topic == self.topic)

    @property
    def entry(self) -> tuple[str, int, int]:
        return (self.topic, *self.position[:2])

    @property
    def done(self) -> bool:
        return self.acked_at is not None or self.letters > 0


@dataclass(slots=True)
class _Fault:
    note: str
    who: int
    topic: str
    start: float
    end: float | None = None

    def settles(self, at: float, now: float, slack: float) -> bool:
        """True if an ack may have been lost in this fault.

        Args:
            at: Time of the ack.
            now: Time when its message was redelivered.
            slack: Longest time that an ack may take, in s.
        """
        end = self.end if self.end is not None else now
        return self.start - slack <= at <= end + slack

    def touches(self, who: int, topic: str) -> bool:
        """True if the fault affects this consumer's connection to this topic."""
        if self.note in ("cut", "crash"):
            return self.who == who
        return not self.topic or topic == self.topic or topic.startswith(f"{self.topic}-partition-")


class _TopicHistory:
    """The messages of one topic or partition in order, and the ranks that are not settled."""

    def __init__(self) -> None:
        self.order: list[_Message] = []
        self.open: list[int] = []  # ranks
        self.handed: set[int] = set()  # ranks delivered to any consumer

    def lowest_open(self, low: int, high: int) -> list[int]:
        """Return the unsettled ranks from `low` to before `high`."""
        return self.open[bisect_left(self.open, low) : bisect_left(self.open, high)]

    def close(self, rank: int) -> None:
        at = bisect_left(self.open, rank)
        if at < len(self.open) and self.open[at] == rank:
            del self.open[at]

    def reopen(self, rank: int) -> None:
        at = bisect_left(self.open, rank)
        if at == len(self.open) or self.open[at] != rank:
            insort(self.open, rank)


@dataclass(slots=True)
class _Stream:
    """The deliveries of one topic to one consumer."""

    last: int = NONE
    rewound_at: float = 0.0  # time of the last rewind, or of the first delivery
    after_loss: bool = True  # whether held and nacked messages may be left out since then


def check(workload: Workload, events: Sequence[Event], *, exact: bool = False) -> Verdict:
    """Return the verdict on a history of `workload`.

    Args:
        workload: The workload that was played.
        events: Its history.
        exact: True if the client sends ack sets, waits for receipts and notices a lost connection
            at once. Duplicates are then excused less often.
    """
    checker = _Checker(workload, events, exact)
    checker.run()
    return checker.verdict


class _Checker:
    def __init__(self, workload: Workload, events: Sequence[Event], exact: bool) -> None:
        self._workload = workload
        self._exact = exact
        self._flush_s = FLUSH_EXACT_S if exact else FLUSH_S
        self._events = sorted(events, key=lambda event: event.at)
        self.verdict = Verdict()
        self._messages: dict[int, _Message] = {}
        self._topic_histories: dict[str, _TopicHistory] = defaultdict(_TopicHistory)
        self._streams: dict[tuple[int, str], _Stream] = defaultdict(_Stream)
        self._faults: list[_Fault] = []
        self._causes: dict[int, list[float]] = defaultdict(list)  # rewinds by consumer
        self._common: list[float] = []  # rewinds of all consumers
        self._losses: list[tuple[float, int]] = []  # lost connections: time, and consumer or -1
        self._disturbed: list[float] = []  # events that may bring a nacked message early
        # entries requested again, with the first time
        self._failed_entries: dict[tuple[str, int, int], float] = {}
        self._redelivered_all = 0
        self._departed: set[int] = set()
        self._disconnected: set[int] = set()
        self._deleted: set[str] = set()
        self._keys: dict[tuple[str, str], list[_Message]] = defaultdict(list)
        self._key_at: dict[tuple[str, str], int] = defaultdict(int)
        # consumer -> message numbers that it nacked
        self._waiting: dict[int, set[int]] = defaultdict(set)
        self._got_at: dict[int, float] = {}  # consumer -> when it last got a message
        self._due_times: dict[int, list[float]] = defaultdict(list)
        self._has_several_members = workload.members > 1
        self._lags = [(event.at, event.delay) for event in self._events if event.what == r.LAG]
        self._work_is_over = False  # after WORK_ENDED

    # The run

    def run(self) -> None:
        self._read_produced()
        for event in self._events:
            step = _STEPS.get(event.what)
            if step is not None:
                step(self, event)
        self._end()
        self.verdict.findings.sort(key=lambda finding: finding.at)
        self.verdict.produced = len(self._messages)
        self.verdict.took_s = self._events[-1].at if self._events else 0.0

    def _read_produced(self) -> None:
        for event in self._events:
            if event.what == r.PRODUCED:
                assert event.position is not None
                message = _Message(event.number, event.topic, event.position, event.key)
                self._messages[event.number] = message
                self._topic_histories[event.topic].order.append(message)
        for topic, topic_history in self._topic_histories.items():
            topic_history.order.sort(key=lambda message: message.position)
            for rank, message in enumerate(topic_history.order):
                message.rank = rank
                if message.key:
                    self._keys[topic, message.key].append(message)

    def _produced(self, event: Event) -> None:
        message = self._messages[event.number]
        if not message.done:
            self._topic_histories[event.topic].reopen(message.rank)

    def _report(
        self, kind: str, text: str, event: Event | None, number: int = NONE, messages: int = 1
    ) -> None:
        at = event.at if event is not None else self._events[-1].at
        who = event.who if event is not None else NONE
        self.verdict.findings.append(Finding(kind=kind, text=text, number=number, at=at, who=who))

    # Handing over

    def _received(self, event: Event) -> None:
        message = self._messages.get(event.number)
        if message is None:
            return  # delivered before its receipt, which was never recorded
        who, at = event.who, event.at
        self.verdict.handed += 1
        is_original = event.topic == message.topic
        if who == DRAINER:
            self._drained(message, event)
            return
        if message.done:
            self._redelivered(message, event)
        if self._workload.retry and message.has_copy(event):
            message.duplicated = True
        self._check_due(message, event, is_original)
        if self._workload.ordered and is_original:
            self._check_order(message, event)
        if self._workload.kind == "KeyShared" and is_original and message.key:
            self._check_key(message, event)
        if is_original:
            self._topic_histories[message.topic].handed.add(message.rank)
        message.deliveries += 1
        message.delivered_at[who] = self._got_at[who] = at
        message.held.add(who)
        message.last_at, message.last_who = at, who

    def _drained(self, message: _Message, event: Event) -> None:
        if message.letters and message.acked_at is None:
            rule = self._rule_for(message, event, message.last_at, message.last_who)
            self.verdict.doubles[rule or "not allowed"] += 1
            if rule is None:
                text = f"message {message.number} is a dead letter and still in the backlog"
                self._report("acked again", text, event, message.number)
        elif message.acked_at is not None:
            self._redelivered(message, event)
        else:
            was = "never delivered" if not message.deliveries else self._how_it_waits(message)
            text = (
                f"message {message.number} ({was}) was not delivered in the whole run; "
                "a new consumer received it at once"
            )
            self._report("stuck", text, event, message.number)
        message.acked_at, message.acked_by = event.at, DRAINER

    def _how_it_waits(self, message: _Message) -> str:
        parts = [f"{message.deliveries} deliveries"]
        parts += [f"held by consumer {who}" for who in sorted(message.held)]
        parts += [
            f"{'reconsumed' if wait.letter else 'nacked'} by consumer {who} at {wait.at:.3f}, "
            f"due {wait.due:.3f}"
            for who, wait in sorted(message.waits.items())
        ]
        return ", ".join(parts)

    def _redelivered(self, message: _Message, event: Event) -> None:
        acked_at = message.acked_at if message.acked_at is not None else message.last_at
        acked_by = message.acked_by if message.acked_at is not None else message.last_who
        rule = self._rule_for(message, event, acked_at, acked_by)
        self.verdict.doubles[rule or "not allowed"] += 1
        if rule is not None:
            message.duplicated = self._workload.retry or message.duplicated
        else:
            by = "the witness" if event.who == DRAINER else f"consumer {event.who}"
            text = (
                f"message {message.number}, acked by consumer {acked_by} at {acked_at:.3f}, was "
                f"delivered to {by} at {event.at:.3f}"
            )
            self._report("acked again", text, event, message.number)

    def _rule_for(
        self, message: _Message, event: Event, acked_at: float, acked_by: int
    ) -> str | None:
        """Return the rule that allows another delivery of an acked message, or None."""
        who = event.who
        if message.duplicated:
            return "copied twice as a letter, for two consumers that had it at once"
        for fault in self._faults:
            if fault.start > event.at:
                continue
            is_affected = fault.touches(who, message.topic)
            slack = self._slack(fault.start - FLUSH_S, fault.start)
            if fault.note == "kill" and fault.start - 2 * FLUSH_S <= acked_at:
                return "the broker was killed"
            if is_affected and who != acked_by and event.at <= fault.start + NOTICED_S + slack:
                return "delivered before the lost connection was noticed"
            for at, by in message.settled:
                if by == who or not fault.touches(by, message.topic):
                    continue  # the consumer that acked it filters it
                if fault.settles(at, event.at, self._flush_s + slack):
                    return "acked within a second of a lost connection, or without one"
                end = fault.end if fault.end is not None else event.at
                unloaded = fault.note in ("unload", "stop", "kill")
                if self._workload.batched and unloaded and at <= end + FLUSH_S:
                    return "part of a batch, acked before its topic was unloaded"
        if who not in (acked_by, DRAINER) and self._has_several_members:
            if self._redelivered_for_sibling(message, acked_at):
                return "part of a batch that came again for a sibling"
            if message.waits or message.failures or len(message.delivered_at) > 1:
                return "redelivered more than once"
            if self._redelivered_all or self._departed or self._workload.ordered:
                return "redelivered when a consumer left or asked for everything"
        elif (
            who == acked_by
            and self._has_several_members
            and len(message.delivered_at) > 1
            and self._departed
        ):
            return "came back from a consumer that left"
        return None

    def _redelivered_for_sibling(self, message: _Message, acked_at: float) -> bool:
        """True if the message came with a requested batch in which the broker had it as unacked."""
        if not self._workload.batched:
            return False
        asked_at = self._failed_entries.get(message.entry)
        if asked_at is None:
            return False
        return not self._exact or asked_at <= acked_at + self._slack(asked_at, acked_at)

    def _note_request(self, message: _Message, due: float) -> None:
        """Note that a message, and with it its batch, is requested again at `due` or earlier."""
        first = self._failed_entries.get(message.entry, due)
        self._failed_entries[message.entry] = min(due, first)

    # Due times

    def _check_due(self, message: _Message, event: Event, is_original: bool) -> None:
        who, at = event.who, event.at
        for waiter, wait in list(message.waits.items()):
            if wait.letter:
                if is_original:
                    continue
                if self._may_be_lost(message, waiter, wait.at, event):
                    message.duplicated = True  # the letter may be a copy of this delivery
                if at < wait.due - EARLY_S and not message.duplicated:
                    text = f"message {message.number} was delivered {wait.due - at:.3f} s early"
                    self._report("early", f"{text}, by reconsume_later", event, message.number)
            elif waiter == who:
                if at < wait.due - EARLY_S and not self._excused(message, wait, event):
                    text = (
                        f"message {message.number}, nacked at {wait.at:.3f} for "
                        f"{wait.due - wait.at:.3f} s, was delivered {wait.due - at:.3f} s early"
                    )
                    self._report("early", text, event, message.number)
                self.verdict.late_s = max(self.verdict.late_s, at - wait.due)
            else:
                continue  # delivered to another consumer: this nack still waits
            self._waiting[waiter].discard(message.number)
            del message.waits[waiter]

    def _may_be_lost(self, message: _Message, who: int, acked_at: float, event: Event) -> bool:
        """True if a lost connection may have lost an ack of this consumer."""
        return any(
            fault.touches(who, message.topic)
            and fault.settles(
                acked_at,
                event.at,
                self._flush_s + self._slack(fault.start - FLUSH_S, fault.start),
            )
            for fault in self._faults
            if fault.start <= event.at
        )

    def _excused(self, message: _Message, wait: _Wait, event: Event) -> bool:
        if self._workload.ordered:
            return True  # any rewind redelivers it; `_check_order` checks that there was one
        if message.duplicated:
            return True  # there are two copies, which cannot be told apart
        if any(wait.at - FLUSH_S <= moment <= event.at for moment in self._disturbed):
            return True
        return any(
            other != event.who and looked >= wait.at - FLUSH_S
            for other, looked in message.delivered_at.items()
        )

    # Order

    def _check_order(self, message: _Message, event: Event) -> None:
        topic_history = self._topic_histories[message.topic]
        stream = self._streams[event.who, message.topic]
        rank = message.rank
        start = stream.last + 1
        if rank <= stream.last:
            cause, after_loss = self._cause(stream, event)
            if cause is None:
                text = (
                    f"consumer {event.who} received message {message.number} after a later one "
                    "of its topic, without a rewind"
                )
                self._report("went back", text, event, message.number)
            stream.rewound_at, stream.after_loss = event.at, after_loss
            start = 0
        elif stream.last == NONE:
            stream.rewound_at = event.at
            start = 0
        elif self._lost_since(stream.rewound_at, event.who):
            stream.after_loss = True
        missing = [
            other
            for other in (
                topic_history.order[each] for each in topic_history.lowest_open(start, rank)
            )
            if not self._may_skip(other, stream, event)
        ]
        if missing:
            numbers = ", ".join(str(each.number) for each in missing[:4])
            text = (
                f"consumer {event.who} received message {message.number} before "
                f"{len(missing)} of the same topic that precede it and are not settled: {numbers}"
            )
            self._report("gap", text, event, missing[0].number, len(missing))
        stream.last = rank

    def _may_skip(self, message: _Message, stream: _Stream, event: Event) -> bool:
        """True if a message may be left out after a lost connection.

        Messages that the application holds or nacked need not be redelivered yet. The same is true
        for a chunked message with chunks before and after the loss.
        """
        if not stream.after_loss:
            return False
        if self._workload.chunk:
            return True
        return (
            event.who in message.held
            or event.who in message.waits
            or bool(self._has_several_members and message.delivered_at)
        )

    def _cause(self, stream: _Stream, event: Event) -> tuple[str | None, bool]:
        """Return the cause of a rewind since the stream's last one, and whether it was a lost
        connection.
        """
        since, who, at = stream.rewound_at - SETTLES_S, event.who, event.at
        if self._lost_since(since, who):
            return "connection", True
        if any(since <= moment <= at for moment in (*self._causes[who], *self._common)):
            return "asked for", False
        for number in self._waiting[who]:
            wait = self._messages[number].waits.get(who)
            if wait is not None and wait.due - EARLY_S <= at:
                return "nack", False
        if any(since <= due <= at for due in self._due_times[who]):
            return "nack", False
        if self._workload.ack_timeout:
            return "ack timeout", False
        return None, False

    def _lost_since(self, since: float, who: int) -> bool:
        return any(since <= moment and other in (NONE, who) for moment, other in self._losses)

    def _check_key(self, message: _Message, event: Event) -> None:
        if message.deliveries or message.done:
            return
        key_messages = self._keys[message.topic, message.key]
        at = self._key_at[message.topic, message.key]
        while at < len(key_messages) and (key_messages[at].deliveries or key_messages[at].done):
            at += 1
        self._key_at[message.topic, message.key] = at
        if at < len(key_messages) and key_messages[at].rank < message.rank:
            text = (
                f"message {message.number} of key {message.key} was delivered before "
                f"{key_messages[at].number}, which was never delivered"
            )
            self._report("key order", text, event, message.number)

    # Settling

    def _acked(self, event: Event) -> None:
        message = self._messages.get(event.number)
        if message is not None:
            self._settle(message, event)

    def _settle(self, message: _Message, event: Event) -> None:
        message.acked_at, message.acked_by = event.at, event.who
        message.settled.append((event.at, event.who))
        message.held.discard(event.who)
        if message.waits.pop(event.who, None) is not None:
            self._waiting[event.who].discard(message.number)
        self._topic_histories[message.topic].close(message.rank)

    def _acked_cumulative(self, event: Event) -> None:
        message = self._messages[event.number]
        topic_history = self._topic_histories[message.topic]
        # The ack may be of a delivery from before the last rewind. The messages that it covers were
        # delivered before that rewind, too.
        delivered_earlier = message.rank not in topic_history.handed
        uncovered = []
        for rank in topic_history.lowest_open(0, message.rank + 1):
            other = topic_history.order[rank]
            if rank not in topic_history.handed and not delivered_earlier:
                uncovered.append(other)
            self._settle(other, event)
        if uncovered:
            text = (
                f"the cumulative ack of message {message.number} covered {len(uncovered)} that "
                f"were never delivered, {uncovered[0].number} first"
            )
            self._report("uncovered", text, event, uncovered[0].number, len(uncovered))

    def _nacked(self, event: Event) -> None:
        self._wait(event, letter=False)

    def _reconsumed(self, event: Event) -> None:
        self._wait(event, letter=True)

    def _wait(self, event: Event, *, letter: bool) -> None:
        message = self._messages.get(event.number)
        if message is None:
            return
        message.failures += 1
        message.failed.append((event.at, event.who))
        message.held.discard(event.who)
        message.waits[event.who] = _Wait(event.at, event.at + event.delay, letter)
        self._waiting[event.who].add(event.number)
        self._due_times[event.who].append(event.at + event.delay)
        self._note_request(message, event.at + event.delay)
        if letter:
            message.settled.append((event.at, event.who))

    def _letter(self, event: Event) -> None:
        message = self._messages.get(event.number)
        if message is None:
            return
        message.letters += 1
        self._topic_histories[message.topic].close(message.rank)
        if message.letters > 1:
            # The letter is sent before the message is acked. If the ack is lost, a second letter is
            # sent.
            twice = any(self._may_be_lost(message, who, at, event) for at, who in message.failed)
            if not (message.duplicated or twice):
                text = f"message {message.number} has {message.letters} dead letters"
                self._report("two letters", text, event, message.number)
            return
        least = self._workload.max_redeliver + 1
        seen = message.failures + self._redelivered_all + self._timeouts(message)
        if seen < least and message.acked_at is None:
            text = (
                f"message {message.number} was dead-lettered after {message.failures} of {least} "
                f"failed attempts, {message.deliveries} deliveries"
            )
            self._report("dead early", text, event, message.number)

    def _timeouts(self, message: _Message) -> int:
        """Return the largest possible number of deliveries that an ack timeout ended."""
        return message.deliveries - message.failures if self._workload.ack_timeout else 0

    # Rewinds, faults and members

    def _rewind(self, event: Event) -> None:
        self._causes[event.who].append(event.at)
        self._disturbed.append(event.at)
        self._redelivered_all += 1
        for message in self._messages.values():
            if message.acked_at is None:
                self._note_request(message, event.at)
                if event.who in message.held:
                    message.held.discard(event.who)
                if event.who in message.waits:
                    self._waiting[event.who].discard(message.number)
                    del message.waits[event.who]
        if self._workload.ordered:
            for (who, topic), stream in self._streams.items():
                if who == event.who:
                    # Earlier deliveries are void: the messages are delivered again.
                    topic_history = self._topic_histories[topic]
                    topic_history.handed.difference_update(topic_history.open)
                    stream.after_loss = False

    def _seek(self, event: Event) -> None:
        self._common.append(event.at)
        self._disturbed.append(event.at)
        for message in self._messages.values():
            message.acked_at, message.acked_by = None, NONE
            message.deliveries = 0
            message.held.clear()
            message.waits.clear()
            message.delivered_at.clear()
            message.settled.clear()
            message.failed.clear()
            self._topic_histories[message.topic].reopen(message.rank)
        for topic_history in self._topic_histories.values():
            topic_history.handed.clear()
        for waiting in self._waiting.values():
            waiting.clear()

    def _fault(self, event: Event) -> None:
        self._faults.append(_Fault(event.note, event.who, event.topic, event.at))
        self._disturbed.append(event.at)
        self._lost_connection(event.who if event.note == "cut" else NONE, event.at)
        if event.note == "delete":
            for topic in self._topic_histories:
                if topic == event.topic or topic.startswith(f"{event.topic}-partition-"):
                    self._deleted.add(topic)

    def _healed(self, event: Event) -> None:
        self._disturbed.append(event.at)
        self._lost_connection(event.who if event.note == "cut" else NONE, event.at)
        for fault in self._faults:
            if fault.end is None and (fault.note, fault.who, fault.topic) == (
                event.note,
                event.who,
                event.topic,
            ):
                fault.end = event.at

    def _connection(self, event: Event) -> None:
        (self._disconnected.discard if event.what == r.CONNECTED else self._disconnected.add)(
            event.who
        )
        self._disturbed.append(event.at)
        self._lost_connection(event.who, event.at)

    def _lost_connection(self, who: int, at: float) -> None:
        self._losses.append((at, who))
        if self._workload.ordered:
            self._common.append(at)  # another consumer may have become the active one

    def _joined(self, event: Event) -> None:
        for key in [key for key in self._streams if key[0] == event.who]:
            del self._streams[key]
        self._lost_connection(NONE if self._has_several_members else event.who, event.at)
        self._disturbed.append(event.at)

    def _closed(self, event: Event) -> None:
        self._leave(event.who)
        if not self._work_is_over:
            self._departed.add(event.who)
            self._lost_connection(NONE, event.at)
            self._disturbed.append(event.at)

    def _crashed(self, event: Event) -> None:
        self._leave(event.who)
        self._departed.add(event.who)
        self._faults.append(_Fault("crash", event.who, "", event.at, event.at))
        self._lost_connection(NONE, event.at)
        self._disturbed.append(event.at)

    def _leave(self, who: int) -> None:
        if self._work_is_over:
            return
        for message in self._messages.values():
            message.held.discard(who)
            message.waits.pop(who, None)
        self._waiting[who].clear()

    def _idle(self, event: Event) -> None:
        """Find overdue nacks of a consumer that is idle."""
        if self._work_is_over:
            return
        began = event.at - event.delay
        for number in list(self._waiting[event.who]):
            message = self._messages[number]
            wait = message.waits.get(event.who)
            bound = LATE_LETTER_S if wait is not None and wait.letter else LATE_S
            if any(fault.note in ("stop", "kill") for fault in self._faults):
                bound = LATE_RESTARTED_S
            if wait is None or message.done or message.topic in self._deleted:
                self._waiting[event.who].discard(number)
            elif message.last_at > wait.at:
                self._waiting[event.who].discard(number)  # another consumer had it since
            elif self._belongs_to_another(message, wait, event.who):
                wait.blocked_at = event.at
            elif max(self._ready_at(wait, event), self._worked_until(wait, event)) + bound <= began:
                self._waiting[event.who].discard(number)
                text = (
                    f"message {number}, nacked at {wait.at:.3f}, was due at {wait.due:.3f} and "
                    f"not back at {event.at:.3f}, with its consumer idle"
                )
                self._report("late", text, event, number)

    def _worked_until(self, wait: _Wait, event: Event) -> float:
        """Return the time until which another consumer may have had the message, or worked on
        others.

        On Shared, a message is redelivered to any consumer, and may wait in that consumer's queue.
        """
        others = (at for who, at in self._got_at.items() if who not in (event.who, *self._departed))
        shared = self._workload.kind in ("Shared", "KeyShared")
        return max([wait.blocked_at, *others]) if shared else wait.blocked_at

    def _belongs_to_another(self, message: _Message, wait: _Wait, who: int) -> bool:
        """True if the broker ignores this nack, because only the holder's nack counts.

        On Key_Shared, a key that moves to another consumer is held back there while its old
        consumer holds any message of the key (PIP-379). Keys share hash ranges, so any held message
        counts here.
        """
        if message.held - {who}:
            return True
        if any(each.at > wait.at for other, each in message.waits.items() if other != who):
            return True
        if self._workload.kind != "KeyShared":
            return False
        return any(each.held or set(each.waits) - {who} for each in self._messages.values())

    def _ready_at(self, wait: _Wait, event: Event) -> float:
        """Return the time since which nothing has prevented the delivery of a due message."""
        at = max(wait.due, self._connected_at(event.who))
        return at + (self._slack(at, event.at) if at <= event.at else 0.0)

    def _connected_at(self, who: int) -> float:
        """Return the time of the last disturbance of a consumer's connection; inf while
        disconnected.
        """
        if who in self._disconnected or any(
            fault.end is None and fault.note != "delete" for fault in self._faults
        ):
            return float("inf")
        return max(self._disturbed, default=0.0)

    def _slack(self, since: float, until: float) -> float:
        """Return by how much loop and broker were late in a period, as measured."""
        return sum(late for at, late in self._lags if since - SETTLES_S <= at <= until + SETTLES_S)

    def _refused(self, event: Event) -> None:
        message = self._messages.get(event.number)
        if message is None or message.done or event.who not in message.held:
            return
        if self._workload.ordered and self._nack_fell_due(event.who, message, event.at):
            return  # the nack rewound everything that was held
        text = f"consumer {event.who} holds message {event.number}, and was refused {event.note}"
        self._report("refused", text, event, event.number)

    def _nack_fell_due(self, who: int, message: _Message, until: float) -> bool:
        """True if one of the consumer's nacks fell due after it received the message."""
        handed_at = message.delivered_at[who]
        since = handed_at - LATE_S / 10 - self._slack(handed_at, until)
        waits = [self._messages[number].waits.get(who) for number in self._waiting[who]]
        times = [wait.due - EARLY_S for wait in waits if wait is not None]
        return any(since <= due <= until for due in (*times, *self._due_times[who]))

    def _failed(self, event: Event) -> None:
        self._report("failed", f"consumer {event.who}: {event.note}", event)

    def _statistics(self, event: Event) -> None:
        counts, who = event.counts, event.who
        existing = [
            message for message in self._messages.values() if message.topic not in self._deleted
        ]
        held = sum(who in message.held and not message.done for message in existing)
        waits = [
            wait
            for message in existing
            if (wait := message.waits.get(who)) is not None and not wait.letter
        ]
        most = sum(wait.due > event.at - 2 * LATE_S for wait in waits)
        statistics_text = f"consumer {who} says {dict(counts)}"
        if self._all_done() and not self._deleted:
            if counts["in_flight"] != held:
                self._report(
                    "statistics", f"{statistics_text}, and the application holds {held}", event
                )
            elif counts["nacked"] > most and who not in self._disconnected:
                self._report(
                    "statistics", f"{statistics_text}, and at most {most} nacks are not due", event
                )
            elif counts["queued"]:
                self._report(
                    "statistics", f"{statistics_text}, and nothing is left to hand out", event
                )
        total = counts["queued"] + counts["in_flight"] + counts["nacked"]
        if counts["unacked"] != total:
            self._report(
                "statistics", f"{statistics_text}: unacked is not the sum of its parts", event
            )

    def _all_done(self) -> bool:
        return all(message.done for message in self._messages.values())

    def _work_ended(self, event: Event) -> None:
        self._work_is_over = True

    # The end

    def _end(self) -> None:
        for message in self._messages.values():
            if message.topic in self._deleted or message.done:
                continue
            was = "never delivered" if not message.deliveries else self._how_it_waits(message)
            text = f"message {message.number} ({was}) was not settled, and no consumer received it"
            self._report("lost", text, None, message.number)
        if self._workload.max_redeliver:
            self._check_attempts()

    def _check_attempts(self) -> None:
        """Check the number of failures of each message.

        Each consumer counts for itself, and a broker forgets its counts at a fault.
        """
        if self._faults or self._departed or self._redelivered_all:
            return
        most = self._workload.max_redeliver * self._workload.members + 1
        if 0 < self._workload.settling.reconsume < 1:
            most *= self._workload.max_redeliver + 1  # each letter starts a new count of nacks
        for message in self._messages.values():
            if message.failures > most:
                text = (
                    f"message {message.number} failed {message.failures} times; with "
                    f"max_redeliver_count {self._workload.max_redeliver} and "
                    f"{self._workload.members} consumers it is {most} at most"
                )
                self._report("attempts", text, None, message.number)


_STEPS: Final = {
    r.PRODUCED: _Checker._produced,
    r.RECEIVED: _Checker._received,
    r.ACKED: _Checker._acked,
    r.ACKED_CUMULATIVE: _Checker._acked_cumulative,
    r.NACKED: _Checker._nacked,
    r.RECONSUMED: _Checker._reconsumed,
    r.LETTER: _Checker._letter,
    r.REFUSED: _Checker._refused,
    r.JOINED: _Checker._joined,
    r.CLOSED: _Checker._closed,
    r.CRASHED: _Checker._crashed,
    r.CONNECTED: _Checker._connection,
    r.DISCONNECTED: _Checker._connection,
    r.REDELIVER_ALL: _Checker._rewind,
    r.SEEK: _Checker._seek,
    r.FAULT: _Checker._fault,
    r.HEALED: _Checker._healed,
    r.IDLE: _Checker._idle,
    r.STATISTICS: _Checker._statistics,
    r.WORK_ENDED: _Checker._work_ended,
    r.FAILED: _Checker._failed,
}


def involved(findings: Iterable[Finding], events: Sequence[Event], most: int = 60) -> list[Event]:
    """Return the events of the messages in `findings`, and the events that concern all messages."""
    numbers = {finding.number for finding in findings if finding.number >= 0}
    general = {
        r.JOINED,
        r.CLOSED,
        r.CRASHED,
        r.DISCONNECTED,
        r.CONNECTED,
        r.REDELIVER_ALL,
        r.SEEK,
        r.FAULT,
        r.HEALED,
        r.PAUSED,
        r.RESUMED,
        r.STATISTICS,
        r.BACKLOG,
        r.WORK_ENDED,
        r.FAILED,
    }
    found = [event for event in events if event.what in general or event.number in numbers]
    return found if len(found) <= most else [*found[: most // 2], *found[-most // 2 :]]
