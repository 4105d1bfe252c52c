"""A settling call acts when it is called; its result can be used as a coroutine."""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import threading
import warnings
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import AsyncMock, create_autospec

import pytest
from consumer_kit import (
    TOPIC,
    Subscribe,
    close_without_backlog,
    put_numbers,
    receive_n,
    receive_numbers,
)

from pulsar_encore import ConfigurationError, Consumer, ConsumerType, Message, MessageNotHeldError
from pulsar_encore.testing import MemoryTransport


async def test_a_listener_that_is_a_plain_function_can_ack_and_nack(
    transport: MemoryTransport, subscribe: Subscribe, recwarn: pytest.WarningsRecorder
) -> None:
    seen: list[tuple[bytes, int]] = []

    def listener(consumer: Consumer, message: Message) -> None:
        seen.append((message.data(), message.redelivery_count()))
        if message.data() == b"1" and message.redelivery_count() == 0:
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)

    put_numbers(transport, 3)
    consumer = await subscribe(message_listener=listener, negative_ack_redelivery_delay_ms=500)
    await asyncio.sleep(2)
    assert seen == [(b"0", 0), (b"1", 0), (b"2", 0), (b"1", 1)]
    await close_without_backlog(transport, consumer)
    gc.collect()
    assert [each.message for each in recwarn if "never awaited" in str(each.message)] == []


async def test_an_invalid_nack_in_a_plain_listener_nacks_its_message(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """It raises where it is called, so that the callback has failed: nothing is left unsettled."""
    redelivery_counts: list[int] = []

    def listener(consumer: Consumer, message: Message) -> None:
        redelivery_counts.append(message.redelivery_count())
        consumer.negative_acknowledge(message, delay=-1 if len(redelivery_counts) == 1 else 0)

    put_numbers(transport, 1)
    consumer = await subscribe(message_listener=listener, negative_ack_redelivery_delay_ms=1000)
    await asyncio.sleep(1.5)
    assert redelivery_counts[:2] == [0, 1]
    await consumer.close()


Call = Callable[[Consumer, list[Message]], Coroutine[Any, Any, None]]
CALLS: dict[str, Call] = {
    "acknowledge": lambda consumer, messages: consumer.acknowledge(messages[0]),
    "a list": lambda consumer, messages: consumer.acknowledge(messages[:3]),
    "a long list": lambda consumer, messages: consumer.acknowledge(messages),
    "acknowledge_cumulative": lambda consumer, messages: consumer.acknowledge_cumulative(
        messages[0]
    ),
    "negative_acknowledge": lambda consumer, messages: consumer.negative_acknowledge(
        messages[0], 100, error="why"
    ),
}


@pytest.fixture(params=[pytest.param(call, id=name) for name, call in CALLS.items()])
def settle(request: pytest.FixtureRequest) -> Call:
    call: Call = request.param
    return call


async def left(consumer: Consumer) -> int:
    statistics = consumer.statistics()
    return statistics.in_flight


async def held(subscribe: Subscribe, transport: MemoryTransport) -> tuple[Consumer, list[Message]]:
    put_numbers(transport, 1200)
    consumer = await subscribe(
        consumer_type=ConsumerType.Exclusive, receiver_queue_size=2000, ack_group_max_size=10_000
    )
    return consumer, await receive_n(consumer, 1200)


async def test_the_result_of_a_settlement_call_is_accepted_wherever_a_coroutine_is(
    transport: MemoryTransport, subscribe: Subscribe, settle: Call
) -> None:
    asyncio.get_running_loop().set_debug(True)
    consumer, messages = await held(subscribe, transport)
    before = await left(consumer)
    assert await settle(consumer, messages) is None
    after = await left(consumer)
    assert after < before
    assert await asyncio.create_task(settle(consumer, messages)) is None
    assert await asyncio.wait_for(settle(consumer, messages), 1) is None
    assert await asyncio.gather(*(settle(consumer, messages) for _ in range(3))) == [None] * 3
    async with asyncio.TaskGroup() as group:
        group.create_task(settle(consumer, messages), name="settling")
    assert asyncio.iscoroutine(settle(consumer, messages))
    done, _ = await asyncio.wait([asyncio.ensure_future(settle(consumer, messages))])
    assert [each.result() for each in done] == [None]
    assert await left(consumer) == after
    await consumer.close()


async def test_a_settlement_call_takes_effect_without_being_awaited(
    transport: MemoryTransport, subscribe: Subscribe, settle: Call
) -> None:
    consumer, messages = await held(subscribe, transport)
    before = await left(consumer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settle(consumer, messages)
        await asyncio.sleep(0.5)
        gc.collect()
    assert await left(consumer) < before
    await consumer.close()


async def test_a_settlement_call_in_a_task_cancelled_before_it_starts_takes_effect(
    transport: MemoryTransport, subscribe: Subscribe, settle: Call
) -> None:
    consumer, messages = await held(subscribe, transport)
    before = await left(consumer)
    task = asyncio.create_task(settle(consumer, messages))
    task.cancel()
    await asyncio.wait((task,))
    await asyncio.sleep(0.5)
    assert await left(consumer) < before
    await consumer.close()


async def test_an_unawaited_ack_of_a_list_that_fails_is_reported_to_the_loop(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """As a task of asyncio does: the loop's exception handler gets the error."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    consumer, messages = await held(subscribe, transport)
    other = await subscribe(subscription_name="other")
    (foreign,) = await receive_n(other, 1)
    with pytest.raises(MessageNotHeldError):
        await consumer.acknowledge([*messages, foreign])
    consumer.acknowledge([*messages, foreign])
    await asyncio.sleep(0.5)
    gc.collect()
    assert [type(each.get("exception")) for each in reported] == [MessageNotHeldError]
    await consumer.close()
    await other.close()


def mistakes(consumer: Consumer, message: Message) -> list[Callable[[], Any]]:
    return [
        lambda: consumer.acknowledge_cumulative(message),
        lambda: consumer.negative_acknowledge(message, delay=-1),
        lambda: consumer.acknowledge("x"),  # type: ignore[arg-type]
        lambda: consumer.acknowledge([message, "x"]),  # type: ignore[list-item]
    ]


async def test_invalid_arguments_raise_where_the_call_is_awaited(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """As from a coroutine function: `gather` collects them, a task holds them."""
    put_numbers(transport, 1)
    consumer = await subscribe()
    message = await consumer.receive()
    for call in mistakes(consumer, message):
        with pytest.raises(ConfigurationError):
            await call()
        task = asyncio.create_task(call())
        await asyncio.wait((task,))
        assert isinstance(task.exception(), ConfigurationError)
        done, _ = await asyncio.wait([asyncio.ensure_future(call())])
        assert isinstance(done.pop().exception(), ConfigurationError)
        first, second = await asyncio.gather(call(), call(), return_exceptions=True)
        assert isinstance(first, ConfigurationError) and isinstance(second, ConfigurationError)
    await consumer.close()


async def test_invalid_arguments_of_unawaited_calls_are_reported_to_the_loop(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    put_numbers(transport, 1)
    consumer = await subscribe()
    message = await consumer.receive()
    for call in mistakes(consumer, message):
        call()
        gc.collect()
    assert [isinstance(each["exception"], ConfigurationError) for each in reported] == [True] * 4
    await consumer.close()


async def test_a_settlement_call_from_a_thread_is_made_on_the_loop(
    transport: MemoryTransport, subscribe: Subscribe, caplog: pytest.LogCaptureFixture
) -> None:
    """`asyncio.to_thread(consumer.acknowledge, message)` of programs that were synchronous."""
    consumer, messages = await receive_numbers(transport, subscribe, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await asyncio.to_thread(consumer.acknowledge, messages[0])
        await (await asyncio.to_thread(consumer.acknowledge, messages[1]))
        await asyncio.to_thread(lambda: consumer.negative_acknowledge(messages[2], 5, error="no"))
        await asyncio.sleep(0.2)
        gc.collect()
    statistics = consumer.statistics()
    assert (statistics.in_flight, statistics.nacked) == (0, 1)
    assert transport.backlog(TOPIC, "s") == 1
    await asyncio.to_thread(lambda: consumer.negative_acknowledge(messages[2], -1) and None)
    await asyncio.sleep(0.1)
    assert "a call from another thread failed" in caplog.text
    with pytest.raises(ConfigurationError):
        await (await asyncio.to_thread(consumer.negative_acknowledge, messages[2], -1))
    await consumer.close()


async def test_an_autospec_mock_of_acknowledge_can_be_awaited() -> None:
    mock = create_autospec(Consumer, instance=True)
    assert isinstance(mock.acknowledge, AsyncMock) and isinstance(mock.receive, AsyncMock)
    await mock.acknowledge("m")
    mock.acknowledge.assert_awaited_once_with("m")


async def test_settlement_calls_from_a_thread_are_made_before_the_close_that_follows(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, messages = await receive_numbers(transport, subscribe, 20)

    def work() -> None:
        for message in messages:
            consumer.acknowledge(message)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    await close_without_backlog(transport, consumer)


async def test_many_settlement_calls_from_a_thread_let_the_loop_run_in_between(
    transport: MemoryTransport, subscribe: Subscribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, messages = await receive_numbers(transport, subscribe, 40)
    clock = itertools.count(0, 0.001)  # a look at it is a millisecond
    monkeypatch.setattr("pulsar_encore.eventloop.mailbox.time.perf_counter", clock.__next__)

    def work() -> None:
        for message in messages:
            consumer.acknowledge(message)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    turns = 0
    while await left(consumer):
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 20  # two at a time
    await consumer.close()


async def test_acks_of_the_last_callback_are_sent_before_the_consumer_closes(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    kept: list[Message] = []
    called = asyncio.Event()

    async def listener(consumer: Consumer, message: Message) -> None:
        kept.append(message)
        if len(kept) == 1200:
            called.set()
            await asyncio.sleep(1)  # the close has begun
            consumer._fair_yield.clock = lambda: math.inf  # the list's own task does one each turn
            consumer.acknowledge(kept)

    put_numbers(transport, 1200)
    consumer = await subscribe(message_listener=listener, receiver_queue_size=2000)
    await called.wait()
    await close_without_backlog(transport, consumer)


@pytest.mark.parametrize("then", ["close", "change", "seek", "redeliver"])
async def test_an_unawaited_ack_of_a_long_list_completes_whatever_call_follows(
    transport: MemoryTransport, subscribe: Subscribe, then: str
) -> None:
    consumer, messages = await held(subscribe, transport)
    consumer.acknowledge(messages)
    if then == "close":
        await consumer.close()
    elif then == "change":
        messages.clear()
        await asyncio.sleep(1)
    elif then == "seek":
        await consumer.seek(messages[-1].message_id())
    else:
        consumer.redeliver_unacknowledged_messages()
        await asyncio.sleep(1)
    assert transport.backlog(TOPIC, "s") == 0
    await consumer.close()
