"""On Shared, all chunks of one message always go to one consumer."""

from __future__ import annotations

import pytest
from broker_rules_kit import KEY_SHARED, SHARED, Bench

from pulsar_encore.devbroker.rules.attached_consumers import SubscribedConsumer, SubscriptionType


def publish(bench: Bench, *messages: str) -> None:
    """Publish one chunk of each message with these names."""
    for message in messages:
        bench.publish(chunked=message)


def owners(bench: Bench) -> dict[str, set[str]]:
    """Return the consumers that get chunks of each message now."""
    found: dict[str, set[str]] = {}
    for name, seq, _, _ in bench.deliver():
        found.setdefault(bench.topic.at(seq).chunked, set()).add(name)
    return found


def test_interleaved_messages_go_to_one_consumer_each() -> None:
    bench = Bench(SHARED)
    publish(bench, *"abcdefgh" * 10)
    for name in ("x", "y", "z"):
        bench.join(name, permits=100)
    found = owners(bench)
    assert {len(each) for each in found.values()} == {1} and len(found) == 8


def test_later_chunks_follow_the_first() -> None:
    bench = Bench(SHARED)
    for name in ("x", "y"):
        bench.join(name, permits=100)
    publish(bench, "a")
    (first,) = owners(bench)["a"]
    for _ in range(5):
        publish(bench, "a", "b", "")
        assert owners(bench)["a"] == {first}


def test_chunks_wait_for_their_consumer_and_other_entries_do_not() -> None:
    bench = Bench(SHARED)
    x = bench.join("x", permits=1)
    publish(bench, "a")
    assert owners(bench) == {"a": {"x"}}
    bench.join("y", permits=100)
    publish(bench, "a", "b", "")
    assert owners(bench) == {"b": {"y"}, "": {"y"}}
    bench.sub.flow(x, 1)
    assert owners(bench) == {"a": {"x"}}


def test_waiting_chunks_go_to_another_consumer_when_theirs_closes() -> None:
    bench = Bench(SHARED)
    x = bench.join("x", permits=1)
    publish(bench, "a", "a", "a")
    assert owners(bench) == {"a": {"x"}}
    bench.join("y", permits=100)
    assert owners(bench) == {}
    bench.sub.remove_consumer(x, 0)
    assert [(name, seq) for name, seq, _, _ in bench.deliver()] == [("y", 0), ("y", 1), ("y", 2)]


def test_a_nacked_chunk_is_redelivered_to_the_holder_of_the_other_chunks() -> None:
    bench = Bench(SHARED)
    x = bench.join("x", permits=100)
    publish(bench, "a", "a", "a")
    bench.deliver()
    bench.join("y", permits=100)
    bench.nack(x, 2)
    assert bench.deliver() == [("x", 2, 1, None)]


def test_a_message_with_all_chunks_nacked_can_go_to_any_consumer() -> None:
    bench = Bench(SHARED)
    x = bench.join("x", permits=3)
    publish(bench, "a", "a", "a")
    bench.deliver()
    bench.join("y", permits=100)
    bench.nack(x, 0, 1, 2)
    assert bench.deliver() == [("y", seq, 1, None) for seq in range(3)]


def test_a_consumer_that_acked_all_its_chunks_is_not_waited_for() -> None:
    bench = Bench(SHARED)
    bench.join("x", permits=1)
    publish(bench, "a")
    bench.deliver()
    bench.join("y", permits=100)
    bench.ack(0)
    publish(bench, "a")
    assert owners(bench) == {"a": {"y"}}


def test_chunks_acked_while_they_wait_are_not_sent() -> None:
    bench = Bench(SHARED)
    x = bench.join("x", permits=1)
    bench.join("y", permits=100)
    publish(bench, "a", "a", "a")
    bench.deliver()
    bench.ack(1)
    bench.sub.flow(x, 100)
    assert [seq for _, seq, _, _ in bench.deliver()] == [2]


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_permits_and_counts_are_correct_with_chunks(kind: SubscriptionType) -> None:
    bench = Bench(kind)
    consumers: list[SubscribedConsumer] = [bench.join(name, permits=50) for name in ("x", "y")]
    for number in range(40):
        bench.publish(chunked=f"m{number % 5}", key=b"%d" % (number % 5))
    bench.deliver()
    for consumer in consumers:
        assert consumer.permits == 50 - len(consumer.held)
        assert consumer.unacked == len(consumer.held)
    for seq in range(40):
        bench.ack(seq)
    assert bench.sub.backlog == 0 and all(not consumer.held for consumer in consumers)
