"""Start, failure and end of a worker, and messages that another consumer takes over."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from worker_kit import SUBSCRIPTION, TOPIC, all_acked, running, running_lists, until

import pulsar_encore as encore
from pulsar_encore import Client, Consumer, ConsumerType, InitialPosition, Message, testing
from pulsar_encore.testing import Fault, FaultPlan, MemoryTransport


async def nothing(value: bytes) -> None: ...


async def test_a_worker_waits_for_a_subscription_that_another_process_holds(
    client: Client, transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    holder = await client.subscribe(TOPIC, SUBSCRIPTION, ConsumerType.Exclusive)
    transport.put(TOPIC, b"x")
    worker = encore.Worker(client, TOPIC, SUBSCRIPTION, nothing)
    serving = asyncio.ensure_future(worker.serve())
    with caplog.at_level(logging.WARNING):
        await asyncio.sleep(300)
    assert worker.health().state == "starting"
    (reason,) = worker.health().reasons
    assert reason.startswith("the worker is starting: ConsumerBusy: ")
    waiting = [each for each in caplog.messages if "waits to start" in each]
    assert len(waiting) == 1
    await holder.close()
    await all_acked(transport)
    worker.stop()
    assert (await serving).succeeded == 1


async def test_without_start_retry_a_worker_fails_at_once(client: Client) -> None:
    async with client.subscribe(TOPIC, SUBSCRIPTION, ConsumerType.Exclusive):
        worker = encore.Worker(client, TOPIC, SUBSCRIPTION, nothing, start_retry=False)
        with pytest.raises(encore.PulsarException):
            await worker.serve()
    assert worker.health().state == "failed"


async def test_stop_ends_a_worker_that_waits_to_start(client: Client) -> None:
    async with client.subscribe(TOPIC, SUBSCRIPTION, ConsumerType.Exclusive):
        worker = encore.Worker(client, TOPIC, SUBSCRIPTION, nothing)
        serving = asyncio.ensure_future(worker.serve())
        await asyncio.sleep(60)
        worker.stop()
        async with asyncio.timeout(1):
            await serving


async def test_a_worker_runs_once(client: Client) -> None:
    worker = encore.Worker(client, TOPIC, SUBSCRIPTION, nothing)
    async with worker:
        pass
    with pytest.raises(encore.ConfigurationError, match="make a new one"):
        await worker.serve()


async def test_a_failure_in_the_background_ends_the_body_with_the_error_of_the_worker(
    transport: MemoryTransport,
) -> None:
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        with pytest.raises(encore.ClosedError):
            async with encore.Worker(client, TOPIC, SUBSCRIPTION, nothing) as worker:
                await worker.consumer.close()
                await asyncio.sleep(3600)
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_an_error_of_the_body_is_raised_after_the_drain(
    client: Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"x")
    with pytest.raises(ZeroDivisionError):
        async with running(client, nothing) as worker:
            await all_acked(transport)
            raise ZeroDivisionError
    assert worker.health().state == "ended"


@pytest.mark.parametrize("order", ["none", "key", "partition"])
async def test_a_cancelled_serve_gives_messages_back(
    client: Client, transport: MemoryTransport, order: Any
) -> None:
    async def never(value: bytes) -> None:
        await asyncio.Event().wait()

    transport.put(TOPIC, b"x", key="k")
    worker = encore.Worker(
        client, TOPIC, SUBSCRIPTION, never, order=order, initial_position=InitialPosition.Earliest
    )
    serving = asyncio.ensure_future(worker.serve())
    await asyncio.sleep(1)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(10):
            await serving
    seen = []

    async def handler(value: bytes, message: Message) -> None:
        seen.append(message.attempt)

    async with running(client, handler, order=order):
        await all_acked(transport)
    assert seen == [1]


async def test_a_serve_that_is_cancelled_twice_gives_messages_back(
    client: Client, transport: MemoryTransport
) -> None:
    """The second time, the worker waits for the end of a handler that takes long to clean up."""

    async def slow_to_end(value: bytes) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(5)

    transport.put(TOPIC, b"x")
    worker = encore.Worker(
        client, TOPIC, SUBSCRIPTION, slow_to_end, initial_position=InitialPosition.Earliest
    )
    serving = asyncio.ensure_future(worker.serve())
    await asyncio.sleep(1)
    serving.cancel()
    await asyncio.sleep(1)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(10):
            await serving
    assert (worker.unfinished(), worker.report().given_back) == (1, 1)
    assert not worker.consumer.is_connected()

    async def handler(value: bytes) -> None:
        pass

    async with running(client, handler):
        await all_acked(transport)


async def test_handlers_that_a_cancelled_serve_leaves_behind_are_in_its_report(
    client: Client, transport: MemoryTransport
) -> None:
    async def never_ends(value: bytes) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1_000)

    transport.put(TOPIC, b"x")
    worker = encore.Worker(
        client, TOPIC, SUBSCRIPTION, never_ends, initial_position=InitialPosition.Earliest
    )
    serving = asyncio.ensure_future(worker.serve())
    await asyncio.sleep(1)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(worker.drain):
            await serving
    assert worker.unfinished() == worker.report().abandoned == 1


async def test_a_partition_that_moves_to_another_worker_is_processed_there_in_order(
    client: Client, transport: MemoryTransport
) -> None:
    cancelled, seen = [], []

    async def first(value: bytes) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(value)
            raise

    async def second(value: bytes) -> None:
        seen.append(value)

    for number in range(20):
        transport.put(TOPIC, b"%d" % number)
    slow = encore.SubscribeOptions(consumer_name="b")
    fast = encore.SubscribeOptions(consumer_name="a")
    async with running(client, first, order="partition", options=slow) as before:
        await asyncio.sleep(5)
        # The broker chooses the consumer whose name comes first.
        async with running(client, second, order="partition", options=fast):
            await all_acked(transport)
        assert cancelled == [b"0"]
        assert before.held == 0
    assert seen == [b"%d" % number for number in range(20)]


async def test_a_partition_that_moves_while_the_worker_starts_is_left_to_the_other_consumer(
    client: Client, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled, read = [], []
    create = Consumer.create_letter_subscriptions

    async def create_slowly(consumer: Consumer) -> list[str]:
        await asyncio.sleep(4)
        return await create(consumer)

    async def handler(value: bytes) -> None:
        handled.append(value)

    monkeypatch.setattr(Consumer, "create_letter_subscriptions", create_slowly)
    for n in range(6):
        transport.put(TOPIC, b"%d" % n)
    worker = encore.Worker(
        client,
        TOPIC,
        SUBSCRIPTION,
        handler,
        order="partition",
        initial_position=InitialPosition.Earliest,
        options=encore.SubscribeOptions(consumer_name="b"),
    )
    starting = asyncio.create_task(worker.__aenter__())
    await asyncio.sleep(2)
    async with await client.subscribe(
        TOPIC, SUBSCRIPTION, consumer_type=ConsumerType.Failover, consumer_name="a"
    ) as other:
        await starting
        for _ in range(6):
            message = await other.receive(timeout=10)
            read.append(message.data())
            await other.acknowledge(message)
    await worker.__aexit__(None, None, None)
    assert read == [b"%d" % n for n in range(6)]
    assert handled == []


@pytest.mark.parametrize("order", ["none", "key", "partition"])
@pytest.mark.parametrize("call", ["seek", "redeliver"])
async def test_messages_that_a_seek_or_a_rewind_gives_back_are_lost(
    client: Client, transport: MemoryTransport, order: str, call: str
) -> None:
    events = []
    is_slow = True

    async def handler(value: bytes) -> None:
        events.append(("start", value))
        try:
            await asyncio.sleep(60 if is_slow else 0)
        except asyncio.CancelledError:
            events.append(("cancelled", value))
            raise
        events.append(("end", value))

    for n in range(4):
        transport.put(TOPIC, b"%d" % n, key="k")
    async with running(client, handler, order=order, concurrency=1, prefetch=9) as worker:
        await until(lambda: worker.held == 4 and bool(events))
        is_slow = False
        if call == "seek":
            await worker.consumer.seek(encore.MessageId.earliest)
        else:
            worker.consumer.redeliver_unacknowledged_messages()
        await all_acked(transport)
    assert events[:2] == [("start", b"0"), ("cancelled", b"0")]
    assert [value for event, value in events if event == "end"] == [b"0", b"1", b"2", b"3"]
    assert worker.report().lost == 4


async def test_a_dead_letter_that_cannot_be_stored_keeps_its_message_and_is_tried_again(
    client: Client, transport: MemoryTransport
) -> None:
    async def reject(value: bytes) -> None:
        raise encore.Reject("no")

    transport.put(TOPIC, b"x")
    transport.faults = FaultPlan(
        [Fault(kind="refuse", command="SEND", times=5, error="PersistenceError")]
    )
    async with running(client, reject) as worker:
        await all_acked(transport)
    assert worker.report().rejected == 1
    assert len(testing.letters(transport, f"{TOPIC}-{SUBSCRIPTION}-DLQ")) >= 1


async def test_a_payload_that_does_not_decode_is_rejected_with_its_error(
    client: Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"{", b'{"total": 1}')

    async def handler(value: dict[str, int]) -> None:
        assert value == {"total": 1}

    async with running(client, handler, schema=encore.Json(dict[str, int])):
        await all_acked(transport)
    (letter,) = testing.letters(transport, f"{TOPIC}-{SUBSCRIPTION}-DLQ")
    assert (letter.error_class or "").endswith("DecodeError")


@pytest.mark.parametrize("order", ["none", "key", "partition"])
async def test_the_end_of_an_event_loop_costs_no_attempt(
    client: Client, transport: MemoryTransport, order: str, tmp_path: Path
) -> None:
    """`asyncio.run` cancels all tasks at its end, the handlers perhaps before the worker."""
    attempts = []

    async def handler(value: bytes, message: Message) -> None:
        attempts.append(message.attempt)
        await asyncio.sleep(1000)

    transport.put(TOPIC, b"x", key="k")
    for run in range(1, 6):
        worker = encore.Worker(
            client,
            TOPIC,
            SUBSCRIPTION,
            handler,
            order=order,
            state=encore.RocksState(tmp_path / "state"),
            initial_position=InitialPosition.Earliest,
        )
        serving = asyncio.create_task(worker.serve())
        await until(lambda run=run: len(attempts) == run)
        for task in asyncio.all_tasks():
            if "handler" in task.get_name():
                task.cancel()
        serving.cancel()
        await asyncio.wait((serving,))
    assert attempts == [1] * 5


async def test_a_task_that_other_code_cancels_is_a_failed_attempt(
    client: Client, transport: MemoryTransport
) -> None:
    attempts = []

    async def handler(value: bytes, message: Message) -> None:
        attempts.append(message.attempt)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1000)

    transport.put(TOPIC, b"x")
    async with running(client, handler, retry=encore.RetryPolicy(attempts=3)) as worker:
        await all_acked(transport)
    assert attempts == [1, 2, 3]
    assert worker.report().rejected == 1


@pytest.mark.parametrize(
    ("order", "kind"),
    [
        ("none", "single"),
        ("key", "single"),
        ("partition", "single"),
        ("none", "list"),
        ("partition", "list"),
    ],
)
async def test_a_schema_that_cannot_be_fetched_costs_no_attempt(order: str, kind: str) -> None:
    attempts = []

    async def handler(values: Any, messages: Any) -> None:
        message = messages[0] if kind == "list" else messages
        attempts.append(message.attempt)

    # Each answer that is lost costs the fetch 30 s; the default attempts end after about 31 s.
    faults = FaultPlan([Fault(kind="drop", command="GET_SCHEMA", nth=1, times=8)])
    transport = MemoryTransport(faults=faults)
    run = running_lists if kind == "list" else running
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        producer = await client.create_producer(TOPIC, schema=encore.Json(dict[str, int]))
        await producer.send({"id": 1}, partition_key="k")
        async with run(client, handler, order=order, schema=encore.AutoConsume()) as worker:
            await all_acked(transport)
            assert worker.report().rejected == 0
    assert attempts == [1]


async def test_stop_from_another_thread_begins_the_drain(client: Client) -> None:
    worker = encore.Worker(client, TOPIC, SUBSCRIPTION, nothing)
    serving = asyncio.ensure_future(worker.serve())
    await until(lambda: worker.health().state == "running")
    await asyncio.to_thread(worker.stop)
    async with asyncio.timeout(30):
        await serving


@pytest.mark.parametrize("topics", ["list", "pattern"])
async def test_a_worker_reads_lists_and_patterns_of_topics(
    client: Client, transport: MemoryTransport, topics: str
) -> None:
    seen = []

    async def handler(value: bytes, message: Message) -> None:
        seen.append(value)
        raise encore.Reject("no")

    transport.put("orders-eu", b"eu")
    transport.put("orders-us", b"us")
    given: Any = ["orders-eu", "orders-us"]
    if topics == "pattern":
        given = re.compile("persistent://public/default/orders-..")
    async with running(client, handler, given):
        await until(lambda: len(seen) == 2)
        for name in ("eu", "us"):
            await all_acked(transport, f"persistent://public/default/orders-{name}")
    for name in ("eu", "us"):
        assert len(testing.letters(transport, f"orders-{name}-{SUBSCRIPTION}-DLQ")) == 1


async def test_a_broker_that_answers_no_close_holds_a_program_one_second_beyond_the_drain(
    transport: MemoryTransport,
) -> None:
    """A worker has producers for dead letters and for results, beside its consumer."""

    async def handler(value: bytes) -> bytes:
        if value == b"reject":
            raise encore.Reject("no")
        return value

    transport.put(TOPIC, b"reject", b"result")
    loop = asyncio.get_running_loop()
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        worker = encore.Worker(
            client,
            TOPIC,
            SUBSCRIPTION,
            handler,
            drain=10,
            publish="results",
            initial_position=InitialPosition.Earliest,
        )
        serving = asyncio.ensure_future(worker.serve())
        await until(lambda: worker.health().state == "running")
        await all_acked(transport)
        transport.faults = FaultPlan(
            [Fault(kind="drop", command=f"CLOSE_{each}") for each in ("CONSUMER", "PRODUCER")]
        )
        began = loop.time()
        worker.stop()
        report = await serving
        assert (report.published, report.rejected) == (1, 1)
        assert loop.time() - began <= 10.1
    assert loop.time() - began <= 11.2
