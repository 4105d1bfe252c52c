"""Permits, ack sets, redelivery counts and limits of Shared, with figures from real Pulsar."""

from __future__ import annotations

import pytest
from broker_rules_kit import EXCLUSIVE, SHARED, Bench

from pulsar_encore.devbroker.rules.refusal import Refusal


def test_an_entry_is_sent_and_charged_whole() -> None:
    bench = Bench()
    bench.publish(3, batch=10)
    consumer = bench.join("a", permits=1)
    assert bench.deliver() == [("a", 0, 0, None)]
    assert consumer.permits == -9
    bench.sub.flow(consumer, 5)
    assert bench.deliver() == []
    bench.sub.flow(consumer, 5)
    assert bench.deliver() == [("a", 1, 0, None)]
    assert consumer.permits == -9


def test_a_redelivered_entry_costs_its_unacked_messages() -> None:
    bench = Bench()
    bench.publish(batch=10)
    consumer = bench.join("a", permits=20)
    bench.deliver()
    bench.ack(0, 0b11_1111_1100)
    bench.nack(consumer, 0)
    assert bench.deliver() == [("a", 0, 1, 0b11_1111_1100)]
    assert consumer.permits == 20 - 10 - 8


def test_ack_sets_are_combined_and_an_empty_one_acks_the_entry() -> None:
    bench = Bench()
    bench.publish(batch=4)
    consumer = bench.join("a", permits=100)
    bench.deliver()
    bench.ack(0, 0b1110)
    bench.ack(0, 0b1011)
    assert consumer.unacked == 2
    bench.nack(consumer, 0)
    assert bench.deliver() == [("a", 0, 1, 0b1010)]
    bench.ack(0, 0b0101)
    assert bench.sub.backlog == 0
    assert consumer.unacked == 0


def test_an_empty_ack_set_and_a_missing_one_ack_a_plain_entry() -> None:
    bench = Bench()
    bench.publish(2)
    bench.ack(0, 0)
    bench.ack(1)
    assert bench.sub.backlog == 0


def test_ack_sets_are_ignored_when_index_acks_are_off() -> None:
    bench = Bench(batch_index_ack=False)
    bench.publish(batch=2)
    consumer = bench.join("a", permits=10)
    bench.deliver()
    bench.ack(0, 0b10)
    bench.nack(consumer, 0)
    assert bench.deliver() == [("a", 0, 1, None)]


def test_acks_of_unknown_future_and_acked_entries_are_ignored() -> None:
    bench = Bench()
    bench.publish(2)
    for place in [(7, 99), (1, 0), (2**64 - 1, 2**64 - 1)]:
        bench.sub.ack(*place)
    bench.ack(0)
    bench.ack(0)
    assert bench.sub.backlog == 1


def test_only_a_nack_of_the_holder_raises_the_redelivery_count() -> None:
    bench = Bench()
    bench.publish()
    a = bench.join("a", permits=10)
    bench.deliver()
    b = bench.join("b", permits=10)
    bench.nack(b, 0)
    assert bench.deliver() == []
    a.permits = 0
    for expected in (1, 2, 3):
        bench.nack(a if expected == 1 else b, 0, 0)
        assert bench.deliver() == [("b", 0, expected, None)]


def test_closing_a_consumer_keeps_counts_while_another_stays() -> None:
    bench = Bench()
    bench.publish()
    a = bench.join("a", permits=10)
    bench.deliver()
    bench.nack(a, 0)
    bench.deliver()
    b = bench.join("b", permits=10)
    bench.sub.remove_consumer(a, 0)
    assert bench.deliver() == [("b", 0, 1, None)]
    bench.sub.remove_consumer(b, 0)
    bench.join("c", permits=10)
    assert bench.deliver() == [("c", 0, 0, None)]


@pytest.mark.parametrize(("reset", "expected"), [(True, 1), (False, 4)])
def test_a_partial_ack_resets_the_count_if_configured(reset: bool, expected: int) -> None:
    bench = Bench(reset_count_on_partial_ack=reset)
    bench.publish(batch=4)
    consumer = bench.join("a", permits=1000)
    bench.deliver()
    for _ in range(3):
        bench.nack(consumer, 0)
        bench.deliver()
    bench.ack(0, 0b1110)
    bench.nack(consumer, 0)
    assert bench.deliver() == [("a", 0, expected, 0b1110)]


def test_the_count_of_a_poison_message_in_a_batch_matches_pulsar() -> None:
    """In a batch of 4, one message is always nacked.

    Its siblings are acked at counts 1 and 2. The counts are 0, 1, 1, 2, 1.
    """
    bench = Bench()
    bench.publish(batch=4)
    consumer = bench.join("a", permits=1000)
    seen = [bench.deliver()[0][2]]
    for mask in (None, 0b0111, None, 0b0011):
        if mask is not None:
            bench.ack(0, mask)
        bench.nack(consumer, 0)
        seen.append(bench.deliver()[0][2])
    assert seen == [0, 1, 1, 2, 1]


def test_an_empty_redeliver_requests_everything_that_is_held() -> None:
    bench = Bench()
    bench.publish(3)
    a = bench.join("a", permits=3)
    bench.deliver()
    bench.sub.redeliver(a, [])
    bench.sub.flow(a, 3)
    assert bench.deliver() == [("a", 0, 1, None), ("a", 1, 1, None), ("a", 2, 1, None)]


def test_redelivery_is_in_order_of_ids_and_before_new_entries() -> None:
    bench = Bench()
    bench.publish(4)
    a = bench.join("a", permits=3)
    bench.deliver()
    bench.nack(a, 2, 0, 2)
    bench.sub.flow(a, 3)
    assert [got[1] for got in bench.deliver()] == [0, 2, 3]


def test_an_ack_by_another_consumer_releases_the_entry() -> None:
    bench = Bench()
    bench.publish(batch=5)
    a = bench.join("a", permits=10)
    bench.deliver()
    bench.join("b")
    bench.ack(0)
    assert a.unacked == 0
    assert bench.sub.backlog == 0


def test_a_consumer_stops_at_its_unacked_limit_and_continues_at_half() -> None:
    bench = Bench(max_unacked_per_consumer=10)
    bench.publish(20)
    a = bench.join("a", permits=100)
    assert len(bench.deliver()) == 10
    for seq in range(4):
        bench.ack(seq)
    assert bench.deliver() == []
    bench.ack(4)
    assert len(bench.deliver()) == 5
    bench.nack(a, *range(5, 15))
    assert len(bench.deliver()) == 10


def test_the_unacked_limit_is_checked_after_sending() -> None:
    bench = Bench(max_unacked_per_consumer=10)
    bench.publish(3, batch=9)
    consumer = bench.join("a", permits=100)
    assert len(bench.deliver()) == 2
    assert consumer.unacked == 18


def test_the_limit_of_the_subscription_stops_every_consumer() -> None:
    bench = Bench(max_unacked_per_subscription=10)
    bench.publish(40)
    bench.join("a", permits=100)
    bench.join("b", permits=100)
    assert len(bench.deliver()) == 10
    for seq in range(5):
        bench.ack(seq)
    assert len(bench.deliver()) == 5


def test_a_non_durable_subscription_has_no_unacked_limit() -> None:
    bench = Bench(max_unacked_per_consumer=2)
    bench.sub.durable = False
    bench.publish(5)
    bench.join("a", permits=100)
    assert len(bench.deliver()) == 5


def test_round_robin_gives_each_consumer_twenty_entries() -> None:
    bench = Bench()
    bench.publish(60)
    bench.join("a", permits=100)
    bench.join("b", permits=100)
    names = [got[0] for got in bench.deliver()]
    assert names == ["a"] * 20 + ["b"] * 20 + ["a"] * 20


def test_round_robin_applies_to_single_entries_too() -> None:
    bench = Bench()
    bench.join("a", permits=100)
    bench.join("b", permits=100)
    names = []
    for _ in range(6):
        bench.publish()
        names += [got[0] for got in bench.deliver()]
    assert names == ["a", "b"] * 3


def test_a_lower_priority_gets_entries_when_the_higher_has_no_permits() -> None:
    bench = Bench()
    bench.publish(30)
    bench.join("low", permits=100, priority=1)
    bench.join("high", permits=5, priority=0)
    names = [got[0] for got in bench.deliver()]
    assert names.count("high") == 5
    assert names[:5] == ["high"] * 5


def test_an_unwritable_consumer_is_skipped() -> None:
    bench = Bench()
    bench.publish(3)
    bench.join("a", permits=10, writable=False)
    bench.join("b", permits=10)
    assert {got[0] for got in bench.deliver()} == {"b"}


def test_a_cumulative_ack_is_ignored() -> None:
    bench = Bench()
    bench.publish(3)
    bench.join("a", permits=10)
    bench.deliver()
    bench.sub.ack_cumulative(*bench.id(2))
    assert bench.sub.backlog == 3


def test_a_seek_closes_every_consumer_and_is_inclusive() -> None:
    bench = Bench()
    bench.publish(5, batch=4)
    a, b = bench.join("a", permits=100), bench.join("b", permits=100)
    bench.deliver()
    for seq in range(5):
        bench.ack(seq)
    closed, _ = bench.sub.seek(2, 0, 0b1100)
    assert set(closed) == {a, b}
    bench.join("c", permits=100)
    assert bench.deliver() == [("c", 2, 0, 0b1100), ("c", 3, 0, None), ("c", 4, 0, None)]


def test_an_unload_forgets_counts_and_partial_acks() -> None:
    bench = Bench()
    bench.publish(2, batch=2)
    a = bench.join("a", permits=100)
    bench.deliver()
    bench.nack(a, 0)
    bench.ack(0, 0b10)
    bench.ack(1)
    assert bench.sub.unload() == [a]
    bench.join("a", permits=100)
    assert bench.deliver() == [("a", 0, 0, None)]


def test_a_consumer_of_another_type_cannot_join() -> None:
    bench = Bench(SHARED)
    bench.join("a")
    bench.kind = EXCLUSIVE
    with pytest.raises(Refusal, match="ConsumerBusy"):
        bench.join("b")


def test_the_end_of_the_topic_is_reported_once_after_the_last_ack() -> None:
    bench = Bench()
    bench.publish()
    a = bench.join("a", permits=1)
    bench.deliver()
    bench.topic.terminated = True
    assert bench.sub.end_of_topic() == []
    bench.ack(0)
    assert [notice.consumer for notice in bench.sub.end_of_topic()] == [a]
    assert bench.sub.end_of_topic() == []


class TestDelays:
    """Delayed delivery, with a tick of 1000 ms by default."""

    def test_a_delay_under_one_tick_is_delivered_at_once(self) -> None:
        bench = Bench()
        bench.publish(deliver_at_ms=900)
        bench.join("a", permits=1)
        assert len(bench.deliver()) == 1

    def test_a_delayed_entry_is_delivered_near_its_time(self) -> None:
        bench = Bench()
        bench.publish(deliver_at_ms=5400)
        bench.publish()
        bench.join("a", permits=9)
        assert [got[1] for got in bench.deliver()] == [1]
        wake = bench.sub.wake_ms(0)
        assert wake is not None and abs(wake - 5400) <= 500
        bench.now_ms = wake
        assert [got[1] for got in bench.deliver()] == [0]
        assert bench.sub.wake_ms(wake) is None

    def test_strict_delivery_is_never_early_and_less_than_a_tick_late(self) -> None:
        bench = Bench(delayed_strict=True, delayed_tick_ms=100)
        bench.publish(deliver_at_ms=250)
        bench.join("a", permits=9)
        assert bench.deliver() == []
        assert bench.sub.wake_ms(0) == 300
        bench.now_ms = 249
        assert bench.deliver() == []
        bench.now_ms = 250
        assert len(bench.deliver()) == 1

    def test_a_due_entry_is_redelivered_without_delay(self) -> None:
        bench = Bench()
        bench.publish(deliver_at_ms=3000)
        a = bench.join("a", permits=9)
        bench.deliver()
        bench.now_ms = 3000
        bench.deliver()
        bench.nack(a, 0)
        assert bench.deliver() == [("a", 0, 1, None)]

    def test_an_entry_acked_during_its_delay_is_not_delivered(self) -> None:
        bench = Bench()
        bench.publish(deliver_at_ms=3000)
        bench.join("a", permits=9)
        bench.deliver()
        bench.ack(0)
        bench.now_ms = 9000
        assert bench.deliver() == []

    def test_exclusive_ignores_delays_and_so_does_a_broker_with_them_off(self) -> None:
        for bench in (Bench(EXCLUSIVE), Bench(delayed_delivery=False)):
            bench.publish(deliver_at_ms=9000)
            bench.join("a", permits=1)
            assert len(bench.deliver()) == 1
