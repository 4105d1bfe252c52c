"""A run of copies: its limit, its order, its producers, and how it ends. In virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsar_encore.consumer.forwarding.bounded_copy import BoundedCopy
from pulsar_encore.consumer.forwarding.copy_options import Destination
from pulsar_encore.errors import ClosedError, ConfigurationError, TransportError
from pulsar_encore.exceptions import MessageTooBig
from pulsar_encore.options import ProducerOptions
from pulsar_encore.transport.interface import Capabilities
from pulsar_encore.values.message_id import MessageId
from pulsar_encore.values.outgoing_message import OutgoingMessage

A, B = Destination("a"), Destination("b")


class Producer:
    """Stores each message after a second, or fails with the error of the transport."""

    def __init__(self, transport: Transport, topic: str) -> None:
        self._transport = transport
        self._topic = topic
        self.closed = False

    async def publish(self, message: OutgoingMessage) -> MessageId:
        self._transport.sent.append((self._topic, message.payload))
        await asyncio.sleep(self._transport.delays.get(self._topic, 1.0))
        if self._topic in self._transport.publish_errors:
            raise self._transport.publish_errors[self._topic]
        return MessageId()

    async def close(self) -> None:
        self.closed = True


class Transport:
    """Makes producers. Each one takes a second to make."""

    capabilities = Capabilities(name="test", binary_keys=True)

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes | None]] = []
        self.made: list[Producer] = []
        self.create_errors: dict[str, Exception] = {}
        self.publish_errors: dict[str, Exception] = {}
        self.delays: dict[str, float] = {}

    async def schema_of(self, topic: str, version: int) -> Any:
        raise AssertionError("the copies have no schema")

    async def create_producer(self, options: ProducerOptions) -> Producer:
        await asyncio.sleep(1)
        if options.topic in self.create_errors:
            raise self.create_errors[options.topic]
        self.made.append(Producer(self, options.topic))
        return self.made[-1]


class Run:
    """A run over numbered originals that records the acks."""

    def __init__(self, limit: int = 3, max_failures: int = 2, **options: Any) -> None:
        self.transport = Transport()
        self.copies = BoundedCopy(
            self.transport,  # type: ignore[arg-type]
            None,
            limit=limit,
            max_failures=max_failures,
            **options,
        )
        self.acked: list[int] = []
        self.refused: list[int] = []

    async def copy(self, number: int, destination: Destination = A) -> None:
        try:
            await self.copies.publish(destination, OutgoingMessage(payload=b"%d" % number))
        except TransportError:
            self.refused.append(number)
        else:
            self.acked.append(number)

    async def begin(self, *numbers: int, destination: Destination = A) -> None:
        for number in numbers:
            if await self.copies.wait_for_slot():
                self.copies.begin(self.copy(number, destination), str(number))


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_no_more_messages_than_the_limit_are_in_flight() -> None:
    run = Run(limit=3)
    await run.copies.open(A)
    reading = asyncio.ensure_future(run.begin(*range(8)))
    for seconds, acked in ((0.5, 0), (1, 3), (1, 6), (1, 8)):
        await asyncio.sleep(seconds)
        assert len(run.acked) == acked
        assert len(run.transport.sent) == min(8, acked + 3)
    await reading
    assert sorted(run.acked) == list(range(8))


async def test_an_entry_counts_with_all_of_its_messages() -> None:
    run = Run(limit=10)
    begin = now()
    for messages in (4, 4, 4, 50):
        assert await run.copies.wait_for_slot(messages)
        run.copies.begin(asyncio.sleep(1), messages=messages)
    assert now() - begin == pytest.approx(2, abs=0.01), "50 messages exceed the limit alone"
    assert await run.copies.drain() == 0


async def test_copies_keep_their_order_while_a_producer_is_made() -> None:
    run = Run(limit=100)
    await run.begin(*range(5))
    await asyncio.sleep(1.0)
    await run.begin(*range(5, 10))
    await run.copies.drain()
    assert run.transport.sent == [("a", b"%d" % number) for number in range(10)]
    assert len(run.transport.made) == 1


async def test_a_slow_destination_delays_no_other() -> None:
    run = Run(limit=3)
    run.transport.delays["a"] = 1000
    await run.copies.open(A)
    await run.begin(0)
    await run.begin(*range(1, 50), destination=B)
    assert run.acked[:40] == list(range(1, 41))
    await run.copies.drain()
    assert run.acked[-1] == 0


async def test_a_destination_is_exhausted_after_failures_in_a_row() -> None:
    run = Run(max_failures=2)
    error = TransportError("no", result="Timeout")
    await run.copy(0)
    run.transport.publish_errors["a"] = error
    await run.copy(1)
    run.transport.publish_errors.clear()
    await run.copy(2)
    run.transport.publish_errors["a"] = error
    await run.copy(3)
    assert not run.copies.exhausted
    run.copies.check(A)
    await run.copy(4)
    assert run.copies.exhausted == {A: error}
    with pytest.raises(TransportError, match="no"):
        run.copies.check(A)
    sent = len(run.transport.sent)
    await run.copy(5)
    assert len(run.transport.sent) == sent, "an exhausted destination gets no further copy"
    assert (run.acked, run.refused) == ([0, 2], [1, 3, 4, 5])
    run.copies.check(B)
    assert run.copies.failure is None


async def test_a_failure_of_one_message_exhausts_no_destination() -> None:
    run = Run(max_failures=2)
    run.transport.publish_errors["a"] = MessageTooBig("too big")
    for number in range(5):
        await run.copy(number)
    assert run.refused == list(range(5)) and not run.copies.exhausted


async def test_a_producer_that_cannot_be_made_is_tried_once() -> None:
    run = Run()
    run.transport.create_errors["a"] = ConfigurationError("no key")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="no key"):
            await run.copies.open(A)
        with pytest.raises(ConfigurationError, match="no key"):
            run.copies.check(A)
    assert now() == pytest.approx(1, abs=0.01)
    await run.copies.open(B)


async def test_the_first_error_of_any_work_ends_the_run_and_names_its_original() -> None:
    run = Run(limit=2)

    async def fail(after: float, error: BaseException) -> None:
        await asyncio.sleep(after)
        raise error

    first = ClosedError("closed")
    run.copies.begin(fail(1, first), "one")
    run.copies.begin(fail(2, ZeroDivisionError()), "two")
    assert not await run.copies.wait_for_slot()
    assert (run.copies.failure, run.copies.failed_at) == (first, "one")
    assert await run.copies.drain() == 0
    assert (run.copies.failure, run.copies.failed_at) == (first, "one")


async def test_a_cancelled_drain_waits_for_the_copies_and_their_acks() -> None:
    run = Run()
    await run.begin(0, 1, 2)
    draining = asyncio.ensure_future(run.copies.drain())
    await asyncio.sleep(0.5)
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    assert run.acked == [0, 1, 2]


async def test_a_drain_gives_up_after_its_time() -> None:
    run = Run(drain_s=35.0)
    run.transport.delays["a"] = 100
    await run.begin(0)
    await run.begin(1, destination=B)
    assert await run.copies.drain() == 1
    assert now() == pytest.approx(35, abs=0.01)
    assert run.acked == [1]


async def test_few_producers_are_open_at_a_time_and_all_are_closed() -> None:
    run = Run(limit=100)
    for number in range(100):
        destination = Destination(f"t{number}")
        await run.copies.open(destination)
        await run.begin(number, destination=destination)
        assert sum(not each.closed for each in run.transport.made) <= 64
    await run.copies.drain()
    assert sorted(run.acked) == list(range(100)), "no producer is closed with copies in flight"
    await run.copies.close()
    assert all(each.closed for each in run.transport.made)
