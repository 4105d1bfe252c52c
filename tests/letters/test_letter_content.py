"""Properties, copied fields and evidence of letters.

The properties: `docs/notes/consumer-semantics.md#properties-of-letters`.
"""

from __future__ import annotations

import asyncio

import pytest
from forwarding_kit import (
    DEAD,
    RETRY,
    TOPIC,
    Act,
    bodies,
    handle_all,
    nack,
    named,
    open_consumer,
    pointers,
    read_out,
    reconsume,
)

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.eventloop.alarm import wall_now_ms
from pulsar_encore.letters.evidence import evidence_of
from pulsar_encore.options import ProducerOptions
from pulsar_encore.testing import MemoryTransport
from pulsar_encore.transport.interface import ProducerListener, TransportProducer
from pulsar_encore.wire import pulsar_pb2 as pb

PARTS = "persistent://public/default/parts"


def text_of(message_id: encore.MessageId) -> str:
    return f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}"


# Section 20.1, column by column


async def test_retry_letters_and_their_dead_letter_name_origin_count_and_delay(
    client: encore.Client, transport: MemoryTransport
) -> None:
    (origin,) = transport.put(TOPIC, b"a", properties={"colour": "red"})
    async with await open_consumer(client, most=2) as consumer:
        await consumer.reconsume_later(await consumer.receive(timeout=5), 1.5)
        await consumer.reconsume_later(await consumer.receive(timeout=5), 2, {"colour": "blue"})
        await consumer.reconsume_later(await consumer.receive(timeout=5), 60)
    first, second = await read_out(client, RETRY)
    (dead,) = await read_out(client, DEAD)
    text = text_of(origin)
    assert pointers(first) == (text, text, TOPIC, "s", "1", "1500")
    assert pointers(second) == (text, text, TOPIC, "s", "2", "2000")
    assert pointers(dead) == (text, text, TOPIC, "s", "3", "60000")
    assert named([first, second, dead], "colour") == ["red", "blue", "blue"]


async def test_a_dead_letter_after_nacks_names_its_origin_and_no_reconsume_count(
    client: encore.Client, transport: MemoryTransport
) -> None:
    (origin,) = transport.put(TOPIC, b"a", properties={"colour": "red"})
    async with await open_consumer(client, most=1) as consumer:
        await handle_all(consumer, nack)
    (dead,) = await read_out(client, DEAD)
    text = text_of(origin)
    assert pointers(dead) == (text, text, TOPIC, "s", None, None)
    assert dead.properties()["colour"] == "red"


async def test_a_dead_letter_of_a_nacked_retry_letter_keeps_the_first_origin_and_its_count(
    client: encore.Client, transport: MemoryTransport
) -> None:
    (origin,) = transport.put(TOPIC, b"a")
    async with await open_consumer(client, most=1) as consumer:
        await consumer.reconsume_later(await consumer.receive(timeout=5), 3)
        await handle_all(consumer, nack)
    (dead,) = await read_out(client, DEAD)
    text = text_of(origin)
    assert pointers(dead) == (text, text, TOPIC, "s", "1", "3000")


@pytest.mark.parametrize("act", [nack, reconsume])
async def test_the_origin_id_of_a_batched_message_ends_with_its_batch_index(
    client: encore.Client, transport: MemoryTransport, act: Act
) -> None:
    one, two = transport.put(TOPIC, b"a", b"b")
    (alone,) = transport.put(TOPIC, b"c", batch=True)
    async with await open_consumer(client, most=1) as consumer:
        await handle_all(consumer, act)
    origins = {
        letter.data(): letter.properties()[letters.ORIGIN_MESSAGE_ID]
        for letter in await read_out(client, DEAD)
    }
    assert origins == {
        b"a": f"{text_of(one)}:0",
        b"b": f"{text_of(two)}:1",
        b"c": text_of(alone),
    }


@pytest.mark.parametrize("act", [nack, reconsume])
async def test_letters_of_partitions_name_the_partition_after_a_nack_and_else_the_topic(
    client: encore.Client, transport: MemoryTransport, act: Act
) -> None:
    """By nack the partition's name, by reconsume_later the topic's, as Java does.

    `docs/notes/consumer-semantics.md#properties-of-letters`
    """
    transport.catalogue.create_partitioned(PARTS, 2)
    ids = {
        b"%d" % number: transport.put(f"{PARTS}-partition-{number}", b"%d" % number)[0]
        for number in range(2)
    }
    async with await open_consumer(client, PARTS, most=1) as consumer:
        await handle_all(consumer, act)
    dead = await read_out(client, f"{PARTS}-s-DLQ")
    assert sorted(bodies(dead)) == [b"0", b"1"]
    for letter in dead:
        payload = letter.data()
        tail = f"-partition-{payload.decode()}" if act is nack else ""
        assert letter.properties()[letters.REAL_TOPIC] == PARTS + tail
        assert letter.properties()[letters.ORIGIN_MESSAGE_ID] == text_of(ids[payload])


@pytest.mark.parametrize("act", [nack, reconsume])
async def test_the_origin_id_of_a_chunked_message_has_its_first_and_last_chunk(
    client: encore.Client, transport: MemoryTransport, act: Act
) -> None:
    last = transport.put_chunked(TOPIC, b"large", 3)
    async with await open_consumer(client, most=1) as consumer:
        await handle_all(consumer, act)
    (dead,) = await read_out(client, DEAD)
    assert last.first_chunk is not None
    expected = f"{text_of(last.first_chunk)};{text_of(last)}"
    assert dead.properties()[letters.ORIGIN_MESSAGE_ID] == expected


# Names


async def test_several_topics_with_retries_share_the_letter_topics_of_the_first_name(
    client: encore.Client, transport: MemoryTransport
) -> None:
    for topic in ("b", "a"):
        transport.put(topic, topic.encode())
    async with await open_consumer(client, "b", "a", most=1) as consumer:
        await handle_all(consumer, reconsume)
    base = "persistent://public/default/"
    assert sorted(bodies(await read_out(client, f"{base}a-s-RETRY"))) == [b"a", b"b"]
    dead = await read_out(client, f"{base}a-s-DLQ")
    assert {m.data(): m.properties()[letters.REAL_TOPIC] for m in dead} == {
        b"a": f"{base}a",
        b"b": f"{base}b",
    }


async def test_without_retries_each_topic_and_partition_has_its_own_dead_letter_topic(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.catalogue.create_partitioned(PARTS, 2)
    transport.put(f"{PARTS}-partition-1", b"p")
    transport.put("a", b"a")
    async with await open_consumer(client, PARTS, "a", most=1, retry_enable=False) as consumer:
        await handle_all(consumer, nack)
    assert bodies(await read_out(client, f"{PARTS}-partition-1-s-DLQ")) == [b"p"]
    assert bodies(await read_out(client, "persistent://public/default/a-s-DLQ")) == [b"a"]
    assert not any(name.endswith("-RETRY") for name in transport.catalogue.topics)


@pytest.mark.parametrize("name", ["again", "persistent://public/default/again"])
async def test_given_letter_topics_replace_the_default_names(
    client: encore.Client, transport: MemoryTransport, name: str
) -> None:
    """A retry topic by its short name too is subscribed Shared (Java: only by the full one)."""
    transport.put(TOPIC, b"a")
    policy = encore.DeadLetterPolicy(1, dead_letter_topic="gone", retry_letter_topic=name)
    async with await open_consumer(
        client, dead_letter_policy=policy, consumer_type=encore.ConsumerType.Exclusive
    ) as consumer:
        await consumer.reconsume_later(await consumer.receive(timeout=5), 3)
        began = asyncio.get_running_loop().time()
        message = await consumer.receive(timeout=60)
        assert 3 <= asyncio.get_running_loop().time() - began < 4.1
        await consumer.reconsume_later(message)
    base = "persistent://public/default/"
    assert bodies(await read_out(client, f"{base}again")) == [b"a"]
    assert bodies(await read_out(client, f"{base}gone")) == [b"a"]


async def test_a_partitioned_retry_topic_keeps_delays_and_counts(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """Delays and counts hold on its partitions (Java subscribes them with the consumer's type)."""
    transport.catalogue.create_partitioned(RETRY, 2)
    transport.put(TOPIC, b"a")
    async with await open_consumer(
        client, most=2, consumer_type=encore.ConsumerType.Exclusive
    ) as consumer:
        await consumer.reconsume_later(await consumer.receive(timeout=5), 0.5)
        began = asyncio.get_running_loop().time()
        message = await consumer.receive(timeout=60)
        assert asyncio.get_running_loop().time() - began >= 0.5
        await consumer.negative_acknowledge(message)
        seen = await handle_all(consumer, nack)
    assert seen == {b"a": 2}
    assert bodies(await read_out(client, DEAD)) == [b"a"]


async def test_a_pattern_with_a_given_retry_topic_retries_and_dead_letters(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put("px", b"x")
    policy = encore.DeadLetterPolicy(1, retry_letter_topic="again")
    async with await client.subscribe(
        "persistent://public/default/p.*",
        "s",
        is_pattern_topic=True,
        consumer_type=encore.ConsumerType.Shared,
        initial_position=encore.InitialPosition.Earliest,
        dead_letter_policy=policy,
        retry_enable=True,
    ) as consumer:
        assert await handle_all(consumer, reconsume) == {b"x": 2}
    assert bodies(await read_out(client, "persistent://public/default/again")) == [b"x"]


async def test_letter_producers_are_opened_once_when_needed_with_the_names_of_java(
    client: encore.Client, transport: MemoryTransport
) -> None:
    for each in range(20):
        transport.put(TOPIC, b"%d" % each)
    asked: list[ProducerOptions] = []
    create = transport.create_producer

    async def listening(
        options: ProducerOptions, listener: ProducerListener | None = None
    ) -> TransportProducer:
        asked.append(options)
        return await create(options, listener)

    transport.create_producer = listening  # type: ignore[method-assign]
    async with await open_consumer(client, most=1, consumer_name="me") as consumer:
        assert not transport.recorded("PRODUCER")
        await handle_all(consumer, reconsume)
    assert [command.topic for command in transport.recorded("PRODUCER")] == [RETRY, DEAD]
    retry, dead = asked
    assert (retry.topic, retry.producer_name) == (RETRY, None)
    assert dead.topic == DEAD
    name = dead.producer_name
    assert name is not None
    # Of the child that forwards: here the retry letter died, so the retry topic's name is in it.
    head, tail = f"{RETRY}-s-me-", "-DLQ"
    assert name.startswith(head)
    assert name.endswith(tail)
    middle = name[len(head) : -len(tail)]
    assert len(middle) == 5
    assert middle.isalnum()
    assert not dead.batching_enabled
    assert dead.chunking_enabled


async def test_a_failover_consumer_subscribes_its_retry_topic_as_shared(
    client: encore.Client, transport: MemoryTransport
) -> None:
    async with await open_consumer(
        client, consumer_type=encore.ConsumerType.Failover, consumer_name="me"
    ):
        main, retry = transport.recorded("SUBSCRIBE")
        assert (main.topic, retry.topic) == (TOPIC, RETRY)
        assert main.details.subType == pb.CommandSubscribe.Failover
        assert retry.details.subType == pb.CommandSubscribe.Shared
        assert retry.details.consumer_name == "me"
        assert retry.subscription == "s"


# Copies


@pytest.mark.parametrize("act", [nack, reconsume])
@pytest.mark.parametrize("event_ms", [0, 1234])
async def test_letters_copy_key_event_time_and_payload(
    client: encore.Client, transport: MemoryTransport, act: Act, event_ms: int
) -> None:
    transport.put(TOPIC, b"\x00\xff", key="k", event_ms=event_ms)
    async with await open_consumer(client, most=1) as consumer:
        await handle_all(consumer, act)
    (dead,) = await read_out(client, DEAD)
    assert (dead.data(), dead.partition_key(), dead.event_timestamp()) == (
        b"\x00\xff",
        "k",
        event_ms,
    )
    sent = [command.details.metadata for command in transport.recorded("SEND")]
    assert [each.event_time for each in sent] == [event_ms] * len(sent)
    assert [each.HasField("event_time") for each in sent] == [bool(event_ms)] * len(sent)


@pytest.mark.parametrize("act", [nack, reconsume])
async def test_a_letter_of_a_null_value_has_a_null_value(
    client: encore.Client, transport: MemoryTransport, act: Act
) -> None:
    transport.put(TOPIC, None, key="k")
    transport.put(TOPIC, b"", key="k")
    async with await open_consumer(client, most=1) as consumer:
        await handle_all(consumer, act)
    assert [m.has_null_value() for m in await read_out(client, DEAD)] == [True, False]


# Evidence


async def test_a_dead_letter_has_error_reason_attempts_consumer_version_and_times(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"a")
    before = wall_now_ms(asyncio.get_running_loop())
    async with await open_consumer(client, most=1, consumer_name="me") as consumer:
        for number in range(2):
            message = await consumer.receive(timeout=60)
            try:
                raise KeyError(f"order {number}")
            except KeyError as error:
                await consumer.negative_acknowledge(message, 10, error=error)
        await asyncio.sleep(1)
    (dead,) = await read_out(client, DEAD)
    given = dead.properties()
    assert given[letters.REASON] == "nack"
    assert given[letters.ERROR_CLASS] == "KeyError"
    assert given[letters.ERROR_MESSAGE] == "'order 1'"
    assert "test_letter_content.py:" in given[letters.ERROR_STACK]
    assert len(given[letters.FINGERPRINT]) == 12
    assert given[letters.ATTEMPTS] == "2"
    assert given[letters.CONSUMER] == "me"
    assert given[letters.VERSION] == encore.__version__
    first, last = int(given[letters.FIRST_TIME]), int(given[letters.LAST_TIME])
    assert first >= before
    assert 10_000 <= last - first < 12_000


async def test_a_nack_without_an_error_keeps_the_error_of_the_previous_attempt(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"a")
    async with await open_consumer(client, most=1) as consumer:
        message = await consumer.receive(timeout=5)
        await consumer.negative_acknowledge(message, error="no stock")
        await consumer.negative_acknowledge(await consumer.receive(timeout=5))
        await asyncio.sleep(1)
    assert named(await read_out(client, DEAD), letters.ERROR_MESSAGE) == ["no stock"]


async def test_a_dead_letter_has_the_last_given_error_and_the_first_failure_time(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """The dead letter tells of the last error given and of the first time."""
    transport.put(TOPIC, b"a")
    async with await open_consumer(client, most=2) as consumer:
        message = await consumer.receive(timeout=5)
        await consumer.reconsume_later(message, 10, error=ValueError("one"))
        message = await consumer.receive(timeout=60)
        assert message.properties()[letters.ERROR_MESSAGE] == "one"
        await consumer.reconsume_later(message, 10, error=ValueError("two"))
        await consumer.reconsume_later(await consumer.receive(timeout=60))
    (dead,) = await read_out(client, DEAD)
    given = dead.properties()
    assert given[letters.ERROR_MESSAGE] == "two"
    assert given[letters.ATTEMPTS] == "3"
    assert int(given[letters.LAST_TIME]) - int(given[letters.FIRST_TIME]) >= 20_000
    assert given[letters.FINGERPRINT] == message_fingerprint(ValueError("two"))


def message_fingerprint(error: Exception) -> str:
    return evidence_of(error, "reconsume_later").fingerprint


async def test_a_new_error_removes_all_properties_of_the_old_error(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"a")
    async with await open_consumer(client, most=1) as consumer:
        message = await consumer.receive(timeout=5)
        await consumer.reconsume_later(message, error=ValueError("one"))
        await consumer.reconsume_later(await consumer.receive(timeout=5), error="in words")
    (dead,) = await read_out(client, DEAD)
    assert dead.properties()[letters.ERROR_MESSAGE] == "in words"
    assert letters.ERROR_CLASS not in dead.properties()


@pytest.mark.parametrize("act", [nack, reconsume])
async def test_without_an_error_the_reason_is_the_name_of_the_call(
    client: encore.Client, transport: MemoryTransport, act: Act
) -> None:
    transport.put(TOPIC, b"a")
    async with await open_consumer(client, most=1) as consumer:
        await handle_all(consumer, act)
    (dead,) = await read_out(client, DEAD)
    assert dead.properties()[letters.REASON] == ("nack" if act is nack else "reconsume_later")
    assert letters.ERROR_MESSAGE not in dead.properties()


async def test_the_error_properties_of_a_dead_letter_are_shortened_for_a_large_error(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"a")
    async with await open_consumer(client, most=1) as consumer:
        for _ in range(2):
            message = await consumer.receive(timeout=5)
            await consumer.reconsume_later(message, error=RuntimeError("x" * 1_000_000))
    (dead,) = await read_out(client, DEAD)
    assert sum(map(len, dead.properties().values())) < 6_000
