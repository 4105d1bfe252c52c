"""The rules of a worker: actions for results, attempts, breaker, rejections, limits, demand."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from worker_jobs import OUTAGE, core_of, job, run_next

from pulsar_encore import Breaker, Reject, Retry, RetryPolicy
from pulsar_encore.worker.worker_core import (
    Ack,
    DeadLetter,
    Discard,
    Failed,
    Hold,
    Job,
    Lost,
    Nack,
    Order,
    RetryLetter,
    Succeeded,
    WorkerCore,
)

BREAKER = Breaker(on=ConnectionError)
BUG = ValueError("no such field")


def started(core: WorkerCore, now_ms: int = 0) -> Job:
    each = core.start(now_ms)
    assert each is not None
    return each


def action_after(error: BaseException, **options: Any) -> Any:
    """Return the action for the first failure of one message."""
    attempt = options.pop("attempt", 1)
    core = core_of(**options)
    core.received(job(attempt=attempt), 0)
    return core.finished(started(core), Failed(error), 0)


# Results


def test_a_success_is_acked_and_leaves_when_it_is_settled() -> None:
    core = core_of()
    core.received(job(), 0)
    each = started(core)
    assert core.finished(each, Succeeded(), 0) == Ack()
    assert core.snapshot().settling == 1 and list(core.jobs()) == [each]
    core.settled(each, 0)
    assert list(core.jobs()) == [] and core.snapshot().bytes == 0


def test_without_order_a_failure_is_nacked_with_its_backoff() -> None:
    retry = RetryPolicy(attempts=4, backoff=[1, 5, 9])
    assert action_after(BUG, retry=retry) == Nack(1_000, BUG)
    assert action_after(BUG, retry=retry, attempt=2) == Nack(5_000, BUG)
    assert action_after(BUG, retry=retry, attempt=3) == Nack(9_000, BUG)


def test_the_last_attempt_is_dead_lettered() -> None:
    assert action_after(BUG, attempt=3) == DeadLetter("failed in 3 attempts", BUG, "attempts")
    assert action_after(BUG, attempt=9) == DeadLetter("failed in 9 attempts", BUG, "attempts")
    discarding = RetryPolicy(attempts=1, dead_letters=False)
    assert action_after(BUG, retry=discarding) == Discard("failed in 1 attempts", BUG)


def test_only_without_order_a_long_delay_goes_through_the_retry_letter_topic() -> None:
    retry = RetryPolicy(backoff=[601], letters_after=600)
    assert action_after(BUG, retry=retry) == RetryLetter(601_000, BUG)
    assert action_after(BUG, retry=retry, order=Order.KEY) == Hold(601_000, True, BUG)
    waiting = RetryPolicy(backoff=[601], letters_after=None)
    assert action_after(BUG, retry=waiting) == Nack(601_000, BUG)


@pytest.mark.parametrize("order", [Order.KEY, Order.PARTITION])
def test_with_order_a_failed_message_waits_in_place(order: Order) -> None:
    core = core_of(order)
    core.received(job("a1", "a"), 0)
    core.received(job("a2", "a"), 0)
    each = started(core)
    assert core.finished(each, Failed(BUG), 0) == Hold(1_000, True, BUG)
    assert each.attempt == 2
    assert core.start(999) is None
    assert core.next_wake_ms(999) == 1_000
    assert run_next(core, 1_000) == ("a1", Ack())
    assert run_next(core, 1_000) == ("a2", Ack())


def test_a_requested_retry_has_its_own_delay() -> None:
    retry = Retry(delay=30)
    assert action_after(retry) == Nack(30_000, retry)
    plain = Retry()
    assert action_after(plain) == Nack(1_000, plain)
    assert action_after(plain, attempt=3) == DeadLetter("failed in 3 attempts", plain, "attempts")


def test_an_uncounted_retry_waits_in_place_and_uses_up_no_attempt() -> None:
    core = core_of(retry=RetryPolicy(attempts=2, backoff=[1, 2, 4]))
    core.received(job(), 0)
    retry = Retry(count=False)
    now_ms, delays = 0, []
    for _ in range(4):
        each = started(core, now_ms)
        action = core.finished(each, Failed(retry), now_ms)
        assert isinstance(action, Hold) and not action.counted and each.attempt == 1
        delays.append(action.due_ms - now_ms)
        now_ms = action.due_ms
    assert delays == [1_000, 2_000, 4_000, 4_000]


def test_a_rejection_is_dead_lettered_at_once_with_its_reason() -> None:
    reject = Reject("negative total")
    assert action_after(reject) == DeadLetter("rejected: negative total", reject)
    retry = RetryPolicy(reject=(LookupError,))
    missing = KeyError("id")
    assert action_after(missing, retry=retry) == DeadLetter("rejected: 'id'", missing)
    empty = ValueError()
    retry = RetryPolicy(reject=ValueError)
    assert action_after(empty, retry=retry) == DeadLetter("rejected: ValueError", empty)


def test_answers_in_an_exception_group_are_found() -> None:
    reject = ExceptionGroup("tasks", [BUG, ExceptionGroup("inner", [Reject("poison")])])
    assert action_after(reject) == DeadLetter("rejected: poison", reject)
    retry = ExceptionGroup("tasks", [Retry(delay=7)])
    assert action_after(retry) == Nack(7_000, retry)
    outage = ExceptionGroup("tasks", [OUTAGE, ConnectionResetError()])
    assert action_after(outage, breaker=BREAKER) == Hold(1_000, False, outage)


def test_a_message_that_is_too_old_is_dead_lettered_on_arrival() -> None:
    core = core_of(retry=RetryPolicy(max_age=60))
    young, old = job(published_ms=40_000), job(published_ms=39_999)
    assert core.received(young, 100_000) is None
    assert core.received(old, 100_000) == DeadLetter("older than max_age, 60 s", None, "max_age")
    core.settled(old, 100_000)
    assert list(core.jobs()) == [young]


def test_a_blocked_message_that_is_too_old_waits_for_its_group() -> None:
    core = core_of(Order.KEY, retry=RetryPolicy(max_age=60))
    core.received(job("a1", "a"), 0)
    first = started(core)
    core.received(job("a2", "a"), 99_000)
    assert core.due_actions(99_000) == []
    core.finished(first, Succeeded(), 99_000)
    core.settled(first, 99_000)
    assert core.start(99_000) is None
    assert core.next_wake_ms(99_000) == 99_000
    ((second, action),) = core.due_actions(99_000)
    assert (second.message, action) == (
        "a2",
        DeadLetter("older than max_age, 60 s", None, "max_age"),
    )


def test_a_message_that_became_too_old_while_it_failed_is_dead_lettered() -> None:
    core = core_of(retry=RetryPolicy(max_age=60))
    core.received(job(), 0)
    action = core.finished(started(core), Failed(BUG), 61_000)
    assert action == DeadLetter("older than max_age, 60 s", BUG, "max_age")


def test_only_an_exact_count_dead_letters_on_arrival() -> None:
    exact, other = job(attempt=4), job(attempt=4)
    exact.is_attempt_exact = True
    core = core_of()
    assert core.received(exact, 0) == DeadLetter(
        "ended its process or failed in 3 attempts", None, "attempts"
    )
    assert core.received(other, 0) is None


def test_an_action_that_failed_is_due_again_and_blocks_its_group() -> None:
    core = core_of(Order.KEY)
    core.received(job("a1", "a", attempt=3), 0)
    core.received(job("a2", "a"), 0)
    each = started(core)
    letter = core.finished(each, Failed(BUG), 0)
    core.not_settled(each, 5_000)
    assert core.start(4_999) is None and core.due_actions(4_999) == []
    assert core.next_wake_ms(4_999) == 5_000
    assert core.due_actions(5_000) == [(each, letter)]
    assert core.due_actions(5_000) == []
    core.settled(each, 5_000)
    assert run_next(core, 5_000) == ("a2", Ack())


# Removal


def test_a_removed_running_job_blocks_its_group_until_its_handler_has_ended() -> None:
    core = core_of(Order.KEY)
    first = job("a1", "a")
    core.received(first, 0)
    core.received(job("a2", "a"), 0)
    assert started(core) is first
    core.remove(first)
    core.remove(first)
    assert [each.message for each in core.jobs()] == ["a2"]
    assert core.start(0) is None
    assert core.finished(first, Succeeded(), 0) is None
    core.settled(first, 0)  # the shell may be late
    assert run_next(core, 0) == ("a2", Ack())
    assert core.snapshot().bytes == 0


def test_a_lost_call_settles_nothing_and_counts_nothing() -> None:
    core = core_of(breaker=Breaker(on=ConnectionError, failures=1), reject_limit=1)
    core.received(job(), 0)
    assert core.finished(started(core), Lost(), 0) is None
    assert list(core.jobs()) == [] and not core.is_breaker_open


@pytest.mark.parametrize("error", [None, BUG, Reject("poison"), OUTAGE])
def test_a_job_can_be_removed_while_it_is_settling_or_waiting(error: Exception | None) -> None:
    core = core_of(Order.KEY, breaker=BREAKER)
    core.received(job("a1", "a"), 0)
    core.received(job("a2", "a"), 0)
    each = started(core)
    core.finished(each, Succeeded() if error is None else Failed(error), 0)
    core.remove(each)
    core.settled(each, 0)
    core.not_settled(each, 0)
    assert core.due_actions(10_000) == []
    assert run_next(core, 0) == ("a2", Ack())


# Breaker


def fail(core: WorkerCore, now_ms: int, error: BaseException = OUTAGE) -> Job:
    each = started(core, now_ms)
    action = core.finished(each, Failed(error), now_ms)
    assert isinstance(action, Hold)
    return each


def test_an_outage_opens_the_breaker_and_costs_no_attempt() -> None:
    core = core_of(breaker=BREAKER, prefetch=10)
    for at in range(6):
        core.received(job(at), 0)
    failed = [fail(core, 0) for _ in range(5)]
    assert core.is_breaker_open and core.demand() == 0
    assert core.start(0) is None and core.start(29_999) is None
    assert core.next_wake_ms(1_001) == 30_000
    assert [each.attempt for each in failed] == [1] * 5


def test_each_probe_takes_a_different_message() -> None:
    core = core_of(breaker=BREAKER)
    for at in range(5):
        core.received(job(at), 0)
        fail(core, 0)
    now_ms, probes, times = 0, [], []
    for _ in range(10):
        now_ms = core.next_wake_ms(now_ms) or 0
        while (probe := core.start(now_ms)) is None:
            now_ms = core.next_wake_ms(now_ms) or 0
        core.finished(probe, Failed(OUTAGE), now_ms)
        probes.append(probe.message)
        times.append(now_ms // 1000)
    assert sorted(probes[:5]) == [0, 1, 2, 3, 4]
    assert sorted(probes[5:]) == [0, 1, 2, 3, 4]  # all were tried: the same again
    # Later probes wait a second for a message that was not tried yet.
    assert times == [30, 90, 210, 450, 750, 1051, 1352, 1653, 1954, 2255]


def test_a_probe_takes_a_new_message_if_all_here_were_tried() -> None:
    core = core_of(breaker=Breaker(on=ConnectionError, failures=2))
    core.received(job("poison"), 0)
    fail(core, 0)
    fail(core, 1_000)
    assert core.is_breaker_open and core.demand() == 0
    assert core.start(31_000) is not None  # not yet tried since the breaker opened
    core.finished(next(iter(core.jobs())), Failed(OUTAGE), 31_000)
    assert core.demand() == 0
    assert core.next_wake_ms(33_000) == 91_000
    assert core.start(91_000) is None
    assert core.demand() == 1
    core.received(job("healthy"), 91_100)
    assert core.demand() == 0
    assert run_next(core, 91_100) == ("healthy", Ack())
    assert not core.is_breaker_open and core.demand() == 4


def test_a_probe_tries_the_same_message_again_if_no_other_arrives() -> None:
    core = core_of(breaker=Breaker(on=ConnectionError, failures=1))
    core.received(job("only"), 0)
    fail(core, 0)
    fail(core, 30_000)
    assert core.start(90_000) is None
    assert core.next_wake_ms(90_000) == 91_000
    assert run_next(core, 91_000) == ("only", Ack())


def test_a_successful_probe_starts_everything_again() -> None:
    core = core_of(breaker=BREAKER)
    for at in range(5):
        core.received(job(at), 0)
        fail(core, 0)
    assert run_next(core, 30_000)[1] == Ack()
    assert not core.is_breaker_open
    assert [run_next(core, 30_000)[1] for _ in range(4)] == [Ack()] * 4


def test_a_poison_message_among_healthy_ones_is_counted_and_dead_lettered() -> None:
    core = core_of(breaker=BREAKER)
    core.received(job("poison"), 0)
    now_ms, poison, action, counted = 0, fail(core, 0), None, []
    while not isinstance(action, DeadLetter):
        core.received(job("healthy"), now_ms)
        assert run_next(core, now_ms) == ("healthy", Ack())
        now_ms = core.next_wake_ms(now_ms) or 0
        assert started(core, now_ms) is poison
        action = core.finished(poison, Failed(OUTAGE), now_ms)
        counted.append(action.counted if isinstance(action, Hold) else True)
    # The first failure never counts, so that it takes one call more than `attempts`.
    assert counted == [True, True, True]
    assert not core.is_breaker_open


def test_a_success_that_began_before_the_failure_proves_nothing() -> None:
    core = core_of(breaker=BREAKER)
    core.received(job("slow"), 0)
    core.received(job("cut"), 0)
    slow, cut = started(core), started(core)
    core.finished(cut, Failed(OUTAGE), 0)
    core.finished(slow, Succeeded(), 500)  # it had its answer before the outage
    assert started(core, 1_000) is cut
    assert core.finished(cut, Failed(OUTAGE), 1_000) == Hold(2_000, False, OUTAGE)


def test_a_success_that_ended_after_the_start_of_the_call_proves_nothing() -> None:
    core = core_of(breaker=BREAKER)
    core.received(job("cut"), 0)
    cut = fail(core, 0)
    core.received(job("hung"), 0)
    hung = started(core)
    assert started(core, 1_000) is cut
    core.finished(hung, Succeeded(), 60_000)  # it hung until the dependency was back
    action = core.finished(cut, Failed(OUTAGE), 60_000)
    assert action == Hold(61_000, False, OUTAGE)


def test_other_failures_during_an_outage_count() -> None:
    core = core_of(Order.KEY, breaker=BREAKER)
    core.received(job("a", "a"), 0)
    assert core.finished(started(core), Failed(BUG), 0) == Hold(1_000, True, BUG)


def test_a_probe_that_fails_for_its_own_reason_is_followed_by_another_at_once() -> None:
    core = core_of(breaker=Breaker(on=ConnectionError, failures=1), prefetch=10)
    for at in range(3):
        core.received(job(at), 0)
    fail(core, 0)
    probe = started(core, 30_000)
    assert core.finished(probe, Failed(BUG), 30_000) == Nack(1_000, BUG)
    assert core.is_breaker_open
    assert run_next(core, 30_000)[1] == Ack()
    assert not core.is_breaker_open


def test_a_lost_probe_is_followed_by_another_at_once() -> None:
    core = core_of(breaker=Breaker(on=ConnectionError, failures=1), prefetch=10)
    core.received(job("a"), 0)
    core.received(job("b"), 0)
    fail(core, 0)
    probe = started(core, 30_000)
    core.remove(probe)
    assert core.start(30_000) is None
    assert core.finished(probe, Lost(), 30_000) is None
    assert started(core, 30_000) is not probe


def test_a_probe_that_hangs_is_followed_by_another_after_the_pause() -> None:
    core = core_of(breaker=Breaker(on=ConnectionError, failures=1), prefetch=10)
    for at in range(3):
        core.received(job(at), 0)
    fail(core, 0)
    first = started(core, 30_000)
    assert core.start(59_999) is None
    assert started(core, 60_000) is not first


# Rejections in a row


def reject(core: WorkerCore, now_ms: int) -> Any:
    return run_next(core, now_ms, Reject("schema changed"))[1]


def test_the_limit_of_rejections_keeps_the_last_message_and_tries_one_each_30_s() -> None:
    core = core_of(reject_limit=3, prefetch=10)
    for at in range(6):
        core.received(job(at), 0)
    assert isinstance(reject(core, 0), DeadLetter)
    assert isinstance(reject(core, 0), DeadLetter)
    assert isinstance(reject(core, 0), Hold)
    assert core.is_reject_limit_reached and core.demand() == 0
    assert core.start(0) is None and core.start(29_999) is None
    assert isinstance(reject(core, 30_000), Hold)
    assert core.start(59_999) is None
    assert run_next(core, 60_000)[1] == Ack()
    assert not core.is_reject_limit_reached
    # The kept messages are tried again, and may be dead-lettered now.
    kept = [run_next(core, 60_000, Reject("poison"))[1] for _ in range(2)]
    assert all(isinstance(each, DeadLetter) for each in kept)


def test_between_two_successes_fewer_messages_than_the_limit_are_dead_lettered() -> None:
    core = core_of(reject_limit=20, concurrency=16, prefetch=64)
    letters, now_ms = 0, 0
    for at in range(10_000):
        if core.demand():
            core.received(job(at), now_ms)
        letters += isinstance(reject(core, now_ms), DeadLetter)
        now_ms += 100
    assert letters == 19


def test_trials_go_on_with_new_messages_if_all_here_were_rejected() -> None:
    core = core_of(reject_limit=1)
    core.received(job("poison"), 0)
    assert isinstance(reject(core, 0), Hold)
    assert core.start(30_000) is not None  # untried since the limit was reached
    poison = next(iter(core.jobs()))
    core.finished(poison, Failed(Reject()), 30_000)
    assert core.start(60_000) is None and core.demand() == 1
    core.received(job("good"), 60_000)
    assert run_next(core, 60_000) == ("good", Ack())


def test_a_single_partition_stands_until_its_rejected_message_is_processed() -> None:
    core = core_of(Order.PARTITION, reject_limit=2, prefetch=10)
    for at in range(5):
        core.received(job(at, "p"), 0)
    assert isinstance(reject(core, 0), DeadLetter)
    assert isinstance(reject(core, 0), Hold)
    tries = []
    for now_ms in range(0, 300_001, 1_000):
        message, action = run_next(core, now_ms, Reject("still"))
        if message is not None:
            tries.append((message, type(action)))
    assert len(tries) == pytest.approx(10, abs=1)
    assert set(tries) == {(1, Hold)}


def test_without_dead_letters_the_limit_holds_as_well() -> None:
    core = core_of(reject_limit=2, retry=RetryPolicy(dead_letters=False))
    core.received(job(1), 0)
    core.received(job(2), 0)
    assert isinstance(reject(core, 0), Discard)
    assert isinstance(reject(core, 0), Hold)


# Limits


def test_demand_fills_the_prefetch_and_is_zero_while_paused() -> None:
    core = core_of(prefetch=4)
    assert core.demand() == 4
    core.received(job(), 0)
    assert core.demand() == 3
    core.pause()
    assert core.demand() == 0 and core.start(0) is None
    core.resume()
    assert started(core) is not None
    assert core.demand() == 4


def test_failed_messages_do_not_use_up_the_prefetch() -> None:
    core = core_of(prefetch=4, breaker=Breaker(on=ConnectionError, failures=1_000))
    for at in range(50):
        core.received(job(at), 0)
        fail(core, 0)
    assert core.demand() == 4


def test_a_failed_key_holds_back_only_itself_up_to_the_held_limit() -> None:
    core = core_of(Order.KEY, prefetch=4, held_limit=6)
    core.received(job("a0", "a"), 0)
    fail(core, 0, BUG)
    for at in range(1, 5):
        assert core.demand() > 0
        core.received(job(f"a{at}", "a"), 0)
    core.received(job("b0", "b"), 0)
    assert run_next(core, 0) == ("b0", Ack())
    assert core.demand() == 1
    core.received(job("a5", "a"), 0)
    assert core.demand() == 0
    snapshot = core.snapshot()
    assert snapshot.held_back == 6
    assert (snapshot.held_groups, snapshot.held_group_examples) == (1, ("a",))


def test_ten_held_back_groups_are_named() -> None:
    core = core_of(Order.KEY, prefetch=100)
    for at in range(30):
        core.received(job(at, f"key {at}"), 0)
        fail(core, 0, BUG)
    snapshot = core.snapshot()
    assert snapshot.held_groups == 30
    assert snapshot.held_group_examples == tuple(f"key {at}" for at in range(10))


def test_messages_behind_a_running_one_use_the_prefetch_once_all_slots_are_busy() -> None:
    core = core_of(Order.KEY, concurrency=2, prefetch=4)
    core.received(job("a0", "a"), 0)
    assert started(core).message == "a0"
    for at in range(1, 10):
        assert core.demand() == 4, "one slot is free, so messages of other keys are wanted"
        core.received(job(f"a{at}", "a"), 0)
    core.received(job("b0", "b"), 0)
    assert started(core).message == "b0"
    assert core.demand() == 0


def test_no_messages_are_taken_over_the_limit_of_bytes() -> None:
    core = core_of(max_bytes=1_000, prefetch=100)
    core.received(job(size=990), 0)
    assert 0 < core.demand() < 100
    core.received(job(size=10), 0)
    assert core.demand() == 0
    run_next(core, 0)
    assert core.demand() > 0


def test_demand_is_small_if_messages_are_large() -> None:
    core = core_of(max_bytes=1_000, prefetch=100)
    for _ in range(100):
        core.received(job(size=100), 0)
        run_next(core, 0)
    assert 5 <= core.demand() <= 20


def test_a_message_over_the_limit_runs_alone_and_gets_its_turn() -> None:
    core = core_of(max_bytes=1_000, concurrency=4, prefetch=10)
    core.received(job("small", size=10), 0)
    core.received(job("large", size=5_000), 0)
    core.received(job("other", size=10), 0)
    small = started(core)
    assert core.start(0) is None, "the large message waits, and no other overtakes it"
    core.finished(small, Succeeded(), 0)
    core.settled(small, 0)
    large = started(core)
    assert large.message == "large"
    assert core.start(0) is None
    core.finished(large, Succeeded(), 0)
    core.settled(large, 0)
    assert run_next(core, 0) == ("other", Ack())


def test_an_idle_core_has_nothing_to_wait_for() -> None:
    core = core_of()
    assert core.next_wake_ms(0) is None
    assert core.start(0) is None
    core.received(job(), 0)
    run_next(core, 0)
    assert core.next_wake_ms(0) is None and len(core) == 0


def test_a_paused_core_does_not_wake_for_retries() -> None:
    core = core_of(Order.KEY)
    core.received(job("a", "a"), 0)
    fail(core, 0, BUG)
    core.pause()
    assert core.next_wake_ms(0) is None
    core.resume()
    assert core.next_wake_ms(0) == 1_000


def test_two_thousand_messages_survive_an_outage_of_ten_minutes() -> None:
    rng = Random(11)
    core = core_of(breaker=BREAKER, concurrency=16, prefetch=32, retry=RetryPolicy())
    now_ms, sent, acked, calls = 0, 0, 0, 0
    running: list[tuple[int, Job]] = []
    while acked < 2_000:
        while sent < 2_000 and core.demand():
            core.received(job(sent), now_ms)
            sent += 1
        while len(running) < 16 and (each := core.start(now_ms)) is not None:
            running.append((now_ms + rng.randrange(1, 2_000), each))
            calls += 1
        times = [end for end, _ in running]
        wake_ms = core.next_wake_ms(now_ms)
        now_ms = min(times + ([] if wake_ms is None else [max(wake_ms, now_ms)]))
        for end, each in [entry for entry in running if entry[0] <= now_ms]:
            running.remove((end, each))
            away = 10_000 < now_ms < 610_000
            action = core.finished(each, Failed(OUTAGE) if away else Succeeded(), now_ms)
            assert isinstance(action, (Ack, Hold)), action
            if isinstance(action, Ack):
                core.settled(each, now_ms)
                acked += 1
            else:
                assert not action.counted and each.attempt == 1
    assert calls < 2_100


def test_a_failed_message_that_waits_here_is_not_nacked_also_without_order() -> None:
    core = core_of(retry=RetryPolicy(attempts=3, backoff=[1, 700]))
    of_batch = job()
    of_batch.waits_here = True
    core.received(of_batch, 0)
    assert core.start(0) is of_batch
    assert core.finished(of_batch, Failed(BUG), 0) == Hold(1_000, True, BUG)
    assert core.start(1_000) is of_batch
    assert core.finished(of_batch, Failed(BUG), 1_000) == RetryLetter(700_000, BUG)


def test_jobs_that_may_not_start_are_removed_with_the_jobs_behind_them() -> None:
    core = core_of(Order.KEY, concurrency=2, prefetch=10)
    jobs = {each: job(each, each[0]) for each in ("a1", "b1", "a2", "b2", "c1", "a3")}
    for each in jobs.values():
        core.received(each, 0)
    running = core.start(0)
    assert running is jobs["a1"]
    removed = core.keep(lambda each: each.message in ("a2", "b2", "a3"))
    assert [each.message for each in removed] == ["b1", "b2", "c1"]
    assert core.finished(running, Succeeded(), 0) == Ack()
    assert core.start(0) is None  # "a1" is not settled
    core.settled(running, 0)
    assert [run_next(core, 0)[0] for _ in range(3)] == ["a2", "a3", None]
    assert len(core) == 0
