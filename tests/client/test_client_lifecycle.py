"""Creating and closing: cancelled anywhere, in any order, with or without a broker."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerSettings, BrokerThread, Fault, FaultPlan, run_in_thread

EARLIEST = encore.MessageId.earliest

# Creates each kind of object with a name or subscription that must be unique at the broker.
CREATE: dict[str, Callable[[encore.Client, str], Awaitable[Any]]] = {
    "producer": lambda client, topic: client.create_producer(topic, producer_name="only-one"),
    "consumer": lambda client, topic: client.subscribe(topic, "exclusive"),
    "reader": lambda client, topic: client.create_reader(topic, EARLIEST),
}


async def within(seconds: float, attempt: Callable[[], Awaitable[Any]]) -> Any:
    """`attempt` again while the broker says that another one is still there."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await attempt()
        except encore.TransportError as error:
            if error.result not in ("ProducerBusy", "ConsumerBusy") or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", CREATE)
@pytest.mark.parametrize("turns", [0, 1, 2, 5, 20])
async def test_a_cancelled_creation_leaves_nothing_at_the_broker(
    client: encore.Client, topic: str, kind: str, turns: int
) -> None:
    creating = asyncio.ensure_future(CREATE[kind](client, topic))
    for _ in range(turns):
        await asyncio.sleep(0)
    creating.cancel()
    await asyncio.gather(creating, return_exceptions=True)
    again = await within(20, lambda: CREATE[kind](client, topic))
    await again.close()


@pytest.mark.parametrize(
    ("kind", "answer"), [("producer", "PRODUCER_SUCCESS"), ("consumer", "SUCCESS")]
)
async def test_an_object_created_after_the_cancel_is_closed(
    client: encore.Client, topic: str, broker: BrokerThread, kind: str, answer: str
) -> None:
    broker.faults = FaultPlan([Fault(kind="delay", command=answer, delay_ms=40)])
    creating = asyncio.ensure_future(CREATE[kind](client, topic))
    await asyncio.sleep(0.02)
    creating.cancel()
    await asyncio.gather(creating, return_exceptions=True)
    again = await within(20, lambda: CREATE[kind](client, topic))
    await again.close()


@pytest.mark.parametrize(
    "order", list(itertools.permutations(["producer", "consumer", "reader", "client"]))
)
async def test_objects_and_client_can_be_closed_in_any_order(
    make_client: Callable[..., encore.Client], topic: str, order: tuple[str, ...]
) -> None:
    client = make_client()
    objects: dict[str, Any] = {"client": client}
    for kind, create in CREATE.items():
        objects[kind] = await create(client, topic)
    waiting = [
        asyncio.create_task(objects["reader"].read_next()),
        asyncio.create_task(objects["consumer"].receive()),
    ]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        for name in order:
            await objects[name].close()
            await objects[name].close()
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(result, encore.ClosedError)


async def test_objects_and_client_can_be_closed_at_once(
    make_client: Callable[..., encore.Client], topic: str
) -> None:
    client = make_client()
    objects = [await create(client, topic) for create in CREATE.values()]
    async with asyncio.timeout(5):
        await asyncio.gather(*(each.close() for each in (client, *objects, client, *objects)))


async def test_a_cancelled_close_completes(
    make_client: Callable[..., encore.Client], topic: str
) -> None:
    client = make_client()
    producer = await client.create_producer(topic, producer_name="one")
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await client.close()
    assert not producer.is_connected()
    async with make_client() as other:
        await other.create_producer(topic, producer_name="one")


async def test_calls_on_a_closed_client_raise_closed_error(
    make_client: Callable[..., encore.Client],
) -> None:
    for end in ("close", "shutdown"):
        client = make_client()
        if end == "close":
            await client.close()
        else:
            client.shutdown()
        for call in (
            client.create_producer("t"),
            client.subscribe("t", "s"),
            client.create_reader("t", EARLIEST),
            client.get_topic_partitions("t"),
            client.__aenter__(),
        ):
            with pytest.raises(encore.ClosedError, match="the client is closed"):
                await call
        await client.close()
        client.shutdown()


async def test_shutdown_ends_pending_calls(
    make_client: Callable[..., encore.Client], topic: str
) -> None:
    client = make_client()
    producer = await client.create_producer(topic, batching_max_publish_delay_ms=60_000)
    reader = await client.create_reader(topic, EARLIEST)
    consumer = await client.subscribe(topic, "s")
    waiting = [
        asyncio.create_task(each)
        for each in (reader.read_next(), consumer.receive(), producer.send(b"x"))
    ]
    await asyncio.sleep(0.01)
    client.shutdown()
    async with asyncio.timeout(5):
        for ended in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(ended, encore.ClosedError)
        await client.close()


async def test_every_call_after_a_shutdown_raises_closed_error(
    make_client: Callable[..., encore.Client], topic: str
) -> None:
    client = make_client()
    producer = await client.create_producer(topic)
    reader = await client.create_reader(topic, EARLIEST)
    consumer = await client.subscribe(topic, "s")
    listening = await client.subscribe(topic, "t", message_listener=lambda _consumer, _message: 0)
    for _ in range(3):
        await producer.send(b"x")
    async with asyncio.timeout(60):
        message = await consumer.receive()
        await reader.read_next()
    client.shutdown()
    await asyncio.sleep(0.1)  # late reports from the transport change nothing
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: producer.send(b"x"),
        producer.flush,
        producer.__aenter__,
        lambda: reader.read_next(),
        reader.has_message_available,
        lambda: reader.seek(EARLIEST),
        consumer.receive,
        lambda: consumer.receive(timeout=1),
        consumer.batch_receive,
        lambda: consumer.acknowledge(message),
        lambda: consumer.acknowledge(message.message_id()),
        lambda: consumer.acknowledge([message]),
        lambda: consumer.acknowledge_cumulative(message),
        lambda: consumer.negative_acknowledge(message),
        lambda: consumer.seek(0),
        consumer.get_last_message_id,
        consumer.unsubscribe,
        lambda: listening.acknowledge(message),
    ]
    async with asyncio.timeout(60):
        for call in calls:
            with pytest.raises(encore.ClosedError):
                await call()
        with pytest.raises(encore.ClosedError):
            consumer.redeliver_unacknowledged_messages()
        assert [each async for each in consumer] == []
        for each in (producer, reader, consumer, listening):
            assert not each.is_connected()  # type: ignore[attr-defined]
            await each.close()  # type: ignore[attr-defined]
        await client.close()


class SlowTransport:
    """Creates an object only when `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.objects_closed = 0
        self.closed = 0

    async def create_producer(
        self, _options: Any, _listener: Any = None
    ) -> SlowTransport.TransportObject:
        await self.go.wait()
        return SlowTransport.TransportObject(self)

    create_reader = subscribe = create_producer

    async def close(self) -> None:
        self.closed += 1

    def shutdown(self) -> None:
        self.closed += 1

    class TransportObject:
        def __init__(self, transport: SlowTransport) -> None:
            self.transport = transport

        async def close(self) -> None:
            self.transport.objects_closed += 1


@pytest.mark.parametrize("kind", CREATE)
async def test_an_object_created_after_the_client_was_closed_is_closed(kind: str) -> None:
    transport = SlowTransport()
    client = encore.Client("pulsar://nowhere:1", transport=transport)  # type: ignore[arg-type]
    creating = asyncio.ensure_future(CREATE[kind](client, "t"))
    await asyncio.sleep(0)
    await asyncio.gather(client.close(), client.close())
    transport.go.set()
    with pytest.raises(encore.ClosedError, match="meanwhile"):
        await creating
    assert (transport.objects_closed, transport.closed) == (1, 1)


async def test_calls_without_a_broker_raise_retryable_errors_that_name_service_url(
    make_client: Callable[..., encore.Client], unused_port: int
) -> None:
    url = f"pulsar://127.0.0.1:{unused_port}"
    async with make_client(url, operation_timeout_seconds=1) as client, asyncio.timeout(5):
        results = await asyncio.gather(
            client.create_producer("t"),
            client.subscribe("t", "s"),
            client.create_reader("t", EARLIEST),
            client.get_topic_partitions("t"),
            return_exceptions=True,
        )
    for result in results:
        assert isinstance(result, encore.PulsarException)
        assert result.retryable and "service_url" in str(result)


async def test_closing_does_not_wait_for_a_creation_without_end(
    make_client: Callable[..., encore.Client], unused_port: int
) -> None:
    client = make_client(f"pulsar://127.0.0.1:{unused_port}")
    creating = asyncio.create_task(client.create_producer("t"))
    await asyncio.sleep(0.01)
    async with asyncio.timeout(3):
        await client.close()
        with pytest.raises((encore.ClosedError, encore.TransportError)):
            await creating


async def test_get_topic_partitions_lists_the_partitions(
    client: encore.Client, topic: str, broker: BrokerThread
) -> None:
    full = f"persistent://public/default/{topic}"
    assert await client.get_topic_partitions(topic) == [full]
    broker.create_partitioned_topic(f"{topic}-three", 3)
    assert await client.get_topic_partitions(f"{topic}-three") == [
        f"{full}-three-partition-{n}" for n in range(3)
    ]
    with pytest.raises(encore.ConfigurationError, match="topic"):
        await client.get_topic_partitions(None)  # type: ignore[arg-type]


async def test_errors_name_the_option_or_the_topic(
    make_client: Callable[..., encore.Client],
) -> None:
    with run_in_thread(BrokerSettings(token="right", auto_create=False)) as strict:
        async with make_client(strict.url, operation_timeout_seconds=1) as client:
            with pytest.raises(encore.PulsarException, match="authentication="):
                await client.create_producer("t")
        token = encore.AuthenticationToken("right")
        async with make_client(
            strict.url, operation_timeout_seconds=1, authentication=token
        ) as client:
            for create in CREATE.values():
                with pytest.raises(encore.PulsarException, match="topic"):
                    await create(client, "missing")


async def test_a_second_exclusive_consumer_is_refused_with_consumer_busy(
    client: encore.Client, topic: str
) -> None:
    first = await CREATE["consumer"](client, topic)
    with pytest.raises(encore.PulsarException, match=r"ConsumerBusy.*close it") as raised:
        await CREATE["consumer"](client, topic)
    assert raised.value.retryable
    await first.close()


EXIT = """
import asyncio, sys, time
import pulsar_encore as encore

how, url = sys.argv[1:]

async def main():
    quiet = encore.ConsoleLogger(encore.LoggerLevel.Error)
    client = encore.Client(url, transport="stock", logger=quiet)
    producer = await client.create_producer(how)
    reader = await client.create_reader(how, encore.MessageId.earliest)
    consumer = await client.subscribe(how, "s")
    for wait in (reader.read_next(), consumer.receive()):
        try:
            async with asyncio.timeout(0.01):
                await wait
        except TimeoutError:
            pass
    return client, producer, reader, consumer

loop = asyncio.new_event_loop()
made = loop.run_until_complete(main())
if how == "loop-closed":
    loop.close()
elif how == "message-after-loop":
    made[1]._transport_producer._native.flush()
    import _pulsar
    loop.close()
    made[1]._transport_producer._native.send_async(
        _pulsar.MessageBuilder().content(b"late").build(), lambda *outcome: None
    )
    time.sleep(0.1)
elif how == "dropped":
    loop.close()
    del made
elif how == "shut-down":
    made[0].shutdown()
    loop.close()
elif how == "closed":
    loop.run_until_complete(made[0].close())
    loop.close()
print("end", flush=True)
"""


@pytest.mark.parametrize(
    "how",
    ["left-open", "loop-closed", "message-after-loop", "dropped", "shut-down", "closed"],
)
def test_a_process_exits_cleanly_whatever_it_leaves_open(broker: BrokerThread, how: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", EXIT, how, broker.url],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "end\n"), ended.stderr
    assert "Traceback" not in ended.stderr


async def test_close_during_an_outage_waits_for_the_reconnect_to_send_acks(
    client: encore.Client, topic: str, broker: BrokerThread
) -> None:
    consumer = await client.subscribe(
        topic, "s", encore.ConsumerType.Shared, initial_position=encore.InitialPosition.Earliest
    )
    producer = await client.create_producer(topic)
    for number in range(20):
        await producer.send(b"%d" % number)
    async with asyncio.timeout(20):
        messages = [await consumer.receive() for _ in range(20)]
        broker.faults = FaultPlan([Fault(kind="outage", command="SEND", outage_s=0.5)])
        sending = asyncio.ensure_future(producer.send(b"more"))
        while consumer.is_connected():
            await asyncio.sleep(0.01)
        await consumer.acknowledge(messages)
        await consumer.close()
        await sending
    assert broker.backlog(topic, "s") == 1
