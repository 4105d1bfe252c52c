"""Receiving through the stock engine: its native queue, the pump's room, its reader."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread, Fault, FaultPlan
from pulsar_encore.transport.stock import originals
from pulsar_encore.transport.stock import seek as seeking
from pulsar_encore.transport.stock import stock_consumer as consumer_module
from pulsar_encore.transport.stock.pump import Pump

WORK_S = 0.002


async def fill(client: encore.Client, topic: str, count: int, batch: int = 1000) -> None:
    async with await client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=batch,
        batching_max_publish_delay_ms=20,
        max_pending_messages=count,
    ) as producer:
        await asyncio.gather(*(producer.send(b"%d" % number) for number in range(count)))


async def subscribe(client: encore.Client, topic: str, **options: object) -> encore.Consumer:
    options.setdefault("initial_position", encore.InitialPosition.Earliest)
    return await client.subscribe(topic, "s", encore.ConsumerType.Shared, **options)


@pytest.mark.parametrize("timeout_ms", [0, 1000])
@pytest.mark.parametrize("entry", [505, 1000])
async def test_batch_receive_of_the_whole_queue_receives_all_messages(
    client: encore.Client, topic: str, entry: int, timeout_ms: int
) -> None:
    await fill(client, topic, 3000, entry)
    policy = encore.BatchReceivePolicy(1000, -1, timeout_ms)
    async with await subscribe(client, topic, batch_receive_policy=policy) as consumer:
        got: list[int] = []
        while len(got) < 3000:
            batch = await asyncio.wait_for(consumer.batch_receive(), 20)
            assert len(batch) == 1000 or timeout_ms
            got += [int(each.data()) for each in batch]
            await consumer.acknowledge(batch)
        assert got == list(range(3000))


async def test_batch_receive_of_small_batches_receives_all_messages(
    client: encore.Client, topic: str
) -> None:
    """A result that ends within an entry, with less room than the entry is large."""
    await fill(client, topic, 600, 100)
    policy = encore.BatchReceivePolicy(7, -1, 0)
    async with await subscribe(
        client, topic, batch_receive_policy=policy, receiver_queue_size=10
    ) as consumer:
        got = 0
        while got < 595:  # all that sevens can make of it
            got += len(await asyncio.wait_for(consumer.batch_receive(), 20))


async def turns_while_reading(reader: encore.Reader, messages: int) -> int:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    for _ in range(messages):
        await reader.read_next()
        time.sleep(WORK_S)
    counting.cancel()
    return turns


async def test_a_reader_does_not_block_the_loop(client: encore.Client, topic: str) -> None:
    await fill(client, topic, 100)
    async with await client.create_reader(topic, encore.MessageId.earliest) as reader:
        await reader.read_next()
        await asyncio.sleep(0.05)
        # A turn is two messages long at most, and shorter where the machine is slow.
        assert await turns_while_reading(reader, 60) >= 15


async def test_repeated_receives_without_waiting_let_a_message_arrive(
    client: encore.Client, topic: str
) -> None:
    await fill(client, topic, 5)
    async with await subscribe(client, topic) as consumer:
        got, until = 0, time.monotonic() + 20
        while got < 5:
            assert time.monotonic() < until
            try:
                await consumer.receive(timeout=0)
                got += 1
            except encore.ReceiveTimeout:
                pass


async def test_a_shutdown_of_a_client_with_a_message_listener_is_logged(
    make_client: Callable[..., encore.Client], topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client = make_client()
    await fill(client, topic, 3)
    held: list[encore.Message] = []
    consumer = await subscribe(
        client, topic, message_listener=lambda consumer, message: held.append(message)
    )
    while len(held) < 3:
        await asyncio.sleep(0.01)
    client.shutdown()
    until = time.monotonic() + 10
    logged = ""
    while "gets nothing more" not in logged:
        assert time.monotonic() < until
        await asyncio.sleep(0.01)
        logged += capsys.readouterr().out
    assert "ERROR" in logged
    with pytest.raises(encore.EncoreError):
        await consumer.acknowledge(held[0])
    await consumer.close()


async def test_messages_acked_before_a_redeliver_all_are_not_redelivered(
    client: encore.Client, topic: str
) -> None:
    """The C++ client holds acks for 0.1 s: a redelivery request must not overtake them."""
    one = await subscribe(client, topic)
    other = await subscribe(client, topic)
    async with await client.create_producer(topic) as producer:
        for number in range(100):
            await producer.send(b"%d" % number)
    acked = set()
    for _ in range(25):
        message = await one.receive(timeout=5)
        await one.acknowledge(message)
        acked.add(message.data())
    one.redeliver_unacknowledged_messages()
    again = set()
    for consumer in (one, other, one):
        with contextlib.suppress(encore.ReceiveTimeout):
            while True:
                message = await consumer.receive(timeout=0.5)
                again.add(message.data())
                await consumer.acknowledge(message)
    assert not again & acked
    assert len(again | acked) == 100


async def test_an_unacked_payload_is_released_without_further_deliveries(
    client: encore.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(originals, "_PAYLOAD_KEEP_S", 0.1)
    await fill(client, topic, 4, 2)
    async with await subscribe(client, topic) as consumer:
        got = [await consumer.receive(timeout=5) for _ in range(4)]
        natives: list[Any] = [each._raw for each in got[:2]]
        payloads = [weakref.ref(each.native) for each in natives]
        del natives
        await consumer.acknowledge(got[0])
        stored = got[1].message_id()
        await consumer.acknowledge(got[2:])
        del got
        until = time.monotonic() + 10
        while any(payload() is not None for payload in payloads):
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        await consumer.acknowledge(stored)
    async with await subscribe(client, topic) as consumer:
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=0.3)


async def test_seeks_run_one_after_the_other(client: encore.Client, topic: str) -> None:
    await fill(client, topic, 20)
    async with await subscribe(client, topic) as consumer:
        got = [await consumer.receive(timeout=5) for _ in range(20)]
        await consumer.acknowledge(got)
        given_up = asyncio.ensure_future(consumer.seek(got[9].message_id()))
        await asyncio.sleep(0.21)  # the library has it
        given_up.cancel()
        await asyncio.gather(
            consumer.seek(got[14].message_id()), consumer.seek(encore.MessageId.earliest)
        )
        again = [await consumer.receive(timeout=5) for _ in range(20)]
        assert [each.data() for each in again] == [each.data() for each in got]
        await consumer.acknowledge(again)
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=0.3)


async def test_a_late_report_of_a_lost_connection_drops_no_message_of_the_next(
    client: encore.Client, broker: BrokerThread, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next connection answers the receive that was pending when the connection was lost. On a
    busy machine this happens before the loss is reported."""
    tell = Pump._report

    def late(self: Pump) -> bool:
        if self._changes and not self._changes[0]:
            time.sleep(0.5)
        return tell(self)

    monkeypatch.setattr(Pump, "_report", late)
    async with (
        await subscribe(client, topic) as consumer,
        await client.create_producer(topic) as producer,
    ):
        await producer.send(b"0")
        await consumer.acknowledge(await consumer.receive())
        await asyncio.sleep(0.2)
        broker.drop_connections()
        numbers = [b"%d" % number for number in range(1, 40)]
        for number in numbers:
            await producer.send(number)
            await asyncio.sleep(0.02)
        got = set()
        while got != set(numbers):
            message = await consumer.receive(timeout=5)
            got.add(message.data())
            await consumer.acknowledge(message)


#: Seeks while the thread that looks at connections does nothing else: a lock of the C++ library
#: that either waits for is held by the other.
SEEKS = """
import asyncio
import sys

import pulsar_encore as encore
from pulsar_encore.transport.stock import pump


async def main(url, topic):
    async with encore.Client(url, transport="stock") as client:
        consumer = await client.subscribe(topic, "s")
        for _ in range(20):
            await consumer.seek(0)
        print("sought")


pump._POLL_S = pump._WATCHFUL_POLL_S = 0.0
asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_seek_over_partitions_does_not_deadlock_with_connection_checks(
    broker: BrokerThread, topic: str
) -> None:
    broker.create_partitioned_topic(topic, 3)
    # In a process of its own: where it hangs, it hangs in native code, and nothing can end it.
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SEEKS, broker.url, topic, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(120):  # about 2 s a seek; a hang is for ever
            out, _ = await child.communicate()
    except TimeoutError:
        child.kill()
        await child.communicate()
        raise
    assert out == b"sought\n"


@pytest.mark.parametrize("queue", [1, 2])
async def test_seeks_by_id_work_with_the_smallest_receiver_queue(
    client: encore.Client, topic: str, queue: int
) -> None:
    async with (
        await subscribe(client, topic, receiver_queue_size=queue) as consumer,
        await client.create_producer(topic, batching_enabled=False) as producer,
    ):
        ids = [await producer.send(b"%d" % number) for number in range(10)]
        for at in (3, 0, 5):
            await consumer.seek(ids[at])
            assert (await consumer.receive(timeout=5)).data() == b"%d" % (at + 1)


@pytest.mark.parametrize("late_ms", [300, 600])
@pytest.mark.parametrize("queue", [5, 1000])
@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        (encore.ConsumerType.Exclusive, True),
        (encore.ConsumerType.Shared, True),
        (encore.ConsumerType.Exclusive, False),  # on Shared, others may have the messages
    ],
)
async def test_a_seek_that_is_answered_late_loses_no_message(
    client: encore.Client,
    broker: BrokerThread,
    topic: str,
    kind: encore.ConsumerType,
    queue: int,
    late_ms: int,
    seen: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A busy broker answers after the consumer has reconnected and received messages. The C++
    client discards these messages and does not request them again. If the answer was only a
    little late, the consumer does not detect this, and repeats the seek after some silence."""
    if not seen:
        monkeypatch.setattr(seeking, "_LATE_S", 60.0)
        monkeypatch.setattr(consumer_module, "_SEEK_CHECK_S", 0.5)
    numbers = [b"%d" % number for number in range(60)]
    async with (
        client.subscribe(
            topic,
            "s",
            kind,
            receiver_queue_size=queue,
            initial_position=encore.InitialPosition.Earliest,
        ) as consumer,
        client.create_producer(topic, batching_max_publish_delay_ms=20) as producer,
    ):
        await asyncio.gather(*(producer.send(number) for number in numbers[:50]))
        for _ in range(50):
            await consumer.acknowledge(await consumer.receive(timeout=5))
        broker.faults = FaultPlan([Fault(kind="delay", command="SUCCESS", delay_ms=late_ms)])
        under_way = asyncio.ensure_future(consumer.seek(encore.MessageId.earliest))
        await asyncio.sleep((late_ms - 100) / 1000)
        await asyncio.gather(*(producer.send(number) for number in numbers[50:]))
        await under_way
        got = [(await consumer.receive(timeout=5)).data() for _ in numbers]
        assert got == numbers


async def test_a_reader_whose_seek_is_answered_late_loses_no_message(
    client: encore.Client, broker: BrokerThread, topic: str
) -> None:
    await fill(client, topic, 50)
    async with client.create_reader(topic, encore.MessageId.earliest) as reader:
        first = [(await reader.read_next(timeout=5)).data() for _ in range(50)]
        broker.faults = FaultPlan([Fault(kind="delay", command="SUCCESS", delay_ms=500)])
        await reader.seek(encore.MessageId.earliest)
        assert [(await reader.read_next(timeout=5)).data() for _ in range(50)] == first


@pytest.mark.parametrize("kind", [encore.ConsumerType.Exclusive, encore.ConsumerType.Shared])
async def test_a_seek_without_messages_after_it_is_repeated_on_exclusive_only(
    client: encore.Client,
    broker: BrokerThread,
    topic: str,
    kind: encore.ConsumerType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a shared subscription, other consumers would receive the messages a second time."""
    monkeypatch.setattr(seeking, "_LATE_S", 60.0)  # on a busy machine, each answer looks late
    monkeypatch.setattr(consumer_module, "_SEEK_CHECK_S", 0.2)
    async with client.subscribe(topic, "s", kind) as consumer:
        before = len(broker.recorded("SEEK"))
        await consumer.seek(encore.MessageId.earliest)
        await asyncio.sleep(0.8)
        seeks = len(broker.recorded("SEEK")) - before
        assert seeks == (2 if kind is encore.ConsumerType.Exclusive else 1)
