"""Letters on a real Pulsar keep the schema, keys, encryption and counts of their originals."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, StringSchema

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.deadletters import DeadLetters, Selection
from tests.harness.admin import Admin
from tests.harness.contract.cluster import ENGINES, Engine
from tests.harness.pulsar_server import Server

from .letters.java_client import JavaClient, java_client, missing_tools
from .letters.letter_checks import await_letters, read_out, subscribe

# looptime's plugin requests a loop before every synchronous test; see the suite's fixtures.
asyncio.set_event_loop(None)


both = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name, indirect=True)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Engine:
    """The stock transport, or the transport of a test marked `both`."""
    chosen: Engine = getattr(request, "param", ENGINES[0])
    return chosen


@pytest_asyncio.fixture
async def client(pulsar: Server, engine: Engine) -> AsyncIterator[encore.Client]:
    async with engine.client(pulsar.service_url) as client:
        yield client


@pytest.fixture(scope="module")
def java(pulsar: Server) -> Iterator[JavaClient]:
    missing_names = missing_tools()
    if missing_names is not None:
        pytest.fail(f"the Java side of the letters needs {missing_names}")
    with java_client(pulsar.service_url) as client:
        yield client


async def fail_messages(consumer: encore.Consumer, act: str, attempts: int) -> None:
    """Fail `attempts` deliveries by nack or by reconsume_later."""
    for _ in range(attempts):
        message = await consumer.receive(timeout=10)
        if act == "nack":
            await consumer.negative_acknowledge(message)
        else:
            await consumer.reconsume_later(message)


async def unacked(admin: Admin, topic: str) -> int:
    """Return the number of unacked messages of the subscription."""
    stats = await asyncio.to_thread(admin.subscription_stats, topic, "s")
    backlog: int = stats["msgBacklog"]
    return backlog


# Schemas


def avro(*names: str) -> Any:
    fields = [{"name": name, "type": "int"} for name in names]
    return AvroSchema(None, {"type": "record", "name": "Box", "fields": fields})


OLD = ("width", "height")
NEW = ("height", "width")
BOX = {"width": 1, "height": 2}


class Order(Record):  # type: ignore[misc]
    number = Integer()


async def publish(client: encore.Client, topic: str, value: Any, **options: Any) -> None:
    async with await client.create_producer(topic, **options) as producer:
        await producer.send(value)


@both
@pytest.mark.parametrize("act", ["nack", "reconsume"])
@pytest.mark.parametrize("reader", [OLD, NEW], ids=["old", "new"])
async def test_a_letter_of_an_older_schema_is_read_with_it(
    client: encore.Client, topic: str, act: str, reader: tuple[str, ...]
) -> None:
    await publish(client, topic, BOX, schema=avro(*OLD))
    await publish(client, topic, BOX, schema=avro(*NEW))
    async with await subscribe(client, topic, 1, schema=avro(*reader)) as consumer:
        await fail_messages(consumer, act, 4)
        dead = f"{topic}-s-DLQ"
        found = await await_letters(client, dead, 2)
    assert sorted(letter.data() for letter in found) == [b"\x02\x04", b"\x04\x02"]
    for schema in (avro(*OLD), avro(*NEW)):
        decoded = await read_out(client, dead, schema=schema)
        assert [await asyncio.to_thread(letter.value) for letter in decoded] == [BOX, BOX]
    await DeadLetters(client, dead).replay()
    replayed = await read_out(client, topic, schema=avro(*NEW))
    assert [await asyncio.to_thread(message.value) for message in replayed] == [BOX] * 4


@both
@pytest.mark.parametrize("act", ["nack", "reconsume"])
async def test_a_message_stays_unacked_if_the_letter_topic_refuses_its_schema(
    client: encore.Client, admin: Admin, topic: str, act: str
) -> None:
    """The real broker checks the compatibility of the letter topic's schema."""
    await publish(client, topic, BOX, schema=avro(*OLD))
    other = AvroSchema(
        None,
        {"type": "record", "name": "Box", "fields": [{"name": "width", "type": "string"}]},
    )
    await publish(client, f"{topic}-s-DLQ", {"width": "wide"}, schema=other)
    async with await subscribe(client, topic, 1) as consumer:
        await fail_messages(consumer, act, 1)
        last = await consumer.receive(timeout=10)
        if act == "nack":
            await consumer.negative_acknowledge(last)
        else:
            with pytest.raises(encore.TransportError) as caught:
                await consumer.reconsume_later(last)
            assert caught.value.result == "IncompatibleSchema"
        await asyncio.sleep(1)
    left = [await unacked(admin, dead_topic) for dead_topic in (topic, f"{topic}-s-RETRY")]
    assert sorted(left) == [0, 1]
    assert len(await read_out(client, f"{topic}-s-DLQ")) == 1


@both
@pytest.mark.parametrize("kind", ["json", "text", "bytes"])
@pytest.mark.parametrize("act", ["nack", "reconsume"])
async def test_letters_keep_json_text_and_bytes_schemas(
    client: encore.Client, topic: str, kind: str, act: str
) -> None:
    schema, value = {
        "json": (JsonSchema(Order), Order(number=7)),
        "text": (StringSchema(), "tëxt"),
        "bytes": (None, b"\xff\x00"),
    }[kind]
    await publish(client, topic, value, schema=schema)
    async with await subscribe(client, topic, 1, schema=schema) as consumer:
        await fail_messages(consumer, act, 2)
        (letter,) = await await_letters(client, f"{topic}-s-DLQ", 1, schema=schema)
    assert letter.int_schema_version() == (-1 if kind == "bytes" else 0)
    got = letter.value()
    assert (got.number if kind == "json" else got) == (7 if kind == "json" else value)


# Keys


async def test_letters_with_text_keys_are_sent_and_byte_keys_are_refused(
    client: encore.Client, java: JavaClient, admin: Admin, topic: str
) -> None:
    """Java's byte keys are recognized by their padding or by the schema, and otherwise taken for
    text.
    """
    await asyncio.to_thread(java.call, "keys", topic)
    async with await subscribe(client, topic, 1) as consumer:
        for _ in range(3):
            message = await consumer.receive(timeout=10)
            if message.data() == b"padded":
                with pytest.raises(encore.NotSupportedError, match="text_keys"):
                    await consumer.reconsume_later(message)
            else:
                await consumer.reconsume_later(message)
    assert await unacked(admin, topic) == 1
    found = await asyncio.to_thread(java.call, "read", f"{topic}-s-RETRY")
    # The second key is changed, as docs/broker-limits.md says: four base64 letters for each three
    # zero bytes.
    assert {letter["data"]: letter["key"] for letter in found} == {"text": "k=", "threes": "A" * 16}
    policy = encore.DeadLetterPolicy(1, text_keys=True)
    async with await subscribe(client, topic, dead_letter_policy=policy) as consumer:
        message = await consumer.receive(timeout=10)
        while message.data() != b"padded":
            await consumer.acknowledge(message)
            message = await consumer.receive(timeout=10)
        await consumer.reconsume_later(message)


async def test_letters_of_key_value_pairs_are_refused(
    client: encore.Client, java: JavaClient, admin: Admin, topic: str
) -> None:
    """Their keys are bytes, whatever they look like."""
    await asyncio.to_thread(java.call, "keys", topic)
    pairs = f"{topic}-pairs"
    async with await subscribe(client, pairs, 1) as consumer:
        message = await consumer.receive(timeout=10)
        assert message.partition_key() == "YWJj"  # "abc", without padding
        with pytest.raises(encore.EncoreError, match="key-value pairs"):
            await consumer.reconsume_later(message)
    assert await unacked(admin, pairs) == 1


# Encryption


@both
@pytest.mark.parametrize("act", ["nack", "reconsume"])
async def test_letters_of_an_encrypted_topic_are_encrypted(
    client: encore.Client, topic: str, keys: Path, act: str
) -> None:
    secret = encore.CryptoKeyReader(str(keys / "public.pem"), str(keys / "private.pem"))
    terminated = encore.ConsumerCryptoFailureAction.CONSUME
    await publish(client, topic, b"secret", encryption_key="its", crypto_key_reader=secret)
    async with await subscribe(client, topic, 1, crypto_key_reader=secret) as consumer:
        await fail_messages(consumer, act, 2)
        dead_topic = f"{topic}-s-DLQ"
        (letter,) = await await_letters(client, dead_topic, 1, crypto_key_reader=secret)
    assert letter.data() == b"secret"
    (letter,) = await read_out(client, dead_topic, crypto_failure_action=terminated)
    assert b"secret" not in letter.data()
    blind = DeadLetters(client, dead_topic)
    assert [group.count for group in await blind.list()] == [1]
    report = await blind.replay()
    assert (report.replayed, report.refused) == (0, 1)
    assert "crypto_key_reader" in report.refusals[0].reason
    assert (await DeadLetters(client, dead_topic, crypto_key_reader=secret).replay()).replayed == 1
    replayed = await read_out(client, topic, crypto_failure_action=terminated)
    assert [b"secret" in message.data() for message in replayed] == [False, False]


# Several topics


@pytest.mark.parametrize("form", ["list", "pattern"])
async def test_retry_letters_of_several_topics_are_received_and_acked(
    client: encore.Client, admin: Admin, topic: str, form: str
) -> None:
    topics = [f"{topic}-a", f"{topic}-b"]
    for each in topics:
        await publish(client, each, each[-1].encode())
    policy = encore.DeadLetterPolicy(1, retry_letter_topic=f"{topic}-again")
    which = topics if form == "list" else re.compile(f"{topic}-[ab]")
    async with await subscribe(client, which, dead_letter_policy=policy) as consumer:
        names = set()
        for each in (*topics, f"{topic}-again"):
            stats = await asyncio.to_thread(admin.subscription_stats, each, "s")
            names |= {one["consumerName"] for one in stats["consumers"]}
        assert names == {consumer.consumer_name()}
        assert re.fullmatch("[0-9a-f]{5}", consumer.consumer_name())
        await fail_messages(consumer, "reconsume", 2)
        last = [await consumer.receive(timeout=10) for _ in topics]
        assert {message.topic_name() for message in last} == {f"{topic}-again"}
        for message in last:  # stored as bytes, which do not contain the topic
            stored = encore.MessageId.deserialize(message.message_id().serialize())
            await consumer.acknowledge(stored)
    for each in (*topics, f"{topic}-again"):
        assert await unacked(admin, each) == 0


# A nack overflow letter and Java


async def test_an_overflow_letter_reconsumed_by_java_counts_attempts_as_java_does(
    client: encore.Client, java: JavaClient, topic: str
) -> None:
    """Java copies every property. Attempts before the overflow do not count for it."""
    await asyncio.to_thread(java.call, "produce", topic, 1, "single")
    overflow_options = {"nack_overflow": "retry_letter", "nack_overflow_delay": 0.5}
    async with await subscribe(client, topic, 3, **overflow_options) as consumer:
        for delay in (0.2, 0.2, 1):
            await consumer.negative_acknowledge(await consumer.receive(timeout=10), delay)
        (overflow_letter,) = await await_letters(client, f"{topic}-s-RETRY", 1)
        assert overflow_letter.properties()[letters.PARKED_LOOKS] == "3"
    (java_letter,) = await asyncio.to_thread(java.call, "consume", topic, "s", 3, "reconsume", 1, 0)
    assert letters.RECONSUME_TIMES not in java_letter["properties"]
    await asyncio.sleep(2.5)  # until it is due: postponing an early letter is no attempt
    async with await subscribe(client, topic, 3) as consumer:
        message = await consumer.receive(timeout=10)
        assert message.redelivery_count() == 0, "the deliveries before the parking are not counted"
        attempts = 1
        with contextlib.suppress(encore.ReceiveTimeout):
            while True:
                assert message.properties()[letters.RECONSUME_TIMES] == "1"
                await consumer.negative_acknowledge(message)
                message = await consumer.receive(timeout=5)
                attempts += 1
        assert 1 < attempts <= 4  # a broker may count one redelivery more than once
        assert len(await await_letters(client, f"{topic}-s-DLQ", 1)) == 1


# Listing and replaying


async def test_listing_ends_while_letters_arrive(client: encore.Client, topic: str) -> None:
    """A listing that waits for a pause might never end. The last letter may be chunked."""
    large = bytes(6_000_000)
    dead = DeadLetters(client, topic)
    async with await client.create_producer(
        topic, batching_enabled=False, chunking_enabled=True
    ) as producer:
        for payload in (b"1", b"2", large):
            await producer.send(payload, properties={letters.FINGERPRINT: "first"})
        async with asyncio.timeout(20):
            (group,) = await dead.list()
            assert group.count == 3

        async def keep_publishing() -> None:
            async with asyncio.TaskGroup() as sends:
                while True:
                    sends.create_task(producer.send(b"x", properties={letters.FINGERPRINT: "x"}))
                    await asyncio.sleep(0.005)

        publish_task = asyncio.ensure_future(keep_publishing())
        try:
            async with asyncio.timeout(20):
                counts = {group.fingerprint: group.count for group in await dead.list()}
                assert (await dead.show("first")).message.data() == large
        finally:
            publish_task.cancel()
    assert counts["first"] == 3


@pytest.mark.parametrize("chunked", [True, False])
async def test_listing_ends_at_a_chunked_letter_and_on_an_empty_topic(
    client: encore.Client, topic: str, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letters that arrive after the listing has read the topic's end are not listed."""
    dead = DeadLetters(client, topic)
    async with await client.create_producer(
        topic, batching_enabled=False, chunking_enabled=True
    ) as producer:
        if chunked:
            await producer.send(b"before")
            await producer.send(bytes(6_000_000))

        async def keep_publishing() -> None:
            while True:
                await producer.send(b"x")
                await asyncio.sleep(0.005)

        publish_task: list[asyncio.Future[None]] = []
        last, read = dead._last, dead._read

        def begin() -> None:
            publish_task.append(asyncio.ensure_future(keep_publishing()))

        async def last_looked_up(partition: str) -> Any:
            found = await last(partition)
            begin()
            await asyncio.sleep(0.1)
            return found

        def reading(*args: Any) -> Any:
            begin()
            return read(*args)

        if chunked:
            monkeypatch.setattr(dead, "_read", reading)
        else:
            monkeypatch.setattr(dead, "_last", last_looked_up)
        try:
            async with asyncio.timeout(20):
                lengths = [len(letter.message.data()) async for letter in dead.letters()]
        finally:
            for each in publish_task:
                each.cancel()
    assert publish_task
    assert lengths == ([6, 6_000_000] if chunked else [])


async def test_a_letter_that_cannot_be_replayed_does_not_block_others(
    client: encore.Client, admin: Admin, topic: str
) -> None:
    terminated = f"{topic}-closed"
    await asyncio.to_thread(admin.create_topic, terminated)
    await asyncio.to_thread(admin.terminate, terminated)
    dead = f"{topic}-s-DLQ"
    async with await client.create_producer(dead) as producer:
        for real in (terminated, topic, terminated, topic):
            properties = {letters.REAL_TOPIC: real, letters.REAL_SUBSCRIPTION: "s"}
            await producer.send(b"x", properties=properties)
    report = await DeadLetters(client, dead).replay(Selection(real_topics=[topic, terminated]))
    assert (report.replayed, report.refused) == (2, 2)
    assert "erminated" in report.refusals[0].reason
    assert len(await read_out(client, topic)) == 2
