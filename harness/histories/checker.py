"""Judges a history: reads events, knows no client and no broker.

Owns `check`. Pure. What it promises of whom:
- every message that was produced and whose topic still exists ends acked or as a dead letter; one
  that does not is `stuck` (a witness got it at the end) or `lost` (nobody did);
- Exclusive and Failover: what a consumer is handed is in order and without a gap, and goes back
  only when something rewound it (`gap`, `went back`); a cumulative ack covers nothing that was
  not handed out (`uncovered`);
- Key_Shared: the first looks at the messages of a key are in order (`key order`);
- a nack or a `reconsume_later` is never `early`, and not `late` while its consumer has nothing
  else to do;
- a dead letter had its attempts (`dead early`), a failing message is given up after them
  (`attempts`), and there is one letter (`two letters`);
- what was acked comes again only where a rule allows it (`acked again`); the rules are counted;
- statistics at the end say what the history says (`statistics`), nothing is refused to who holds
  it (`refused`), and no call fails that should not (`failed`).
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

EARLY_S: Final = 0.001  # two readings of one clock
LATE_S: Final = 2.0  # with an idle consumer; the engine's own late bound is a tenth of this
LATE_RESTARTED_S: Final = 12.0  # the broker was restarted: it reads old entries after 5 s or so
LATE_LETTER_S: Final = 4.0  # the broker's delays tick once a second
FLUSH_EXACT_S: Final = 0.3  # the same of a client that says what was received
FLUSH_S: Final = 1.0  # an ack made so long before a connection was lost has been sent
NOTICED_S: Final = 0.3  # a lost connection is known to its client after so long
SETTLES_S: Final = 3.0  # a rewind that was asked for has taken effect, and been repeated if need be
NONE: Final = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A promise that was broken.

    Args:
        kind: Which, by the names above.
        number: Message, -1 for none.
        text: What was seen.
        at: When.
        who: By which consumer, -1 for none.
        messages: How many it is about.
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
    """What a history shows.

    Attributes:
        findings: Broken promises, in order of time.
        doubles: Looks at acked messages, by the rule that allows them, or `not allowed`.
        produced: Messages in all.
        handed: Looks in all.
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
        """Messages that findings of a kind are about."""
        return sum(each.messages for each in self.findings if each.kind == kind)

    def kinds(self) -> Counter[str]:
        """Findings by kind."""
        return Counter(finding.kind for finding in self.findings)


@dataclass(slots=True)
class _Wait:
    """A nack or a reconsume, until its message is seen again."""

    at: float
    due: float
    letter: bool
    blocked_at: float = float("-inf")  # last seen to be for another consumer to settle


@dataclass(slots=True)
class _Message:
    number: int
    topic: str
    position: r.Position
    key: str
    rank: int = 0
    looks: int = 0
    failures: int = 0
    letters: int = 0
    acked_at: float | None = None
    acked_by: int = NONE
    settled: list[tuple[float, int]] = field(default_factory=list)  # acks and reconsumes, by whom
    failed: list[tuple[float, int]] = field(default_factory=list)  # nacks and reconsumes, by whom
    looked_at: dict[int, float] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    waits: dict[int, _Wait] = field(default_factory=dict)
    last_at: float = 0.0
    last_who: int = NONE
    forked: bool = False  # two consumers had it at once, or its letter came while it was held

    def topic_elsewhere(self, event: Event) -> bool:
        """Whether somebody has a copy already, so that two may be made of it."""
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
        """Whether an ack made then may not have reached the broker.

        Args:
            at: When it was made.
            now: When its message came again.
            slack: How long an ack may take, in s.
        """
        end = self.end if self.end is not None else now
        return self.start - slack <= at <= end + slack

    def touches(self, who: int, topic: str) -> bool:
        """Whether it is a fault of this consumer's connection to this topic."""
        if self.note in ("cut", "crash"):
            return self.who == who
        return not self.topic or topic == self.topic or topic.startswith(f"{self.topic}-partition-")


class _Source:
    """Messages of one topic or partition in order, and those of them not settled."""

    def __init__(self) -> None:
        self.order: list[_Message] = []
        self.open: list[int] = []  # ranks
        self.handed: set[int] = set()  # ranks handed out to anybody

    def lowest_open(self, low: int, high: int) -> list[int]:
        """Ranks not settled, from `low` to before `high`."""
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
    """What one consumer was handed of one source."""

    last: int = NONE
    turned: float = 0.0  # when it last went back, or began
    soft: bool = True  # whether what is held or waits may be left out since


def check(workload: Workload, events: Sequence[Event], *, exact: bool = False) -> Verdict:
    """Every broken promise in a history of `workload`.

    Args:
        workload: What was played.
        events: What happened.
        exact: Its client writes ack sets, waits for receipts and knows at once of a lost
            connection: nothing is excused by what a client cannot say or know.
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
        self._sources: dict[str, _Source] = defaultdict(_Source)
        self._streams: dict[tuple[int, str], _Stream] = defaultdict(_Stream)
        self._faults: list[_Fault] = []
        self._causes: dict[int, list[float]] = defaultdict(list)  # rewinds by consumer
        self._common: list[float] = []  # rewinds of all consumers
        self._soft: list[tuple[float, int]] = []  # connections lost: time, consumer or -1
        self._disturbed: list[float] = []  # anything that may bring a waiting message early
        self._failed_entries: dict[tuple[str, int, int], float] = {}  # asked for again, first at
        self._redelivered_all = 0
        self._left: set[int] = set()
        self._away: set[int] = set()
        self._gone: set[str] = set()
        self._keys: dict[tuple[str, str], list[_Message]] = defaultdict(list)
        self._key_at: dict[tuple[str, str], int] = defaultdict(int)
        self._waiting: dict[int, set[int]] = defaultdict(set)  # consumer -> numbers it nacked
        self._got_at: dict[int, float] = {}  # consumer -> when it last got a message
        self._due_times: dict[int, list[float]] = defaultdict(list)
        self._several = workload.members > 1
        self._lags = [(event.at, event.delay) for event in self._events if event.what == r.LAG]
        self._silent = False  # the work is over

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
                self._sources[event.topic].order.append(message)
        for topic, source in self._sources.items():
            source.order.sort(key=lambda message: message.position)
            for rank, message in enumerate(source.order):
                message.rank = rank
                if message.key:
                    self._keys[topic, message.key].append(message)

    def _produced(self, event: Event) -> None:
        message = self._messages[event.number]
        if not message.done:
            self._sources[event.topic].reopen(message.rank)

    def _found(
        self, kind: str, text: str, event: Event | None, number: int = NONE, messages: int = 1
    ) -> None:
        at = event.at if event is not None else self._events[-1].at
        who = event.who if event is not None else NONE
        self.verdict.findings.append(Finding(kind=kind, text=text, number=number, at=at, who=who))

    # Handing over

    def _received(self, event: Event) -> None:
        message = self._messages.get(event.number)
        if message is None:
            return  # it came before its receipt was recorded, and the receipt never did
        who, at = event.who, event.at
        self.verdict.handed += 1
        home = event.topic == message.topic
        if who == DRAINER:
            self._drained(message, event)
            return
        if message.done:
            self._came_again(message, event)
        if self._workload.retry and message.topic_elsewhere(event):
            message.forked = True
        self._check_due(message, event, home)
        if self._workload.ordered and home:
            self._check_order(message, event)
        if self._workload.kind == "KeyShared" and home and message.key:
            self._check_key(message, event)
        if home:
            self._sources[message.topic].handed.add(message.rank)
        message.looks += 1
        message.looked_at[who] = self._got_at[who] = at
        message.held.add(who)
        message.last_at, message.last_who = at, who

    def _drained(self, message: _Message, event: Event) -> None:
        if message.letters and message.acked_at is None:
            rule = self._rule_for(message, event, message.last_at, message.last_who)
            self.verdict.doubles[rule or "not allowed"] += 1
            if rule is None:
                text = f"message {message.number} is a dead letter and still in the backlog"
                self._found("acked again", text, event, message.number)
        elif message.acked_at is not None:
            self._came_again(message, event)
        else:
            was = "never handed out" if not message.looks else self._how_it_waits(message)
            text = (
                f"message {message.number} ({was}) did not come in the whole run; "
                "a new consumer got it at once"
            )
            self._found("stuck", text, event, message.number)
        message.acked_at, message.acked_by = event.at, DRAINER

    def _how_it_waits(self, message: _Message) -> str:
        parts = [f"{message.looks} looks"]
        parts += [f"held by consumer {who}" for who in sorted(message.held)]
        parts += [
            f"{'reconsumed' if wait.letter else 'nacked'} by consumer {who} at {wait.at:.3f}, "
            f"due {wait.due:.3f}"
            for who, wait in sorted(message.waits.items())
        ]
        return ", ".join(parts)

    def _came_again(self, message: _Message, event: Event) -> None:
        acked_at = message.acked_at if message.acked_at is not None else message.last_at
        acked_by = message.acked_by if message.acked_at is not None else message.last_who
        rule = self._rule_for(message, event, acked_at, acked_by)
        self.verdict.doubles[rule or "not allowed"] += 1
        if rule is not None:
            message.forked = self._workload.retry or message.forked
        else:
            by = "the witness" if event.who == DRAINER else f"consumer {event.who}"
            text = (
                f"message {message.number}, acked by consumer {acked_by} at {acked_at:.3f}, was "
                f"handed to {by} at {event.at:.3f}"
            )
            self._found("acked again", text, event, message.number)

    def _rule_for(
        self, message: _Message, event: Event, acked_at: float, acked_by: int
    ) -> str | None:
        """The rule that lets an acked message be handed out again, or None."""
        who = event.who
        if message.forked:
            return "copied twice as a letter, for two consumers that had it at once"
        for fault in self._faults:
            if fault.start > event.at:
                continue
            mine = fault.touches(who, message.topic)
            slack = self._slack(fault.start - FLUSH_S, fault.start)
            if fault.note == "kill" and fault.start - 2 * FLUSH_S <= acked_at:
                return "the broker was killed"
            if mine and who != acked_by and event.at <= fault.start + NOTICED_S + slack:
                return "handed out before the lost connection was noticed"
            for at, by in message.settled:
                if by == who or not fault.touches(by, message.topic):
                    continue  # the consumer that acked it knows
                if fault.settles(at, event.at, self._flush_s + slack):
                    return "acked within a second of a lost connection, or without one"
                end = fault.end if fault.end is not None else event.at
                unloaded = fault.note in ("unload", "stop", "kill")
                if self._workload.batched and unloaded and at <= end + FLUSH_S:
                    return "part of a batch, acked before its topic was unloaded"
        if who not in (acked_by, DRAINER) and self._several:
            if self._came_for_a_sibling(message, acked_at):
                return "part of a batch that came again for a sibling"
            if message.waits or message.failures or len(message.looked_at) > 1:
                return "redelivered more than once"
            if self._redelivered_all or self._left or self._workload.ordered:
                return "redelivered when a consumer left or asked for everything"
        elif who == acked_by and self._several and len(message.looked_at) > 1 and self._left:
            return "came back from a consumer that left"
        return None

    def _came_for_a_sibling(self, message: _Message, acked_at: float) -> bool:
        """Whether what is asked for again is a batch, of which the broker had this as unacked."""
        if not self._workload.batched:
            return False
        asked_at = self._failed_entries.get(message.entry)
        if asked_at is None:
            return False
        return not self._exact or asked_at <= acked_at + self._slack(asked_at, acked_at)

    def _asked_again(self, message: _Message, due: float) -> None:
        """A message is asked for again, at `due` or earlier, and with it its batch."""
        first = self._failed_entries.get(message.entry, due)
        self._failed_entries[message.entry] = min(due, first)

    # Due times

    def _check_due(self, message: _Message, event: Event, home: bool) -> None:
        who, at = event.who, event.at
        for waiter, wait in list(message.waits.items()):
            if wait.letter:
                if home:
                    continue
                if self._may_be_unsent(message, waiter, wait.at, event):
                    message.forked = True  # this may be what the letter is a copy of
                if at < wait.due - EARLY_S and not message.forked:
                    text = f"message {message.number} came {wait.due - at:.3f} s before its time"
                    self._found("early", f"{text}, by reconsume_later", event, message.number)
            elif waiter == who:
                if at < wait.due - EARLY_S and not self._excused(message, wait, event):
                    text = (
                        f"message {message.number}, nacked at {wait.at:.3f} for "
                        f"{wait.due - wait.at:.3f} s, came {wait.due - at:.3f} s early"
                    )
                    self._found("early", text, event, message.number)
                self.verdict.late_s = max(self.verdict.late_s, at - wait.due)
            else:
                continue  # it came to another consumer: this one still waits
            self._waiting[waiter].discard(message.number)
            del message.waits[waiter]

    def _may_be_unsent(self, message: _Message, who: int, acked_at: float, event: Event) -> bool:
        """Whether a lost connection may have taken an ack of this consumer's along."""
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
            return True  # any rewind brings it; that there was one is checked with the order
        if message.forked:
            return True  # there are two of it, and nobody can tell which one came
        if any(wait.at - FLUSH_S <= moment <= event.at for moment in self._disturbed):
            return True
        return any(
            other != event.who and looked >= wait.at - FLUSH_S
            for other, looked in message.looked_at.items()
        )

    # Order

    def _check_order(self, message: _Message, event: Event) -> None:
        source = self._sources[message.topic]
        stream = self._streams[event.who, message.topic]
        rank = message.rank
        start = stream.last + 1
        if rank <= stream.last:
            cause, soft = self._cause(stream, event)
            if cause is None:
                text = (
                    f"consumer {event.who} was handed message {message.number} after a later one "
                    "of its topic, and nothing had rewound it"
                )
                self._found("went back", text, event, message.number)
            stream.turned, stream.soft = event.at, soft
            start = 0
        elif stream.last == NONE:
            stream.turned = event.at
            start = 0
        elif self._soft_since(stream.turned, event.who):
            stream.soft = True
        missing = [
            other
            for other in (source.order[each] for each in source.lowest_open(start, rank))
            if not self._may_miss(other, stream, event)
        ]
        if missing:
            numbers = ", ".join(str(each.number) for each in missing[:4])
            text = (
                f"consumer {event.who} was handed message {message.number} before "
                f"{len(missing)} of the same topic that come first and are not settled: {numbers}"
            )
            self._found("gap", text, event, missing[0].number, len(missing))
        stream.last = rank

    def _may_miss(self, message: _Message, stream: _Stream, event: Event) -> bool:
        """After a lost connection, what the application has or nacked need not come again yet.

        Nor need a chunked message whose chunks were on both sides of it.
        """
        if not stream.soft:
            return False
        if self._workload.chunk:
            return True
        return (
            event.who in message.held
            or event.who in message.waits
            or bool(self._several and message.looked_at)
        )

    def _cause(self, stream: _Stream, event: Event) -> tuple[str | None, bool]:
        """What rewound a consumer since its stream last turned; and whether it was a connection."""
        since, who, at = stream.turned - SETTLES_S, event.who, event.at
        if self._soft_since(since, who):
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

    def _soft_since(self, since: float, who: int) -> bool:
        return any(since <= moment and other in (NONE, who) for moment, other in self._soft)

    def _check_key(self, message: _Message, event: Event) -> None:
        if message.looks or message.done:
            return
        line = self._keys[message.topic, message.key]
        at = self._key_at[message.topic, message.key]
        while at < len(line) and (line[at].looks or line[at].done):
            at += 1
        self._key_at[message.topic, message.key] = at
        if at < len(line) and line[at].rank < message.rank:
            text = (
                f"message {message.number} of key {message.key} was handed out before "
                f"{line[at].number}, which nobody has seen"
            )
            self._found("key order", text, event, message.number)

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
        self._sources[message.topic].close(message.rank)

    def _acked_cumulative(self, event: Event) -> None:
        message = self._messages[event.number]
        source = self._sources[message.topic]
        # Of a look from before the last rewind: what it covers was handed out before it, then.
        earlier_look = message.rank not in source.handed
        uncovered = []
        for rank in source.lowest_open(0, message.rank + 1):
            other = source.order[rank]
            if rank not in source.handed and not earlier_look:
                uncovered.append(other)
            self._settle(other, event)
        if uncovered:
            text = (
                f"the cumulative ack of message {message.number} covered {len(uncovered)} that "
                f"were never handed out, {uncovered[0].number} first"
            )
            self._found("uncovered", text, event, uncovered[0].number, len(uncovered))

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
        self._asked_again(message, event.at + event.delay)
        if letter:
            message.settled.append((event.at, event.who))

    def _letter(self, event: Event) -> None:
        message = self._messages.get(event.number)
        if message is None:
            return
        message.letters += 1
        self._sources[message.topic].close(message.rank)
        if message.letters > 1:
            # The letter is sent before the message is acked, and the ack may be lost: sent twice.
            twice = any(self._may_be_unsent(message, who, at, event) for at, who in message.failed)
            if not (message.forked or twice):
                text = f"message {message.number} has {message.letters} dead letters"
                self._found("two letters", text, event, message.number)
            return
        least = self._workload.max_redeliver + 1
        seen = message.failures + self._redelivered_all + self._timeouts(message)
        if seen < least and message.acked_at is None:
            text = (
                f"message {message.number} was dead-lettered after {message.failures} of {least} "
                f"failed attempts, {message.looks} looks"
            )
            self._found("dead early", text, event, message.number)

    def _timeouts(self, message: _Message) -> int:
        """Looks that ended by themselves, at most."""
        return message.looks - message.failures if self._workload.ack_timeout else 0

    # What happens besides

    def _rewind(self, event: Event) -> None:
        self._causes[event.who].append(event.at)
        self._disturbed.append(event.at)
        self._redelivered_all += 1
        for message in self._messages.values():
            if message.acked_at is None:
                self._asked_again(message, event.at)
                if event.who in message.held:
                    message.held.discard(event.who)
                if event.who in message.waits:
                    self._waiting[event.who].discard(message.number)
                    del message.waits[event.who]
        if self._workload.ordered:
            for (who, topic), stream in self._streams.items():
                if who == event.who:
                    # What was handed out before is void: it is to be handed out again.
                    source = self._sources[topic]
                    source.handed.difference_update(source.open)
                    stream.soft = False

    def _seek(self, event: Event) -> None:
        self._common.append(event.at)
        self._disturbed.append(event.at)
        for message in self._messages.values():
            message.acked_at, message.acked_by = None, NONE
            message.looks = 0
            message.held.clear()
            message.waits.clear()
            message.looked_at.clear()
            message.settled.clear()
            message.failed.clear()
            self._sources[message.topic].reopen(message.rank)
        for source in self._sources.values():
            source.handed.clear()
        for waiting in self._waiting.values():
            waiting.clear()

    def _fault(self, event: Event) -> None:
        self._faults.append(_Fault(event.note, event.who, event.topic, event.at))
        self._disturbed.append(event.at)
        self._lost_connection(event.who if event.note == "cut" else NONE, event.at)
        if event.note == "delete":
            for topic in self._sources:
                if topic == event.topic or topic.startswith(f"{event.topic}-partition-"):
                    self._gone.add(topic)

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
        (self._away.discard if event.what == r.CONNECTED else self._away.add)(event.who)
        self._disturbed.append(event.at)
        self._lost_connection(event.who, event.at)

    def _lost_connection(self, who: int, at: float) -> None:
        self._soft.append((at, who))
        if self._workload.ordered:
            self._common.append(at)  # another consumer may have become the active one

    def _came(self, event: Event) -> None:
        for key in [key for key in self._streams if key[0] == event.who]:
            del self._streams[key]
        self._lost_connection(NONE if self._several else event.who, event.at)
        self._disturbed.append(event.at)

    def _closed(self, event: Event) -> None:
        self._leave(event.who)
        if not self._silent:
            self._left.add(event.who)
            self._lost_connection(NONE, event.at)
            self._disturbed.append(event.at)

    def _crashed(self, event: Event) -> None:
        self._leave(event.who)
        self._left.add(event.who)
        self._faults.append(_Fault("crash", event.who, "", event.at, event.at))
        self._lost_connection(NONE, event.at)
        self._disturbed.append(event.at)

    def _leave(self, who: int) -> None:
        if self._silent:
            return
        for message in self._messages.values():
            message.held.discard(who)
            message.waits.pop(who, None)
        self._waiting[who].clear()

    def _idle(self, event: Event) -> None:
        """A consumer with nothing to do: what it nacked and is long due should have come."""
        if self._silent:
            return
        began = event.at - event.delay
        for number in list(self._waiting[event.who]):
            message = self._messages[number]
            wait = message.waits.get(event.who)
            bound = LATE_LETTER_S if wait is not None and wait.letter else LATE_S
            if any(fault.note in ("stop", "kill") for fault in self._faults):
                bound = LATE_RESTARTED_S
            if wait is None or message.done or message.topic in self._gone:
                self._waiting[event.who].discard(number)
            elif message.last_at > wait.at:
                self._waiting[event.who].discard(number)  # another had it since
            elif self._is_another_s(message, wait, event.who):
                wait.blocked_at = event.at
            elif max(self._ready_at(wait, event), self._worked_until(wait, event)) + bound <= began:
                self._waiting[event.who].discard(number)
                text = (
                    f"message {number}, nacked at {wait.at:.3f}, was due at {wait.due:.3f} and "
                    f"not back at {event.at:.3f}, with its consumer idle"
                )
                self._found("late", text, event, number)

    def _worked_until(self, wait: _Wait, event: Event) -> float:
        """Until when another consumer may have had it, or have had it behind what it worked on.

        Shared redelivers to any consumer, and what is in a queue is nobody's yet.
        """
        others = (at for who, at in self._got_at.items() if who not in (event.who, *self._left))
        shared = self._workload.kind in ("Shared", "KeyShared")
        return max([wait.blocked_at, *others]) if shared else wait.blocked_at

    def _is_another_s(self, message: _Message, wait: _Wait, who: int) -> bool:
        """Whether the broker would not listen to this nack: it counts from the holder only.

        On Key_Shared, a key that moves to another consumer is held back there while any message of
        it is held where it was (PIP-379); keys share hash ranges, so any message counts here.
        """
        if message.held - {who}:
            return True
        if any(each.at > wait.at for other, each in message.waits.items() if other != who):
            return True
        if self._workload.kind != "KeyShared":
            return False
        return any(each.held or set(each.waits) - {who} for each in self._messages.values())

    def _ready_at(self, wait: _Wait, event: Event) -> float:
        """From when on a due message had every chance to come."""
        at = max(wait.due, self._connected_at(event.who))
        return at + (self._slack(at, event.at) if at <= event.at else 0.0)

    def _connected_at(self, who: int) -> float:
        """Since when nothing has disturbed a consumer's connection; never, while it is away."""
        if who in self._away or any(
            fault.end is None and fault.note != "delete" for fault in self._faults
        ):
            return float("inf")
        return max(self._disturbed, default=0.0)

    def _slack(self, since: float, until: float) -> float:
        """How late loop and broker were in a span, by what was measured."""
        return sum(late for at, late in self._lags if since - SETTLES_S <= at <= until + SETTLES_S)

    def _refused(self, event: Event) -> None:
        message = self._messages.get(event.number)
        if message is None or message.done or event.who not in message.held:
            return
        if self._workload.ordered and self._nack_fell_due(event.who, message, event.at):
            return  # all that was held went back with it, this one too
        text = f"consumer {event.who} holds message {event.number}, and was refused {event.note}"
        self._found("refused", text, event, event.number)

    def _nack_fell_due(self, who: int, message: _Message, until: float) -> bool:
        """Whether one of a consumer's nacks did, since it was handed the message."""
        handed_at = message.looked_at[who]
        since = handed_at - LATE_S / 10 - self._slack(handed_at, until)
        waits = [self._messages[number].waits.get(who) for number in self._waiting[who]]
        times = [wait.due - EARLY_S for wait in waits if wait is not None]
        return any(since <= due <= until for due in (*times, *self._due_times[who]))

    def _failed(self, event: Event) -> None:
        self._found("failed", f"consumer {event.who}: {event.note}", event)

    def _statistics(self, event: Event) -> None:
        counts, who = event.counts, event.who
        alive = [message for message in self._messages.values() if message.topic not in self._gone]
        held = sum(who in message.held and not message.done for message in alive)
        waits = [
            wait
            for message in alive
            if (wait := message.waits.get(who)) is not None and not wait.letter
        ]
        most = sum(wait.due > event.at - 2 * LATE_S for wait in waits)
        said = f"consumer {who} says {dict(counts)}"
        if self._all_done() and not self._gone:
            if counts["in_flight"] != held:
                self._found("statistics", f"{said}, and the application holds {held}", event)
            elif counts["nacked"] > most and who not in self._away:
                self._found("statistics", f"{said}, and at most {most} nacks are not due", event)
            elif counts["queued"]:
                self._found("statistics", f"{said}, and nothing is left to hand out", event)
        total = counts["queued"] + counts["in_flight"] + counts["nacked"]
        if counts["unacked"] != total:
            self._found("statistics", f"{said}: unacked is not the sum of its parts", event)

    def _all_done(self) -> bool:
        return all(message.done for message in self._messages.values())

    def _work_ended(self, event: Event) -> None:
        self._silent = True

    # The end

    def _end(self) -> None:
        for message in self._messages.values():
            if message.topic in self._gone or message.done:
                continue
            was = "never handed out" if not message.looks else self._how_it_waits(message)
            text = f"message {message.number} ({was}) is settled by nobody, and nobody gets it"
            self._found("lost", text, None, message.number)
        if self._workload.max_redeliver:
            self._check_attempts()

    def _check_attempts(self) -> None:
        """Failures are counted by each consumer for itself; a fault makes brokers forget."""
        if self._faults or self._left or self._redelivered_all:
            return
        most = self._workload.max_redeliver * self._workload.members + 1
        if 0 < self._workload.settling.reconsume < 1:
            most *= self._workload.max_redeliver + 1  # nacks are counted anew for each letter
        for message in self._messages.values():
            if message.failures > most:
                text = (
                    f"message {message.number} failed {message.failures} times; with "
                    f"max_redeliver_count {self._workload.max_redeliver} and "
                    f"{self._workload.members} consumers it is {most} at most"
                )
                self._found("attempts", text, None, message.number)


_STEPS: Final = {
    r.PRODUCED: _Checker._produced,
    r.RECEIVED: _Checker._received,
    r.ACKED: _Checker._acked,
    r.ACKED_CUMULATIVE: _Checker._acked_cumulative,
    r.NACKED: _Checker._nacked,
    r.RECONSUMED: _Checker._reconsumed,
    r.LETTER: _Checker._letter,
    r.REFUSED: _Checker._refused,
    r.JOINED: _Checker._came,
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
    """The events that concern findings: of their messages, and what happened to everybody."""
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
