"""Which message starts next: order in groups, turns of groups, retries, priorities, due times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from worker_jobs import OFTEN, job

from pulsar_encore.worker.scheduler import READY, DueJobs, Job, Scheduler


def scheduler_of(*jobs: Job) -> Scheduler:
    scheduler = Scheduler()
    for each in jobs:
        scheduler.add(each)
    return scheduler


def take(scheduler: Scheduler) -> Job:
    started = scheduler.next_job()
    assert started is not None
    scheduler.take(started)
    started.called = True
    return started


def messages(jobs: Iterable[Job]) -> list[Any]:
    return [each.message for each in jobs]


def test_jobs_without_a_group_start_in_the_order_of_arrival() -> None:
    scheduler = scheduler_of(*(job(at) for at in range(5)))
    assert messages(take(scheduler) for _ in range(5)) == [0, 1, 2, 3, 4]
    assert scheduler.next_job() is None


def test_the_next_of_a_group_starts_when_the_head_has_left() -> None:
    scheduler = scheduler_of(job("a1", "a"), job("a2", "a"), job("b1", "b"))
    first = take(scheduler)
    assert messages([first, take(scheduler)]) == ["a1", "b1"]
    assert scheduler.next_job() is None and scheduler.blocked == 1
    scheduler.leave(first)
    assert take(scheduler).message == "a2"


def test_a_failed_head_waits_and_its_group_waits_behind_it() -> None:
    scheduler = scheduler_of(job("a1", "a"), job("a2", "a"), job("b1", "b"))
    head = take(scheduler)
    scheduler.wait(head, 1_000)
    assert take(scheduler).message == "b1"
    assert (scheduler.behind_failed, scheduler.behind_healthy) == (1, 0)
    assert scheduler.held_back_groups(10) == ["a"]
    scheduler.release_due(999)
    assert scheduler.next_job() is None
    scheduler.release_due(1_000)
    assert take(scheduler) is head
    scheduler.leave(head)
    assert scheduler.held_back_groups(10) == [] and scheduler.behind_failed == 0
    assert take(scheduler).message == "a2"


def test_a_busy_group_waits_for_its_turn_behind_other_groups() -> None:
    busy = [job(("busy", at), "busy") for at in range(10)]
    others = [job((name, 0), name) for name in "abcdefgh"]
    scheduler = scheduler_of(*busy, *others)
    started = []
    for _ in range(18):
        each = take(scheduler)
        started.append(each.message[0])
        scheduler.leave(each)
    assert started[:10] == ["busy", *"abcdefgh", "busy"]


def test_first_deliveries_and_retries_alternate() -> None:
    scheduler = scheduler_of(*(job(("first", at)) for at in range(6)))
    for at in range(6):
        scheduler.add(job(("again", at), attempt=2))
    kinds = [take(scheduler).message[0] for _ in range(12)]
    assert all(one != other for one, other in pairwise(kinds)), kinds


def test_one_kind_alone_does_not_wait_for_the_other() -> None:
    scheduler = scheduler_of(*(job(at, attempt=2) for at in range(3)))
    assert messages(take(scheduler) for _ in range(3)) == [0, 1, 2]


def test_a_higher_priority_starts_first() -> None:
    scheduler = scheduler_of(job("low", topic="l"), job("high", topic="h", priority=5))
    assert messages([take(scheduler), take(scheduler)]) == ["high", "low"]


def test_every_tenth_start_goes_to_the_topic_that_waited_longest() -> None:
    scheduler = Scheduler()
    topics = {"high": 2, "middle": 1, "low a": 0, "low b": 0}
    for topic, priority in topics.items():
        for at in range(400):
            scheduler.add(job((topic, at), topic=topic, priority=priority))
    started = [take(scheduler).message[0] for _ in range(300)]
    assert Counter(started) == {"high": 270, "middle": 10, "low a": 10, "low b": 10}
    for at in range(0, 300, 10):
        assert started[at : at + 9] == ["high"] * 9


def test_a_topic_starts_at_its_own_tenth_start_although_others_keep_coming() -> None:
    rng = Random(7)
    scheduler = scheduler_of(job("low", topic="low"))
    for at in range(OFTEN):
        scheduler.add(job(at, topic=f"high {rng.randrange(3)}", priority=1))
        if take(scheduler).message == "low":
            break
    assert at < 50


@pytest.mark.parametrize("seed", range(20))
def test_no_topic_waits_for_more_than_ten_starts_of_each_topic(seed: int) -> None:
    rng = Random(seed)
    scheduler = Scheduler()
    topics = {f"t{at}": rng.randrange(4) for at in range(1 + seed % 6)}
    since: dict[str, int] = {}
    waiting = Counter[str]()
    for start in range(OFTEN):
        for topic in rng.choices(list(topics), k=2):
            scheduler.add(
                job(start, topic=topic, priority=topics[topic], attempt=rng.choice([1, 2]))
            )
            since.setdefault(topic, start)
            waiting[topic] += 1
        topic = take(scheduler).topic
        waiting[topic] -= 1
        since[topic] = start
        if not waiting[topic]:
            del since[topic]
        for each, at in since.items():
            assert start - at <= 10 * len(topics), f"seed {seed}: {each} starves"


def test_priorities_that_appear_late_keep_the_order_of_earlier_messages() -> None:
    scheduler = scheduler_of(*(job(at, topic=f"t{at % 2}") for at in range(4)))
    scheduler.add(job("high", topic="h", priority=1))
    assert messages(take(scheduler) for _ in range(5)) == ["high", 0, 1, 2, 3]


def test_in_a_class_of_priority_retries_and_first_deliveries_alternate() -> None:
    scheduler = scheduler_of(job("low", topic="l"))
    for at in range(4):
        scheduler.add(job(("first", at), topic="h", priority=1))
        scheduler.add(job(("again", at), topic="h", priority=1, attempt=2))
    kinds = [take(scheduler).message[0] for _ in range(8)]
    assert all(one != other for one, other in pairwise(kinds)), kinds


@pytest.mark.parametrize("seed", range(20))
def test_each_ready_job_starts_after_at_most_twice_as_many_as_are_before_it(seed: int) -> None:
    """First deliveries and retries starve neither each other nor a group."""
    rng = Random(seed)
    scheduler = Scheduler()
    limits: dict[Job, int] = {}
    behind: dict[Any, list[Job]] = {}
    running: list[Job] = []
    starts = number = 0

    def note_ready(each: Job) -> None:
        before = sum(other.is_retry == each.is_retry for other in limits)
        limits[each] = starts + 2 * (before + 1)

    for _ in range(OFTEN):
        for _ in range(rng.randrange(3)):
            number += 1
            new = job(number, rng.choice([None, *"abcdefgh"]), attempt=rng.choice([1, 1, 2]))
            if scheduler.add(new):
                note_ready(new)
            else:
                behind.setdefault(new.group, []).append(new)
        ready = scheduler.next_job()
        if ready is not None:
            starts += 1
            assert limits.pop(ready) >= starts, f"seed {seed}: {ready} starts late"
            scheduler.take(ready)
            running.append(ready)
        if running and rng.random() < 0.9:
            left = running.pop(rng.randrange(len(running)))
            scheduler.leave(left)
            heads = [each for each in behind.get(left.group, []) if each.state == READY]
            for head in heads:
                behind[left.group].remove(head)
                note_ready(head)


@pytest.mark.parametrize("state", ["ready", "blocked", "waiting", "set aside", "running"])
def test_a_job_can_leave_in_each_state(state: str) -> None:
    first, second, third = (job(at, "g") for at in range(3))
    scheduler = scheduler_of(first, second, third)
    if state != "ready":
        take(scheduler)
    if state in ("waiting", "set aside"):
        scheduler.wait(first, 5)
    if state == "set aside":
        scheduler.begin_trials()
        first.tried_in = scheduler.trials
        scheduler.release_due(5)
        assert scheduler.next_set_aside() is first
    scheduler.leave(second if state == "blocked" else first)
    if state == "blocked":
        scheduler.leave(first)
        assert take(scheduler) is third
    else:
        assert take(scheduler) is second
    assert scheduler.waiting.next_due() is None and scheduler.set_aside == 0
    assert scheduler.held_back == 0


def test_tried_jobs_are_set_aside_until_the_trials_end() -> None:
    tried, other = job("tried"), job("other")
    scheduler = scheduler_of(tried)
    take(scheduler)
    scheduler.begin_trials()
    tried.tried_in = scheduler.trials
    scheduler.wait(tried, 5)
    scheduler.release_due(5)
    assert scheduler.next_job() is None and scheduler.next_set_aside() is tried
    scheduler.add(other)
    assert scheduler.next_job() is other
    scheduler.end_trials()
    assert scheduler.set_aside == 0 and scheduler.ready == 2
    scheduler.begin_trials()  # new trials: it may be tried again
    assert {take(scheduler).message, take(scheduler).message} == {"tried", "other"}


def test_due_jobs_come_in_the_order_of_their_due_times() -> None:
    rng = Random(3)
    due = DueJobs()
    times = [rng.randrange(100) for _ in range(200)]
    jobs = [job(at) for at in range(200)]
    for each, at in zip(jobs, times, strict=True):
        due.add(each, at)
    for each in jobs[::3]:
        due.discard(each)
    left = sorted((at, number) for number, at in enumerate(times) if number % 3)
    assert due.next_due() == left[0][0] and len(due) == len(left)
    popped = []
    for now_ms in range(100):
        while (each_due := due.pop(now_ms)) is not None:
            popped.append((now_ms, each_due.message))
    assert popped == left and len(due) == 0 and due.next_due() is None


def test_discarded_jobs_are_freed_before_they_are_due() -> None:
    """A topic that is rewound again and again must not fill the memory."""
    import gc
    import weakref

    class Content:
        """A message that a weak reference can follow."""

    due = DueJobs()
    alive = weakref.WeakSet[Content]()
    for _ in range(OFTEN):
        content = Content()
        alive.add(content)
        each = job(content)
        due.add(each, 1 << 40)
        due.discard(each)
    del content, each
    gc.collect()
    assert len(alive) < 100
