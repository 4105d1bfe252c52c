"""Bad input to letters: named errors, before anything is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pulsar
import pytest
import pytest_asyncio
from forwarding_kit import DEAD, RETRY, TOPIC, handle_all, nack, open_consumer, read_out, reconsume

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.testing import MemoryTransport


@pytest_asyncio.fixture
async def consumer(
    client: encore.Client, transport: MemoryTransport
) -> AsyncIterator[encore.Consumer]:
    transport.put(TOPIC, b"a")
    async with await open_consumer(client) as consumer:
        yield consumer


def nothing_sent(transport: MemoryTransport) -> None:
    assert not transport.recorded("SEND")
    assert not transport.recorded("PRODUCER")


# Policies and subscriptions


@pytest.mark.parametrize("most", [0, -1, 1.5, True, "3", None, 2**31])
def test_an_invalid_max_redeliver_count_is_refused(most: Any) -> None:
    with pytest.raises(encore.ConfigurationError, match="max_redeliver_count"):
        encore.DeadLetterPolicy(most)


@pytest.mark.parametrize("name", ["dead_letter_topic", "retry_letter_topic"])
@pytest.mark.parametrize("value", ["", 3, b"x"])
def test_an_invalid_letter_topic_of_a_policy_is_refused(name: str, value: Any) -> None:
    with pytest.raises(encore.ConfigurationError, match=name):
        encore.DeadLetterPolicy(1, **{name: value})


@pytest.mark.parametrize("other", ["x", "persistent://public/default/x", "public/default/x"])
def test_one_topic_for_retry_and_dead_letters_is_refused(other: str) -> None:
    with pytest.raises(encore.ConfigurationError, match="must differ"):
        encore.DeadLetterPolicy(1, dead_letter_topic="x", retry_letter_topic=other)


@pytest.mark.parametrize(
    ("options", "error_text"),
    [
        ({"dead_letter_policy": 3}, "dead_letter_policy"),
        ({"retry_enable": 1}, "retry_enable"),
        ({"retry_enable": True, "receiver_queue_size": 0}, "receiver_queue_size"),
        ({"nack_overflow": "elsewhere", "retry_enable": True}, "nack_overflow"),
        ({"nack_overflow": "retry_letter", "retry_enable": False}, "retry_enable"),
        ({"nack_overflow_share": 1.1}, "nack_overflow_share"),
        ({"nack_overflow_share": -0.1}, "nack_overflow_share"),
        ({"nack_overflow_share": "half"}, "nack_overflow_share"),
        ({"nack_overflow_share": float("nan")}, "nack_overflow_share"),
        ({"nack_overflow_delay": -1}, "nack_overflow_delay"),
        ({"nack_overflow_delay": "long"}, "nack_overflow_delay"),
        *(
            ({"dead_letter_policy": encore.DeadLetterPolicy(1, **{name: topic})}, name)
            for name in ("retry_letter_topic", "dead_letter_topic")
            for topic in ("t", TOPIC)
        ),
    ],
)
async def test_a_subscription_with_an_invalid_letter_option_is_refused_without_a_command(
    client: encore.Client, transport: MemoryTransport, options: dict[str, Any], error_text: str
) -> None:
    with pytest.raises(encore.ConfigurationError, match=error_text):
        await open_consumer(client, most=None, **options)
    assert not transport.commands


async def test_a_pattern_with_retries_needs_a_retry_letter_topic(client: encore.Client) -> None:
    with pytest.raises(encore.ConfigurationError, match="retry_letter_topic"):
        await client.subscribe(
            "persistent://public/default/.*", "s", is_pattern_topic=True, retry_enable=True
        )


# Calls


@pytest.mark.parametrize(
    "delay", [-1, -0.001, timedelta(seconds=-1), float("nan"), float("inf"), "1", None, 1e30, 2**64]
)
@pytest.mark.parametrize("listed", [False, True])
async def test_an_invalid_delay_is_refused_and_the_message_stays_held(
    consumer: encore.Consumer, transport: MemoryTransport, delay: Any, listed: bool
) -> None:
    message = await consumer.receive(timeout=5)
    if listed:
        with pytest.raises(ExceptionGroup) as caught:
            await consumer.reconsume_later([message], delay)
        (error,) = caught.value.exceptions
        assert isinstance(error, encore.ConfigurationError)
    else:
        with pytest.raises(encore.ConfigurationError, match="delay"):
            await consumer.reconsume_later(message, delay)
    nothing_sent(transport)
    await consumer.reconsume_later(message)  # it is still held


@pytest.mark.parametrize(
    "properties",
    [
        {"n": 1},
        {1: "n"},
        {"n": b"x"},
        {"n": None},
        {"": "x"},
        {"n": "\ud800"},
        {"\ud800": "n"},
        [("n", "x")],
        "n",
        *({name: "x"} for name in sorted(letters.RESERVED)),
    ],
)
async def test_invalid_properties_of_a_letter_are_refused(
    consumer: encore.Consumer, transport: MemoryTransport, properties: Any
) -> None:
    message = await consumer.receive(timeout=5)
    with pytest.raises(encore.ConfigurationError, match="propert"):
        await consumer.reconsume_later(message, properties=properties)
    nothing_sent(transport)


async def test_reconsume_later_refuses_an_argument_that_is_no_received_message(
    consumer: encore.Consumer, transport: MemoryTransport
) -> None:
    message = await consumer.receive(timeout=5)
    for item in (message.message_id(), b"a", "a", None, 3, {message: 1}):
        with pytest.raises(encore.ConfigurationError, match="needs the received message"):
            await consumer.reconsume_later(item)  # type: ignore[arg-type]
    with pytest.raises(ExceptionGroup):
        await consumer.reconsume_later([message.message_id()])  # type: ignore[list-item]
    nothing_sent(transport)


async def test_reconsume_later_refuses_a_message_of_another_consumer_or_reader(
    client: encore.Client, consumer: encore.Consumer, transport: MemoryTransport
) -> None:
    message = await consumer.receive(timeout=5)
    async with await open_consumer(client) as other:
        with pytest.raises(encore.MessageNotHeldError, match="another consumer"):
            await other.reconsume_later(message)
    (read,) = await read_out(client, TOPIC)
    with pytest.raises(encore.MessageNotHeldError, match="reader"):
        await consumer.reconsume_later(read)
    nothing_sent(transport)


async def test_reconsume_later_without_retry_enable_is_refused(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"a")
    async with await open_consumer(client, retry_enable=False) as consumer:
        message = await consumer.receive(timeout=5)
        for item in (message, [message]):
            with pytest.raises(encore.ConfigurationError, match="retry_enable"):
                await consumer.reconsume_later(item)
        with pytest.raises(encore.ConfigurationError, match="retry_enable"):
            await consumer.reconsume_later_cumulative(message)
    nothing_sent(transport)


@pytest.mark.parametrize("kind", [encore.ConsumerType.Shared, encore.ConsumerType.KeyShared])
async def test_reconsume_later_cumulative_is_refused_on_shared_and_key_shared(
    client: encore.Client, transport: MemoryTransport, kind: encore.ConsumerType
) -> None:
    transport.put(TOPIC, b"a")
    async with await open_consumer(client, consumer_type=kind) as consumer:
        message = await consumer.receive(timeout=5)
        with pytest.raises(encore.ConfigurationError, match="Exclusive or Failover"):
            await consumer.reconsume_later_cumulative(message)
    nothing_sent(transport)


async def test_reconsume_later_cumulative_of_a_retry_letter_is_refused(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """Its topic is subscribed Shared: refused before it is copied, and still held."""
    transport.put(TOPIC, b"a")
    async with await open_consumer(client, consumer_type=encore.ConsumerType.Exclusive) as consumer:
        await consumer.reconsume_later(await consumer.receive(timeout=5))
        letter = await consumer.receive(timeout=5)
        with pytest.raises(encore.ConfigurationError, match="retry-letter topic"):
            await consumer.reconsume_later_cumulative(letter)
        assert len(await read_out(client, RETRY)) == 1
        await consumer.acknowledge(letter)
    assert transport.backlog(RETRY, "s") == 0


@pytest.mark.parametrize("policy", [True, False])
@pytest.mark.parametrize(
    ("error", "error_text"),
    [
        (5, "error must be an exception or a str, got int"),
        (b"why", "error must be an exception or a str, got bytes"),
        ({"code": 3}, "error must be an exception or a str, got dict"),
        (dict, "error must be an exception or a str, got type"),
        (KeyError, "error must be the exception that was raised, not its class KeyError"),
    ],
)
async def test_an_invalid_error_argument_is_refused_with_and_without_a_policy(
    client: encore.Client, transport: MemoryTransport, error: Any, error_text: str, policy: bool
) -> None:
    """The error is the same with and without a policy, and the message is unchanged."""
    transport.put(TOPIC, b"a")
    options: dict[str, Any] = {} if policy else {"most": None, "retry_enable": False}
    async with await open_consumer(client, **options) as consumer:
        message = await consumer.receive(timeout=5)
        with pytest.raises(encore.ConfigurationError) as caught:
            await consumer.negative_acknowledge(message, error=error)
        assert str(caught.value) == error_text
        if policy:
            for item in (message, [message]):
                with pytest.raises(encore.ConfigurationError) as caught:
                    await consumer.reconsume_later(item, error=error)
                assert str(caught.value) == error_text
        nothing_sent(transport)
        assert consumer.statistics().in_flight == 1
        await consumer.acknowledge(message)
    assert transport.backlog(TOPIC, "s") == 0


# Stock's policy


async def test_a_policy_of_pulsar_client_sends_to_its_topic_and_initial_subscription(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """And the engine's own dead-lettering, which drags acked siblings along, stays off."""
    transport.put(TOPIC, b"a")
    policy = pulsar.ConsumerDeadLetterPolicy(2, "persistent://public/default/gone", "keeper")
    async with await open_consumer(
        client, most=None, dead_letter_policy=policy, retry_enable=False
    ) as consumer:
        assert await handle_all(consumer, nack) == {b"a": 3}
    assert len(await read_out(client, "persistent://public/default/gone")) == 1
    assert transport.backlog("persistent://public/default/gone", "keeper") == 1


async def test_a_policy_of_pulsar_client_without_names_uses_the_default_topics(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"a")
    policy = pulsar.ConsumerDeadLetterPolicy(1)
    async with await open_consumer(client, most=None, dead_letter_policy=policy) as consumer:
        assert await handle_all(consumer, reconsume) == {b"a": 2}
    assert len(await read_out(client, DEAD)) == 1


async def test_retry_enable_without_a_policy_allows_16_retries_as_in_java(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"a")
    async with await open_consumer(client, most=None) as consumer:
        assert await handle_all(consumer, reconsume) == {b"a": 17}
    assert len(await read_out(client, DEAD)) == 1


@pytest.mark.parametrize("delay", ["10s", None, True, {1: 2}])
async def test_the_error_of_a_delay_says_that_a_list_is_allowed(
    client: encore.Client, transport: MemoryTransport, delay: Any
) -> None:
    transport.put(TOPIC, b"a")
    async with await open_consumer(client) as consumer:
        message = await consumer.receive(timeout=5)
        with pytest.raises(encore.ConfigurationError, match="a Backoff, or a list of delays"):
            await consumer.reconsume_later(message, delay)
