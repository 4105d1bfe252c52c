"""A small world around `WorkerCore`: a source of messages, handler calls, an outage, and a shell.

`World.events` are all that can happen next. `World.apply` makes one of them happen and compares
each answer of the core with rules that are written here a second time, in the simplest way.
`search` tries every order of events, and `walk` follows one random order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, fields
from enum import Enum
from random import Random
from typing import Any, TypeAlias

from worker_jobs import OUTAGE, core_of

from pulsar_encore import Breaker, Reject, Retry, RetryPolicy
from pulsar_encore.worker.worker_core import (
    Ack,
    Action,
    DeadLetter,
    Failed,
    Hold,
    Job,
    Lost,
    Nack,
    Order,
    Result,
    Succeeded,
)

Event: TypeAlias = tuple[str, ...]
"""(event, message), or (event,)"""

BUG = ValueError("bug")
REJECT = Reject("poison")
LATER = Retry(count=False)
_BACKOFF_MS = 1_000
_PROBE_PAUSE_MS = 30_000
_PATIENCE = 2_000  # steps until a world that is left alone must be at rest
_LONGEST_MS = 3_600_000


class Violation(AssertionError):
    """The core broke a rule."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A world, and how often each limited event may happen.

    Attributes:
        messages: Names such as "a1". The letter is the key or the partition.
        budget: Numbers of "bug", "reject", "later", "begin outage", "remove", "unstored", "pause".
        priorities: By letter; 0 if it is missing.
        sizes: By letter; 1 if it is missing.
    """

    order: Order
    messages: tuple[str, ...]
    budget: dict[str, int] = field(default_factory=dict)
    concurrency: int = 2
    prefetch: int = 2
    attempts: int = 2
    failures: int | None = None
    reject_limit: int | None = None
    priorities: dict[str, int] = field(default_factory=dict)
    held_limit: int = 10_000
    sizes: dict[str, int] = field(default_factory=dict)
    max_bytes: int = 1_000


@dataclass(slots=True, eq=False)
class Call:
    """One handler call.

    Attributes:
        is_hit: The outage was there at some time during the call.
        started: Number of the event.
        has_proof: A failure by the outage counts.
    """

    job: Job
    is_hit: bool
    started: int
    has_proof: bool


class World:
    """A worker's core, and everything around it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now_ms = 1_000_000
        self.core = core_of(
            plan.order,
            concurrency=plan.concurrency,
            prefetch=plan.prefetch,
            max_bytes=plan.max_bytes,
            retry=RetryPolicy(attempts=plan.attempts, backoff=[_BACKOFF_MS / 1000]),
            breaker=None if plan.failures is None else Breaker(OSError, plan.failures),
            reject_limit=plan.reject_limit,
            held_limit=plan.held_limit,
        )
        self.left = dict(plan.budget)
        self.is_away = False
        self.is_paused = False
        self.source = list(plan.messages)
        self.attempts = dict.fromkeys(plan.messages, 1)
        self.nacked: dict[str, int] = {}
        self.done: dict[str, str] = {}
        self.jobs: dict[str, Job] = {}  # held, in the order of arrival
        self.calls: list[Call] = []
        self.settling: dict[str, Action] = {}
        self.unstored: dict[str, int] = {}
        self.due: dict[str, int] = {}
        self.is_idle = False  # no job could start, and nothing has happened since
        # For the rules about attempts, rejections and trials.
        self.event = 0
        self.failed: dict[Job, int] = {}
        self.proofs: list[int] = []  # starts of the calls that succeeded
        self.rejects = 0
        self.tried: set[Job] = set()
        self.last_trial_ms = 0
        self.failed_probe_ms = 0

    # Events

    def events(self) -> Iterator[Event]:
        left = self.left
        if self.source and self.core.demand() > 0:
            yield ("receive",)
        if len(self.calls) < self.plan.concurrency and not self.is_idle:
            yield ("start",)
        for call in self.calls:
            name = call.job.message
            if self.jobs.get(name) is not call.job:
                yield ("lost", name)
                continue
            if not (self.is_away and call.is_hit):
                yield ("succeed", name)
                yield ("ack", name)  # the same, and settled in one step
            if call.is_hit:
                yield ("outage", name)
            for what in ("bug", "reject", "later"):
                if left.get(what):
                    yield (what, name)
        for name in self.settling:
            yield ("settled", name)
            if left.get("unstored"):
                yield ("unstored", name)
        if left.get("remove"):
            for name in self.jobs:
                yield ("remove", name)
        if self.is_away:
            yield ("end outage",)
        elif left.get("begin outage"):
            yield ("begin outage",)
        if self.is_paused:
            yield ("resume",)
        elif left.get("pause"):
            yield ("pause",)
        if self.core.next_wake_ms(self.now_ms) == self.now_ms:
            yield ("act",)
        if self.next_time() is not None:
            yield ("time",)

    def next_time(self) -> int | None:
        wake_ms = self.core.next_wake_ms(self.now_ms)
        times = [at for at in (wake_ms, *self.nacked.values()) if at is not None]
        later = [at for at in times if at > self.now_ms]
        return min(later) if later else None

    def apply(self, event: Event, *, is_known: bool = False) -> None:
        """Let an event happen, and check all rules unless they are known to hold afterwards."""
        what = event[0]
        self.is_idle = False
        if what in self.left:
            self.left[what] -= 1
        if what == "receive":
            self._receive()
        elif what == "start":
            self._start()
        elif what == "time":
            self.now_ms = self.next_time() or self.now_ms
            for name in [name for name, at in self.nacked.items() if at <= self.now_ms]:
                del self.nacked[name]
                self._redeliver(name)
        elif what == "act":
            self._act()
        elif what == "begin outage":
            self.is_away = True
            for call in self.calls:
                call.is_hit = True
        elif what == "end outage":
            self.is_away = False
        elif what in ("pause", "resume"):
            self.is_paused = what == "pause"
            self.core.pause() if self.is_paused else self.core.resume()
        elif what == "settled":
            self._settled(event[1])
        elif what == "unstored":
            del self.settling[event[1]]
            self.unstored[event[1]] = self.now_ms + 5_000
            self.core.not_settled(self.jobs[event[1]], self.now_ms + 5_000)
        elif what == "remove":
            self._remove(event[1])
        else:
            self._end(what, event[1])
        self.core.next_wake_ms(self.now_ms)
        if not is_known:
            self.check()

    def _receive(self) -> None:
        name = self.source.pop(0)
        letter = name[0]
        groups: dict[Order, Hashable | None] = {
            Order.NONE: None,
            Order.KEY: ("t", letter),
            Order.PARTITION: letter,
        }
        priority = self.plan.priorities.get(letter, 0)
        group = groups[self.plan.order]
        size = self.plan.sizes.get(letter, 1)
        job = Job(name, letter, group, size, self.attempts[name], 0, priority)
        self.jobs[name] = job
        action = self.core.received(job, self.now_ms)
        self.expect(action is None, f"{name} is settled on arrival: {action}")

    def _start(self) -> None:
        core = self.core
        is_limited = core.is_breaker_open or core.is_reject_limit_reached
        has_untried = is_limited and core.snapshot().ready > 0
        job = core.start(self.now_ms)
        if job is None:
            self.is_idle = True
            return
        name = job.message
        self.expect(not self.is_paused, f"{name} starts in a pause")
        self.expect(self.jobs.get(name) is job, f"{name} is not held")
        self.expect(name not in self.settling and name not in self.unstored, f"{name} is settling")
        self.expect(self.due.get(name, 0) <= self.now_ms, f"{name} starts before it is due")
        for call in self.calls:
            self.expect(call.job is not job, f"{name} is running")
        size = sum(call.job.size for call in self.calls)
        self.expect(
            not size or size + job.size <= self.plan.max_bytes, f"{name} does not run alone"
        )
        if self.plan.order is not Order.NONE:
            letter = name[0]
            running = [call.job.message for call in self.calls]
            self.expect(
                not any(each.startswith(letter) for each in running), f"two of {letter} are running"
            )
            first = next(each for each in self.jobs if each.startswith(letter))
            self.expect(first == name, f"{name} overtakes {first}")
        if is_limited:
            self.expect(
                job not in self.tried or not has_untried, f"{name} is tried again before others"
            )
            self.tried.add(job)
            if core.is_reject_limit_reached:
                self.expect(self.now_ms - self.last_trial_ms >= 30_000, "trials are too frequent")
                self.last_trial_ms = self.now_ms
            if core.is_breaker_open:
                self.expect(
                    self.now_ms - self.failed_probe_ms >= _PROBE_PAUSE_MS, "the pause is too short"
                )
        self.event += 1
        failed = self.failed.get(job, 0)
        has_proof = 0 < failed < max(self.proofs, default=0)
        self.calls.append(Call(job, self.is_away, self.event, has_proof))

    def _end(self, what: str, name: str) -> None:
        # Another delivery of the same message may be running.
        call = next(
            each
            for each in self.calls
            if each.job.message == name and (self.jobs.get(name) is each.job) == (what != "lost")
        )
        self.calls.remove(call)
        self.is_idle = False
        job = call.job
        self.event += 1
        was_limited = self.core.is_breaker_open or self.core.is_reject_limit_reached
        is_probe = self.core.is_breaker_open and job in self.tried
        if what == "ack":
            self.settling[name] = self._expected("succeed", call)
            self.core.acked(job, self.now_ms)
            self._left(name)
            return
        expected = self._expected(what, call)
        results: dict[str, Result] = {
            "succeed": Succeeded(),
            "lost": Lost(),
            "outage": Failed(OUTAGE),
            "bug": Failed(BUG),
            "reject": Failed(REJECT),
            "later": Failed(LATER),
        }
        action = self.core.finished(job, results[what], self.now_ms)
        self.expect(action == expected, f"{what} of {name}: {action}, not {expected}")
        if what == "outage" and is_probe:
            self.failed_probe_ms = self.now_ms
        is_limited = self.core.is_breaker_open or self.core.is_reject_limit_reached
        if is_limited and not was_limited:
            self.tried.clear()
            self.last_trial_ms = self.now_ms
            self.failed_probe_ms = self.now_ms
        if isinstance(action, Hold):
            self.attempts[name] += action.counted
            self.due[name] = action.due_ms
        elif action is not None:
            self.settling[name] = action

    def _expected(self, what: str, call: Call) -> Action | None:
        """Return the action by the rules. A removed message has no action."""
        job = call.job
        attempt = self.attempts[job.message]
        due_ms = self.now_ms + _BACKOFF_MS
        if what == "succeed":
            self.proofs.append(call.started)
            self.rejects = 0
            return Ack()
        if what == "lost":
            return None
        if what == "later":
            return Hold(due_ms, False, LATER)
        if what == "reject":
            self.rejects += 1
            if self.plan.reject_limit is not None and self.rejects >= self.plan.reject_limit:
                return Hold(self.now_ms + 30_000, False, REJECT)
            return DeadLetter("rejected: poison", REJECT)
        error = BUG if what == "bug" else OUTAGE
        is_outage = what == "outage" and self.plan.failures is not None
        if is_outage:
            self.failed[job] = self.event
        if is_outage and not call.has_proof:
            return Hold(due_ms, False, error)
        if is_outage:
            self.expect(
                self.plan.budget["begin outage"] > 1, f"one outage cost {job.message} an attempt"
            )
        if attempt >= self.plan.attempts:
            return DeadLetter(f"failed in {attempt} attempts", error, "attempts")
        if self.plan.order is Order.NONE and not is_outage:
            return Nack(_BACKOFF_MS, error)
        return Hold(due_ms, True, error)

    def _settled(self, name: str) -> None:
        self.core.settled(self.jobs[name], self.now_ms)
        self._left(name)

    def _left(self, name: str) -> None:
        action = self.settling.pop(name)
        del self.jobs[name]
        self.due.pop(name, None)
        if isinstance(action, Nack):
            self.attempts[name] += 1
            self.nacked[name] = self.now_ms + action.delay_ms
        else:
            self.expect(name not in self.done, f"{name} is settled twice")
            self.done[name] = type(action).__name__

    def _remove(self, name: str) -> None:
        """The consumer no longer holds the message; the broker delivers it again."""
        job = self.jobs.pop(name)
        for owner in (self.settling, self.unstored, self.due):
            owner.pop(name, None)
        self.core.remove(job)
        self._redeliver(name)

    def _redeliver(self, name: str) -> None:
        self.source.append(name)
        self.source.sort(key=self.plan.messages.index)

    def _act(self) -> None:
        for job, action in self.core.due_actions(self.now_ms):
            name = job.message
            self.expect(self.unstored.pop(name, self.now_ms + 1) <= self.now_ms, f"{name}: early")
            self.settling[name] = action

    # Rules

    def expect(self, is_right: bool, why: str) -> None:
        if not is_right:
            raise Violation(f"{why}\n{self.core.snapshot()}")

    def check(self) -> None:
        core = self.core
        counts = core.snapshot()
        self.expect(
            set(core.jobs()) == set(self.jobs.values()), "a message is lost, or held too long"
        )
        places = [*self.source, *self.nacked, *self.done, *self.jobs]
        self.expect(sorted(places) == sorted(self.plan.messages), f"places: {places}")
        for job in core.jobs():
            self.expect(job.attempt == self.attempts[job.message], "the attempt is wrong")
        lost = sum(self.jobs.get(each.job.message) is not each.job for each in self.calls)
        here = (
            counts.ready
            + counts.running
            + counts.waiting
            + counts.blocked
            + counts.settling
            + counts.unsettled
        )
        self.expect(here == len(self.jobs) + lost, "the counts are wrong")
        self.expect(counts.running == len(self.calls), "the running calls are wrong")
        self.expect(counts.settling == len(self.settling), "the settling jobs are wrong")
        calls = [each.job for each in self.calls]
        size = sum(each.size for each in {*self.jobs.values(), *calls})
        self.expect(counts.bytes == size, "the bytes are wrong")
        demand = core.demand()
        self.expect(demand >= 0, "demand is negative")
        is_full = counts.held_back >= self.plan.held_limit or size >= self.plan.max_bytes
        if self.is_paused or is_full:
            self.expect(demand == 0, "messages are taken in a pause, or over the limit")
        if core.is_breaker_open or core.is_reject_limit_reached:
            self.expect(demand <= 1, "more than one message is taken for a trial")

    def leave_alone(self, what: str) -> None:
        """Let all calls end with one result: everything must be settled in bounded time."""
        begin_ms = self.now_ms
        self.left = {"remove": 0}
        for event in (("end outage",), ("resume",)):
            if event in list(self.events()):
                self.apply(event)
        for _ in range(_PATIENCE):
            if len(self.done) == len(self.plan.messages):
                self.expect(len(self.core) == 0, "jobs are left over")
                return
            before = (len(self.calls), len(self.jobs), len(self.settling), len(self.done))
            for event in list(self.events()):
                if event[0] in ("receive", "start", "act"):
                    self.apply(event, is_known=True)
            for call in list(self.calls):
                name = call.job.message
                is_held = self.jobs.get(name) is call.job
                self._end(what if is_held else "lost", name)
            for name in list(self.settling):
                self.apply(("settled", name))
            self.check()
            after = (len(self.calls), len(self.jobs), len(self.settling), len(self.done))
            if before == after:
                self.expect(self.next_time() is not None, "nothing more happens")
                self.apply(("time",))
            self.expect(self.now_ms - begin_ms < _LONGEST_MS, "it takes too long")
        raise Violation(f"it goes on and on\n{self.core.snapshot()}")

    def freeze(self) -> Hashable:
        """Return all state that affects later events; times are relative."""
        return Freezer(self).world()


class Freezer:
    """Makes one hashable value of a world, attribute by attribute, also of attributes to come."""

    #: Attributes that do not affect later events, or are told by others.
    LEFT_OUT = frozenset(
        "action due_number error group options order published_ms "
        "retry size topic _events _jobs _last_trials _live _mean_size _now_ms _number _rng".split()
    )

    def __init__(self, world: World) -> None:
        self.now_ms = world.now_ms
        self.of_world = world
        lost = [each.job for each in world.calls if world.jobs.get(each.job.message) != each.job]
        self.jobs = {job: at for at, job in enumerate([*world.jobs.values(), *lost])}
        core = vars(world.core)
        self.trials = core["_scheduler"].trials
        events = {0, core["_proof"]}
        for job in self.jobs:
            events |= {job.started_at, job.outage_at}
        self.ranks = {event: rank for rank, event in enumerate(sorted(events))}

    def world(self) -> Hashable:
        world = self.of_world
        return (
            self.value(world.core, ""),
            tuple(self.job(job) for job in self.jobs),
            tuple((self.jobs[call.job], call.is_hit) for call in world.calls),
            tuple(sorted((name, at - self.now_ms) for name, at in world.nacked.items())),
            tuple(sorted(world.settling)),
            tuple(world.source),
            tuple(world.left.items()),
            world.is_away,
            frozenset(self.jobs[job] for job in world.tried if job in self.jobs),
        )

    def job(self, job: Job) -> Hashable:
        return job.message, tuple(
            self.value(getattr(job, name), name)
            for name in (each.name for each in fields(Job))
            if name not in ("due_ms", "message", *self.LEFT_OUT)
        )

    def value(self, value: Any, name: str) -> Any:
        if isinstance(value, Job):
            return self.jobs.get(value)
        if name in ("started_at", "outage_at", "_proof"):
            return self.ranks.get(value, 0)
        if name in ("tried_in", "trials"):
            return value == self.trials != 0
        if name == "_heap":
            live = [each for each in value if each[1] == each[2].due_number]
            return tuple((due - self.now_ms, self.jobs[job]) for due, _, job in sorted(live))
        if name == "_failed_ms":
            return len(value)
        if name in ("uncounted", "in_row", "_taken_for_trial"):
            return min(value, 3)
        if name.endswith("_ms") and name != "pause_ms" and isinstance(value, int):
            return max(value - self.now_ms, -1_001)
        if isinstance(value, (int, float, str, type(None), Enum)):
            return value
        if isinstance(value, dict):
            return tuple((self.value(key, ""), self.value(each, "")) for key, each in value.items())
        if isinstance(value, (list, tuple, deque)):
            return tuple(self.value(each, "") for each in value)
        names = vars(value) if hasattr(value, "__dict__") else type(value).__slots__
        return tuple(
            self.value(getattr(value, each), each) for each in names if each not in self.LEFT_OUT
        )


@dataclass
class Searched:
    """How far a search went.

    Attributes:
        is_whole: True if every order of events was tried, not only the shortest.
    """

    states: int = 0
    is_whole: bool = True


def reached(plan: Plan, events: tuple[Event, ...]) -> World:
    """Return the world after events that broke no rule."""
    world = World(plan)
    for event in events:
        world.apply(event, is_known=True)
    return world


def search(plan: Plan, most: int) -> Searched:
    """Try every order of events, breadth first, until `most` states are seen.

    Raises:
        AssertionError: A rule is broken; the text lists the shortest events that lead there.
    """
    searched = Searched()
    seen: set[Hashable] = set()
    ahead: deque[tuple[Event, ...]] = deque([()])
    while ahead:
        events = ahead.popleft()
        world = reached(plan, events)
        for event in list(world.events()):
            path = (*events, event)
            ending = ""
            try:
                next_world = reached(plan, events)
                next_world.apply(event)
                state = hash(next_world.freeze())
                if state in seen:
                    continue
                seen.add(state)
                for ending in ("succeed", "bug"):
                    reached(plan, path).leave_alone(ending)
            except AssertionError as error:
                listed = "\n".join(" ".join(each) for each in path)
                alone = f"\nthen left alone, each call ends with: {ending}" if ending else ""
                raise Violation(f"{error}\n\nevents:\n{listed}{alone}") from error
            searched.states += 1
            if searched.states >= most:
                searched.is_whole = False
                return searched
            ahead.append(path)
    return searched


def walk(plan: Plan, seed: int, steps: int) -> None:
    """Follow one random order of events, and leave the world alone at its end.

    Raises:
        AssertionError: A rule is broken; the text has the seed and the last events.
    """
    rng = Random(seed)
    world = World(plan)
    path: list[Event] = []
    try:
        for _ in range(steps):
            events = list(world.events())
            # Time passes seldom, so that calls overlap.
            weights = [1 if each[0] == "time" else 4 for each in events]
            if not events:
                break
            path.append(rng.choices(events, weights)[0])
            world.apply(path[-1])
        path.append(("alone",))
        world.leave_alone(rng.choice(("succeed", "bug")))
    except AssertionError as error:
        listed = "\n".join(" ".join(each) for each in path[-40:])
        raise Violation(
            f"seed {seed}: {error}\n\nthe last of {len(path)} events:\n{listed}"
        ) from error
