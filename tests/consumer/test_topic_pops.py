"""Pops of one topic or partition, beside those of others."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest
from consumer_kit import TOPIC, Subscribe, now_s, parts_of, settle

from pulsar_encore import ConfigurationError, Consumer, ConsumerType, Lease, ReceiveTimeout
from pulsar_encore.consumer.delivery import receive_queue as queue_module
from pulsar_encore.testing import MemoryTransport

OTHER = f"{TOPIC}2"
ORDER = pytest.mark.parametrize("ordered", [False, True])


async def consumer_of(
    subscribe: Subscribe, *topics: str, ordered: bool = False, **options: Any
) -> Consumer:
    if ordered:
        options |= {"consumer_type": ConsumerType.KeyShared, "ordered_leases": True}
    return await subscribe(*(topics or (TOPIC, OTHER)), **options)


def put(transport: MemoryTransport, topic: str, *numbers: int, batch: int = 1) -> None:
    for start in range(0, len(numbers), batch):
        part = numbers[start : start + batch]
        texts = [b"%s:%d" % (topic[-1].encode(), each) for each in part]
        transport.put(topic, *texts, key=f"k{part[0] % 3}")


def texts(leases: list[Lease]) -> list[str]:
    return [lease.message.data().decode() for lease in leases]


@ORDER
@pytest.mark.parametrize("batch", [1, 5])
async def test_a_pop_takes_from_the_topic_it_names(
    transport: MemoryTransport, subscribe: Subscribe, ordered: bool, batch: int
) -> None:
    for start in range(0, 50, 10):
        for topic in (TOPIC, OTHER):
            put(transport, topic, *range(start, start + 10), batch=batch)
    consumer = await consumer_of(subscribe, ordered=ordered, receiver_queue_size=20)
    got = []
    while leases := await consumer.pop(7, wait=1, topic=OTHER):
        got += texts(leases)
        for lease in leases:
            await lease.ack()
    assert sorted(got) == sorted(f"2:{each}" for each in range(50))
    assert got == [f"2:{each}" for each in range(50)] or ordered
    if batch == 1:
        assert consumer.statistics().queued <= 30, "what was taken occupies no room"
    rest = []
    while leases := await consumer.pop(7, wait=1):
        rest += texts(leases)
        for lease in leases:
            await lease.ack()
    assert sorted(rest) == sorted(f"t:{each}" for each in range(50))
    assert consumer.statistics().unacked == 0


@pytest.mark.parametrize("name", [TOPIC, "t", "public/default/t"])
async def test_a_pop_accepts_a_short_or_full_topic_name(
    transport: MemoryTransport, subscribe: Subscribe, name: str
) -> None:
    put(transport, TOPIC, 1)
    put(transport, OTHER, 1)
    consumer = await consumer_of(subscribe)
    assert texts(await consumer.pop(wait=1, topic=name)) == ["t:1"]


async def test_a_pop_of_a_partitioned_topic_takes_from_all_its_partitions(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    transport.catalogue.create_partitioned(TOPIC, 3)
    for partition in range(3):
        put(transport, f"{TOPIC}-partition-{partition}", partition)
    consumer = await consumer_of(subscribe, TOPIC)
    (lease,) = await consumer.pop(wait=1, topic=f"{TOPIC}-partition-1")
    assert texts([lease]) == ["1:1"]
    got: list[str] = []
    while leases := await consumer.pop(wait=1, topic=TOPIC):
        got += texts(leases)
    assert sorted(got) == ["0:0", "2:2"]
    with pytest.raises(ConfigurationError, match=r"partition-1, .*partition-2"):
        await consumer.pop(topic=f"{TOPIC}-partition-7")


@ORDER
async def test_pops_of_a_partitioned_topic_take_from_its_partitions_in_turn(
    transport: MemoryTransport, subscribe: Subscribe, ordered: bool
) -> None:
    transport.catalogue.create_partitioned(TOPIC, 3)
    for partition in range(3):
        put(transport, f"{TOPIC}-partition-{partition}", *range(50))
    consumer = await consumer_of(subscribe, TOPIC, ordered=ordered)
    await settle()
    got = Counter[str]()
    for _ in range(9):
        for lease in await consumer.pop(1, wait=1, topic=TOPIC):
            got[texts([lease])[0][0]] += 1
    assert got == {"0": 3, "1": 3, "2": 3}


@pytest.mark.parametrize("name", ["persistent://public/default/none", "none", f"{TOPIC}3"])
async def test_the_error_for_an_unread_topic_names_the_topics_that_are_read(
    subscribe: Subscribe, name: str
) -> None:
    consumer = await consumer_of(subscribe)
    with pytest.raises(ConfigurationError, match=f"does not read .*{TOPIC}, {OTHER}"):
        await consumer.pop(topic=name)


@pytest.mark.parametrize("name", ["", 3, b"t", [TOPIC]])
async def test_a_topic_that_is_no_name_is_refused(subscribe: Subscribe, name: Any) -> None:
    consumer = await consumer_of(subscribe)
    with pytest.raises(ConfigurationError, match="topic"):
        await consumer.pop(topic=name)


@ORDER
async def test_a_pop_that_waits_for_a_topic_holds_up_no_other_pop(
    transport: MemoryTransport, subscribe: Subscribe, ordered: bool
) -> None:
    consumer = await consumer_of(subscribe, ordered=ordered)
    waiting = [asyncio.ensure_future(consumer.pop(wait=1000, topic=OTHER)) for _ in range(3)]
    await settle()
    put(transport, TOPIC, 0, 1, 2)
    began = now_s()
    assert texts(await consumer.pop(1, wait=100, topic=TOPIC)) == ["t:0"]
    any_topic = await consumer.pop(1, wait=100)
    assert len(any_topic) == 1 and now_s() - began < 1
    assert not any(each.done() for each in waiting)
    put(transport, OTHER, 0)
    assert texts(await waiting[0]) == ["2:0"], "in the order of their calls"
    waiting[1].cancel()
    put(transport, OTHER, 1)
    assert texts(await waiting[2]) == ["2:1"]


@ORDER
async def test_waiting_pops_are_served_in_order_across_all_topics(
    transport: MemoryTransport, subscribe: Subscribe, ordered: bool
) -> None:
    consumer = await consumer_of(subscribe, ordered=ordered)
    first = asyncio.ensure_future(consumer.pop(1, wait=1000, topic=TOPIC))
    await settle()
    second = asyncio.ensure_future(consumer.pop(1, wait=1000))
    await settle()
    third = asyncio.ensure_future(consumer.pop(1, wait=1000, topic=TOPIC))
    await settle()
    put(transport, TOPIC, 0)
    assert texts(await first) == ["t:0"]
    assert not second.done() and not third.done()
    put(transport, TOPIC, 1)
    assert texts(await second) == ["t:1"]
    assert not third.done()
    put(transport, TOPIC, 2)
    assert texts(await third) == ["t:2"]


@ORDER
async def test_a_pop_cancelled_when_it_is_woken_takes_no_message(
    transport: MemoryTransport, subscribe: Subscribe, ordered: bool
) -> None:
    consumer = await consumer_of(subscribe, ordered=ordered)
    for number in range(10):
        cancelled = asyncio.ensure_future(consumer.pop(1, wait=1000, topic=TOPIC))
        await settle()
        heir = asyncio.ensure_future(consumer.pop(1, wait=1000))
        await settle()
        put(transport, TOPIC, number)
        while not consumer.statistics().queued:  # it arrives, and wakes
            await asyncio.sleep(0)
        cancelled.cancel()
        (lease,) = await heir
        assert lease.message.data() == b"t:%d" % number
        await lease.ack()
        assert cancelled.cancelled()


@ORDER
async def test_capacity_goes_to_the_pop_that_waits_longest(
    transport: MemoryTransport, subscribe: Subscribe, ordered: bool
) -> None:
    """A worker that acks and pops at once takes no capacity from pops that wait for it."""
    put(transport, TOPIC, *range(30))
    put(transport, OTHER, *range(30))
    consumer = await consumer_of(subscribe, ordered=ordered)
    await settle()
    (held,) = await consumer.pop(1, wait=1, topic=TOPIC)
    parts_of(consumer).leases.most = 1
    waiting = asyncio.ensure_future(consumer.pop(1, wait=1000, topic=OTHER))
    await settle()
    served = []

    async def greedy() -> None:
        lease = held
        for _ in range(5):
            await lease.ack()
            (lease,) = await consumer.pop(1, wait=1000, topic=TOPIC)
            served.append(lease)

    task = asyncio.ensure_future(greedy())
    (lease,) = await asyncio.wait_for(waiting, 10)
    assert lease.message.data() == b"2:0" and not served
    await lease.ack()
    await asyncio.wait_for(task, 10)


@ORDER
async def test_pops_of_single_topics_and_of_all_topics_get_each_message_once(
    transport: MemoryTransport, subscribe: Subscribe, ordered: bool
) -> None:
    """Random pops, cancelled at random, nacks and lost connections; receive beside them."""
    topics = [f"{TOPIC}{each}" for each in range(3)]
    rng = Random(3)
    for topic in topics:
        put(transport, topic, *range(100), batch=rng.choice([1, 3]))
    consumer = await consumer_of(
        subscribe, *topics, ordered=ordered, receiver_queue_size=10, max_leases=12
    )
    done: Counter[str] = Counter()

    async def work(topic: str | None) -> None:
        while sum(done.values()) < 300:
            pop = asyncio.ensure_future(consumer.pop(rng.randint(1, 8), wait=1, topic=topic))
            await asyncio.sleep(rng.choice([0, 0, 0.001, 2]))
            if rng.random() < 0.3:
                pop.cancel()
            try:
                leases = await pop
            except asyncio.CancelledError:
                continue
            for lease in leases:
                text = lease.message.data().decode()
                assert topic is None or text[0] == topic[-1]
                if rng.random() < 0.2:
                    await lease.nack(0)
                    break  # with a key in order, those behind it are lost
                await lease.ack()
                done[text] += 1
            for lease in leases:
                if "over" not in repr(lease):
                    await lease.nack(0)

    async def receive() -> None:
        while sum(done.values()) < 300:
            try:
                message = await consumer.receive(timeout=1)
            except ReceiveTimeout:
                continue
            await consumer.acknowledge(message)
            done[message.data().decode()] += 1

    workers = [work(topic) for topic in (*topics, *topics, None)]
    if not ordered:
        workers.append(receive())
    async with asyncio.timeout(1_000):
        await asyncio.gather(*workers)
    assert len(done) == 300 and set(done.values()) == {1}
    assert consumer.statistics().unacked == 0
    assert len(parts_of(consumer).queue) == 0


async def test_failed_messages_are_taken_first_in_one_topic_pop_of_five(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put(transport, TOPIC, *range(100))
    consumer = await consumer_of(subscribe, receiver_queue_size=200)
    (failed,) = await consumer.pop(1, wait=1, topic=TOPIC)
    await failed.nack(0)
    await asyncio.sleep(1)
    got = []
    for _ in range(5):
        got += texts(await consumer.pop(1, wait=1, topic=TOPIC))
    assert "t:0" in got


async def test_batch_receive_counts_the_messages_left_after_a_topic_pop(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put(transport, TOPIC, *range(10))
    put(transport, OTHER, *range(10))
    consumer = await consumer_of(subscribe)
    await settle()
    assert len(await consumer.pop(10, topic=OTHER)) == 10
    assert len(parts_of(consumer).queue) == 10
    assert len(await consumer.batch_receive()) == 10


@pytest.mark.parametrize(
    ("queue_per_topic", "most", "bound"), [(True, 20_000, 30), (False, 40, 70)]
)
async def test_a_waiting_topic_pop_passes_over_other_messages_where_all_topics_share_a_queue(
    transport: MemoryTransport,
    subscribe: Subscribe,
    monkeypatch: pytest.MonkeyPatch,
    queue_per_topic: bool,
    most: int,
    bound: int,
) -> None:
    monkeypatch.setattr(queue_module, "_MAX_PASSED", most)
    put(transport, TOPIC, *range(200))
    consumer = await consumer_of(subscribe, receiver_queue_size=10)
    parts_of(consumer).queue.queue_per_topic = queue_per_topic
    await settle()
    assert len(parts_of(consumer).queue) <= 20
    assert await consumer.pop(wait=1, topic=OTHER) == []
    passed = len(parts_of(consumer).queue)
    assert (passed >= most) is not queue_per_topic and passed <= bound
    put(transport, OTHER, 0)
    assert texts(await consumer.pop(wait=1, topic=OTHER)) == ["2:0"]
    got = []
    while leases := await consumer.pop(7, wait=1):
        got += texts(leases)
        for lease in leases:
            await lease.ack()
    assert got == [f"t:{each}" for each in range(200)]
