"""Exclusive and Failover: the active consumer, rewinds, epochs and cumulative acks."""

from __future__ import annotations

import pytest
from broker_rules_kit import EXCLUSIVE, FAILOVER, Bench

from pulsar_encore.devbroker.rules.attached_consumers import NoticeKind, SubscribedConsumer
from pulsar_encore.devbroker.rules.refusal import Refusal


def test_a_second_exclusive_consumer_is_refused_as_busy() -> None:
    bench = Bench(EXCLUSIVE)
    bench.join("a")
    with pytest.raises(Refusal, match="ConsumerBusy"):
        bench.join("b")


def test_redeliver_rewinds_regardless_of_ids_and_does_not_raise_counts() -> None:
    bench = Bench(EXCLUSIVE)
    bench.publish(4)
    a = bench.join("a", permits=100)
    bench.deliver()
    bench.ack(1)
    bench.nack(a, 3)
    assert bench.deliver() == [("a", 0, 0, None), ("a", 2, 0, None), ("a", 3, 0, None)]


ALL = list(range(1500))


class Race(Bench):
    """An Exclusive consumer that was sent 700 of 1,500 entries, in blocks of a ms each."""

    def __init__(self, overtaken: float, seed: int = 0) -> None:
        super().__init__(EXCLUSIVE, rewind_overtaken=overtaken, rewind_seed=seed, per_ledger=10_000)
        self.publish(len(ALL))
        self.a = self.join("a", permits=700)
        assert self.sequence() == ALL[:700]

    def sequence(self) -> list[int]:
        """Return the numbers of all entries that are delivered, until no more follow."""
        seqs: list[int] = []
        while True:
            seqs += [seq for _, seq, *_ in self.deliver()]
            if self.sub.wake_ms(self.now_ms) is None:
                return seqs
            self.now_ms += 1

    def rewind(self, permits: int) -> list[int]:
        """Return the deliveries after a REDELIVER during a read of `permits`, with enough FLOW."""
        if permits:
            self.sub.flow(self.a, permits)
        self.sub.redeliver(self.a)
        self.sub.flow(self.a, 10_000)
        return self.sequence()


@pytest.mark.parametrize("permits", [1, 50, 100, 1000])
def test_a_rewind_during_a_read_skips_to_the_end_of_the_read(permits: int) -> None:
    skipped_from = set()
    for seed in range(10):
        got = Race(1, seed).rewind(permits)
        end = 700 + min(permits, 100)  # the end of the read in progress
        skipped = sorted(set(ALL) - set(got))
        assert got == [seq for seq in ALL if seq not in skipped]
        assert skipped == list(range(skipped[0], end))
        skipped_from.add(skipped[0])
    # The read in progress completes after one to six of the new reads.
    assert skipped_from <= {100, 200, 300, 400, 500, 600} and len(skipped_from) > 3


def test_a_rewind_without_outstanding_permits_skips_nothing() -> None:
    assert Race(1).rewind(permits=0) == ALL


def test_a_rewind_after_all_deliveries_skips_nothing() -> None:
    race = Race(1)
    race.sub.flow(race.a, 10_000)
    race.sequence()
    race.sub.redeliver(race.a)
    assert race.sequence() == ALL


def test_another_rewind_or_consumer_gets_the_skipped_entries() -> None:
    race = Race(1)
    assert race.rewind(100) != ALL
    race.sub.redeliver(race.a)
    assert race.sequence() == ALL
    race = Race(1)
    assert race.rewind(100) != ALL
    race.sub.remove_consumer(race.a, race.now_ms)
    race.join("b", permits=10_000)
    assert race.sequence() == ALL


def test_the_late_read_completes_while_permits_are_out() -> None:
    race = Race(1)
    race.sub.flow(race.a, 100)
    race.sub.redeliver(race.a)
    assert race.sequence() == list(range(100))
    race.sub.flow(race.a, 100)
    assert race.sequence() == list(range(800, 900))


def test_a_setting_and_the_seed_decide_which_rewinds_meet_a_read() -> None:
    def whole(share: float) -> list[bool]:
        return [Race(share, seed).rewind(100) == ALL for seed in range(30)]

    assert (whole(0), whole(1)) == ([True] * 30, [False] * 30)
    assert 5 < sum(whole(0.5)) < 25
    assert whole(0.5) == whole(0.5)


def test_permits_count_entries_within_one_read() -> None:
    bench = Bench(EXCLUSIVE)
    bench.publish(100, batch=10)
    a = bench.join("a", permits=20)
    assert (len(bench.deliver()), a.permits) == (20, -180)
    bench.sub.flow(a, 180)
    assert bench.deliver() == []
    bench.sub.flow(a, 15)
    assert (len(bench.deliver()), a.permits) == (15, -135)


def test_the_epoch_only_grows() -> None:
    bench = Bench(EXCLUSIVE)
    a = bench.join("a", epoch=2)
    bench.sub.redeliver(a, None, 3)
    assert a.epoch == 3
    bench.sub.redeliver(a, None, 1)
    assert a.epoch == 3


def test_a_cumulative_ack_applies_its_ack_set() -> None:
    bench = Bench(EXCLUSIVE)
    bench.publish(4, batch=4)
    bench.ack(2)
    bench.sub.ack_cumulative(*bench.id(1), 0b1100)
    bench.join("a", permits=100)
    assert bench.deliver() == [("a", 1, 0, 0b1100), ("a", 3, 0, None)]
    bench.sub.ack_cumulative(*bench.id(1))
    assert bench.sub.backlog == 1
    bench.sub.ack_cumulative(*bench.id(0))
    assert bench.sub.backlog == 1


def test_without_index_acks_a_cumulative_ack_set_acks_the_entries_before() -> None:
    bench = Bench(EXCLUSIVE, batch_index_ack=False)
    bench.publish(3, batch=4)
    bench.sub.ack_cumulative(*bench.id(1), 0b1100)
    assert bench.sub.backlog == 2


def test_partial_acks_survive_a_reopen() -> None:
    bench = Bench(EXCLUSIVE)
    bench.publish(batch=4)
    a = bench.join("a", permits=10)
    bench.deliver()
    bench.ack(0, 0b1000)
    bench.sub.remove_consumer(a, 0)
    b = bench.join("b", permits=10)
    assert bench.deliver() == [("b", 0, 0, 0b1000)]
    assert b.permits == 9


def test_failover_chooses_by_partition_and_priority() -> None:
    for partition, expected in ((0, "a"), (1, "b"), (2, "a")):
        bench = Bench(FAILOVER, partition=partition)
        bench.join("b")
        bench.join("z", priority=1)
        bench.join("a")
        assert bench.sub.active is not None and bench.sub.active.name == expected


def test_failover_without_partitions_does_not_depend_on_the_order_of_arrival() -> None:
    chosen = set()
    for names in (["x", "y", "z"], ["z", "x", "y"]):
        bench = Bench(FAILOVER)
        for name in names:
            bench.join(name)
        assert bench.sub.active is not None
        chosen.add(bench.sub.active.name)
    assert len(chosen) == 1


def test_failover_redelivers_unacked_entries_and_notifies_every_consumer() -> None:
    bench = Bench(FAILOVER, partition=0, failover_delay_ms=1000)
    bench.publish(3)
    a, b = SubscribedConsumer("a"), SubscribedConsumer("b")
    notices = bench.sub.add_consumer(a, FAILOVER, 0)
    assert notices == [(a, NoticeKind.ACTIVE)]
    notices = bench.sub.add_consumer(b, FAILOVER, 0)
    assert notices == [(b, NoticeKind.STANDBY)]
    for consumer in (a, b):
        bench.sub.flow(consumer, 10)
    assert bench.deliver() == []
    assert bench.sub.wake_ms(0) == 1000
    bench.now_ms = 1000
    assert [got[:2] for got in bench.deliver()] == [("a", 0), ("a", 1), ("a", 2)]
    bench.ack(0)
    assert bench.sub.remove_consumer(a, 1000) == [(b, NoticeKind.ACTIVE)]
    assert bench.deliver() == []
    bench.now_ms = 2000
    assert [got[:2] for got in bench.deliver()] == [("b", 1), ("b", 2)]


def test_a_standby_consumer_can_only_ack() -> None:
    bench = Bench(FAILOVER, partition=0)
    bench.publish(2)
    bench.join("a", permits=10)
    b = bench.join("b", permits=10)
    bench.deliver()
    bench.nack(b, 0)
    assert bench.deliver() == []
    bench.ack(0)
    assert bench.sub.backlog == 1


def test_a_seek_closes_only_the_active_consumer() -> None:
    bench = Bench(FAILOVER, partition=0)
    bench.publish(3)
    a = bench.join("a", permits=10)
    b = bench.join("b", permits=10)
    bench.deliver()
    for seq in range(3):
        bench.ack(seq)
    closed, notices = bench.sub.seek(1, 0)
    assert closed == [a]
    assert notices == [(b, NoticeKind.ACTIVE)]
    assert [got[:2] for got in bench.deliver()] == [("b", 1), ("b", 2)]
