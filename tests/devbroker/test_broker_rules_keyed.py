"""Key_Shared: the consumer of each key. Two consumers never hold the same key."""

from __future__ import annotations

import pytest
from broker_rules_kit import KEY_SHARED, Bench

from pulsar_encore.devbroker.rules.attached_consumers import SubscribedConsumer
from pulsar_encore.devbroker.rules.key_ranges import AutoSplit, StickyRanges
from pulsar_encore.devbroker.rules.refusal import Refusal
from pulsar_encore.wire.key_hashes import murmur3


def test_a_key_stays_with_one_consumer_and_every_consumer_gets_keys() -> None:
    bench = Bench(KEY_SHARED)
    for i in range(400):
        bench.publish(key=b"k%d" % (i % 40))
    for name in ("a", "b", "c"):
        bench.join(name, permits=1000)
    owners: dict[bytes, set[str]] = {}
    for name, seq, _, _ in bench.deliver():
        owners.setdefault(bench.topic.at(seq).key, set()).add(name)
    assert all(len(names) == 1 for names in owners.values())
    assert set().union(*owners.values()) == {"a", "b", "c"}
    assert len(owners) == 40


def test_a_key_waits_for_its_consumer_and_other_keys_do_not() -> None:
    bench = Bench(KEY_SHARED)
    for i in range(100):
        bench.publish(key=b"k%d" % i)
    a = bench.join("a")
    bench.join("b", permits=1000)
    first = bench.deliver()
    assert {got[0] for got in first} == {"b"}
    bench.sub.flow(a, 1000)
    second = bench.deliver()
    assert {got[0] for got in second} == {"a"}
    assert len(first) + len(second) == 100


def test_a_key_moves_only_after_its_old_holder_has_settled_it() -> None:
    bench = Bench(KEY_SHARED)
    for _ in range(2):
        for i in range(50):
            bench.publish(key=b"k%d" % i)
    a = bench.join("a", permits=50)
    held = [seq for _, seq, _, _ in bench.deliver()]
    bench.join("b", permits=1000)
    a.permits = 1000
    moved_early = {bench.topic.at(seq).key for name, seq, *_ in bench.deliver() if name == "b"}
    assert moved_early == set()
    for seq in held:
        bench.ack(seq)
    moved = [seq for name, seq, *_ in bench.deliver() if name == "b"]
    assert moved and min(moved) >= 50


def test_a_closed_consumer_hands_over_its_keys_in_order() -> None:
    bench = Bench(KEY_SHARED)
    for i in range(60):
        bench.publish(key=b"k%d" % (i % 6))
    a = bench.join("a", permits=10)
    bench.join("b", permits=1000)
    bench.deliver()
    bench.sub.remove_consumer(a, 0)
    seqs = [seq for _, seq, *_ in bench.deliver()]
    assert seqs == sorted(seqs)
    assert bench.sub.consumers[0].unacked == 60


def test_sticky_ranges_choose_the_consumer_and_an_uncovered_key_waits() -> None:
    bench = Bench(KEY_SHARED)
    low = SubscribedConsumer("low", ranges=[(0, 20_000)])
    bench.sub.add_consumer(low, KEY_SHARED, 0, sticky=True)
    bench.sub.flow(low, 1000)
    for i in range(50):
        bench.publish(key=b"k%d" % i)
    got = bench.deliver()
    assert 0 < len(got) < 50
    assert all(StickyRanges.slot(bench.topic.at(seq).key_hash) <= 20_000 for _, seq, *_ in got)
    high = SubscribedConsumer("high", ranges=[(20_001, 65_535)])
    bench.sub.add_consumer(high, KEY_SHARED, 0, sticky=True)
    bench.sub.flow(high, 1000)
    rest = bench.deliver()
    assert len(got) + len(rest) == 50
    assert {name for name, *_ in rest} == {"high"}


@pytest.mark.parametrize("ranges", [[], [(5, 4)], [(0, 70_000)], [(100, 300)], [(0, 5), (5, 9)]])
def test_invalid_sticky_ranges_are_refused(ranges: list[tuple[int, int]]) -> None:
    bench = Bench(KEY_SHARED)
    first = SubscribedConsumer("a", ranges=[(200, 400)])
    bench.sub.add_consumer(first, KEY_SHARED, 0, sticky=True)
    with pytest.raises(Refusal, match="ConsumerAssignError"):
        bench.sub.add_consumer(SubscribedConsumer("b", ranges=ranges), KEY_SHARED, 0, sticky=True)


def test_key_shared_modes_cannot_be_mixed() -> None:
    bench = Bench(KEY_SHARED)
    bench.sub.add_consumer(SubscribedConsumer("a", ranges=[(0, 9)]), KEY_SHARED, 0, sticky=True)
    with pytest.raises(Refusal, match="ConsumerBusy"):
        bench.join("b")


def test_equal_names_share_the_ring() -> None:
    layout = AutoSplit([SubscribedConsumer("same"), SubscribedConsumer("same")])
    owners = {id(layout.owner(slot)) for slot in range(1, 65_535, 97)}
    assert len(owners) == 2


def test_permits_count_entries_within_one_read() -> None:
    bench = Bench(KEY_SHARED)
    bench.publish(300, batch=10)
    a = bench.join("a", permits=20)
    assert (len(bench.deliver()), a.permits) == (20, -180)
    bench.sub.flow(a, 195)
    assert (len(bench.deliver()), a.permits) == (15, -135)
    bench.sub.flow(a, 1000)
    assert (len(bench.deliver()), a.permits) == (100, -135)


def test_reading_ahead_is_bounded() -> None:
    bench = Bench(KEY_SHARED, look_ahead=50)
    for _ in range(500):
        bench.publish(key=b"one")
    bench.join("a")
    bench.join("b")
    owner = AutoSplit(bench.sub.consumers).owner(AutoSplit.slot(murmur3(b"one")))
    other = next(c for c in bench.sub.consumers if c is not owner)
    bench.sub.flow(other, 100)
    assert bench.deliver() == []
    assert owner is not None and len(owner.queue) == 50
