"""A client that is used on several event loops, one after the other, on the native transport.

The connections of a loop close when it ends, and the client can be closed afterwards.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread
from pulsar_encore.eventloop.affinity import LoopEnd, end_all

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def _by_hand(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Run:
    """Close the loop without `shutdown_asyncgens`, which gives notice of its end."""

    def run(main: Coroutine[Any, Any, Any]) -> Any:
        loop = new_loop()
        try:
            return loop.run_until_complete(main)
        finally:
            loop.close()

    return run


RUNS: dict[str, Run] = {
    "asyncio": asyncio.run,
    "uvloop": uvloop.run,
    "asyncio by hand": _by_hand(asyncio.new_event_loop),
    "uvloop by hand": _by_hand(uvloop.new_event_loop),
}


@pytest.fixture(params=list(RUNS))
def run(request: pytest.FixtureRequest) -> Run:
    return RUNS[request.param]


@pytest.fixture
def client(broker: BrokerThread) -> Iterator[encore.Client]:
    """A client, which is shut down at the end if the test has not closed it."""
    made = encore.Client(broker.url, transport="native")
    yield made
    made.shutdown()


@pytest.fixture(autouse=True)
def garbage() -> Iterator[None]:
    """Collect the tasks of ended loops in the test that left them, which ignores their warnings."""
    yield
    gc.collect()


pytestmark = [
    # asyncio warns of open transports when a loop is closed, and our objects warn of themselves.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def connections(broker: BrokerThread) -> int:
    """Return the number of connections of this process to the broker."""
    return sum(
        1
        for each in psutil.Process().net_connections("tcp")
        if each.raddr and each.raddr.port == broker.port and each.status == "ESTABLISHED"
    )


def test_messages_of_a_consumer_on_an_ended_loop_are_redelivered_to_the_next_run(
    client: encore.Client, broker: BrokerThread, topic: str, run: Run
) -> None:
    """Otherwise the broker's keep-alive closes the connection after up to a minute."""

    async def first() -> None:
        await client.subscribe(topic, "s", encore.ConsumerType.Shared)
        async with client.create_producer(topic) as producer:
            for number in range(5):
                await producer.send(b"%d" % number)

    async def second() -> set[bytes]:
        async with (
            asyncio.timeout(60),
            client.subscribe(topic, "s", encore.ConsumerType.Shared) as consumer,
        ):
            got = set()
            for _ in range(5):
                message = await consumer.receive()
                got.add(message.data())
                await consumer.acknowledge(message)
            assert connections(broker) == 1
            return got

    run(first())
    assert run(second()) == {b"%d" % number for number in range(5)}
    run(client.close())
    assert connections(broker) == 0


@pytest.mark.parametrize("name", ["asyncio", "uvloop"])
def test_no_connection_remains_after_asyncio_run(
    client: encore.Client, broker: BrokerThread, topic: str, name: str
) -> None:
    run = RUNS[name]

    async def use() -> None:
        async with client.create_producer(topic) as producer:
            await producer.send(b"x")
        assert connections(broker) == 1

    for _ in range(3):
        run(use())
        assert connections(broker) == 0


@pytest.mark.parametrize("name", ["asyncio", "uvloop"])
def test_acks_left_unsent_by_an_ended_loop_are_logged_in_one_line(
    client: encore.Client,
    broker: BrokerThread,
    topic: str,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The messages came again in the next run, and nothing told why."""

    async def use(*, closes: bool) -> None:
        consumer = await client.subscribe(topic, "s", encore.ConsumerType.Shared)
        async with client.create_producer(topic) as producer, asyncio.timeout(60):
            for _ in range(3):
                await producer.send(b"x")
            for _ in range(3):
                await consumer.acknowledge(await consumer.receive())
        if closes:
            await consumer.close()

    RUNS[name](use(closes=True))
    assert "acks of" not in caplog.text
    RUNS[name](use(closes=False))
    (line,) = [each for each in caplog.records if "acks of 3 entries were not sent" in each.message]
    assert line.levelname == "WARNING"
    assert topic in line.message and "close()" in line.message


def test_a_producer_works_on_the_next_loop_with_a_new_connection(
    client: encore.Client, broker: BrokerThread, topic: str, run: Run
) -> None:
    async def begin() -> encore.Producer:
        return await client.create_producer(topic)

    async def publish(producer: encore.Producer) -> None:
        await producer.send(b"x")
        assert connections(broker) == 1

    producer = run(begin())
    for _ in range(2):
        run(publish(producer))
    run(producer.close())
    run(client.close())
    assert connections(broker) == 0


def test_closing_a_client_on_another_loop_closes_all_objects_of_a_closed_loop(
    broker: BrokerThread, topic: str, tmp_path: Path, run: Run
) -> None:
    """If one part of the shutdown fails because the loop is closed, all other parts still run."""
    plan = encore.AutoClusterFailover(
        encore.ServiceInfo(broker.url), [encore.ServiceInfo(broker.url)], check_interval_ms=1000
    )
    client = encore.Client(plan, transport="native")
    state = encore.RocksState(tmp_path)

    async def leave() -> list[Any]:
        shared = encore.ConsumerType.Shared
        producer = await client.create_producer(topic)
        letters = await client.subscribe(
            topic,
            "letters",
            shared,
            state=state,
            retry_enable=True,
            dead_letter_policy=encore.DeadLetterPolicy(1),
            unacked_messages_timeout_ms=10_000,
            ack_receipt_enabled=True,
        )
        leases = await client.subscribe(f"{topic}-leases", "s", shared)
        pattern = await client.subscribe(
            f"persistent://public/default/{topic}.*", "p", shared, is_pattern_topic=True
        )
        reader = await client.create_reader(topic, encore.MessageId.earliest)
        async with client.create_producer(f"{topic}-leases") as other:
            await other.send(b"leased")
        for _ in range(4):
            await producer.send(b"x")
        lease = (await leases.pop(wait=10))[0]
        await letters.reconsume_later(await letters.receive(), 1)  # makes a letter producer
        letters.negative_acknowledge(await letters.receive())
        waiting = [
            asyncio.ensure_future(each)
            for each in (
                letters.acknowledge(await letters.receive()),
                _read_on(reader),
                _receive_on(pattern),
                leases.pop(wait=20),
                producer.send(b"under way"),
            )
        ]
        await asyncio.sleep(0.05)
        return [producer, letters, leases, pattern, reader, lease, *waiting]

    left = run(leave())
    asyncio.run(client.close())
    assert connections(broker) == 0
    closed = [repr(each).rpartition(" ")[2] for each in left[:5]]
    assert closed == ["closed>"] * 5

    async def again() -> None:
        async with (
            encore.Client(broker.url, transport="native") as another,
            another.subscribe(topic, "letters", encore.ConsumerType.Shared, state=state) as it,
            asyncio.timeout(60),
        ):
            for _ in range(3):
                await it.acknowledge(await it.receive())

    asyncio.run(again())


async def _read_on(reader: encore.Reader) -> None:
    while True:
        await reader.read_next()


async def _receive_on(consumer: encore.Consumer) -> None:
    while True:
        await consumer.receive()


def test_one_object_can_be_closed_from_another_loop_once_its_own_is_closed(
    client: encore.Client, broker: BrokerThread, topic: str, run: Run
) -> None:
    async def leave() -> tuple[encore.Consumer, encore.Reader, encore.Producer]:
        consumer = await client.subscribe(topic, "s")
        reader = await client.create_reader(topic, encore.MessageId.earliest)
        return consumer, reader, await client.create_producer(topic)

    for each in run(leave()):
        asyncio.run(each.close())
    asyncio.run(client.close())
    assert connections(broker) == 0


@pytest.mark.parametrize("name", ["asyncio", "uvloop"])
def test_connections_of_a_loop_in_another_thread_end_there(
    client: encore.Client, broker: BrokerThread, topic: str, name: str
) -> None:
    made, over, ended = threading.Event(), threading.Event(), threading.Event()

    async def stay() -> None:
        await client.subscribe(topic, "s")
        made.set()
        await asyncio.to_thread(over.wait, 20)
        while connections(broker):
            await asyncio.sleep(0.01)
        ended.set()

    worker = threading.Thread(target=RUNS[name], args=(stay(),))
    worker.start()
    assert made.wait(20)
    asyncio.run(client.close())
    over.set()
    assert ended.wait(20)
    worker.join(20)


def test_a_loop_end_makes_its_call_once_unless_it_is_cancelled() -> None:
    calls: list[str] = []
    ends: list[LoopEnd] = []

    async def ended(name: str) -> None:
        await asyncio.sleep(0)
        calls.append(name)

    async def main() -> None:
        ends.extend(LoopEnd(partial(ended, name)) for name in ("kept", "cancelled"))
        ends[1].cancel()
        ends[1].cancel()

    asyncio.run(main())
    assert calls == ["kept"]
    ends[0].cancel()
    assert calls == ["kept"]


def test_end_all_makes_every_call_even_if_one_fails() -> None:
    done: list[int] = []
    loop = asyncio.new_event_loop()

    def fail(error: Exception) -> None:
        raise error

    with pytest.raises(RuntimeError, match="first"):
        end_all(
            loop,
            lambda: done.append(1),
            lambda: fail(RuntimeError("first")),
            lambda: fail(ValueError("second")),
            lambda: done.append(2),
        )
    loop.close()
    end_all(loop, lambda: fail(RuntimeError("Event loop is closed")), lambda: done.append(3))
    with pytest.raises(ValueError, match="real"):
        end_all(loop, lambda: fail(ValueError("real")), lambda: done.append(4))
    assert done == [1, 2, 3, 4]


async def test_a_client_that_is_dropped_unclosed_leaves_no_connection(
    broker: BrokerThread, topic: str
) -> None:
    client = encore.Client(broker.url, transport="native")
    async with client.create_producer(topic) as producer:
        await producer.send(b"x")
    assert connections(broker) == 1
    del client, producer
    gc.collect()
    async with asyncio.timeout(10):
        while connections(broker):
            await asyncio.sleep(0.01)
