"""Exclusive and Failover: who is active, rewinds, epochs, cumulative acks."""

from __future__ import annotations

import pytest
from broker_rules_kit import EXCLUSIVE, FAILOVER, Bench

from pulsar_encore.devbroker.consumers import Consumer, NoticeKind
from pulsar_encore.devbroker.refusal import Refusal


def test_second_exclusive_consumer_is_busy() -> None:
    bench = Bench(EXCLUSIVE)
    bench.join("a")
    with pytest.raises(Refusal, match="ConsumerBusy"):
        bench.join("b")


def test_redeliver_rewinds_whatever_ids_say_and_counts_nothing() -> None:
    bench = Bench(EXCLUSIVE)
    bench.publish(4)
    a = bench.join("a", permits=100)
    bench.deliver()
    bench.ack(1)
    bench.nack(a, 3)
    assert bench.deliver() == [("a", 0, 0, None), ("a", 2, 0, None), ("a", 3, 0, None)]


def test_epoch_is_raised_and_never_lowered() -> None:
    bench = Bench(EXCLUSIVE)
    a = bench.join("a", epoch=2)
    bench.sub.redeliver(a, None, 3)
    assert a.epoch == 3
    bench.sub.redeliver(a, None, 1)
    assert a.epoch == 3


def test_cumulative_ack_and_its_mask() -> None:
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


def test_cumulative_mask_without_index_acks_acks_the_entries_before() -> None:
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


def test_failover_by_partition_and_priority() -> None:
    for partition, expected in ((0, "a"), (1, "b"), (2, "a")):
        bench = Bench(FAILOVER, partition=partition)
        bench.join("b")
        bench.join("z", priority=1)
        bench.join("a")
        assert bench.sub.active is not None and bench.sub.active.name == expected


def test_failover_without_partitions_chooses_the_same_whoever_came_first() -> None:
    chosen = set()
    for names in (["x", "y", "z"], ["z", "x", "y"]):
        bench = Bench(FAILOVER)
        for name in names:
            bench.join(name)
        assert bench.sub.active is not None
        chosen.add(bench.sub.active.name)
    assert len(chosen) == 1


def test_failover_takes_over_what_is_not_acked_and_tells_everybody() -> None:
    bench = Bench(FAILOVER, partition=0, failover_delay_ms=1000)
    bench.publish(3)
    a, b = Consumer("a"), Consumer("b")
    told = bench.sub.add_consumer(a, FAILOVER, 0)
    assert told == [(a, NoticeKind.ACTIVE)]
    told = bench.sub.add_consumer(b, FAILOVER, 0)
    assert told == [(b, NoticeKind.STANDBY)]
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


def test_standby_is_not_obeyed_but_its_acks_count() -> None:
    bench = Bench(FAILOVER, partition=0)
    bench.publish(2)
    bench.join("a", permits=10)
    b = bench.join("b", permits=10)
    bench.deliver()
    bench.nack(b, 0)
    assert bench.deliver() == []
    bench.ack(0)
    assert bench.sub.backlog == 1


def test_seek_closes_only_the_active_one() -> None:
    bench = Bench(FAILOVER, partition=0)
    bench.publish(3)
    a = bench.join("a", permits=10)
    b = bench.join("b", permits=10)
    bench.deliver()
    for seq in range(3):
        bench.ack(seq)
    closed, told = bench.sub.seek(1, 0)
    assert closed == [a]
    assert told == [(b, NoticeKind.ACTIVE)]
    assert [got[:2] for got in bench.deliver()] == [("b", 1), ("b", 2)]
