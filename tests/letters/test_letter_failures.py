"""Letters that fail: the message is forwarded or comes back, nothing spins, every call resolves."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise

import pytest
from forwarding_kit import (
    DEAD,
    RETRY,
    TOPIC,
    bodies,
    handle_all,
    nack,
    named,
    open_consumer,
    read_out,
    reconsume,
)

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.options import ProducerOptions
from pulsar_encore.testing import Fault, FaultPlan, MemoryTransport
from pulsar_encore.transport.interface import OnPosted, ProducerListener, TransportProducer
from pulsar_encore.transport.native.consumer.message_views import PlainMessage
from pulsar_encore.values.outgoing_message import OutgoingMessage

REFUSALS = [
    "ProducerBusy",
    "AuthorizationError",
    "TopicTerminatedError",
    "ServiceNotReady",
    "NotAllowedError",
]


def refusing(command: str, topic: str, times: int, error: str = "NotAllowedError") -> FaultPlan:
    return FaultPlan([Fault(kind="refuse", command=command, topic=topic, times=times, error=error)])


# Dead letters that fail


@pytest.mark.parametrize("command", ["PRODUCER", "SEND"])
@pytest.mark.parametrize("error", REFUSALS)
async def test_a_refused_dead_letter_is_sent_again_until_it_is_stored(
    client: encore.Client, transport: MemoryTransport, command: str, error: str
) -> None:
    transport.put(TOPIC, b"a")
    transport.put(TOPIC, b"b", b"c")
    transport.faults = refusing(command, DEAD, 3, error)  # of SEND: each letter once
    async with await open_consumer(client, most=1) as consumer:
        assert await handle_all(consumer, nack, quiet_s=300) == Counter({b"a": 2, b"b": 2, b"c": 2})
    assert sorted(bodies(await read_out(client, DEAD))) == [b"a", b"b", b"c"]
    assert transport.backlog(TOPIC, "s") == 0


@pytest.mark.parametrize("command", ["PRODUCER", "SEND"])
async def test_dead_letters_that_always_fail_are_sent_again_at_growing_intervals(
    client: encore.Client, transport: MemoryTransport, command: str
) -> None:
    """Java, with a dead-letter topic terminated later: 150 redeliveries a second and message."""
    for each in range(100):
        transport.put(TOPIC, b"%d" % each)
    transport.faults = refusing(command, DEAD, 1_000_000)
    async with await open_consumer(client, most=1) as consumer:
        await handle_all(consumer, nack, quiet_s=600)
        times = [one.at_ms for one in transport.recorded("PRODUCER") if one.topic == DEAD]
        commands = transport.recorded("REDELIVER_UNACKNOWLEDGED_MESSAGES")
        again = sum(len(command.details) for command in commands) / 100
        # 0.1, 0.2, 0.4 ... 51.2, then each minute.
        assert 15 <= len(times) <= 20
        assert 15 <= again < 40  # for each message: a try, or one told to wait
        assert transport.backlog(TOPIC, "s") == 100
        transport.faults = None
        assert await handle_all(consumer, nack, quiet_s=120) == Counter()
    assert len(await read_out(client, DEAD)) == 100


async def test_one_dead_letter_that_always_fails_slows_down_although_others_succeed(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """Others' success does not make it spin."""

    async def create(
        options: ProducerOptions, listener: ProducerListener | None = None
    ) -> TransportProducer:
        transport_producer = await made(options, listener)
        post = transport_producer.post

        def picky(message: OutgoingMessage, on_done: OnPosted) -> None:
            if message.payload == b"bad":
                tries.append(asyncio.get_running_loop().time())
                on_done(encore.TransportError("no", result="InvalidMessage"))
            else:
                post(message, on_done)

        transport_producer.post = picky  # type: ignore[method-assign]
        return transport_producer

    tries: list[float] = []
    made = transport.create_producer
    transport.create_producer = create  # type: ignore[method-assign]
    transport.put(TOPIC, b"bad")
    async with await open_consumer(client, most=1) as consumer:
        for each in range(300):
            transport.put(TOPIC, b"%d" % each)
            await handle_all(consumer, nack, quiet_s=1)
    gaps = [b - a for a, b in pairwise(tries)]
    assert 8 <= len(tries) <= 16
    assert all(later >= earlier for earlier, later in pairwise(gaps[:10]))
    assert len(await read_out(client, DEAD)) == 300


@pytest.mark.parametrize("kind", [encore.ConsumerType.Shared, encore.ConsumerType.Exclusive])
async def test_a_message_with_an_unreadable_ordering_key_is_not_forwarded_and_stays(
    client: encore.Client,
    transport: MemoryTransport,
    monkeypatch: pytest.MonkeyPatch,
    kind: encore.ConsumerType,
) -> None:
    """An ordering key of raw bytes on an engine that reads text: never mangled, and no hot loop."""

    def unreadable(self: PlainMessage) -> bytes | None:
        raise encore.UnreadableError("an ordering key of raw bytes")

    monkeypatch.setattr(PlainMessage, "ordering_key_bytes", unreadable)
    transport.put(TOPIC, b"a")
    async with await open_consumer(client, most=1, consumer_type=kind) as consumer:
        message = await consumer.receive(timeout=5)
        with pytest.raises(encore.NotSupportedError, match="raw bytes"):
            await consumer.reconsume_later(message)
        await consumer.negative_acknowledge(message)
        await handle_all(consumer, nack, quiet_s=600)
        assert 10 <= len(transport.recorded("REDELIVER_UNACKNOWLEDGED_MESSAGES")) <= 25
        assert not transport.recorded("SEND")
    assert transport.backlog(TOPIC, "s") == 1


async def test_dead_letters_that_fail_together_wait_for_one_short_interval(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """A hundred letters lost with one connection wait for 0.1 s, not for a minute."""
    for each in range(100):
        transport.put(TOPIC, b"%d" % each)
    transport.faults = refusing("SEND", DEAD, 100)
    async with await open_consumer(client, most=1) as consumer:
        began = asyncio.get_running_loop().time()
        await handle_all(consumer, nack, quiet_s=1)
        while len(await read_out(client, DEAD)) < 100:
            assert asyncio.get_running_loop().time() - began < 5
            await asyncio.sleep(0.1)


# Retry letters that fail


@pytest.mark.parametrize("command", ["PRODUCER", "SEND"])
@pytest.mark.parametrize("kind", [encore.ConsumerType.Shared, encore.ConsumerType.Exclusive])
@pytest.mark.parametrize("batch", [False, True])
async def test_a_failed_retry_letter_raises_and_its_message_is_redelivered(
    client: encore.Client,
    transport: MemoryTransport,
    command: str,
    kind: encore.ConsumerType,
    batch: bool,
) -> None:
    transport.put(TOPIC, b"a", *([b"b"] if batch else []))
    transport.faults = refusing(command, RETRY, 1)
    async with await open_consumer(client, most=2, consumer_type=kind) as consumer:
        message = await consumer.receive(timeout=5)
        with pytest.raises(encore.TransportError):
            await consumer.reconsume_later(message)
        if batch:
            await consumer.acknowledge(await consumer.receive(timeout=5))
        again = await consumer.receive(timeout=5)
        assert (again.data(), again.redelivery_count()) == (b"a", 1)
        await consumer.reconsume_later(again)
    assert bodies(await read_out(client, RETRY)) == [b"a"]
    assert transport.backlog(TOPIC, "s") == 0


async def test_reconsume_later_of_a_list_reports_each_failure_and_sends_the_rest(
    client: encore.Client, transport: MemoryTransport
) -> None:
    for each in range(6):
        transport.put(TOPIC, b"%d" % each)
    transport.faults = FaultPlan(
        [
            Fault(kind="refuse", command="SEND", topic=RETRY, nth=2, error="NotAllowedError"),
            Fault(kind="refuse", command="SEND", topic=RETRY, nth=4, error="NotAllowedError"),
        ]
    )
    async with await open_consumer(client, most=2) as consumer:
        messages = [await consumer.receive(timeout=5) for _ in range(6)]
        await consumer.acknowledge(messages[5])
        with pytest.raises(ExceptionGroup, match="3 of 6") as caught:
            await consumer.reconsume_later(messages)
        kinds = Counter(type(error).__name__ for error in caught.value.exceptions)
        assert kinds == {"NotAllowedError": 2, "MessageNotHeldError": 1}
        sent = await read_out(client, RETRY)
        assert len(sent) == 3
        back = [await consumer.receive(timeout=5) for _ in range(5)]
        assert sorted(bodies(back)) == [b"0", b"1", b"2", b"3", b"4"]
        assert sorted(named(back, letters.RECONSUME_TIMES), key=str) == ["1", "1", "1", None, None]


async def test_the_same_message_twice_in_a_list_is_sent_once(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"a")
    async with await open_consumer(client) as consumer:
        message = await consumer.receive(timeout=5)
        with pytest.raises(ExceptionGroup, match="1 of 2"):
            await consumer.reconsume_later([message, message])
        await consumer.reconsume_later([])
    assert bodies(await read_out(client, RETRY)) == [b"a"]


async def test_reconsume_later_cumulative_acks_earlier_messages_and_copies_the_last(
    client: encore.Client, transport: MemoryTransport
) -> None:
    for each in range(4):
        transport.put(TOPIC, b"%d" % each)
    async with await open_consumer(client, consumer_type=encore.ConsumerType.Exclusive) as consumer:
        messages = [await consumer.receive(timeout=5) for _ in range(4)]
        await consumer.reconsume_later_cumulative(messages[2], 1, {"kept": "yes"})
        await asyncio.sleep(0.5)
        assert transport.backlog(TOPIC, "s") == 1
        letter = await consumer.receive(timeout=60)
        # Java drops the custom properties of this variant.
        assert (letter.data(), letter.properties()["kept"]) == (b"2", "yes")


async def test_reconsume_later_cumulative_acks_no_message_if_its_letter_fails(
    client: encore.Client, transport: MemoryTransport
) -> None:
    for each in range(3):
        transport.put(TOPIC, b"%d" % each)
    transport.faults = refusing("SEND", RETRY, 1)
    async with await open_consumer(client, consumer_type=encore.ConsumerType.Failover) as consumer:
        messages = [await consumer.receive(timeout=5) for _ in range(3)]
        with pytest.raises(encore.TransportError):
            await consumer.reconsume_later_cumulative(messages[1])
        assert transport.backlog(TOPIC, "s") == 3
        assert await handle_all(consumer, reconsume) == {b"0": 3, b"1": 3, b"2": 3}
    assert transport.backlog(TOPIC, "s") == 0


async def test_the_producer_of_dead_letters_names_the_initial_subscription(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """So that the broker makes the subscription again if the topic was deleted and comes back."""
    policy = encore.DeadLetterPolicy(1, initial_subscription_name="kept")
    async with await client.subscribe(
        TOPIC, "s", encore.ConsumerType.Shared, dead_letter_policy=policy
    ) as consumer:
        transport.put(TOPIC, b"poison")
        for _ in range(2):
            await consumer.negative_acknowledge(await consumer.receive(timeout=100), delay=0)
        await asyncio.sleep(10)
        producers = [each.details for each in transport.recorded("PRODUCER")]
    assert [each.initial_subscription_name for each in producers] == ["kept"]
