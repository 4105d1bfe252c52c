"""One client serves all event loops, its objects belong to one loop, a child process has none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import uvloop

import pulsar_encore as encore
from pulsar_encore import client as client_module
from pulsar_encore.transport.stock import at_exit

MakeClient = Callable[..., encore.Client]


def outcomes(broker: Any, topic: str, subscription: str) -> int:
    return int(broker.backlog(topic, subscription))


def test_one_client_serves_a_loop_for_each_job(make_client: MakeClient, topic: str) -> None:
    client = make_client()

    async def publish() -> None:
        async with client.create_producer(topic) as producer:
            for number in range(5):
                await producer.send(b"%d" % number)

    async def consume() -> list[bytes]:
        async with client.subscribe(
            topic, "s", initial_position=encore.InitialPosition.Earliest
        ) as consumer:
            got = []
            for _ in range(5):
                message = await consumer.receive(timeout=10)
                got.append(message.data())
                await consumer.acknowledge(message)
            return got

    async def left() -> int:
        async with client.subscribe(topic, "s") as consumer:
            try:
                await consumer.receive(timeout=0.3)
            except encore.ReceiveTimeout:
                return 0
            return 1

    asyncio.run(publish())
    assert asyncio.run(consume()) == [b"%d" % number for number in range(5)]
    assert asyncio.run(left()) == 0
    asyncio.run(client.close())


def test_a_producer_can_be_used_on_the_next_loop(make_client: MakeClient, topic: str) -> None:
    """A job that publishes by a producer of the whole process."""
    client = make_client()

    async def begin() -> encore.Producer:
        return await client.create_producer(topic, max_pending_messages=2, block_if_queue_full=True)

    async def publish(producer: encore.Producer) -> None:
        for number in range(5):
            await producer.send(b"%d" % number)

    async def cut_off(producer: encore.Producer) -> None:
        sending = [asyncio.ensure_future(producer.send(b"x")) for _ in range(2)]
        await asyncio.sleep(0)
        for each in sending:
            each.cancel()

    async def read() -> int:
        async with client.create_reader(topic, encore.MessageId.earliest) as reader:
            count = 0
            while await reader.has_message_available():
                count += (await reader.read_next(timeout=5)).data() != b"x"
            return count

    producer = asyncio.run(begin())
    asyncio.run(publish(producer))
    asyncio.run(cut_off(producer))
    asyncio.run(publish(producer))
    assert asyncio.run(read()) == 10
    asyncio.run(producer.close())
    asyncio.run(client.close())


def consumer_calls(consumer: encore.Consumer, message: encore.Message) -> dict[str, Any]:
    return {
        "receive": lambda: consumer.receive(),
        "batch_receive": lambda: consumer.batch_receive(),
        "acknowledge": lambda: consumer.acknowledge(message),
        "acknowledge a list": lambda: consumer.acknowledge([message]),
        "acknowledge_cumulative": lambda: consumer.acknowledge_cumulative(message),
        "negative_acknowledge": lambda: consumer.negative_acknowledge(message, 0),
        "reconsume_later": lambda: consumer.reconsume_later(message, 0),
        "reconsume_later_cumulative": lambda: consumer.reconsume_later_cumulative(message, 0),
        "seek": lambda: consumer.seek(encore.MessageId.earliest),
        "get_last_message_id": lambda: consumer.get_last_message_id(),
        "unsubscribe": lambda: consumer.unsubscribe(),
        "close": lambda: consumer.close(),
    }


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_call_from_another_loop_does_nothing_but_raise(
    make_client: MakeClient, topic: str, runner: Callable[..., None]
) -> None:
    runner(_call_from_another_loop(make_client, topic))


async def _call_from_another_loop(make_client: MakeClient, topic: str) -> None:
    async with make_client() as client, client.create_producer(topic) as producer:
        await producer.send(b"one")
        reader = await client.create_reader(topic, encore.MessageId.earliest)
        consumer = await client.subscribe(
            topic, "s", initial_position=encore.InitialPosition.Earliest, retry_enable=True
        )
        message = await consumer.receive(timeout=10)
        calls = consumer_calls(consumer, message) | {
            "send": lambda: producer.send(b"two"),
            "flush": lambda: producer.flush(),
            "close the producer": lambda: producer.close(),
            "read_next": lambda: reader.read_next(),
            "has_message_available": lambda: reader.has_message_available(),
            "reader.seek": lambda: reader.seek(encore.MessageId.earliest),
            "close the reader": lambda: reader.close(),
        }

        def elsewhere(call: Callable[[], Any]) -> str:
            async def make() -> None:
                call_ = call()
                await call_

            try:
                asyncio.run(make())
            except encore.WrongLoopError as error:
                return str(error)
            return "nothing was raised"

        def without_a_loop(call: Callable[[], Any]) -> str:
            try:
                call()
            except encore.WrongLoopError as error:
                return str(error)
            return "nothing was raised"

        for name, call in calls.items():
            message_text = await asyncio.to_thread(elsewhere, call)
            assert "another event loop" in message_text, (name, message_text)
        for name, plain in {
            "send_async": lambda: producer.send_async(b"two", None),
            "redeliver": consumer.redeliver_unacknowledged_messages,
        }.items():
            message_text = await asyncio.to_thread(without_a_loop, plain)
            assert "call_soon_threadsafe" in message_text, (name, message_text)
        # All of them are as they were, and the message still is this consumer's to settle.
        assert await reader.has_message_available()
        await producer.send(b"three")
        await consumer.acknowledge(message)
        assert (await consumer.receive(timeout=10)).data() == b"three"
        assert (await reader.read_next(timeout=10)).data() == b"one"
        assert (await reader.read_next(timeout=10)).data() == b"three"


async def test_a_thread_can_ack_with_run_coroutine_threadsafe(
    make_client: MakeClient, topic: str
) -> None:
    async with (
        make_client() as client,
        client.create_producer(topic) as producer,
        client.subscribe(topic, "s") as consumer,
    ):
        await producer.send(b"one")
        message = await consumer.receive(timeout=10)
        loop = asyncio.get_running_loop()

        def work() -> None:
            asyncio.run_coroutine_threadsafe(consumer.acknowledge(message), loop).result(10)

        await asyncio.to_thread(work)
        assert consumer.statistics().in_flight == 0


@pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_a_client_works_on_a_loop_that_runs_step_by_step(
    make_client: MakeClient, topic: str, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """The calls are made while it does not run, as programs without `asyncio.run` do."""
    loop = new_loop()
    try:
        client = make_client()
        producer = loop.run_until_complete(client.create_producer(topic))
        consumer = loop.run_until_complete(client.subscribe(topic, "s"))
        loop.run_until_complete(producer.send(b"one"))
        message = loop.run_until_complete(consumer.receive(timeout=10))
        loop.run_until_complete(consumer.acknowledge(message))
        assert consumer.statistics().in_flight == 0
        loop.run_until_complete(client.close())
    finally:
        loop.close()


def test_closing_a_client_closes_consumers_of_closed_resting_and_running_loops(
    make_client: MakeClient, topic: str
) -> None:
    """A consumer of a loop that is closed, one of a loop that rests, one of a running thread."""
    client = make_client()
    resting = asyncio.new_event_loop()
    made: Future[encore.Consumer] = Future()
    over = threading.Event()

    async def make(name: str) -> encore.Consumer:
        return await client.subscribe(topic, name)

    def thread() -> None:
        async def stay() -> None:
            made.set_result(await make("running"))
            await asyncio.to_thread(over.wait)

        asyncio.run(stay())

    worker = threading.Thread(target=thread)
    worker.start()
    consumers = [asyncio.run(make("closed")), resting.run_until_complete(make("resting"))]
    consumers.append(made.result(20))
    try:
        asyncio.run(client.close())
    finally:
        over.set()
        worker.join(20)
        resting.close()
    assert [repr(each).rpartition(" ")[2] for each in consumers] == ["closed>"] * 3
    again = make_client()

    async def alone(name: str) -> None:
        await (
            await again.subscribe(topic, name)
        ).close()  # Exclusive: fails if another consumer is left

    for name in ("closed", "resting", "running"):
        asyncio.run(alone(name))
    asyncio.run(again.close())


FORKING = """
import asyncio, os, sys, threading, warnings
import pulsar_encore as encore

url, topic = sys.argv[1:]

async def use(client, number):
    async with client.create_producer(topic) as producer:
        await producer.send(b"%d" % number)

async def named(call):
    try:
        await asyncio.wait_for(call(), 5)
    except encore.ForkedError as error:
        assert "parent process" in str(error), error
        return
    raise AssertionError("not refused")

async def child(client, consumer, producer, reader, message):
    for call in (
        lambda: client.subscribe(topic, "other"),
        lambda: client.create_producer(topic),
        lambda: client.get_topic_partitions(topic),
        client.close,
        consumer.receive,
        lambda: consumer.acknowledge(message),
        lambda: consumer.negative_acknowledge(message),
        consumer.close,
        lambda: producer.send(b"x"),
        producer.close,
        reader.read_next,
        reader.close,
    ):
        await named(call)
    async with encore.Client(url) as own:
        await use(own, 2)
        earliest = encore.InitialPosition.Earliest
        async with own.subscribe(topic, "child", initial_position=earliest) as c:
            got = [(await c.receive(timeout=10)).data() for _ in range(2)]
    assert got == [b"1", b"2"], got

async def parent():
    client = encore.Client(url)
    await use(client, 1)
    consumer = await client.subscribe(topic, "s", initial_position=encore.InitialPosition.Earliest)
    producer = await client.create_producer(topic)
    reader = await client.create_reader(topic, encore.MessageId.earliest)
    message = await consumer.receive(timeout=10)
    return client, consumer, producer, reader, message

loop = asyncio.new_event_loop()
made = loop.run_until_complete(parent())
pid = os.fork()
if pid == 0:
    asyncio.run(child(*made))
    {leave}
_, status = os.waitpid(pid, 0)
assert status == 0, status
client, consumer, producer, reader, message = made

async def after():
    await consumer.acknowledge(message)
    assert (await consumer.receive(timeout=10)).data() == b"2"
    assert (await reader.read_next(timeout=10)).data() == b"1"
    await producer.send(b"3")
    await client.close()

loop.run_until_complete(after())
loop.close()
print("the parent went on")
"""


FORKING_WITHIN = """
import asyncio, os, sys
import pulsar_encore as encore

async def main():
    async with encore.Client(sys.argv[1]) as client, client.subscribe(sys.argv[2], "s") as consumer:
        pid = os.fork()
        if pid == 0:
            try:
                consumer.receive().send(None)
            except encore.ForkedError:
                os._exit(0)
            os._exit(1)
        _, status = os.waitpid(pid, 0)
        assert status == 0, status
        async with client.create_producer(sys.argv[2]) as producer:
            await producer.send(b"1")
        assert (await consumer.receive(timeout=10)).data() == b"1"

asyncio.run(main())
"""


FORKING_THREAD = """
import asyncio, os, sys, threading
import pulsar_encore as encore

async def work():
    async with encore.Client(sys.argv[1]) as own, own.create_producer(sys.argv[2]) as producer:
        await producer.send(b"1")

def fork():
    if os.fork() == 0:
        asyncio.run(work())
    else:
        os.wait()
        print("the child has ended")

thread = threading.Thread(target=fork)
thread.start()
thread.join()
"""


def test_a_child_forked_from_a_thread_ends(broker: Any, topic: str) -> None:
    """Such a child ends with its last thread, which must not be one of ours."""
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            FORKING_THREAD,
            broker.url,
            topic,
        ],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "the child has ended\n", "")


def test_a_child_forked_in_a_running_loop_gets_forked_error(broker: Any, topic: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            FORKING_WITHIN,
            broker.url,
            topic,
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)"])
def test_a_forked_child_gets_forked_error_and_the_parent_goes_on(
    broker: Any, topic: str, leave: str
) -> None:
    program = FORKING.replace("{leave}", leave)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, broker.url, topic],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONFAULTHANDLER": "1"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "the parent went on\n", "")


@pytest.mark.parametrize("then", ["flush", "close", "client"])
def test_pending_sends_of_an_ended_loop_do_not_block_flush_or_close(
    make_client: MakeClient, topic: str, then: str
) -> None:
    client = make_client()
    outcomes_reported: list[Any] = []

    async def begin() -> encore.Producer:
        producer = await client.create_producer(
            topic,
            batching_max_publish_delay_ms=300,
            max_pending_messages=3,
            block_if_queue_full=True,
        )
        for number in range(10):
            producer.send_async(b"%d" % number, lambda *outcome: outcomes_reported.append(outcome))
        return producer

    async def go_on(producer: encore.Producer) -> None:
        async with asyncio.timeout(10):
            if then == "flush":
                await producer.flush()
                await producer.send(b"last")
            if then != "client":
                await producer.close()
            await client.close()

    producer = asyncio.run(begin())
    asyncio.run(go_on(producer))
    assert outcomes_reported == []  # the loop of the callbacks has ended


def test_calls_cut_off_by_the_end_of_a_loop_do_not_keep_the_cpp_client(
    make_client: MakeClient, topic: str
) -> None:
    client = make_client()

    async def cut() -> None:
        shared = encore.ConsumerType.Shared
        making = [asyncio.ensure_future(client.subscribe(topic, "s", shared)) for _ in range(5)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in making)

    async def use() -> None:
        async with client.create_producer(topic) as producer:
            await producer.send(b"1")

    asyncio.run(cut())
    asyncio.run(use())
    asyncio.run(asyncio.sleep(0.2))
    native = client._transport.native  # type: ignore[attr-defined]
    asyncio.run(client.close())
    assert id(native) not in at_exit._open


async def test_closing_a_client_with_a_blocked_loop_raises_transport_timeout(
    make_client: MakeClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_OTHER_LOOP_CLOSE_TIMEOUT_S", 0.3)
    client = make_client()
    blocked, over = threading.Event(), threading.Event()

    def thread() -> None:
        async def block() -> None:
            await client.subscribe(topic, "s")
            blocked.set()
            over.wait(20)

        asyncio.run(block())

    worker = threading.Thread(target=thread)
    worker.start()
    await asyncio.to_thread(blocked.wait, 20)
    try:
        with pytest.raises(encore.TransportTimeout, match="Keep that loop running"):
            await client.close()
    finally:
        over.set()
        await asyncio.to_thread(worker.join, 20)


async def test_loops_that_end_during_a_close_do_not_cancel_it(
    make_client: MakeClient, topic: str
) -> None:
    client = make_client()
    waiting = threading.Barrier(4)

    def thread(name: str) -> None:
        async def wait() -> None:
            consumer = await client.subscribe(topic, name)
            waiting.wait(20)
            with contextlib.suppress(encore.ClosedError):
                await consumer.receive()

        asyncio.run(wait())

    workers = [threading.Thread(target=thread, args=(f"s{number}",)) for number in range(3)]
    for worker in workers:
        worker.start()
    await asyncio.to_thread(waiting.wait, 20)
    await client.close()
    for worker in workers:
        await asyncio.to_thread(worker.join, 20)


def test_a_reader_can_be_closed_on_the_next_loop(
    make_client: MakeClient, broker: Any, topic: str
) -> None:
    client = make_client()

    async def make() -> encore.Reader:
        return await client.create_reader(topic, encore.MessageId.earliest)

    reader = asyncio.run(make())
    before = len(broker.recorded("CLOSE_CONSUMER"))
    asyncio.run(reader.close())
    assert len(broker.recorded("CLOSE_CONSUMER")) == before + 1
    asyncio.run(client.close())
