"""Receiving: in order, with timeouts, cancelled anywhere, and nothing is swallowed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from consumer_kit import (
    TOPIC,
    Subscribe,
    close_without_backlog,
    counted,
    now_s,
    payloads,
    put_numbers,
    receive_all,
    receive_n,
    receive_numbers,
    settle,
)

from pulsar_encore import (
    BatchReceivePolicy,
    ClosedError,
    ConfigurationError,
    Consumer,
    MessageId,
    ReceiveTimeout,
)
from pulsar_encore.testing import MemoryTransport


async def test_messages_are_received_in_order(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    numbers = put_numbers(transport, 25, batch=4)
    consumer = await subscribe()
    assert payloads(await receive_all(consumer)) == numbers


@pytest.mark.parametrize(
    ("arguments", "waited"),
    [
        ({"timeout_millis": 1500}, 1.5),
        ({"timeout": 2.5}, 2.5),
        ({"timeout": timedelta(minutes=1)}, 60),
        ({"timeout": 0}, 0),
    ],
)
async def test_receive_raises_receive_timeout_after_its_timeout(
    subscribe: Subscribe, arguments: dict[str, Any], waited: float
) -> None:
    consumer = await subscribe()
    with pytest.raises(ReceiveTimeout):
        await consumer.receive(**arguments)
    assert now_s() == pytest.approx(waited)


async def test_receive_timeout_is_also_a_timeout_error(subscribe: Subscribe) -> None:
    consumer = await subscribe()
    with pytest.raises(TimeoutError):
        await consumer.receive(timeout=1)


async def test_receive_with_a_timeout_of_zero_returns_a_queued_message(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer = await subscribe()
    transport.put(TOPIC, b"x")
    await asyncio.sleep(0.01)
    assert (await consumer.receive(timeout=0)).data() == b"x"


@pytest.mark.parametrize(
    "arguments",
    [{"timeout": -1}, {"timeout_millis": -5}, {"timeout_millis": 5, "timeout": 1}],
)
async def test_negative_or_conflicting_timeouts_are_refused(
    subscribe: Subscribe, arguments: dict[str, Any]
) -> None:
    consumer = await subscribe()
    with pytest.raises(ConfigurationError, match="timeout"):
        await consumer.receive(**arguments)


async def test_two_thousand_timed_out_receives_lose_no_message(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer = await subscribe(receiver_queue_size=10)
    seen = []

    async def publish() -> None:
        for number in range(500):
            transport.put(TOPIC, b"%d" % number)
            await asyncio.sleep(0.0041)

    publishing = asyncio.ensure_future(publish())
    for _ in range(2000):
        try:
            seen.append(await asyncio.wait_for(consumer.receive(), 0.001))
        except TimeoutError:
            continue
    await publishing
    seen += await receive_all(consumer)
    assert payloads(seen) == [b"%d" % number for number in range(500)]


async def test_waiting_receives_are_served_in_order(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer = await subscribe()
    waiting = [asyncio.ensure_future(consumer.receive()) for _ in range(4)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    put_numbers(transport, 3)
    got = await asyncio.gather(*waiting, return_exceptions=True)
    assert [each.data() for each in got if not isinstance(each, BaseException)] == [
        b"0",
        b"1",
        b"2",
    ]


async def test_a_receive_cancelled_when_it_is_woken_wakes_the_next_one(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer = await subscribe()
    first = asyncio.ensure_future(consumer.receive())
    second = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    transport.put(TOPIC, b"x")
    while not consumer.statistics().queued:
        await asyncio.sleep(0)
    first.cancel()
    assert (await asyncio.wait_for(second, 1)).data() == b"x"


Call = Callable[[Consumer], Coroutine[Any, Any, Any]]


async def _seek_to_start(consumer: Consumer) -> None:
    await consumer.seek(MessageId.earliest)


async def _settle_some(consumer: Consumer) -> None:
    message = await consumer.receive()
    await consumer.negative_acknowledge(message, delay=0.5)
    await consumer.negative_acknowledge(message, delay=0.2)


CALLS: dict[str, Call] = {
    "receive": lambda consumer: consumer.receive(),
    "receive with a timeout": lambda consumer: consumer.receive(timeout=5),
    "batch_receive": lambda consumer: consumer.batch_receive(),
    "nacking": _settle_some,
    "seek": _seek_to_start,
    "get_last_message_id": lambda consumer: consumer.get_last_message_id(),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("steps", range(12))
async def test_a_call_cancelled_after_any_step_loses_no_message(
    transport: MemoryTransport, subscribe: Subscribe, name: str, steps: int
) -> None:
    """Whatever the cancelled call took is either its result or still to be received, once."""
    consumer = await subscribe(receiver_queue_size=8)
    call = asyncio.ensure_future(CALLS[name](consumer))
    for step in range(steps):
        if step == 2:
            put_numbers(transport, 10, batch=3)
        await asyncio.sleep(0)
    if steps <= 2:
        put_numbers(transport, 10, batch=3)
    call.cancel()
    result: Any = (await asyncio.gather(call, return_exceptions=True))[0]
    got = result if isinstance(result, list) else [result] if hasattr(result, "data") else []
    await settle()  # a seek that was sent takes effect and discards earlier messages
    got = got + await receive_all(consumer, quiet_s=3)
    for each in got:
        await consumer.acknowledge(each)
    if name == "nacking":
        # Messages that the application still holds are redelivered only on request.
        consumer.redeliver_unacknowledged_messages()
        got += await receive_all(consumer)
        for each in got:
            await consumer.acknowledge(each)
    assert set(counted(got)) == {b"%d" % number for number in range(10)}
    if name != "nacking":
        assert max(counted(got).values()) == 1
    await close_without_backlog(transport, consumer)


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("settle", ["acknowledge", "negative_acknowledge"])
async def test_a_cancelled_ack_or_nack_call_has_taken_effect(
    transport: MemoryTransport, subscribe: Subscribe, settle: str, steps: int
) -> None:
    consumer, messages = await receive_numbers(
        transport, subscribe, 3, batch=3, negative_ack_redelivery_delay_ms=100
    )
    call = asyncio.ensure_future(getattr(consumer, settle)(messages[1]))
    for _ in range(steps):
        await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    statistics = consumer.statistics()
    assert statistics.in_flight + statistics.nacked + statistics.unsent_acks in (3, 4)
    assert statistics.in_flight == 2  # it acted when it was called


@pytest.mark.parametrize("steps", range(10))
async def test_close_cancelled_at_any_step_still_closes(
    transport: MemoryTransport, subscribe: Subscribe, steps: int
) -> None:
    put_numbers(transport, 4)
    consumer = await subscribe()
    for message in await receive_n(consumer, 2):
        await consumer.acknowledge(message)
    closing = asyncio.ensure_future(consumer.close())
    for _ in range(steps):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await consumer.close()
    assert transport.backlog(TOPIC, "s") == 2
    assert transport.consumers == []


@pytest.mark.parametrize(
    ("policy", "sizes"),
    [
        (BatchReceivePolicy(4, -1, 100), [4, 4, 2]),
        (BatchReceivePolicy(-1, 6, 100), [3, 3, 3, 1]),
        (BatchReceivePolicy(-1, 1, 100), [1] * 10),
        (BatchReceivePolicy(3, 4, 100), [2, 2, 2, 2, 2]),
        (BatchReceivePolicy(-1, -1, 100), [10]),
    ],
)
async def test_batch_receive_keeps_the_limits_of_its_policy(
    transport: MemoryTransport, subscribe: Subscribe, policy: BatchReceivePolicy, sizes: list[int]
) -> None:
    for number in range(10):
        transport.put(TOPIC, b"%02d" % number)
    consumer = await subscribe(batch_receive_policy=policy)
    batches = []
    while batch := await consumer.batch_receive():
        batches.append(payloads(batch))
    assert [len(batch) for batch in batches] == sizes
    assert [each for batch in batches for each in batch] == [
        b"%02d" % number for number in range(10)
    ]


async def test_batch_receive_returns_an_empty_list_after_the_time_of_its_policy(
    subscribe: Subscribe,
) -> None:
    consumer = await subscribe(batch_receive_policy=BatchReceivePolicy(10, -1, 700))
    assert await consumer.batch_receive() == []
    assert now_s() == pytest.approx(0.7)


async def test_batch_receive_without_a_time_waits_until_its_batch_is_full(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer = await subscribe(batch_receive_policy=BatchReceivePolicy(3, -1, 0))
    waiting = asyncio.ensure_future(consumer.batch_receive())
    put_numbers(transport, 2)
    await asyncio.sleep(100)
    assert not waiting.done()
    transport.put(TOPIC, b"2")
    assert payloads(await waiting) == [b"0", b"1", b"2"]


async def test_batch_receive_of_more_than_the_receiver_queue_holds_still_returns(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer = await subscribe(
        receiver_queue_size=4, batch_receive_policy=BatchReceivePolicy(1000, -1, 0)
    )
    put_numbers(transport, 20)
    assert await asyncio.wait_for(consumer.batch_receive(), 10)


@pytest.mark.parametrize("timeout_ms", [0, 100])
@pytest.mark.parametrize("entry", [7, 505, 1000])
async def test_batch_receive_fills_its_batches_for_any_producer_batch_size(
    transport: MemoryTransport, subscribe: Subscribe, entry: int, timeout_ms: int
) -> None:
    """The batch is as large as the receiver queue; permits are sent while a call waits for it."""
    numbers = put_numbers(transport, 5000, batch=entry)
    consumer = await subscribe(batch_receive_policy=BatchReceivePolicy(1000, -1, timeout_ms))
    got: list[bytes] = []
    for _ in range(5):
        batch = await asyncio.wait_for(consumer.batch_receive(), 10)
        assert len(batch) == 1000
        got += payloads(batch)
        await consumer.acknowledge(batch)
    assert got == numbers


async def test_batch_receive_still_fills_its_batch_after_single_receives(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 400, batch=30)
    consumer = await subscribe(
        receiver_queue_size=40, batch_receive_policy=BatchReceivePolicy(40, -1, 0)
    )
    for singles in range(8):
        await receive_n(consumer, singles)
        assert len(await asyncio.wait_for(consumer.batch_receive(), 10)) == 40


async def test_receive_is_not_starved_by_a_waiting_batch_receive(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer = await subscribe(batch_receive_policy=BatchReceivePolicy(5, -1, 0))
    batch = asyncio.ensure_future(consumer.batch_receive())
    await asyncio.sleep(0)
    single = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    transport.put(TOPIC, b"x")
    assert (await asyncio.wait_for(single, 1)).data() == b"x"
    batch.cancel()


async def test_prefetching_goes_on_with_a_receiver_queue_size_of_one(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    numbers = put_numbers(transport, 300, batch=7)
    consumer = await subscribe(receiver_queue_size=1)
    assert payloads(await receive_all(consumer)) == numbers


async def test_async_for_ends_when_the_consumer_is_closed(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 3)
    seen = []
    async with await subscribe() as consumer:
        async for message in consumer:
            seen.append(message.data())
            await consumer.acknowledge(message)
            if len(seen) == 3:
                asyncio.get_running_loop().call_later(
                    1, lambda: asyncio.ensure_future(consumer.close())
                )
    assert seen == [b"0", b"1", b"2"]
    assert transport.backlog(TOPIC, "s") == 0


async def test_close_ends_every_waiting_call_with_closed_error(subscribe: Subscribe) -> None:
    consumer = await subscribe()
    waiting = [
        asyncio.ensure_future(consumer.receive()),
        asyncio.ensure_future(consumer.receive(timeout=1000)),
        asyncio.ensure_future(consumer.batch_receive()),
    ]
    await asyncio.sleep(0.01)
    await consumer.close()
    for each in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(each, ClosedError)
    assert now_s() < 1


async def test_every_call_after_close_raises_closed_error(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 3)
    consumer = await subscribe()
    message = await consumer.receive()
    await consumer.close()
    await consumer.close()
    for call in (
        consumer.receive,
        partial(consumer.receive, timeout=1),
        consumer.batch_receive,
        partial(consumer.acknowledge, message),
        partial(consumer.acknowledge, [message]),
        partial(consumer.negative_acknowledge, message),
        partial(consumer.seek, MessageId.earliest),
        consumer.get_last_message_id,
        consumer.unsubscribe,
    ):
        with pytest.raises(ClosedError):
            await call()
    with pytest.raises(ClosedError):
        consumer.redeliver_unacknowledged_messages()
    assert not consumer.is_connected()


async def test_receive_raises_closed_error_after_a_transport_shutdown(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer = await subscribe()
    transport.put(TOPIC, b"last")
    await asyncio.sleep(0.01)
    waiting = asyncio.ensure_future(consumer.receive())
    transport.shutdown()
    assert (await waiting).data() == b"last"
    with pytest.raises(ClosedError):
        await consumer.receive()
