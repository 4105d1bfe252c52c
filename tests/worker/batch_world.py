"""A small world around `BatchCore`: random messages, handler calls, outages and losses.

`BatchWorld.step` makes one random event happen, and compares the answer of the core with rules that
are written here a second time, in the simplest way.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from pulsar_encore import Breaker, Reject, Retry, RetryPolicy
from pulsar_encore.worker.batch_core import BatchCore, ListJob, MessageList
from pulsar_encore.worker.worker_core import (
    Ack,
    Action,
    DeadLetter,
    Discard,
    Hold,
    Nack,
    Order,
    RetryLetter,
)

BACKOFF_MS = 1_000
MAX_WAIT_MS = 500
OUTAGE = ConnectionError("refused")
_MOST_STEPS = 100_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A world.

    Attributes:
        outages: Most outages.
        waits: True if every list is full or due. Trials, full memory and losses let lists start
            earlier.
        discards: True without dead letters.
        rates: Relative frequencies of failures, and the other events that may happen.
    """

    order: Order
    messages: int = 40
    partitions: int = 2
    max_messages: int = 5
    concurrency: int = 2
    prefetch: int = 10
    max_bytes: int = 1_000
    attempts: int = 3
    failures: int | None = None
    reject_limit: int | None = None
    steps: int = 300
    outages: int = 1_000
    waits: bool = False
    discards: bool = False
    rates: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Item:
    """One message of a partition.

    Attributes:
        attempt: Number of its next attempt, by the rules.
        half: The messages that its next list may have, None for no limit.
        end: "acked" or "dead".
        waits_since_ms: When it was received.
    """

    partition: str
    number: int
    size: int
    attempt: int = 1
    half: frozenset[Item] | None = None
    end: str | None = None
    job: ListJob | None = None

    def __repr__(self) -> str:
        return f"{self.partition}{self.number}"


class BatchWorld:
    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        self.rng = rng = Random(seed)
        self.now_ms = 1_000_000
        self.core = BatchCore(
            order=plan.order,
            max_messages=plan.max_messages,
            max_wait_ms=MAX_WAIT_MS,
            is_suspect=lambda job: job.message.half is not None,
            concurrency=plan.concurrency,
            prefetch=plan.prefetch,
            max_bytes=plan.max_bytes,
            retry=RetryPolicy(
                attempts=plan.attempts,
                backoff=[BACKOFF_MS / 1000],
                dead_letters=not plan.discards,
            ),
            breaker=None if plan.failures is None else Breaker(ConnectionError, plan.failures),
            reject_limit=plan.reject_limit,
            rng=rng,
        )
        self.has_order = plan.order is not Order.NONE
        self.items = [
            Item("abc"[n % plan.partitions], n, rng.choice((1, 10, 50)))
            for n in range(plan.messages)
        ]
        self.source = deque(self.items)
        self.later: list[tuple[int, Item]] = []  # nacked, by due time
        self.running: list[MessageList] = []
        self.letters: list[Item] = []
        self.is_away = False
        self.is_paused = False
        self.is_calm = False
        self.outages = 0
        self.history: list[str] = []

    # Events

    def run(self) -> None:
        """Take random steps, then let everything succeed until nothing is left, and check it."""
        for _ in range(self.plan.steps):
            self.step()
        self.is_calm = True
        self.is_away = False
        if self.is_paused:
            self.is_paused = False
            self.core.resume()
        for _ in range(_MOST_STEPS):
            if all(item.end for item in self.items) and not self.running:
                break
            self.step()
        assert all(item.end for item in self.items), [each for each in self.items if not each.end]
        snapshot = self.core.snapshot()
        assert len(self.core) == snapshot.bytes == snapshot.held_back == 0
        assert snapshot.ready == snapshot.running == snapshot.waiting == snapshot.blocked == 0
        assert snapshot.settling == snapshot.unsettled == snapshot.held_groups == 0
        assert self.core.next_wake_ms(self.now_ms) is None or self.core.is_breaker_open

    def step(self) -> None:
        events = []
        if self.source and self.core.demand() > 0:
            events += ["receive"] * 6
        if len(self.running) < self.plan.concurrency:
            events += ["start"] * 3
        if self.running:
            events += ["finish"] * 2
        if self.letters:
            events.append("letter")
        if not self.is_calm:
            events += [each for each in ("outage", "pause", "remove") if self.plan.rates.get(each)]
        events.append("time")
        event = self.rng.choice(events)
        getattr(self, f"_{event}")()
        self._check_counts()

    def _receive(self) -> None:
        item = self.source.popleft()
        self.history.append(f"receive {item}")
        job = item.job = ListJob(
            item,
            item.partition,
            item.partition if self.has_order else None,
            item.size,
            item.attempt,
            self.now_ms,
        )
        assert self.core.received(job, self.now_ms) is None

    def _start(self) -> None:
        was_trial = self._is_trial()
        # Blocked messages of a partition that are lost do not count any more.
        bytes_before = sum(
            job.size
            for each in self.running
            for job in each.jobs
            if not self.has_order or job is each.jobs[0] or job.message.job is job
        )
        waiting_ms = {
            item: self.now_ms - item.job.since_ms for item in self.items if item.job is not None
        }
        messages = self.core.start_list(self.now_ms)
        if messages is None:
            return
        items = [job.message for job in messages.jobs]
        self.history.append(f"start {items}")
        assert all(item.end is None and item.job is not None for item in items)
        assert not any(job in each.jobs for each in self.running for job in messages.jobs)
        assert len(items) <= self.plan.max_messages
        size = sum(item.size for item in items)
        assert (len(items) == 1 and not bytes_before) or bytes_before + size <= self.plan.max_bytes
        assert not self.is_paused
        half = items[0].half
        if was_trial:
            assert len(items) == 1
        if half is not None:
            assert half.issuperset(items)
        else:
            assert all(item.half is None for item in items)
            if self.plan.waits and not messages.jobs[0].is_retry:
                assert len(items) == self.plan.max_messages or waiting_ms[items[0]] >= MAX_WAIT_MS
        if self.has_order:
            (partition,) = {item.partition for item in items}
            held = [
                item
                for item in self.items
                if item.partition == partition and item.job is not None and item.end is None
            ]
            held.sort(key=lambda item: item.number)
            assert items == held[: len(items)]
            assert not any(job.topic == partition for each in self.running for job in each.jobs)
        messages.passed.extend(messages.jobs)
        self.running.append(messages)

    def _finish(self) -> None:
        messages = self.running.pop(self.rng.randrange(len(self.running)))
        items = [job.message for job in messages.jobs]
        is_lost = all(item.job is not job for item, job in zip(items, messages.jobs, strict=True))
        outcome = "success" if self.is_calm else self._random_outcome()
        if is_lost:
            outcome = "lost"
        elif not self.is_calm and self.plan.rates.get("settled"):
            self._settle_in_handler(messages)
        self.history.append(f"{outcome} {items}")
        error: BaseException | None = None
        if outcome == "own":
            count = self.rng.randint(1, len(items))
            for index in sorted(self.rng.sample(range(len(items)), count)):
                messages.errors[messages.jobs[index]] = self._own_error()
        elif outcome == "undecodable" and len(items) > 1:
            # The handler got the other messages, or with an order those before it.
            index = self.rng.randrange(len(items))
            messages.errors[messages.jobs[index]] = Reject("undecodable")
            del messages.passed[index : None if self.has_order else index + 1]
            if messages.passed and self.rng.random() < 0.5:
                error = ValueError("shared")
        elif outcome == "unstarted":
            # Cancelled by its timeout before the handler began.
            messages.passed.clear()
            error = TimeoutError("no time")
        elif outcome in ("shared", "outage", "reject", "retry"):
            error = {
                "shared": ValueError("shared"),
                "outage": OUTAGE,
                "reject": Reject("all"),
                "retry": Retry(delay=3, count=self.rng.random() < 0.5),
            }[outcome]
        self._expect_and_act(messages, error, outcome == "lost")

    def _settle_in_handler(self, messages: MessageList) -> None:
        for job in messages.jobs:
            if job.message.job is job and self.rng.random() < 0.1:
                self.core.remove(job)
                job.message.end, job.message.job = "acked", None
                self.history.append(f"the handler acks {job.message}")

    def _random_outcome(self) -> str:
        if self.is_away:
            return "outage"
        rates = {"success": 5} | {
            each: rate
            for each, rate in self.plan.rates.items()
            if each in ("own", "shared", "reject", "retry", "undecodable", "unstarted")
        }
        return self.rng.choices(list(rates), list(rates.values()))[0]

    def _own_error(self) -> Exception:
        errors: list[Exception] = [ValueError("own"), ValueError("own"), Retry(count=False)]
        if self.plan.rates.get("reject"):
            errors.append(Reject("own"))
        if self.plan.failures:
            errors.append(OUTAGE)
        return self.rng.choice(errors)

    def _expect_and_act(
        self, messages: MessageList, error: BaseException | None, is_lost: bool
    ) -> None:
        own = dict(messages.errors)
        passed = list(messages.passed or messages.jobs)
        if error is not None and len(passed) == 1:
            own[passed[0]] = error
        is_shared = error is not None and len(passed) > 1
        suspects: list[ListJob] = []
        if is_shared:
            for job in passed:
                if job in own and self.has_order:
                    break
                if job not in own:
                    suspects.append(job)
        first_error = next((n for n, job in enumerate(messages.jobs) if job in own), None)
        # Errors of this call that the breaker sees: at most one.
        sees_outage = error is OUTAGE or any(each is OUTAGE for each in own.values())
        row_before = self.core.snapshot().failures_in_row
        seen: list[ListJob] = []
        for job, action in self.core.finished_list(messages, error, self.now_ms, lost=is_lost):
            item: Item = job.message
            assert item.job is job, "an action for a message that is not held"
            assert item.end is None
            assert job not in seen
            seen.append(job)
            if job in suspects:
                assert isinstance(action, Hold)
                assert not action.counted
                assert job.attempt == item.attempt
            elif job in own:
                if self.has_order:
                    assert messages.jobs[first_error or 0] is job
                self._check_own_failure(job, own[job], action)
            else:
                assert isinstance(action, Ack)
                if self.has_order:
                    assert first_error is None or messages.jobs.index(job) < first_error
            self._act(job, action)
        alive = [job for job in messages.jobs if job.message.job is job and not job.message.end]
        for job in alive:
            if not self.has_order and not is_lost:
                assert job in seen or job in suspects or job in own
        still = [job.message for job in suspects if job in alive]
        middle = (len(still) + 1) // 2
        for half in (still[:middle], still[middle:]):
            for item in half:
                item.half = frozenset(half)
        if error is not None and len(passed) == 1 and passed[0] in alive:
            passed[0].message.half = frozenset([passed[0].message])
        row = self.core.snapshot().failures_in_row
        assert row <= row_before + sees_outage
        assert sees_outage or row <= row_before

    def _check_own_failure(self, job: ListJob, error: BaseException, action: Action) -> None:
        item: Item = job.message
        match error, action:
            case Reject(), DeadLetter() | Discard() | Hold(counted=False):
                pass
            case Retry(count=False), Hold(counted=False):
                pass
            case _, Hold(counted=False):
                assert error is OUTAGE
            case _, DeadLetter() | Discard():
                assert item.attempt == self.plan.attempts
            case _, Nack() | RetryLetter():
                assert not self.has_order
                assert item.attempt < self.plan.attempts
                item.attempt += 1
            case _, Hold():
                item.attempt += 1
                assert job.attempt == item.attempt
            case _:
                raise AssertionError(f"{error!r}: {action!r}")

    def _act(self, job: ListJob, action: Action) -> None:
        item: Item = job.message
        self.history.append(f"{type(action).__name__} {item}")
        match action:
            case Ack():
                if not self.is_calm and self.rng.random() < self.plan.rates.get("unacked", 0) / 100:
                    self.core.not_settled(job, self.now_ms + 5_000)
                    return
                self._end(item, "acked")
                self.core.settled(job, self.now_ms)
            case Discard():
                self._end(item, "dead")
                self.core.settled(job, self.now_ms)
            case Nack(delay_ms=delay_ms) | RetryLetter(delay_ms=delay_ms):
                item.job = None
                if not job.is_alone:
                    item.half = None
                self.core.settled(job, self.now_ms)
                self.later.append((self.now_ms + delay_ms, item))
            case Hold():
                if not job.is_alone and not self.has_order:
                    item.half = None
            case _:
                self.letters.append(item)

    def _end(self, item: Item, end: str) -> None:
        assert item.end is None, f"{item} is settled twice"
        if self.has_order:
            before = [
                each
                for each in self.items
                if each.partition == item.partition and each.number < item.number
            ]
            assert all(each.end for each in before), f"{item} overtook"
        item.end, item.job = end, None

    def _letter(self) -> None:
        item = self.letters.pop(0)
        if item.job is None:
            return  # removed meanwhile
        if not self.is_calm and self.rng.random() < 0.3:
            self.core.not_settled(item.job, self.now_ms + 5_000)
            return
        job = item.job
        self._end(item, "dead")
        self.core.settled(job, self.now_ms)

    def _remove(self) -> None:
        held = [item for item in self.items if item.job is not None]
        if not held or self.rng.random() < 0.8:
            return
        if self.has_order:
            # A partition is lost as a whole.
            partition = self.rng.choice(held).partition
            lost = [item for item in held if item.partition == partition]
        else:
            lost = [self.rng.choice(held)]
        self.history.append(f"remove {lost}")
        for item in lost:
            assert item.job is not None
            self.core.remove(item.job)
            item.job = None
            item.half = None
            if item in self.letters:
                self.letters.remove(item)
        if self.has_order:
            rest = [item for item in self.source if item.partition == partition]
            for item in rest:
                self.source.remove(item)
            again = sorted([*lost, *rest], key=lambda item: item.number)
            for item in again:
                item.half = None
            self.source.extend(again)
        else:
            self.source.extendleft(lost)

    def _outage(self) -> None:
        if self.is_away:
            self.is_away = self.rng.random() > 0.2
        elif self.outages < self.plan.outages and self.rng.random() < 0.1:
            self.outages += 1
            self.is_away = True

    def _pause(self) -> None:
        if self.is_paused or self.rng.random() < 0.1:
            self.is_paused = not self.is_paused
            self.core.pause() if self.is_paused else self.core.resume()

    def _time(self) -> None:
        times = [at for at, _ in self.later]
        wake_ms = self.core.next_wake_ms(self.now_ms)
        if wake_ms is not None:
            times.append(wake_ms)
        if times:
            self.now_ms = max(self.now_ms, min(times))
        due = [each for each in self.later if each[0] <= self.now_ms]
        for each in due:
            self.later.remove(each)
            self.source.append(each[1])
        for job, action in self.core.due_actions(self.now_ms):
            assert isinstance(job, ListJob)
            assert job.message.job is job
            self._act(job, action)

    # Checks

    def _is_trial(self) -> bool:
        return self.core.is_breaker_open or self.core.is_reject_limit_reached

    def _check_counts(self) -> None:
        core, snapshot = self.core, self.core.snapshot()
        held = [item for item in self.items if item.job is not None]
        assert len(core) == len(held)
        in_lists = {id(job) for each in self.running for job in each.jobs}
        lost = sum(
            job.size
            for each in self.running
            for job in each.jobs
            if job.message.job is not job and not self.has_order
        )
        if not self.has_order:
            assert snapshot.bytes == sum(item.size for item in held) + lost
        waiting = [
            item for item in held if id(item.job) not in in_lists and item not in self.letters
        ]
        assert snapshot.held_back >= 0
        assert snapshot.blocked >= 0
        assert snapshot.running >= 0
        most = 1_000 if self.has_order else self.plan.prefetch
        fresh = [item for item in waiting if item.job is not None and not item.job.called]
        assert len(fresh) <= most + self.plan.max_messages
