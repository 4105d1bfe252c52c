"""A reader's queue serves reads in order, and a cancelled read loses no message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore import ClosedError
from pulsar_encore.consumer.event_publisher import EventPublisher
from pulsar_encore.reader.read_queue import Part, ReadQueue
from pulsar_encore.testing import VirtualClockLoop
from pulsar_encore.transport.interface import Delivery, TransportConsumer


class FakeTransportConsumer:
    """Records the permits that were returned, by topic number."""

    topic = "t"

    def __init__(self) -> None:
        self.permits: dict[int, int] = {}

    def consumed(self, topic_number: int, messages: int) -> None:
        self.permits[topic_number] = self.permits.get(topic_number, 0) + messages

    def topic_numbers(self) -> range:
        return range(1)

    def topic_of(self, topic_number: int) -> tuple[str, int]:
        return self.topic, -1


class Stored:
    """A message with the methods that these tests call."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload

    def data(self) -> bytes:
        return self._payload


def queue(transport_consumer: FakeTransportConsumer | None = None) -> ReadQueue:
    used = cast(TransportConsumer, transport_consumer or FakeTransportConsumer())
    return ReadQueue(used, EventPublisher(used, None, asyncio.get_event_loop(), "reader"))


def entry(number: int, *payloads: bytes, topic_number: int = 0) -> Delivery:
    messages: Any = [Stored(payload) for payload in payloads or (b"%d" % number,)]
    return Delivery(topic_number, 1, number, len(messages), 0, range(len(messages)), messages)


def read(part: Part | None) -> list[bytes]:
    assert part is not None
    delivery, at, count = part
    return [message.data() for message in delivery.messages[at : at + count]]


async def turns(count: int = 4) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def run(main: Any) -> None:
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(main)


steps = st.lists(
    st.sampled_from(["message", "entry", "at once", "cancel", "deliver", "batch", "turn"]),
    max_size=60,
)


@given(steps)
def test_messages_of_cancelled_reads_go_to_the_next_reads_in_order(steps: list[str]) -> None:
    async def main() -> None:
        transport_consumer, sent = FakeTransportConsumer(), 0
        waiting = queue(transport_consumer)
        reads: list[asyncio.Task[Part | None]] = []

        def begin(take: Callable[[], Part], timeout_s: float | None = None) -> None:
            reads.append(asyncio.create_task(waiting.get(take, timeout_s)))

        for step in steps:
            if step == "message":
                begin(waiting.take_message)
            elif step == "entry":
                begin(waiting.take_delivery)
            elif step == "at once":
                begin(waiting.take_message, 0)
            elif step == "cancel" and reads:
                reads[len(reads) // 2].cancel()
            elif step in ("deliver", "batch"):
                size = 1 if step == "deliver" else 3
                payloads = [b"%d" % number for number in range(sent, sent + size)]
                waiting.on_deliveries([entry(sent, *payloads)])
                sent += size
            else:
                await asyncio.sleep(0)
        await asyncio.sleep(1)  # virtual: everybody who can be served was
        assert not waiting or all(each.done() for each in reads)
        for each in reads:
            each.cancel()
        ended = await asyncio.gather(*reads, return_exceptions=True)
        got = [one for each in ended if isinstance(each, tuple) for one in read(each)]
        while waiting:
            got += read(waiting.take_message())
        assert got == [b"%d" % number for number in range(sent)]
        assert transport_consumer.permits.get(0, 0) == sent

    run(main())


async def test_a_new_read_does_not_overtake_waiting_reads() -> None:
    waiting = queue()
    order: list[str] = []

    async def wait(name: str) -> None:
        await waiting.get(waiting.take_message, None)
        order.append(name)

    tasks = [asyncio.create_task(wait(name)) for name in ("first", "second")]
    await turns()
    waiting.on_deliveries([entry(0), entry(1), entry(2)])
    tasks.append(asyncio.create_task(wait("third")))  # something is here, and others were before
    await asyncio.gather(*tasks)
    assert order == ["first", "second", "third"]


async def test_a_read_cancelled_when_it_is_woken_leaves_its_message_to_the_next() -> None:
    waiting = queue()
    first, second = (asyncio.create_task(waiting.get(waiting.take_message, None)) for _ in range(2))
    await turns()
    waiting.on_deliveries([entry(7)])
    first.cancel()
    assert read(await second) == [b"7"]
    assert first.cancelled()


async def test_a_read_that_times_out_takes_no_message() -> None:
    waiting = queue()
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await waiting.get(waiting.take_message, 2.5) is None
    assert loop.time() - began == pytest.approx(2.5)
    long = asyncio.create_task(waiting.get(waiting.take_message, None))
    assert await waiting.get(waiting.take_message, 1) is None  # not the first in line
    waiting.on_deliveries([entry(1)])
    assert read(await long) == [b"1"]


async def test_a_batch_can_be_read_by_message_and_by_entry() -> None:
    transport_consumer = FakeTransportConsumer()
    waiting = queue(transport_consumer)
    waiting.on_deliveries([entry(0, b"a", b"b", b"c"), entry(1, b"d", b"e")])
    assert read(await waiting.get(waiting.take_message, 0)) == [b"a"]
    assert transport_consumer.permits == {0: 1}
    assert read(await waiting.get(waiting.take_delivery, 0)) == [b"b", b"c"]
    assert read(await waiting.get(waiting.take_delivery, 0)) == [b"d", b"e"]
    assert transport_consumer.permits == {0: 5}
    assert not waiting


async def test_a_seek_discards_queued_messages_and_returns_their_permits() -> None:
    transport_consumer = FakeTransportConsumer()
    waiting = queue(transport_consumer)
    waiting.on_deliveries(
        [entry(0, b"a", b"b", b"c"), entry(1, b"x", topic_number=1), entry(2, b"d")]
    )
    waiting.take_message()
    waiting.on_seek((0,))
    assert transport_consumer.permits == {0: 4}
    assert read(await waiting.get(waiting.take_delivery, 0)) == [b"x"]
    waiting.on_deliveries([entry(3, b"a", b"b"), entry(4, b"y", topic_number=1)])
    waiting.take_message()
    waiting.on_seek((1,))  # a started entry of another topic goes on
    assert read(waiting.take_message()) == [b"b"]
    waiting.on_deliveries([entry(5)])
    waiting.on_seek()
    assert not waiting
    assert transport_consumer.permits == {0: 7, 1: 2}


async def test_queued_messages_survive_connection_changes() -> None:
    waiting = queue()
    waiting.on_deliveries([entry(0)])
    waiting.on_disconnected()
    waiting.on_uncertain()
    waiting.on_connected()
    waiting.on_all_requested([])
    assert read(await waiting.get(waiting.take_message, 0)) == [b"0"]


async def test_a_failure_ends_waiting_reads_and_queued_messages_can_still_be_read() -> None:
    waiting = queue()
    reads = [asyncio.create_task(waiting.get(waiting.take_message, None)) for _ in range(3)]
    await turns()
    waiting.on_failed(ClosedError("gone"))
    waiting.on_failed(ClosedError("later"))
    for ended in await asyncio.gather(*reads, return_exceptions=True):
        assert isinstance(ended, ClosedError) and str(ended) == "gone"
    waiting.on_deliveries([entry(1)])
    assert read(await waiting.get(waiting.take_message, None)) == [b"1"]
    passed = asyncio.Event()
    asyncio.get_running_loop().call_soon(passed.set)
    for _ in range(3):
        with pytest.raises(ClosedError, match="gone"):
            await waiting.get(waiting.take_message, None)
    assert passed.is_set()  # repeated reads let the loop run
