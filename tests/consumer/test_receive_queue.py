"""The receive queue: its steps grow with the moved messages, and it serves waiters in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from consumer_kit import TOPIC, Subscribe, payloads, put_numbers, receive_all

from pulsar_encore import BatchReceivePolicy, Consumer, ConsumerType, MessageId, ReceiveTimeout
from pulsar_encore.consumer.consumer_factory import assemble, open_transport_consumer
from pulsar_encore.consumer.delivery import receive_queue
from pulsar_encore.options import ConsumerOptions, InitialPosition
from pulsar_encore.testing import MemoryTransport, VirtualClockLoop

# Linear, by counting


class Steps:
    """How often queued deliveries were looked at, and compared, and those who wait compared."""

    def __init__(self) -> None:
        self.count = 0


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    counted = Steps()

    def counting(plain: Any) -> Any:
        class Counted(plain):
            def __getattribute__(self, name: str) -> Any:
                counted.count += 1
                return super().__getattribute__(name)

            def __eq__(self, other: object) -> bool:
                counted.count += 1
                return self is other

            __hash__ = object.__hash__

        return Counted

    class CountedFuture(asyncio.Future[Any]):
        def __eq__(self, other: object) -> bool:
            counted.count += 1
            return self is other

        __hash__ = object.__hash__

    def create_future(loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
        return CountedFuture(loop=loop)

    for name in ("QueuedDelivery", "QueuedRun"):
        monkeypatch.setattr(receive_queue, name, counting(getattr(receive_queue, name)))
    monkeypatch.setattr(VirtualClockLoop, "create_future", create_future)
    yield counted


async def queued(count: int, policy: BatchReceivePolicy) -> Consumer:
    """A consumer with `count` messages queued, each an entry of its own."""
    transport = MemoryTransport()
    put_numbers(transport, count)
    options = ConsumerOptions(
        topics=(TOPIC,),
        pattern=None,
        subscription_name="s",
        consumer_type=ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        receiver_queue_size=count,
        batch_receive_policy=policy,
    )
    consumer = Consumer(assemble(await open_transport_consumer(transport, options), options))
    while consumer.statistics().queued < count:
        await asyncio.sleep(0.01)
    return consumer


async def close(consumer: Consumer) -> None:
    await consumer.close()


async def seek(consumer: Consumer) -> None:
    await consumer.seek(MessageId.latest)


async def rewind(consumer: Consumer) -> None:
    consumer.redeliver_unacknowledged_messages()


async def take_all(consumer: Consumer) -> None:
    await receive_all(consumer, quiet_s=0)


async def take_batches(consumer: Consumer) -> None:
    while await consumer.batch_receive():
        pass


async def wait_together(consumer: Consumer) -> None:
    count = consumer.statistics().queued
    await consumer.seek(MessageId.latest)
    waiting = [asyncio.ensure_future(consumer.receive(timeout=1)) for _ in range(count)]
    await asyncio.sleep(0)
    for each in reversed(waiting[count // 2 :]):
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize(
    "doing",
    [close, seek, rewind, take_all, take_batches, wait_together],
    ids=lambda doing: doing.__name__,
)
async def test_steps_grow_linearly_with_the_number_of_messages(
    steps: Steps, doing: Callable[[Consumer], Awaitable[None]]
) -> None:
    counts = []
    for messages in (250, 1000):
        # By bytes, almost all queued messages in one batch: checks per message would show.
        consumer = await queued(messages, BatchReceivePolicy(-1, 3 * messages, 10))
        steps.count = 0
        await doing(consumer)
        counts.append(steps.count)
        await consumer.close()
    assert counts[1] <= 5 * counts[0] + 100, counts


async def test_a_waiting_batch_receive_takes_constant_steps_per_arriving_message(
    steps: Steps,
) -> None:
    counts = []
    for messages in (250, 1000):
        transport = MemoryTransport()
        options = ConsumerOptions(
            topics=(TOPIC,),
            pattern=None,
            subscription_name="s",
            receiver_queue_size=messages,
            batch_receive_policy=BatchReceivePolicy(messages, 1_000_000, 0),
        )
        consumer = Consumer(assemble(await open_transport_consumer(transport, options), options))
        waiting = asyncio.ensure_future(consumer.batch_receive())
        await asyncio.sleep(0)
        steps.count = 0
        for _ in range(messages):
            transport.put(TOPIC, b"x")
            await asyncio.sleep(0.001)
        assert len(await waiting) == messages
        counts.append(steps.count)
        await consumer.close()
    assert counts[1] <= 5 * counts[0] + 100, counts


# In line


async def arrived(consumer: Consumer) -> None:
    """Return as soon as a message is queued; the waiter woken for it has not run yet."""
    while not consumer.statistics().queued:
        await asyncio.sleep(0)


async def test_a_new_receive_does_not_overtake_one_that_was_woken(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer = await subscribe()
    first = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    transport.put(TOPIC, b"x")
    await arrived(consumer)
    assert not first.done()
    with pytest.raises(ReceiveTimeout):
        await consumer.receive(timeout=1)
    assert (await first).data() == b"x"


async def test_a_receive_woken_for_a_settled_message_keeps_its_place(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer = await subscribe()
    first = asyncio.ensure_future(consumer.receive())
    second = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    (message_id,) = transport.put(TOPIC, b"settled while queued")
    await arrived(consumer)
    await consumer.acknowledge(message_id)
    await asyncio.sleep(0.1)
    transport.put(TOPIC, b"x")
    assert (await asyncio.wait_for(first, 1)).data() == b"x"
    assert not second.done()
    second.cancel()


async def test_batch_receive_goes_on_waiting_when_all_queued_messages_are_settled(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    ids = [*transport.put(TOPIC, b"0"), *transport.put(TOPIC, b"1")]
    consumer = await subscribe(batch_receive_policy=BatchReceivePolicy(2, -1, 0))
    await asyncio.sleep(0.1)
    await consumer.acknowledge(ids)
    waiting = asyncio.ensure_future(consumer.batch_receive())
    await asyncio.sleep(1)
    assert not waiting.done()
    transport.put(TOPIC, b"2", b"3")
    assert payloads(await waiting) == [b"2", b"3"]


async def test_the_byte_limit_of_a_batch_counts_only_the_messages_it_takes(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    ids = transport.put(TOPIC, b"settled while queued", b"1234", b"5678", b"9")
    consumer = await subscribe(batch_receive_policy=BatchReceivePolicy(-1, 8, 100))
    await asyncio.sleep(0.1)
    await consumer.acknowledge(ids[0])
    assert payloads(await consumer.batch_receive()) == [b"1234", b"5678"]
    assert payloads(await consumer.batch_receive()) == [b"9"]


@pytest.mark.parametrize("seed", range(40))
async def test_batch_receive_returns_the_messages_that_single_receives_return(
    transport: MemoryTransport, subscribe: Subscribe, seed: int
) -> None:
    """Of two subscriptions with the same messages settled while queued, or received before."""
    dice = random.Random(seed)
    ids: list[MessageId] = []
    for _ in range(dice.randint(1, 5)):
        ids += transport.put(TOPIC, *(b"%d" % each for each in range(dice.choice([1, 3, 250]))))
    settled = dice.sample(ids, k=dice.choice([0, 0, 1, len(ids) // 2]))
    most, first = dice.choice([1, 2, 120, 1000]), dice.choice([0, 1, 2, 101])
    taken: list[list[bytes]] = []
    for name in ("one by one", "in batches"):
        consumer = await subscribe(
            subscription_name=name, batch_receive_policy=BatchReceivePolicy(most, -1, 5)
        )
        await asyncio.sleep(0.1)
        await consumer.acknowledge(settled)
        got = [await consumer.receive() for _ in range(min(first, len(ids) - len(settled)))]
        if name == "one by one":
            got += await receive_all(consumer, quiet_s=0.1)
        else:
            while batch := await consumer.batch_receive():
                assert len(batch) <= most
                got += batch
        taken.append(payloads(got))
        await consumer.acknowledge(got)
        assert consumer.statistics().unacked == 0
    assert taken[0] == taken[1]
    assert len(taken[0]) == len(ids) - len(settled)


POLICIES = [
    None,
    BatchReceivePolicy(1, -1, 0),
    BatchReceivePolicy(3, -1, 20),
    BatchReceivePolicy(10, 9, 1),
    BatchReceivePolicy(-1, 4, 0),
    BatchReceivePolicy(-1, -1, 20),
]


@pytest.mark.parametrize("seed", range(60))
async def test_any_mix_of_calls_loses_no_message_and_leaves_no_receive_waiting(
    transport: MemoryTransport, subscribe: Subscribe, seed: int
) -> None:
    """Waiting, timed, cancelled and batched calls from several tasks, beside arrivals."""
    dice = random.Random(seed)
    consumer = await subscribe(
        receiver_queue_size=dice.choice([1, 2, 5, 30, 1000]),
        batch_receive_policy=dice.choice(POLICIES),
    )
    tasks: list[asyncio.Future[Any]] = []
    sent = 0
    for _ in range(120):
        step = dice.choice(
            ["put", "put", "receive", "receive", "timed", "batch", "cancel", "pass", "sleep", "ask"]
        )
        if step == "put":
            count = dice.choice([1, 1, 2, 7])
            transport.put(TOPIC, *(b"%d" % (sent + each) for each in range(count)))
            sent += count
        elif step == "receive":
            tasks.append(asyncio.ensure_future(consumer.receive()))
        elif step == "timed":
            tasks.append(
                asyncio.ensure_future(consumer.receive(timeout=dice.choice([0, 0.001, 0.01])))
            )
        elif step == "batch":
            tasks.append(asyncio.ensure_future(consumer.batch_receive()))
        elif step == "cancel" and tasks:
            dice.choice(tasks).cancel()
        elif step == "pass":
            await asyncio.sleep(0)
        elif step == "sleep":
            await asyncio.sleep(dice.choice([0.001, 0.005]))
        elif step == "ask":
            task = asyncio.ensure_future(consumer.receive(timeout=0))
            tasks.append(task)
            await asyncio.wait((task,))
    singles = asyncio.ensure_future(consumer.receive())  # one more, so that a receive does wait
    tasks.append(singles)
    await asyncio.sleep(5)
    if any(not task.done() for task in tasks) and not singles.done():
        assert consumer.statistics().queued == 0, "a receive waits and a message lies there"
    for task in tasks:
        task.cancel()
    got: list[bytes] = []
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, list):
            got += payloads(result)
        elif not isinstance(result, BaseException):
            got.append(result.data())
        else:
            assert isinstance(result, (ReceiveTimeout, asyncio.CancelledError))
    got += payloads(await receive_all(consumer))
    assert sorted(map(int, got)) == list(range(sent))
    await consumer.close()
