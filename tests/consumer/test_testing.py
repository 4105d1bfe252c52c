"""What users test with, under test: virtual time, the transport in memory, the broker helper."""

from __future__ import annotations

import asyncio
import time

import pytest
from consumer_kit import TOPIC

import pulsar_encore as encore
from pulsar_encore.testing import (
    Deadlock,
    Fault,
    FaultPlan,
    MemoryTransport,
    VirtualClockLoop,
    broker,
    run,
)


def test_an_hour_takes_no_time_and_timers_keep_their_order() -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def sleeper(seconds: int) -> None:
            await asyncio.sleep(seconds)
            order.append(seconds)

        await asyncio.gather(*(sleeper(seconds) for seconds in (3600, 5, 60)))
        assert asyncio.get_running_loop().time() == pytest.approx(3600)
        return order

    begun = time.monotonic()
    assert run(main()) == [5, 60, 3600]
    assert time.monotonic() - begun < 1


def test_a_wait_that_cannot_end_is_an_error() -> None:
    with pytest.raises(Deadlock, match="timeout"):
        run(asyncio.Event().wait(), patience_s=0.01)


def test_another_thread_is_waited_for() -> None:
    async def main() -> str:
        return await asyncio.to_thread(lambda: "done")

    assert run(main()) == "done"


def test_time_goes_forward_only() -> None:
    loop = VirtualClockLoop()
    try:
        loop.advance(5)
        assert loop.time() == 5
        with pytest.raises(ValueError, match="forward"):
            loop.advance(-1)
    finally:
        loop.close()


async def test_readers(transport: MemoryTransport) -> None:
    ids = transport.put(TOPIC, b"0", b"1") + transport.put(TOPIC, b"2")
    async with encore.Client("pulsar://memory", transport=transport) as client:
        async with await client.create_reader(TOPIC, encore.MessageId.earliest) as reader:
            got = [await reader.read_next(1000) for _ in range(3)]
            assert [each.data() for each in got] == [b"0", b"1", b"2"]
            assert [each.message_id() for each in got] == ids
            assert not await reader.has_message_available()
            with pytest.raises(encore.ReceiveTimeout):
                await reader.read_next(1000)
        async with await client.create_reader(TOPIC, ids[0]) as reader:
            assert (await reader.read_next()).data() == b"1"


async def test_producers_spread_over_partitions_and_keep_keys_together(
    transport: MemoryTransport,
) -> None:
    transport.catalogue.create_partitioned(TOPIC, 3)
    async with encore.Client("pulsar://memory", transport=transport) as client:
        assert len(await client.get_topic_partitions(TOPIC)) == 3
        producer = await client.create_producer(TOPIC)
        spread = {(await producer.send(b"x")).partition() for _ in range(6)}
        assert spread == {0, 1, 2}
        keyed = {(await producer.send(b"x", partition_key="k")).partition() for _ in range(6)}
        assert len(keyed) == 1
        assert producer.topic() == TOPIC


async def test_refusals_have_their_names(transport: MemoryTransport) -> None:
    transport.faults = FaultPlan(
        [Fault(kind="refuse", command="SUBSCRIBE", error="AuthorizationError")]
    )
    async with encore.Client("pulsar://memory", transport=transport) as client:
        with pytest.raises(encore.TransportError) as caught:
            await client.subscribe(TOPIC, "s")
        assert caught.value.result == "AuthorizationError"
        await client.subscribe(TOPIC, "s")
        with pytest.raises(encore.TransportError) as caught:
            await client.subscribe(TOPIC, "s")
        assert caught.value.result == "ConsumerBusy"
        transport.disconnect()
        with pytest.raises(encore.TransportError):
            await client.create_producer(TOPIC)
    assert transport.faults.done


def test_a_broker_for_a_block() -> None:
    async def main() -> None:
        async with broker() as url:
            assert url.startswith("pulsar://127.0.0.1:")
            url.broker.create_topic("t")
            assert url.broker.topics() == [TOPIC]
        with pytest.raises(encore.ClosedError):
            url.broker.topics()

    asyncio.run(main())
