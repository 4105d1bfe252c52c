"""Many messages that fail, are written or are confirmed together take several loop steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from producer_kit import Network, message, outcomes, virtual

from pulsar_encore import ClosedError, MessageId
from pulsar_encore.errors import TransportTimeout
from pulsar_encore.transport.native.connection import session as session_module
from pulsar_encore.transport.native.producer import partition_producer as part
from pulsar_encore.transport.native.producer.send_results import FAILURES_PER_STEP
from pulsar_encore.transport.native.producer.unconfirmed_frames import SendFrame, UnconfirmedFrames

UNBATCHED = {"batching_enabled": False}
COUNT = 4 * FAILURES_PER_STEP
WAYS = pytest.mark.parametrize(
    "batching",
    [{"batching_enabled": False}, {"batching_max_messages": 100}],
    ids=["alone", "batch"],
)


async def completed_per_pass(sends: Sequence[asyncio.Future[Any]]) -> list[int]:
    """Return how many more sends complete in each pass of the loop, until all are complete."""
    steps, before = [], sum(each.done() for each in sends)
    while before < len(sends):
        await asyncio.sleep(0)
        done = sum(each.done() for each in sends)
        steps.append(done - before)
        before = done
    return steps


async def offline(**options: Any) -> tuple[Any, list[asyncio.Future[Any]]]:
    """Return a disconnected producer and its pending sends."""
    network = Network()
    producer = await network.producer(max_pending_messages=2 * COUNT, **options)
    await producer.publish(message(0))
    network.service.start_outage(1_000)
    await asyncio.sleep(0)
    sends = [asyncio.ensure_future(producer.publish(message(each))) for each in range(COUNT)]
    return producer, sends


@WAYS
@virtual
async def test_sends_that_fail_with_the_producer_are_reported_in_parts(batching: Any) -> None:
    producer, sends = await offline(send_timeout_millis=0, **batching)
    closing = asyncio.ensure_future(producer.close())
    steps = await completed_per_pass(sends)
    assert max(steps) <= FAILURES_PER_STEP + 100
    await closing
    results = await outcomes(sends)
    assert all(isinstance(each, ClosedError) for each in results)
    assert producer.parts[0].pending_slots == producer._queue.pending_slots == 0


@WAYS
@virtual
async def test_sends_that_time_out_together_are_reported_in_parts(batching: Any) -> None:
    producer, sends = await offline(send_timeout_millis=1000, **batching)
    loop: Any = asyncio.get_running_loop()
    await asyncio.sleep(0)
    loop.advance(2)
    producer.parts[0]._expire()
    first = sum(each.done() for each in sends)
    steps = await completed_per_pass(sends)
    assert first < COUNT and max(steps) <= FAILURES_PER_STEP + 100
    results = await outcomes(sends)
    assert all(isinstance(each, TransportTimeout) for each in results)
    assert producer.parts[0].pending_slots == producer._queue.pending_slots == 0
    await producer.close()


@virtual
async def test_waiting_sends_of_a_closed_producer_get_closed_error_in_parts() -> None:
    network = Network()
    producer = await network.producer(max_pending_messages=1, block_if_queue_full=True, **UNBATCHED)
    network.service.start_outage(1_000)
    await asyncio.sleep(0)
    sends = [asyncio.ensure_future(producer.publish(message(each))) for each in range(COUNT)]
    closing = asyncio.ensure_future(producer.close())
    assert max(await completed_per_pass(sends)) <= FAILURES_PER_STEP + 1
    await closing
    assert all(isinstance(each, ClosedError) for each in await outcomes(sends))


@virtual
async def test_a_client_shutdown_fails_all_callers_at_once() -> None:
    network = Network()
    client = network.transport()
    producer = await network.producer(
        client=client, max_pending_messages=1, block_if_queue_full=True, **UNBATCHED
    )
    network.service.start_outage(1_000)
    sends = [asyncio.ensure_future(producer.publish(message(each))) for each in range(COUNT)]
    producer.abandon()
    assert all(each.done() for each in sends)
    assert all(isinstance(each, ClosedError) for each in await outcomes(sends))


def test_the_number_of_frames_also_limits_a_write() -> None:
    pending = UnconfirmedFrames()
    pending.add([SendFrame(b"%d" % each, each, [], since=0.0, last=each) for each in range(10)])
    assert pending.to_write(1_000, 4) == [b"0", b"1", b"2", b"3"]
    assert pending.to_write(1_000, 4) == [b"4", b"5", b"6", b"7"]
    assert pending.to_write(1_000, 4) == [b"8", b"9"]
    assert not pending.has_unwritten


@virtual
async def test_receipts_of_large_batches_end_a_step_earlier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Network()
    producer = await network.producer(
        batching_max_messages=100,
        batching_max_publish_delay_ms=10_000,
        max_pending_messages=2 * COUNT,
    )
    await producer.publish(message(0))
    loop: Any = asyncio.get_running_loop()
    received: Callable[[Any], int] = part.PartitionProducer.on_receipt

    def slow(self: part.PartitionProducer, receipt: Any) -> int:
        loop.advance(session_module.PART_S / 8)
        return received(self, receipt)

    # One read has the receipts of 20 batches, and each takes an eighth of a step.
    network_session: Any = producer.parts[0]._session
    read: list[bytes] = []
    receive = network_session.receive
    monkeypatch.setattr(part.PartitionProducer, "on_receipt", slow)
    monkeypatch.setattr(network_session, "receive", read.append)
    sends = [asyncio.ensure_future(producer.publish(message(each))) for each in range(COUNT)]
    while len(b"".join(read)) == 0 or len(network.payloads()) < COUNT + 1:
        await asyncio.sleep(0.01)
    monkeypatch.setattr(network_session, "receive", receive)
    network_session.receive(b"".join(read))
    completed = sum(each.done() for each in sends)
    assert 0 < completed <= 10 * 100
    steps = await completed_per_pass(sends)
    assert max(steps) <= 10 * 100
    assert all(isinstance(each, MessageId) for each in await outcomes(sends))
    await producer.close()
