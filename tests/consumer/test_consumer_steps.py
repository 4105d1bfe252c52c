"""Calls about many messages take several steps of the event loop, whatever comes after them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from consumer_kit import (
    TOPIC,
    Subscribe,
    close_without_backlog,
    parts_of,
    payloads,
    put_numbers,
    receive_all,
    receive_numbers,
)
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore import BatchReceivePolicy, ClosedError, Consumer, LeaseLostError, MessageId
from pulsar_encore.consumer.consumer_factory import assemble, open_transport_consumer
from pulsar_encore.consumer.delivery import batch_receiver as batches
from pulsar_encore.consumer.delivery.receive_queue import ReceiveQueue
from pulsar_encore.consumer.leases import lease_table as leases_module
from pulsar_encore.consumer.leases.lease_table import LeaseTable
from pulsar_encore.consumer.settlement.settlement import ROW, Settlement
from pulsar_encore.core.entry import Entry
from pulsar_encore.core.topic_state import TopicState
from pulsar_encore.eventloop.fair_yield import SLICE_S
from pulsar_encore.options import ConsumerOptions, ConsumerType, InitialPosition
from pulsar_encore.testing import MemoryTransport, run

COUNT = 3_000


def work(seconds: float) -> None:
    """Let time pass without a pass of the loop."""
    loop: Any = asyncio.get_running_loop()
    loop.advance(seconds)


class Burst:
    """Measures the most work done between two passes of the loop.

    It does not keep the loop busy, or virtual time would stand.
    """

    def __init__(self) -> None:
        self.total = 0
        self.longest = 0
        self._now = 0

    def done(self, count: int = 1) -> None:
        if not self._now:
            asyncio.get_running_loop().call_soon(self._over)
        self._now += count
        self.total += count
        self.longest = max(self.longest, self._now)

    def _over(self) -> None:
        self._now = 0


# A list that is being acked


async def close(consumer: Consumer) -> None:
    await consumer.close()


async def seek(consumer: Consumer) -> None:
    await consumer.seek(MessageId.latest)


async def unsubscribe(consumer: Consumer) -> None:
    await consumer.unsubscribe()


@pytest.mark.parametrize("end", [close, seek, unsubscribe])
async def test_close_seek_and_unsubscribe_let_an_ack_of_a_list_finish_in_parts(
    transport: MemoryTransport, subscribe: Subscribe, monkeypatch: pytest.MonkeyPatch, end: Any
) -> None:
    ack_row, acked = Settlement.ack_row, Burst()

    def slow(self: Settlement, messages: Any, at: int) -> Any:
        work(SLICE_S)
        topic_state, after = ack_row(self, messages, at)
        acked.done(after - at)
        return topic_state, after

    monkeypatch.setattr(Settlement, "ack_row", slow)
    consumer, messages = await receive_numbers(
        transport, subscribe, COUNT, receiver_queue_size=COUNT
    )
    acking = consumer.acknowledge(messages)
    await asyncio.sleep(0)
    assert acked.total < COUNT
    await end(consumer)
    assert acked.total == COUNT
    await acking
    assert acked.longest <= 4 * ROW  # a row is a turn; two callers may have two turns each
    if end is not unsubscribe:
        assert transport.backlog(TOPIC, "s") == 0
    await consumer.close()


# A redelivery of everything


@pytest.mark.parametrize("batch", [1, 2, 10])
@pytest.mark.parametrize("meanwhile", ["nothing", "ack", "nack", "lose", "again", "close"])
async def test_a_redelivery_of_everything_takes_several_steps_and_loses_nothing(
    transport: MemoryTransport,
    subscribe: Subscribe,
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
    meanwhile: str,
) -> None:
    released, complete = Burst(), TopicState.complete_release

    def noted(self: TopicState, entry: Entry) -> None:
        released.done()
        complete(self, entry)

    monkeypatch.setattr(TopicState, "complete_release", noted)
    put_numbers(transport, COUNT, batch=batch)
    consumer = await subscribe(receiver_queue_size=COUNT)
    messages = [await consumer.receive() for _ in range(COUNT)]
    consumer.redeliver_unacknowledged_messages()
    assert released.total == 0 and consumer.statistics().unacked == 0
    await asyncio.sleep(0)
    acked = 0
    if meanwhile == "ack":  # of a first and a last message: one is completed, the other is not
        await consumer.acknowledge(messages[0])
        await consumer.acknowledge(messages[-1])
        acked = 2
    elif meanwhile == "nack":  # of deliveries that have ended
        await consumer.negative_acknowledge(messages[0])
        await consumer.negative_acknowledge(messages[-1])
    elif meanwhile == "lose":
        transport.disconnect()
        await asyncio.sleep(1)
        transport.reconnect()
    elif meanwhile == "again":
        consumer.redeliver_unacknowledged_messages()
    elif meanwhile == "close":
        await consumer.close()
        consumer = await subscribe(receiver_queue_size=COUNT)
    got = [await consumer.receive() for _ in range(COUNT - acked)]
    expected = [b"%d" % each for each in range(COUNT)]
    if acked:
        expected = expected[1:-1]
    assert sorted(payloads(got), key=int) == expected
    if meanwhile in ("nothing", "ack", "nack"):
        assert released.total == COUNT // batch and released.longest <= 2 * 500
    parts_of(consumer).topic_states.by_number[0]._check()
    await consumer.acknowledge(got)
    assert await receive_all(consumer) == []
    await close_without_backlog(transport, consumer)


# Leases


@pytest.mark.parametrize("end", ["redeliver", "close", "seek"])
async def test_1_000_leases_are_ended_in_parts(
    transport: MemoryTransport, subscribe: Subscribe, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(leases_module, "_SWEEP_LIMIT", 100)
    put_numbers(transport, 1_000)
    consumer = await subscribe(receiver_queue_size=1_000)
    leases = []
    while len(leases) < 1_000:
        leases += await consumer.pop(1_000, lease=1_000)
    lost, lose = Burst(), LeaseTable._lose

    def noted(self: LeaseTable, *given: Any) -> None:
        lost.done()
        lose(self, *given)

    monkeypatch.setattr(LeaseTable, "_lose", noted)
    if end == "redeliver":
        consumer.redeliver_unacknowledged_messages()
    elif end == "seek":
        await consumer.seek(MessageId.latest)
    else:
        await consumer.close()
    # A lease that the loop has not reached yet is lost, too.
    with pytest.raises((LeaseLostError, ClosedError)):
        await leases[-1].ack()
    await asyncio.sleep(1)
    assert len(parts_of(consumer).leases) == 0
    assert lost.total == 1_000 and lost.longest <= 2 * 100 + 1
    for lease in leases:
        with pytest.raises((LeaseLostError, ClosedError)):
            await lease.ack()
    await consumer.close()


# Receiving many at once


@pytest.fixture
def slow_making(monkeypatch: pytest.MonkeyPatch) -> Burst:
    """Making the objects of messages takes time; how many were made in each step."""
    made = Burst()
    prepare = ReceiveQueue.prepare

    def slow(self: ReceiveQueue, most: int, most_bytes: int) -> Any:
        for _ in prepare(self, most, most_bytes):
            work(SLICE_S / 4)
            made.done()
            yield

    monkeypatch.setattr(batches, "_UNPREPARED_LIMIT", 10)
    monkeypatch.setattr(ReceiveQueue, "prepare", slow)
    return made


async def filled(transport: MemoryTransport, subscribe: Subscribe, batch: int) -> Consumer:
    put_numbers(transport, COUNT, batch=batch)
    consumer = await subscribe(
        receiver_queue_size=COUNT, batch_receive_policy=BatchReceivePolicy(COUNT, -1, 1_000)
    )
    while consumer.statistics().queued < COUNT:
        await asyncio.sleep(0.01)
    return consumer


BATCHES = pytest.mark.parametrize("batch", [1, 10, 1_000])


@BATCHES
async def test_a_large_batch_is_prepared_in_parts_and_taken_at_once(
    transport: MemoryTransport, subscribe: Subscribe, slow_making: Burst, batch: int
) -> None:
    consumer = await filled(transport, subscribe, batch)
    got = await consumer.batch_receive()
    assert payloads(got) == [b"%d" % each for each in range(COUNT)]
    assert slow_making.longest <= 2 * 4 + 1  # four are a turn
    await consumer.acknowledge(got)
    assert consumer.statistics().unacked == 0
    await close_without_backlog(transport, consumer)


@BATCHES
async def test_a_batch_receive_cancelled_at_any_loop_pass_takes_no_message(
    transport: MemoryTransport, subscribe: Subscribe, slow_making: Burst, batch: int
) -> None:
    consumer = await filled(transport, subscribe, batch)
    for after in (1, 2, 3):
        call = asyncio.ensure_future(consumer.batch_receive())
        for _ in range(after):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        statistics = consumer.statistics()
        assert (statistics.queued, statistics.unacked) == (COUNT, COUNT)
    assert payloads(await consumer.batch_receive()) == [b"%d" % each for each in range(COUNT)]
    assert await receive_all(consumer) == []
    await consumer.close()


@BATCHES
async def test_batch_receive_does_not_take_messages_received_while_it_prepares(
    transport: MemoryTransport, subscribe: Subscribe, slow_making: Burst, batch: int
) -> None:
    consumer = await filled(transport, subscribe, batch)
    call = asyncio.ensure_future(consumer.batch_receive())
    for _ in range(2):
        await asyncio.sleep(0)
    assert not call.done()
    taken = [await consumer.receive() for _ in range(7)]
    got = await call
    assert payloads([*taken, *got]) == [b"%d" % each for each in range(COUNT)]
    await consumer.acknowledge(taken)
    await consumer.acknowledge(got)
    assert consumer.statistics().unacked == consumer.statistics().queued == 0
    await close_without_backlog(transport, consumer)


@pytest.mark.parametrize("end", ["redeliver", "close", "seek"])
async def test_batch_receive_returns_no_message_twice_when_the_queue_is_emptied_meanwhile(
    transport: MemoryTransport, subscribe: Subscribe, slow_making: Burst, end: str
) -> None:
    consumer = await filled(transport, subscribe, 1)
    call = asyncio.ensure_future(consumer.batch_receive())
    for _ in range(2):
        await asyncio.sleep(0)
    if end == "close":
        await consumer.close()
        with pytest.raises(ClosedError):
            await call
        return
    if end == "seek":
        await consumer.seek(MessageId.earliest)
    else:
        consumer.redeliver_unacknowledged_messages()
    got = await call
    while len(got) < COUNT:
        got += await consumer.batch_receive()
    assert sorted(payloads(got), key=int) == [b"%d" % each for each in range(COUNT)]
    assert {message.redelivery_count() for message in got} == {0}
    await consumer.close()


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    most=st.integers(1, 200),
    most_bytes=st.sampled_from([-1, 1, 50, 200, 10_000]),
    acked=st.sets(st.integers(0, 100)),
    prepared=st.booleans(),
)
def test_take_many_returns_the_messages_that_single_takes_return(
    sizes: list[int], most: int, most_bytes: int, acked: set[int], prepared: bool
) -> None:
    async def main() -> None:
        transport = MemoryTransport()
        consumers = [
            await _consumer(transport, name, sum(sizes)) for name in ("whole", "one by one")
        ]
        number, ids = 0, []
        for size in sizes:
            words = [b"x" * (number % 7) + b"%d" % each for each in range(number, number + size)]
            number += size
            ids.append(transport.put(TOPIC, *words))
        for consumer in consumers:
            while consumer.statistics().queued < number:
                await asyncio.sleep(0.01)
        whole, single = (parts_of(consumer).queue for consumer in consumers)
        for consumer in consumers:
            for at in sorted(acked):
                if at < len(sizes):
                    await consumer.acknowledge(ids[at])
        if prepared:
            for _ in whole.prepare(most, most_bytes):
                pass
        expected, left = [], most_bytes
        while len(expected) < most:
            size = single._next_size()
            left -= size
            if most_bytes > 0 and expected and left < 0:
                break
            message = single.take()
            if message is None:
                break
            expected.append(message)
        got = whole.take_many(most, most_bytes)
        assert payloads(got) == payloads(expected)
        assert len(whole) == len(single) and whole.taken <= number
        for consumer in consumers:
            parts_of(consumer).topic_states.by_number[0]._check()
            await consumer.close()

    run(main())


async def _consumer(transport: MemoryTransport, name: str, count: int) -> Consumer:
    options = ConsumerOptions(
        topics=(TOPIC,),
        pattern=None,
        subscription_name=name,
        consumer_type=ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        receiver_queue_size=count,
    )
    return Consumer(assemble(await open_transport_consumer(transport, options), options))
