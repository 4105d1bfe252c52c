"""Letters cut short: cancelled, closed, disconnected, settled half way; finished or kept."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from forwarding_kit import DEAD, RETRY, TOPIC, bodies, open_consumer, read_out

import pulsar_encore as encore
from pulsar_encore.options import ProducerOptions
from pulsar_encore.testing import Fault, FaultPlan, MemoryTransport
from pulsar_encore.transport.interface import ProducerListener, TransportProducer
from pulsar_encore.transport.native.consumer.message_views import PlainMessage
from pulsar_encore.transport.native.consumer.native_consumer import NativeConsumer


class SlowTransport(MemoryTransport):
    """Producers take 3 s to make."""

    async def create_producer(
        self, options: ProducerOptions, listener: ProducerListener | None = None
    ) -> TransportProducer:
        await asyncio.sleep(3)
        return await super().create_producer(options, listener)


# Cancelled


@pytest.mark.parametrize("form", ["one", "list", "cumulative"])
@pytest.mark.parametrize("steps", range(12))
@pytest.mark.parametrize("most", [1, 2])
async def test_reconsume_later_cancelled_at_any_step_both_copies_and_acks_or_neither(
    form: str, steps: int, most: int
) -> None:
    """Once begun it is finished: copied and acked, never one of the two."""
    transport = MemoryTransport()
    transport.put(TOPIC, b"a")
    transport.faults = FaultPlan([Fault(kind="delay", command="SEND", delay_ms=1)])
    async with encore.Client("pulsar://nowhere:6650", transport=transport) as client:
        kind = encore.ConsumerType.Exclusive
        async with await open_consumer(client, most=most, consumer_type=kind) as consumer:
            message = await consumer.receive(timeout=5)
            if form == "list":
                call = consumer.reconsume_later([message])
            elif form == "one":
                call = consumer.reconsume_later(message)
            else:
                call = consumer.reconsume_later_cumulative(message)
            task = asyncio.create_task(call)
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task}, timeout=1)
            assert task.done()
            await asyncio.sleep(1)
            copies = bodies(await read_out(client, RETRY))
            if steps == 0:  # it never ran: the message is still the caller's
                assert (copies, transport.backlog(TOPIC, "s")) == ([], 1)
                await consumer.reconsume_later(message)
                await asyncio.sleep(1)
                copies = bodies(await read_out(client, RETRY))
            assert (copies, transport.backlog(TOPIC, "s")) == ([b"a"], 0)


@pytest.mark.parametrize("wait_s", [0, 1, 2.9, 3.5])
async def test_a_cancelled_reconsume_later_does_not_cancel_the_shared_producer(
    wait_s: float,
) -> None:
    transport = SlowTransport()
    transport.put(TOPIC, b"a")
    transport.put(TOPIC, b"b")
    async with encore.Client("pulsar://nowhere:6650", transport=transport) as client:
        async with await open_consumer(client) as consumer:
            messages = [await consumer.receive(timeout=5) for _ in range(2)]
            first, second = [
                asyncio.create_task(consumer.reconsume_later(message)) for message in messages
            ]
            await asyncio.sleep(wait_s)
            first.cancel()
            await second
            await asyncio.sleep(0.1)
        assert sorted(bodies(await read_out(client, RETRY))) == [b"a", b"b"]
        assert len(transport.recorded("PRODUCER")) == 1


# Closed, disconnected, sought


async def test_close_waits_for_letters_in_flight(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"a")
    transport.put(TOPIC, b"b")
    transport.faults = FaultPlan([Fault(kind="delay", command="SEND", times=2, delay_ms=4000)])
    async with await open_consumer(client, most=1) as consumer:
        task = asyncio.create_task(consumer.reconsume_later(await consumer.receive(timeout=5)))
        await asyncio.sleep(0)
    await task
    assert bodies(await read_out(client, RETRY)) == [b"a"]
    assert transport.backlog(TOPIC, "s") == 1  # b, never taken


async def test_close_ends_in_15_s_without_receipts_and_reconsume_later_raises(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"a")
    transport.faults = FaultPlan([Fault(kind="drop", command="SEND", times=100)])
    loop = asyncio.get_running_loop()
    consumer = await open_consumer(client)
    message = await consumer.receive(timeout=5)
    calls = [
        asyncio.create_task(consumer.reconsume_later(message)),
        asyncio.create_task(consumer.reconsume_later([message])),
    ]
    await asyncio.sleep(1)
    began = loop.time()
    await consumer.close()
    assert loop.time() - began <= 15
    one, listed = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(one, encore.ClosedError)
    assert isinstance(listed, ExceptionGroup)  # it was leaving already
    assert transport.backlog(TOPIC, "s") == 1
    with pytest.raises(encore.ClosedError):
        await consumer.reconsume_later(message)


@pytest.mark.parametrize("close_begun", [True, False])
async def test_close_soon_gives_up_letters_in_flight_and_closes_their_producer(
    client: encore.Client, transport: MemoryTransport, close_begun: bool
) -> None:
    transport.put(TOPIC, b"a")
    transport.faults = FaultPlan([Fault(kind="drop", command="SEND", times=100)])
    consumer = await open_consumer(client)
    message = await consumer.receive(timeout=5)
    reconsuming = asyncio.create_task(consumer.reconsume_later(message))
    await asyncio.sleep(1)
    closing = asyncio.create_task(consumer.close()) if close_begun else None
    await asyncio.sleep(1)
    consumer.close_soon()
    with pytest.raises(encore.ClosedError):
        await asyncio.wait_for(reconsuming, 1)
    if closing is not None:
        await closing
    await consumer.close()
    assert len(transport.recorded("CLOSE_PRODUCER")) == 1
    assert transport.backlog(TOPIC, "s") == 1


async def test_close_waits_for_a_letter_whose_producer_is_being_opened() -> None:
    transport = SlowTransport()
    transport.put(TOPIC, b"a")
    async with encore.Client("pulsar://nowhere:6650", transport=transport) as client:
        consumer = await open_consumer(client)
        task = asyncio.create_task(consumer.reconsume_later(await consumer.receive(timeout=5)))
        await asyncio.sleep(0.1)
        await consumer.close()
        await task
        assert bodies(await read_out(client, RETRY)) == [b"a"]


@pytest.mark.parametrize("delay_ms", [0, 50, 5000])
async def test_a_lost_connection_while_letters_are_in_flight_redelivers_no_message(
    client: encore.Client, transport: MemoryTransport, delay_ms: int
) -> None:
    """The ack waits for the reconnect; the message that comes again meanwhile is not shown."""
    transport.put(TOPIC, b"a")
    transport.put(TOPIC, b"b", b"c")
    transport.faults = FaultPlan([Fault(kind="delay", command="SEND", delay_ms=delay_ms, times=3)])
    async with await open_consumer(client, most=3) as consumer:
        messages = [await consumer.receive(timeout=5) for _ in range(3)]
        task = asyncio.create_task(consumer.reconsume_later(messages, 100))
        await asyncio.sleep(0.02)
        transport.disconnect()
        await asyncio.sleep(0.1)
        transport.reconnect(keep_ack_sets=False)
        await task
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=20)
        assert transport.backlog(TOPIC, "s") == 0
    assert len(await read_out(client, RETRY)) == 3


async def test_settling_a_message_while_its_letter_is_in_flight_causes_no_second_letter(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """A second call raises, a nack is void, an ack holds: one letter, no further delivery."""
    for each in range(3):
        transport.put(TOPIC, b"%d" % each)
    transport.faults = FaultPlan([Fault(kind="delay", command="SEND", delay_ms=500, times=3)])
    async with await open_consumer(client) as consumer:
        messages = [await consumer.receive(timeout=5) for _ in range(3)]
        task = asyncio.create_task(consumer.reconsume_later(messages, 100))
        await asyncio.sleep(0.1)
        with pytest.raises(encore.MessageNotHeldError):
            await consumer.reconsume_later(messages[0])
        await consumer.negative_acknowledge(messages[1])
        await consumer.acknowledge(messages[2])
        await task
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=20)
    assert sorted(bodies(await read_out(client, RETRY))) == [b"0", b"1", b"2"]


async def test_reconsume_later_refuses_a_settled_message(
    client: encore.Client, transport: MemoryTransport
) -> None:
    for each in range(3):
        transport.put(TOPIC, b"%d" % each)
    async with await open_consumer(client) as consumer:
        acked, nacked, sent = [await consumer.receive(timeout=5) for _ in range(3)]
        await consumer.acknowledge(acked)
        await consumer.negative_acknowledge(nacked, 50)
        await consumer.reconsume_later(sent, 50)
        for message in (acked, nacked, sent):
            with pytest.raises(encore.MessageNotHeldError, match="only a held message"):
                await consumer.reconsume_later(message)
        await consumer.negative_acknowledge(sent)  # void, as in Java
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=20)
    assert len(await read_out(client, RETRY)) == 1


# Closing beside failures


async def test_a_letter_topic_first_needed_while_closing_opens_no_producer() -> None:
    """Such a producer would never be closed: the subscription ends, and it stays connected."""

    class Stuck(MemoryTransport):
        async def create_producer(
            self, options: ProducerOptions, listener: ProducerListener | None = None
        ) -> TransportProducer:
            asked.append(options.topic)
            await asyncio.sleep(60)
            return await super().create_producer(options, listener)

    asked: list[str] = []
    transport = Stuck()
    topics = [f"persistent://public/default/{name}" for name in "ab"]
    for topic in topics:
        transport.put(topic, topic.encode())
    async with encore.Client("pulsar://nowhere:6650", transport=transport) as client:
        consumer = await open_consumer(
            client,
            *topics,
            most=1,
            retry_enable=False,
            unacked_messages_timeout_ms=12_000,
        )
        for attempt in range(2):
            messages = [await consumer.receive(timeout=20) for _ in topics]
            assert [message.redelivery_count() for message in messages] == [attempt, attempt]
        await consumer.negative_acknowledge(messages[0])
        while not asked:
            await asyncio.sleep(0.1)
        # `close` waits 10 s for letters, then 5 s for producers; in these 5 s the other is due.
        await consumer.close()
        await asyncio.sleep(120)
    assert len(asked) == 1
    assert all(transport.backlog(topic, "s") == 1 for topic in topics)


@pytest.mark.parametrize("parked", [False, True])
async def test_an_unexpected_error_while_forwarding_redelivers_the_message(
    client: encore.Client,
    transport: MemoryTransport,
    monkeypatch: pytest.MonkeyPatch,
    parked: bool,
) -> None:
    def broken(self: PlainMessage) -> int:
        raise RuntimeError("broken")

    transport.put(TOPIC, b"a")
    options = {"nack_overflow": "retry_letter", "nack_overflow_delay": 0} if parked else {}
    async with await open_consumer(client, most=1, **options) as consumer:
        if not parked:
            await consumer.negative_acknowledge(await consumer.receive(timeout=5))
        message = await consumer.receive(timeout=5)
        with monkeypatch.context() as patch:
            patch.setattr(PlainMessage, "event_timestamp", broken)
            await consumer.negative_acknowledge(message, 0.1)
            with pytest.raises(RuntimeError):
                await consumer.reconsume_later(message)
            await asyncio.sleep(0.05)
        if parked:
            assert (await consumer.receive(timeout=5)).data() == b"a"
        else:
            await asyncio.sleep(60)
            assert bodies(await read_out(client, DEAD)) == [b"a"]


@pytest.mark.parametrize("failing", ["close", "unsubscribe"])
async def test_a_failed_close_of_one_subscription_still_closes_the_other(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    client = encore.Client("pulsar://nowhere:6650", transport=transport)
    consumer = await open_consumer(client)
    original = getattr(NativeConsumer, failing)

    async def picky(self: NativeConsumer) -> None:
        if self.topic == TOPIC:
            raise encore.TransportError("no", result="UnknownError")
        await asyncio.sleep(1)
        await original(self)

    with monkeypatch.context() as patch:
        patch.setattr(NativeConsumer, failing, picky)
        with pytest.raises(encore.TransportError):
            await getattr(consumer, failing)()
    if failing == "close":
        assert [transport_consumer.topic for transport_consumer in transport.consumers] == [TOPIC]
    else:
        assert "s" not in transport.state(RETRY).subscriptions
    for transport_consumer in list(transport.consumers):
        await transport_consumer.close()
    with contextlib.suppress(encore.TransportError):
        await client.close()
