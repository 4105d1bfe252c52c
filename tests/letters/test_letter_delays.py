"""Letters that wait: early ones on our side, nacks in the way on the retry-letter topic."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
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
)

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.testing import BrokerSettings, Fault, FaultPlan, MemoryTransport

ROOM = 100


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def waited(consumer: encore.Consumer) -> tuple[encore.Message, float]:
    began = now_s()
    return await consumer.receive(timeout=100_000), round(now_s() - began, 3)


# Early letters


@pytest.mark.parametrize("delay", [0.001, 0.5, 1.5, 4, 60])
async def test_a_retry_letter_is_never_early_although_the_broker_rounds_delays(
    client: encore.Client, transport: MemoryTransport, delay: float
) -> None:
    """With a tick of 1 s, brokers deliver up to a tick early, and a delay of 0.5 s at once.

    `docs/notes/consumer-semantics.md#delayed-delivery`
    """
    transport.put(TOPIC, b"a")
    async with await open_consumer(client) as consumer:
        await consumer.reconsume_later(await consumer.receive(timeout=5), delay)
        message, seconds = await waited(consumer)
        assert delay <= seconds < delay + 1.1
        assert message.redelivery_count() == 0


@pytest_asyncio.fixture
async def hasty() -> AsyncIterator[encore.Client]:
    """A broker that delays nothing, as on Exclusive or with delayedDeliveryEnabled=false."""
    settings = BrokerSettings(namespaces=None, delayed_delivery=False)
    transport = MemoryTransport(settings)
    transport.put(TOPIC, b"a")
    async with encore.Client("pulsar://nowhere:6650", transport=transport) as client:
        yield client


@pytest.mark.parametrize("delay", [0.5, 4, 60, 3600])
async def test_a_retry_letter_is_never_early_on_a_broker_without_delayed_delivery(
    hasty: encore.Client, delay: float
) -> None:
    """Redeliveries during the delay do not count as deliveries to the application."""
    async with await open_consumer(hasty, most=2) as consumer:
        await consumer.reconsume_later(await consumer.receive(timeout=5), delay)
        for count in range(3):
            message, seconds = await waited(consumer)
            assert message.redelivery_count() == count
            if count == 0:
                assert delay <= seconds < delay * 1.05 + 1
            await consumer.negative_acknowledge(message)
        assert await handle_all(consumer, nack) == Counter()
    assert named(await read_out(hasty, DEAD), letters.ATTEMPTS) == ["3"]


@pytest.mark.parametrize("delay", [3, 60])
async def test_a_retry_letter_that_waits_over_reconnects_is_received_once_when_due(
    client: encore.Client, transport: MemoryTransport, delay: float
) -> None:
    transport.put(TOPIC, b"a")
    async with await open_consumer(client) as consumer:
        await consumer.reconsume_later(await consumer.receive(timeout=5), delay)
        began = now_s()
        for _ in range(3):
            await asyncio.sleep(0.7)
            transport.disconnect()
            transport.reconnect(keep_ack_sets=False)
        message = await consumer.receive(timeout=100)
        assert delay - 0.001 <= now_s() - began < delay + 1.1  # sums of floats
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=10)
        await consumer.acknowledge(message)
    assert transport.backlog(RETRY, "s") == 0


async def test_a_retry_letter_that_waits_is_received_by_the_next_consumer_when_due(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"a")
    began = now_s()
    async with await open_consumer(client) as consumer:
        await consumer.reconsume_later(await consumer.receive(timeout=5), 0.9)
        await asyncio.sleep(0.1)
    async with await open_consumer(client) as consumer:
        assert (await consumer.receive(timeout=100)).data() == b"a"
        assert now_s() - began >= 0.9


async def test_letters_without_a_valid_delay_are_received_at_once(
    client: encore.Client, transport: MemoryTransport
) -> None:
    for text in ("", "-5", "x", "9" * 40, "٣"):
        given = {letters.REAL_TOPIC: TOPIC, letters.DELAY_TIME: text}
        transport.put(RETRY, text.encode(), properties=given)
    # A message that never was a letter, published directly to the retry topic.
    transport.put(RETRY, b"plain", properties={letters.DELAY_TIME: "60000"})
    async with await open_consumer(client) as consumer:
        seen = [await consumer.receive(timeout=1) for _ in range(6)]
        assert len(set(bodies(seen))) == 6


async def test_thousands_of_waiting_retry_letters_are_all_received_when_due(
    hasty: encore.Client,
) -> None:
    """More letters than are kept here with their payload. The others are requested again."""
    transport = hasty._transport
    assert isinstance(transport, MemoryTransport)
    async with await open_consumer(hasty, receiver_queue_size=10_000) as consumer:
        await consumer.acknowledge(await consumer.receive(timeout=5))
        for each in range(2500):
            transport.put(TOPIC, b"%d" % each)
        messages = [await consumer.receive(timeout=5) for _ in range(2500)]
        began = now_s()
        await consumer.reconsume_later(messages, 3)
        back = [await consumer.receive(timeout=20) for _ in range(2500)]
        assert 3 <= now_s() - began < 4
        assert len(set(bodies(back))) == 2500
        assert {message.redelivery_count() for message in back} == {0}


# Nacks in the way


@pytest_asyncio.fixture
async def narrow() -> AsyncIterator[tuple[encore.Client, MemoryTransport]]:
    """A broker that stops at 100 unacked messages."""
    settings = BrokerSettings(namespaces=None, max_unacked_per_consumer=ROOM)
    transport = MemoryTransport(settings)
    async with encore.Client("pulsar://nowhere:6650", transport=transport) as client:
        yield client, transport


Narrow = tuple[encore.Client, MemoryTransport]


async def nacked_then_fresh(narrow: Narrow, **options: object) -> tuple[Counter[bytes], float]:
    """Nack 300 messages for 60 s, then send 50. Return the fresh arrivals and the total time."""
    client, transport = narrow
    for each in range(300):
        transport.put(TOPIC, b"old %d" % each)
    fresh: Counter[bytes] = Counter()
    async with await open_consumer(
        client, receiver_queue_size=20, max_unacked_messages=ROOM, most=5, **options
    ) as consumer:
        began = now_s()

        async def put_off(consumer: encore.Consumer, message: encore.Message) -> None:
            await consumer.negative_acknowledge(message, 60)

        await handle_all(consumer, put_off, quiet_s=2)
        for each in range(50):
            transport.put(TOPIC, b"new %d" % each)

        async def settle(consumer: encore.Consumer, message: encore.Message) -> None:
            if message.data().startswith(b"new") and now_s() - began < 50:
                fresh[message.data()] += 1
            await consumer.acknowledge(message)

        seen = await handle_all(consumer, settle, quiet_s=100)
        assert set(seen) >= {b"old %d" % each for each in range(300)}
        assert set(seen.values()) == {1}
        assert transport.backlog(TOPIC, "s") == 0
        return fresh, now_s() - began


async def test_with_the_overflow_fresh_messages_are_received_at_once(narrow: Narrow) -> None:
    fresh, _ = await nacked_then_fresh(narrow, nack_overflow="retry_letter")
    assert len(fresh) == 50
    client, transport = narrow
    assert 240 <= len(await read_out(client, RETRY)) <= 260  # beyond half of the window
    assert transport.backlog(RETRY, "s") == 0


async def test_without_the_overflow_no_fresh_message_is_received(narrow: Narrow) -> None:
    """This is the purpose of the option."""
    fresh, _ = await nacked_then_fresh(narrow)
    assert not fresh
    assert await read_out(narrow[0], RETRY) == []


@pytest.mark.parametrize("longest", [0, 30])
async def test_nacks_longer_than_nack_overflow_delay_are_always_parked(
    client: encore.Client, transport: MemoryTransport, longest: float
) -> None:
    transport.put(TOPIC, b"a")
    transport.put(TOPIC, b"b")
    async with await open_consumer(
        client, nack_overflow="retry_letter", nack_overflow_delay=longest
    ) as consumer:
        for delay in (longest, longest + 10):
            await consumer.negative_acknowledge(await consumer.receive(timeout=5), delay)
        await asyncio.sleep(0.5)
        (letter,) = await read_out(client, RETRY)
        assert letter.data() == b"b"
        given = letter.properties()
        assert given[letters.DELAY_TIME] == str(1000 * (longest + 10))
        assert given[letters.REAL_TOPIC] == TOPIC
        assert letters.RECONSUME_TIMES not in given  # Java would count its own from here


async def test_a_parked_nack_is_redelivered_when_due_and_keeps_its_count(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """Every nack is parked: M + 1 deliveries, and the last error is in the dead letter."""
    transport.put(TOPIC, b"a")
    async with await open_consumer(
        client, most=3, nack_overflow="retry_letter", nack_overflow_delay=0
    ) as consumer:
        for count in range(4):
            message, seconds = await waited(consumer)
            assert message.redelivery_count() == count
            if count:
                assert 7 <= seconds < 8.1
            await consumer.negative_acknowledge(message, 7, error=ValueError(f"attempt {count}"))
        await asyncio.sleep(1)
    (dead,) = await read_out(client, DEAD)
    given = dead.properties()
    assert given[letters.ATTEMPTS] == "4"
    assert given[letters.ERROR_MESSAGE] == "attempt 3"
    assert int(given[letters.LAST_TIME]) - int(given[letters.FIRST_TIME]) >= 21_000
    assert transport.backlog(RETRY, "s") == 0


async def test_reconsume_later_of_a_parked_message_restarts_its_nack_count(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """The two counts are independent: a retry letter has its own deliveries by nack."""
    transport.put(TOPIC, b"a")
    async with await open_consumer(
        client, most=3, nack_overflow="retry_letter", nack_overflow_delay=5
    ) as consumer:
        for _ in range(2):
            await consumer.negative_acknowledge(await consumer.receive(timeout=60), 10)
        await consumer.reconsume_later(await consumer.receive(timeout=60))
        assert await handle_all(consumer, nack) == Counter({b"a": 4})
    (dead,) = await read_out(client, DEAD)
    assert dead.properties()[letters.RECONSUME_TIMES] == "1"


@pytest.mark.parametrize("command", ["PRODUCER", "SEND"])
async def test_a_nack_that_cannot_be_parked_waits_in_memory(
    client: encore.Client, transport: MemoryTransport, command: str
) -> None:
    transport.put(TOPIC, b"a")
    transport.faults = FaultPlan(
        [Fault(kind="refuse", command=command, topic=RETRY, error="NotAllowedError")]
    )
    async with await open_consumer(
        client, nack_overflow="retry_letter", nack_overflow_delay=0
    ) as consumer:
        await consumer.negative_acknowledge(await consumer.receive(timeout=5), 10)
        message, seconds = await waited(consumer)
        assert 10 <= seconds < 10.5
        assert message.redelivery_count() == 1
        assert await read_out(client, RETRY) == []
        await consumer.negative_acknowledge(message, 10)  # and now it works
        message, seconds = await waited(consumer)
        assert 10 <= seconds < 11.1
        assert message.redelivery_count() == 2
    assert len(await read_out(client, RETRY)) == 1


async def test_single_messages_of_a_batch_are_parked(narrow: Narrow) -> None:
    client, transport = narrow
    transport.put(TOPIC, *(b"%d" % each for each in range(80)))
    async with await open_consumer(
        client, nack_overflow="retry_letter", nack_overflow_share=0.2, max_unacked_messages=ROOM
    ) as consumer:
        for each in range(80):
            message = await consumer.receive(timeout=5)
            if each % 2:
                await consumer.negative_acknowledge(message, 30)
            else:
                await consumer.acknowledge(message)
        await asyncio.sleep(1)
        assert len(await read_out(client, RETRY)) == 20
        seen: Counter[bytes] = Counter()
        for _ in range(40):
            message = await consumer.receive(timeout=60)
            assert message.redelivery_count() == 1
            seen[message.data()] += 1
            await consumer.acknowledge(message)
    assert seen == Counter(b"%d" % each for each in range(1, 80, 2))
    assert transport.backlog(TOPIC, "s") == transport.backlog(RETRY, "s") == 0
