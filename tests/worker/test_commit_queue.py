"""Which messages of a transactional worker share a transaction: random histories, and rules."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from pulsar_encore.worker.commit_queue import CommitQueue, Handled, Transactional

KEYS = 4


def handled(number: int, *, group: str | None = None, since_ms: int = 0, size: int = 1) -> Handled:
    return Handled(None, [number], size, group, since_ms)


def numbers(group: list[Handled] | None) -> list[int] | None:
    return None if group is None else [each.results[0] for each in group]


def queue_of(*, is_ordered: bool = False, **options: float) -> CommitQueue:
    return CommitQueue(Transactional(**options), is_ordered=is_ordered)  # type: ignore[arg-type]


def always(_: Handled) -> bool:
    return True


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_each_message_ends_once_and_in_order(seed: int, is_ordered: bool) -> None:
    rng = random.Random(seed)
    queue = queue_of(is_ordered=is_ordered, max_messages=rng.randint(1, 9), max_bytes=20)
    ends: dict[int, str] = {}
    committed: dict[str | None, list[int]] = defaultdict(list)
    in_flight: list[list[Handled]] = []
    dead: set[int] = set()
    now, added = 0, 0

    def is_live(each: Handled) -> bool:
        number = each.results[0]
        if number not in dead:
            return True
        assert number not in ends, seed
        ends[number] = "lost"
        return False

    def end_one() -> None:
        group = in_flight.pop(rng.randrange(len(in_flight)))
        fate = rng.choice(["commit", "commit", "fail", "no begin", "again"])
        if fate in ("commit", "again"):
            for each in group:
                number = each.results[0]
                assert number not in ends, seed
                ends[number] = fate
                if fate == "commit":
                    committed[each.group].append(number)
            queue.ended(group)
        elif fate == "no begin":
            queue.not_begun(group, now)
        else:
            alone = queue.not_committed(group)
            assert (alone is not None) == (len(group) == 1)
            if alone is not None and rng.random() < 0.5:
                queue.wait(alone, now + rng.randrange(40))
            elif alone is not None:
                ends[alone.results[0]] = "settled"
                queue.done(alone)

    while added < 80 or not queue.is_idle:
        now += rng.randrange(40)
        if added < 80 and rng.random() < 0.7:
            key = f"k{rng.randrange(KEYS)}" if is_ordered else None
            queue.add(handled(added, group=key, since_ms=now, size=rng.randrange(6)))
            added += 1
        if rng.random() < 0.05 and added:
            dead.add(rng.randrange(added))
        while (group := queue.take(now, is_live, flush=added == 80)) is not None:
            in_flight.append(group)
            running = [each.results[0] for group in in_flight for each in group]
            assert len(running) == len(set(running))
            assert len(in_flight) <= (1 if is_ordered else 4)
        if in_flight and rng.random() < 0.6:
            end_one()
        if not in_flight and added == 80 and not queue.is_idle:
            due = queue.next_due_ms(now, flush=True)
            assert due is not None, f"seed {seed}: {len(queue)} messages wait for nothing"
            now = max(now, due)
    assert sorted(ends) == list(range(80)), seed
    assert queue.bytes == 0
    if is_ordered:
        assert all(of_key == sorted(of_key) for of_key in committed.values()), seed


def test_a_group_waits_for_its_size_or_its_time() -> None:
    queue = queue_of(max_messages=3, max_delay=0.05)
    queue.add(handled(1, since_ms=100))
    assert queue.take(149, always) is None
    assert queue.next_due_ms(149) == 150
    assert numbers(queue.take(150, always)) == [1]
    for number in (2, 3, 4, 5):
        queue.add(handled(number, since_ms=200))
    assert numbers(queue.take(200, always)) == [2, 3, 4]
    assert queue.take(200, always) is None
    assert numbers(queue.take(200, always, flush=True)) == [5]


def test_a_group_ends_with_its_bytes() -> None:
    queue = queue_of(max_bytes=10)
    for number in (1, 2, 3):
        queue.add(handled(number, size=6))
    assert numbers(queue.take(0, always)) == [1, 2]
    assert queue.take(0, always) is None


def test_results_of_a_key_wait_behind_its_failed_message() -> None:
    queue = queue_of(is_ordered=True, max_messages=4)
    for number, key in ((1, "a"), (2, "a"), (3, "b"), (4, "a")):
        queue.add(handled(number, group=key))
    group = queue.take(0, always)
    assert group is not None
    queue.not_committed(group)
    group = queue.take(0, always)
    assert numbers(group) == [1, 2]
    queue.not_committed(group or [])
    group = queue.take(0, always)
    assert numbers(group) == [1]
    alone = queue.not_committed(group or [])
    assert alone is not None
    queue.wait(alone, 500)
    group = queue.take(0, always)
    assert numbers(group) == [3]
    queue.ended(group or [])
    assert queue.take(499, always) is None
    group = queue.take(500, always)
    assert numbers(group) == [1]
    queue.ended(group or [])
    assert numbers(queue.take(500, always, flush=True)) == [2, 4]


def test_the_pause_grows_while_no_transaction_can_begin() -> None:
    queue = queue_of()
    queue.add(handled(1))
    now, pauses = 1_000, []
    for _ in range(8):
        group = queue.take(now, always, flush=True)
        assert group is not None
        queue.not_begun(group, now)
        assert queue.take(now, always, flush=True) is None
        due = queue.next_due_ms(now, flush=True)
        assert due is not None
        pauses.append(due - now)
        now = due
    assert pauses == [100, 200, 400, 800, 1600, 3200, 5000, 5000]
