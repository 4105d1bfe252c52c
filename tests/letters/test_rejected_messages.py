"""Rejected messages, letters that keep their message when they fail, and shared letter topics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import pytest
from forwarding_kit import DEAD, RETRY, TOPIC, bodies, handle_all, nack, open_consumer, read_out

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.testing import Fault, FaultPlan, MemoryTransport
from pulsar_encore.values.letter_topic_names import shared_dead_topic_of

ALL_TYPES = pytest.mark.parametrize("kind", list(encore.ConsumerType))
REDELIVER = "REDELIVER_UNACKNOWLEDGED_MESSAGES"


def refusing(topic: str) -> FaultPlan:
    return FaultPlan([Fault(kind="refuse", command="PRODUCER", topic=topic, times=1_000_000)])


async def receive_n(consumer: encore.Consumer, count: int) -> list[encore.Message]:
    return [await consumer.receive(timeout=1000) for _ in range(count)]


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    names = {"pulsar_encore.consumer.forwarding.letter_log"}
    return [
        each.getMessage() for each in caplog.records if each.name in names and each.levelno == level
    ]


# Reject


@ALL_TYPES
@pytest.mark.parametrize("batch", [1, 3])
async def test_a_rejected_message_is_dead_lettered_with_its_evidence(
    client: encore.Client, transport: MemoryTransport, kind: encore.ConsumerType, batch: int
) -> None:
    for start in range(0, 3, batch):
        transport.put(TOPIC, *(b"%d" % each for each in range(start, start + batch)))
    async with await open_consumer(
        client, most=9, consumer_type=kind, retry_enable=False
    ) as consumer:
        first, second, third = await receive_n(consumer, 3)
        again = consumer.fail_in_place(second)
        await again.reject(ValueError("negative total"))
        assert not consumer.holds(again)
        await consumer.reject(third, "poison")
        await first.ack()
        assert await handle_all(consumer, nack) == {}
        counters = consumer.counters()
        assert (counters.rejected, counters.dead_letters, counters.acked) == (2, 2, 1)
        await consumer.flush()
        assert transport.backlog(TOPIC, "s") == 0
        assert transport.recorded(REDELIVER) == []
    one, two = await read_out(client, DEAD)
    assert bodies([one, two]) == [b"1", b"2"]
    said = one.properties()
    assert said[letters.REASON] == "reject"
    assert (said[letters.ERROR_CLASS], said[letters.ERROR_MESSAGE]) == (
        "ValueError",
        "negative total",
    )
    assert said[letters.ATTEMPTS] == "2"
    assert two.properties()[letters.ERROR_MESSAGE] == "poison"


async def test_reject_refuses_what_it_cannot_do_and_changes_nothing(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"a")
    async with await open_consumer(client, retry_enable=False, most=None) as consumer:
        (message,) = await receive_n(consumer, 1)
        with pytest.raises(encore.ConfigurationError, match="dead_letter_policy"):
            await message.reject("no")
        assert consumer.holds(message)
    async with await open_consumer(client) as consumer:
        (message,) = await receive_n(consumer, 1)
        for reason in (None, 7, ValueError):
            with pytest.raises(encore.ConfigurationError, match=r"error|reason"):
                await consumer.reject(message, reason)  # type: ignore[arg-type]
        not_a_message: Any = message.message_id()
        with pytest.raises(encore.ConfigurationError, match="Message"):
            await consumer.reject(not_a_message, "no")
        assert consumer.holds(message)
        await message.ack()
        with pytest.raises(encore.MessageNotHeldError):
            await message.reject("late")


async def test_a_message_whose_rejection_fails_is_redelivered(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"a")
    transport.faults = refusing(DEAD)
    async with await open_consumer(client, retry_enable=False) as consumer:
        (message,) = await receive_n(consumer, 1)
        with pytest.raises(encore.TransportError):
            await message.reject("no")
        assert not consumer.holds(message)
        (again,) = await receive_n(consumer, 1)
        assert again.attempt == 2
        transport.faults = None
        await asyncio.sleep(100)
        await again.reject("no")
    assert bodies(await read_out(client, DEAD)) == [b"a"]


@ALL_TYPES
async def test_a_message_that_is_kept_stays_held_when_its_rejection_fails(
    client: encore.Client,
    transport: MemoryTransport,
    kind: encore.ConsumerType,
    caplog: pytest.LogCaptureFixture,
) -> None:
    transport.put(TOPIC, b"a")
    transport.put(TOPIC, b"b")
    transport.faults = refusing(DEAD)
    async with await open_consumer(client, consumer_type=kind, retry_enable=False) as consumer:
        message, other = await receive_n(consumer, 2)
        for _ in range(2):
            with pytest.raises(encore.TransportError):
                await consumer.reject(message, "no", keep=True)
            assert consumer.holds(message)
        assert await handle_all(consumer, nack) == {}
        assert transport.recorded(REDELIVER) == []
        (line,) = lines(caplog, logging.ERROR)
        assert DEAD in line
        transport.faults = None
        await asyncio.sleep(100)
        await consumer.reject(message, "no", keep=True)
        await other.ack()
        await consumer.flush()
        assert transport.backlog(TOPIC, "s") == 0
    assert bodies(await read_out(client, DEAD)) == [b"a"]


async def test_a_kept_message_that_a_seek_passed_is_not_held_after_its_letter_failed(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"a")
    transport.faults = refusing(DEAD)
    async with await open_consumer(client, retry_enable=False) as consumer:
        (message,) = await receive_n(consumer, 1)
        rejecting = asyncio.create_task(consumer.reject(message, "no", keep=True))
        await asyncio.sleep(0)
        await consumer.seek(encore.MessageId.earliest)
        with pytest.raises(encore.TransportError):
            await rejecting
        assert not consumer.holds(message)
        (again,) = await receive_n(consumer, 1)
        assert consumer.holds(again)


async def test_a_kept_message_is_redelivered_if_the_call_was_cancelled(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """Nobody would settle it otherwise."""
    transport.put(TOPIC, b"a")
    transport.faults = refusing(DEAD)
    async with await open_consumer(client, retry_enable=False) as consumer:
        (message,) = await receive_n(consumer, 1)
        rejecting = asyncio.create_task(consumer.reject(message, "no", keep=True))
        await asyncio.sleep(0)
        rejecting.cancel()
        (again,) = await receive_n(consumer, 1)
        assert not consumer.holds(message)
        await again.ack()
        await consumer.flush()
        assert transport.backlog(TOPIC, "s") == 0


# The retry letter topic


async def test_attempts_count_on_over_the_retry_letter_topic(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"a")
    async with await open_consumer(client, most=9) as consumer:
        (message,) = await receive_n(consumer, 1)
        message = consumer.fail_in_place(message)
        for attempt in (3, 4, 5):
            await consumer.send_to_retry_topic(message, 5, error="busy")
            (message,) = await receive_n(consumer, 1)
            assert (message.topic_name(), message.attempt) == (RETRY, attempt)
        counters = consumer.counters()
        assert (counters.retry_letters, counters.dead_letters, counters.acked) == (3, 0, 0)
        await message.reject("enough")
    (letter,) = await read_out(client, DEAD)
    assert letter.properties()[letters.ATTEMPTS] == "5"


async def test_attempts_count_on_after_reconsume_later(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"a", properties={letters.RECONSUME_TIMES: "7"})
    async with await open_consumer(client, most=9) as consumer:
        (message,) = await receive_n(consumer, 1)
        assert message.attempt == 1, "a publisher's property is not trusted"
        await consumer.reconsume_later(message)
        (message,) = await receive_n(consumer, 1)
        assert message.attempt == 2
        await message.nack()
        (message,) = await receive_n(consumer, 1)
        assert message.attempt == 3


async def test_a_message_that_is_kept_stays_held_when_its_retry_letter_fails(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"a")
    transport.faults = refusing(RETRY)
    async with await open_consumer(client) as consumer:
        (message,) = await receive_n(consumer, 1)
        with pytest.raises(encore.TransportError):
            await consumer.send_to_retry_topic(message, 5, keep=True)
        assert consumer.holds(message)
        assert await handle_all(consumer, nack) == {}
        transport.faults = None
        await asyncio.sleep(100)
        await consumer.send_to_retry_topic(message, 5, keep=True)
        (again,) = await receive_n(consumer, 1)
        assert again.attempt == 2


# Topics of dead letters


def shared(topic: str) -> str:
    return shared_dead_topic_of(topic, "s")


async def test_partitions_share_the_dead_letter_topic_that_a_function_names(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.catalogue.create_partitioned(TOPIC, 3)
    for partition in range(3):
        transport.put(f"{TOPIC}-partition-{partition}", b"%d" % partition)
    policy = encore.DeadLetterPolicy(1, shared, initial_subscription_name="inspect")
    async with await open_consumer(
        client, retry_enable=False, dead_letter_policy=policy
    ) as consumer:
        assert await consumer.create_letter_subscriptions() == [DEAD]
        assert transport.backlog(DEAD, "inspect") == 0
        for message in await receive_n(consumer, 3):
            await message.reject("no")
    assert transport.backlog(DEAD, "inspect") == 3
    assert sorted(bodies(await read_out(client, DEAD))) == [b"0", b"1", b"2"]


async def test_without_a_function_each_partition_has_javas_dead_letter_topic(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.catalogue.create_partitioned(TOPIC, 2)
    policy = encore.DeadLetterPolicy(1, initial_subscription_name="inspect")
    async with await open_consumer(
        client, retry_enable=False, dead_letter_policy=policy
    ) as consumer:
        names = [f"{TOPIC}-partition-{each}-s-DLQ" for each in range(2)]
        assert await consumer.create_letter_subscriptions() == names


async def test_a_pattern_has_one_dead_letter_topic_for_each_topic(
    client: encore.Client, transport: MemoryTransport
) -> None:
    names = [f"persistent://public/default/t{each}" for each in range(3)]
    for name in names[:2]:
        transport.put(name, b"a")
    policy = encore.DeadLetterPolicy(1, shared, initial_subscription_name="inspect")
    async with await client.subscribe(
        "persistent://public/default/t[0-9]",
        "s",
        encore.ConsumerType.Shared,
        is_pattern_topic=True,
        initial_position=encore.InitialPosition.Earliest,
        dead_letter_policy=policy,
    ) as consumer:
        expected = [f"{name}-s-DLQ" for name in names]
        assert await consumer.create_letter_subscriptions() == expected[:2]
        transport.put(names[2], b"late")
        for message in await receive_n(consumer, 3):
            await message.reject("no")
        assert [transport.backlog(each, "inspect") for each in expected] == [1, 1, 1]


async def test_letters_of_the_retry_topic_go_to_the_dead_letter_topic_of_their_origin(
    client: encore.Client, transport: MemoryTransport
) -> None:
    topics = [TOPIC, f"{TOPIC}2"]
    for topic in topics:
        transport.put(topic, topic.encode())
    policy = encore.DeadLetterPolicy(9, shared)
    async with await open_consumer(client, *topics, dead_letter_policy=policy) as consumer:
        for message in await receive_n(consumer, 2):
            await consumer.send_to_retry_topic(message, 1)
        for message in await receive_n(consumer, 2):
            assert message.topic_name() == RETRY
            await message.reject("no")
    for topic in topics:
        assert bodies(await read_out(client, shared(topic))) == [topic.encode()]


@pytest.mark.parametrize("returned", [TOPIC, RETRY, "", None, KeyError("x")])
async def test_a_function_that_names_no_usable_topic_loses_no_letter(
    client: encore.Client,
    transport: MemoryTransport,
    returned: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def name(topic: str) -> str:
        if isinstance(returned, Exception):
            raise returned
        return returned  # type: ignore[no-any-return]

    transport.put(TOPIC, b"a")
    policy = encore.DeadLetterPolicy(1, name, initial_subscription_name="inspect")
    async with await open_consumer(client, dead_letter_policy=policy) as consumer:
        with pytest.raises((encore.ConfigurationError, KeyError)):
            await consumer.create_letter_subscriptions()
        await handle_all(consumer, nack)
    assert bodies(await read_out(client, DEAD)) == [b"a"]
    assert "dead_letter_topic" in caplog.text


# Log lines


async def test_dead_letters_of_one_kind_are_logged_once_in_ten_seconds(
    client: encore.Client, transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    transport.put(TOPIC, *(b"%d" % each for each in range(9)))
    async with await open_consumer(client) as consumer:
        messages = await receive_n(consumer, 9)
        for message in messages[:4]:
            await message.reject(ValueError(f"order {message.data()!r} has no total"))
        await messages[4].reject("another reason")
        first, other = lines(caplog)
        assert "ValueError: order b'0' has no total" in first and DEAD in first
        assert "another reason" in other
        await asyncio.sleep(11)
        await messages[5].reject(ValueError("order b'5' has no total"))
        assert "3 more of this kind" in lines(caplog)[-1]
        await messages[6].reject(ValueError("order b'6' has no total"))
        await consumer.acknowledge(messages[7:])
        caplog.clear()
    (last,) = lines(caplog)
    assert last.startswith("1 more dead letters")


class Broken(logging.Filter):
    """A filter of the application with a mistake."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise KeyError("request_id")


@pytest.mark.parametrize("stored", [True, False])
async def test_a_log_line_that_fails_does_not_keep_a_rejection_from_its_end(
    transport: MemoryTransport, stored: bool
) -> None:
    logger = logging.Logger("application")
    logger.addFilter(Broken())
    transport.put(TOPIC, b"a")
    transport.faults = None if stored else refusing(DEAD)
    async with (
        encore.Client("pulsar://nowhere:6650", transport=transport, logger=logger) as client,
        await open_consumer(client, retry_enable=False) as consumer,
    ):
        (message,) = await receive_n(consumer, 1)
        rejecting = asyncio.create_task(consumer.reject(message, "no", keep=True))
        await asyncio.wait((rejecting,), timeout=60)
        assert rejecting.done()
        assert isinstance(rejecting.exception(), type(None) if stored else encore.TransportError)
        assert consumer.holds(message) is not stored
        await consumer.flush()
        assert transport.backlog(TOPIC, "s") == (0 if stored else 1)


async def test_a_log_line_that_fails_at_close_leaves_no_rejection_without_its_end(
    transport: MemoryTransport,
) -> None:
    logger = logging.Logger("application")
    logger.addFilter(Broken())
    transport.put(TOPIC, b"a")
    transport.put(TOPIC, b"b")
    transport.faults = FaultPlan([Fault(kind="drop", command="SEND", times=100)])
    async with encore.Client("pulsar://nowhere:6650", transport=transport, logger=logger) as client:
        consumer = await open_consumer(client, retry_enable=False)
        rejections = [
            asyncio.create_task(consumer.reject(message, "no", keep=True))
            for message in await receive_n(consumer, 2)
        ]
        await asyncio.sleep(1)
        with contextlib.suppress(KeyError):
            await consumer.close()
        await asyncio.wait(rejections, timeout=60)
        assert all(each.done() for each in rejections)
        assert all(isinstance(each.exception(), encore.ClosedError) for each in rejections)
