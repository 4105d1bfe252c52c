"""The message listener: every message once and in order, failures nacked, never silent."""

from __future__ import annotations

import asyncio
import logging

import pytest
from consumer_kit import (
    TOPIC,
    Subscribe,
    close_without_backlog,
    now_s,
    payloads,
    put_numbers,
    receive_all,
)

from pulsar_encore import (
    Client,
    ClosedError,
    ConfigurationError,
    Consumer,
    ConsumerType,
    InitialPosition,
    Message,
)
from pulsar_encore.testing import MemoryTransport


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_listener_gets_all_messages_in_order(
    transport: MemoryTransport, subscribe: Subscribe, is_async: bool
) -> None:
    seen: list[bytes] = []

    async def later(consumer: Consumer, message: Message) -> None:
        await asyncio.sleep(0.1)
        seen.append(message.data())
        await consumer.acknowledge(message)

    def at_once(consumer: Consumer, message: Message) -> None:
        seen.append(message.data())

    numbers = put_numbers(transport, 10)
    consumer = await subscribe(message_listener=later if is_async else at_once)
    await asyncio.sleep(2)
    assert seen == numbers
    await consumer.close()
    assert transport.backlog(TOPIC, "s") == (0 if is_async else 10)


async def test_a_listener_that_raises_nacks_its_message(
    transport: MemoryTransport, subscribe: Subscribe, caplog: pytest.LogCaptureFixture
) -> None:
    deliveries: list[tuple[bytes, int]] = []

    async def fail_once(consumer: Consumer, message: Message) -> None:
        deliveries.append((message.data(), message.redelivery_count()))
        if message.redelivery_count() == 0 and message.data() == b"1":
            raise RuntimeError("no")
        await consumer.acknowledge(message)

    put_numbers(transport, 3, batch=3)
    consumer = await subscribe(message_listener=fail_once, negative_ack_redelivery_delay_ms=1000)
    await asyncio.sleep(5)
    assert deliveries == [(b"0", 0), (b"1", 0), (b"2", 0), (b"1", 1)]
    assert "message_listener failed" in caplog.text
    await close_without_backlog(transport, consumer)


async def test_a_paused_listener_gets_no_message_until_it_is_resumed(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    seen: list[bytes] = []

    async def listen(consumer: Consumer, message: Message) -> None:
        seen.append(message.data())
        await consumer.acknowledge(message)
        if len(seen) == 2:
            consumer.pause_message_listener()

    put_numbers(transport, 4)
    consumer = await subscribe(message_listener=listen)
    await asyncio.sleep(5)
    assert seen == [b"0", b"1"]
    consumer.resume_message_listener()
    await asyncio.sleep(5)
    assert seen == [b"0", b"1", b"2", b"3"]
    await consumer.close()


async def test_a_listener_may_close_its_consumer(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    seen: list[bytes] = []

    async def listen(consumer: Consumer, message: Message) -> None:
        seen.append(message.data())
        await consumer.acknowledge(message)
        await consumer.close()

    put_numbers(transport, 3)
    await subscribe(message_listener=listen)
    await asyncio.sleep(5)
    assert seen == [b"0"]
    assert transport.consumers == []


async def test_receive_with_a_listener_and_pause_without_one_are_refused(
    subscribe: Subscribe,
) -> None:
    consumer = await subscribe(message_listener=lambda consumer, message: None)
    for call in (consumer.receive(), consumer.receive(timeout=1), consumer.batch_receive()):
        with pytest.raises(ConfigurationError, match="message_listener"):
            await call
    await consumer.close()
    plain = await subscribe()
    for switch in (plain.pause_message_listener, plain.resume_message_listener):
        with pytest.raises(ConfigurationError, match="message_listener"):
            switch()


# A failure like any other


async def test_a_callback_that_awaits_a_cancelled_task_nacks_its_message(
    transport: MemoryTransport, subscribe: Subscribe, caplog: pytest.LogCaptureFixture
) -> None:
    deliveries: list[tuple[bytes, int]] = []

    async def listen(consumer: Consumer, message: Message) -> None:
        deliveries.append((message.data(), message.redelivery_count()))
        if message.data() == b"1" and message.redelivery_count() == 0:
            task = asyncio.ensure_future(asyncio.sleep(3600))
            task.cancel()
            await task
        await consumer.acknowledge(message)

    put_numbers(transport, 3)
    consumer = await subscribe(message_listener=listen, negative_ack_redelivery_delay_ms=1000)
    await asyncio.sleep(5)
    assert deliveries == [(b"0", 0), (b"1", 0), (b"2", 0), (b"1", 1)]
    assert "message_listener failed" in caplog.text
    await close_without_backlog(transport, consumer)


async def test_a_timeout_handled_inside_the_callback_is_no_failure(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    async def listen(consumer: Consumer, message: Message) -> None:
        try:
            async with asyncio.timeout(0.1):
                await asyncio.sleep(3600)
        except TimeoutError:
            await consumer.acknowledge(message)

    put_numbers(transport, 3)
    consumer = await subscribe(message_listener=listen)
    await asyncio.sleep(5)
    await close_without_backlog(transport, consumer)


async def test_a_callback_that_fails_after_its_ack_causes_no_redelivery(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    deliveries: list[bytes] = []

    async def listen(consumer: Consumer, message: Message) -> None:
        deliveries.append(message.data())
        await consumer.acknowledge(message)
        raise RuntimeError("after the ack")

    put_numbers(transport, 3)
    consumer = await subscribe(message_listener=listen, negative_ack_redelivery_delay_ms=100)
    await asyncio.sleep(5)
    assert deliveries == [b"0", b"1", b"2"]
    await close_without_backlog(transport, consumer)


# Never ends without a word


@pytest.mark.parametrize("paused", [False, True])
async def test_a_transport_shutdown_is_logged_and_raised_by_the_next_calls(
    transport: MemoryTransport,
    subscribe: Subscribe,
    caplog: pytest.LogCaptureFixture,
    paused: bool,
) -> None:
    seen: list[Message] = []
    put_numbers(transport, 1)
    consumer = await subscribe(message_listener=lambda consumer, message: seen.append(message))
    await asyncio.sleep(0.1)
    if paused:
        consumer.pause_message_listener()
        await asyncio.sleep(0.1)
    caplog.clear()
    transport.shutdown()
    await asyncio.sleep(0.1)
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert "message_listener" in record.getMessage() and TOPIC in record.getMessage()
    for call in (consumer.acknowledge, consumer.negative_acknowledge):
        with pytest.raises(ClosedError):
            await call(seen[0])
    for switch in (consumer.pause_message_listener, consumer.resume_message_listener):
        with pytest.raises(ClosedError):
            switch()
    await consumer.close()


async def test_a_callback_running_at_a_transport_shutdown_gets_closed_error_from_its_ack(
    transport: MemoryTransport, subscribe: Subscribe, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[BaseException] = []

    async def listen(consumer: Consumer, message: Message) -> None:
        await asyncio.sleep(1)
        try:
            await consumer.acknowledge(message)
        except ClosedError as error:
            errors.append(error)
            raise

    put_numbers(transport, 5)
    consumer = await subscribe(message_listener=listen)
    await asyncio.sleep(0.5)
    transport.shutdown()
    await asyncio.sleep(5)
    assert len(errors) == 1, "queued messages go to the next consumer"
    assert "not nacked" in caplog.text
    await consumer.close()


async def test_a_callback_cancelled_from_outside_nacks_its_message(
    transport: MemoryTransport, subscribe: Subscribe, caplog: pytest.LogCaptureFixture
) -> None:
    tasks: list[asyncio.Task[None] | None] = []

    async def listen(consumer: Consumer, message: Message) -> None:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(3600)

    put_numbers(transport, 2)
    consumer = await subscribe(message_listener=listen, negative_ack_redelivery_delay_ms=500)
    await asyncio.sleep(0.1)
    assert tasks[0] is not None
    tasks[0].cancel()
    await asyncio.sleep(0.1)
    assert "message_listener" in caplog.text and "cancelled" in caplog.text
    assert consumer.statistics().nacked == 1
    await consumer.close()


# Closing


async def test_close_waits_for_the_running_callback_and_its_ack(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    ended: list[bytes] = []

    async def listen(consumer: Consumer, message: Message) -> None:
        await asyncio.sleep(2)
        await consumer.acknowledge(message)
        ended.append(message.data())

    put_numbers(transport, 3)
    consumer = await subscribe(message_listener=listen)
    await asyncio.sleep(1)
    await consumer.close()
    assert ended == [b"0"]
    assert now_s() == pytest.approx(2, abs=0.2)
    assert transport.backlog(TOPIC, "s") == 2


@pytest.mark.parametrize("stubborn", [False, True])
async def test_close_cancels_a_callback_that_does_not_end(
    transport: MemoryTransport,
    subscribe: Subscribe,
    caplog: pytest.LogCaptureFixture,
    stubborn: bool,
) -> None:
    cancelled: list[bytes] = []

    async def listen(consumer: Consumer, message: Message) -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                cancelled.append(message.data())
                if not stubborn:
                    raise

    put_numbers(transport, 3)
    consumer = await subscribe(message_listener=listen)
    await asyncio.sleep(1)
    await consumer.close()
    assert cancelled == [b"0"]
    assert 6 <= now_s() < 8
    assert "cancelled" in caplog.text
    other = await subscribe()
    assert payloads(await receive_all(other)) == [b"0", b"1", b"2"]
    await asyncio.sleep(60)


@pytest.mark.parametrize("paused", [False, True])
async def test_close_does_not_wait_for_an_idle_listener(subscribe: Subscribe, paused: bool) -> None:
    consumer = await subscribe(message_listener=lambda consumer, message: None)
    if paused:
        consumer.pause_message_listener()
    await asyncio.sleep(1)
    await consumer.close()
    assert now_s() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("how", ["unsubscribe", "task", "client"])
async def test_a_callback_may_unsubscribe_or_close_its_consumer_or_client(
    transport: MemoryTransport, how: str
) -> None:
    """The listener and the task that closes do not wait for each other."""
    went_on: list[bytes] = []
    client = Client("pulsar://memory:6650", transport=transport)

    async def listen(consumer: Consumer, message: Message) -> None:
        await consumer.acknowledge(message)
        if how == "unsubscribe":
            await consumer.unsubscribe()
        elif how == "task":
            await asyncio.gather(consumer.close())
        else:
            await client.close()
        went_on.append(message.data())

    put_numbers(transport, 3)
    await client.subscribe(
        TOPIC,
        "s",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        message_listener=listen,
    )
    await asyncio.sleep(1)
    assert went_on == [b"0"]
    assert transport.consumers == []
    await client.close()


# Pausing


async def test_a_listener_resumed_and_paused_at_once_stays_paused(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    seen: list[bytes] = []
    consumer = await subscribe(message_listener=lambda consumer, message: seen.append(message))
    consumer.pause_message_listener()
    put_numbers(transport, 3)
    await asyncio.sleep(1)
    consumer.resume_message_listener()
    consumer.pause_message_listener()
    await asyncio.sleep(1)
    assert seen == []
    consumer.resume_message_listener()
    await asyncio.sleep(1)
    assert len(seen) == 3
    await consumer.close()
