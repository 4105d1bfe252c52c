"""Letters on a real Pulsar keep how their originals were written: schema, keys, secrecy, counts."""

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
from harness.admin import Admin
from harness.contract.cluster import ENGINES, Engine
from harness.pulsar_server import Server
from pulsar_encore import letters
from pulsar_encore.deadletters import DeadLetters, Selection

from .letters.java_client import JavaClient, java_client, missing
from .letters.letter_checks import await_letters, read_out, subscribe

# looptime's plugin asks for a loop before every synchronous test; see the suite's fixtures.
asyncio.set_event_loop(None)


both = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name, indirect=True)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Engine:
    """The stock transport, but for tests of `both`."""
    chosen: Engine = getattr(request, "param", ENGINES[0])
    return chosen


@pytest_asyncio.fixture
async def client(pulsar: Server, engine: Engine) -> AsyncIterator[encore.Client]:
    async with engine.client(pulsar.service_url) as client:
        yield client


@pytest.fixture(scope="module")
def java(pulsar: Server) -> Iterator[JavaClient]:
    absent = missing()
    if absent is not None:
        pytest.fail(f"the Java side of the letters needs {absent}")
    with java_client(pulsar.service_url) as client:
        yield client


async def die(consumer: encore.Consumer, act: str, looks: int) -> None:
    """So many looks, by nack or by reconsume_later."""
    for _ in range(looks):
        message = await consumer.receive(timeout=10)
        if act == "nack":
            await consumer.negative_acknowledge(message)
        else:
            await consumer.reconsume_later(message)


async def unacked(admin: Admin, topic: str) -> int:
    """Messages that the broker still has for the subscription."""
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
        await die(consumer, act, 4)
        dead = f"{topic}-s-DLQ"
        found = await await_letters(client, dead, 2)
    assert sorted(letter.data() for letter in found) == [b"\x02\x04", b"\x04\x02"]
    for schema in (avro(*OLD), avro(*NEW)):
        decoded = await read_out(client, dead, schema=schema)
        assert [await asyncio.to_thread(letter.value) for letter in decoded] == [BOX, BOX]
    await DeadLetters(client, dead).replay()
    home = await read_out(client, topic, schema=avro(*NEW))
    assert [await asyncio.to_thread(message.value) for message in home] == [BOX] * 4


@both
@pytest.mark.parametrize("act", ["nack", "reconsume"])
async def test_a_letter_topic_that_refuses_the_schema_gives_the_message_back(
    client: encore.Client, admin: Admin, topic: str, act: str
) -> None:
    """The compatibility check of the letter topic, by the real broker's rules."""
    await publish(client, topic, BOX, schema=avro(*OLD))
    other = AvroSchema(
        None,
        {"type": "record", "name": "Box", "fields": [{"name": "width", "type": "string"}]},
    )
    await publish(client, f"{topic}-s-DLQ", {"width": "wide"}, schema=other)
    async with await subscribe(client, topic, 1) as consumer:
        await die(consumer, act, 1)
        last = await consumer.receive(timeout=10)
        if act == "nack":
            await consumer.negative_acknowledge(last)
        else:
            with pytest.raises(encore.TransportError) as caught:
                await consumer.reconsume_later(last)
            assert caught.value.result == "IncompatibleSchema"
        await asyncio.sleep(1)
    left = [await unacked(admin, where) for where in (topic, f"{topic}-s-RETRY")]
    assert sorted(left) == [0, 1]
    assert len(await read_out(client, f"{topic}-s-DLQ")) == 1


@both
@pytest.mark.parametrize("kind", ["json", "text", "bytes"])
@pytest.mark.parametrize("act", ["nack", "reconsume"])
async def test_other_schemas_stay_what_they_are(
    client: encore.Client, topic: str, kind: str, act: str
) -> None:
    schema, value = {
        "json": (JsonSchema(Order), Order(number=7)),
        "text": (StringSchema(), "tëxt"),
        "bytes": (None, b"\xff\x00"),
    }[kind]
    await publish(client, topic, value, schema=schema)
    async with await subscribe(client, topic, 1, schema=schema) as consumer:
        await die(consumer, act, 2)
        (letter,) = await await_letters(client, f"{topic}-s-DLQ", 1, schema=schema)
    assert letter.int_schema_version() == (-1 if kind == "bytes" else 0)
    got = letter.value()
    assert (got.number if kind == "json" else got) == (7 if kind == "json" else value)


# Keys


async def test_keys_of_bytes_are_refused_and_text_goes_on(
    client: encore.Client, java: JavaClient, admin: Admin, topic: str
) -> None:
    """Java's: told by their padding, or by the schema; without either nothing tells them."""
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
    # The second is mangled, as the README says it is: four letters for three bytes of 0.
    assert {letter["data"]: letter["key"] for letter in found} == {"text": "k=", "threes": "A" * 16}
    told = encore.DeadLetterPolicy(1, text_keys=True)
    async with await subscribe(client, topic, dead_letter_policy=told) as consumer:
        message = await consumer.receive(timeout=10)
        while message.data() != b"padded":
            await consumer.acknowledge(message)
            message = await consumer.receive(timeout=10)
        await consumer.reconsume_later(message)


async def test_key_value_pairs_are_refused(
    client: encore.Client, java: JavaClient, admin: Admin, topic: str
) -> None:
    """Their keys are bytes whatever they look like."""
    await asyncio.to_thread(java.call, "keys", topic)
    pairs = f"{topic}-pairs"
    async with await subscribe(client, pairs, 1) as consumer:
        message = await consumer.receive(timeout=10)
        assert message.partition_key() == "YWJj"  # "abc", without padding
        with pytest.raises(encore.EncoreError, match="key-value pairs"):
            await consumer.reconsume_later(message)
    assert await unacked(admin, pairs) == 1


# Secrecy


@both
@pytest.mark.parametrize("act", ["nack", "reconsume"])
async def test_letters_of_an_encrypted_topic_are_encrypted(
    client: encore.Client, topic: str, keys: Path, act: str
) -> None:
    secret = encore.CryptoKeyReader(str(keys / "public.pem"), str(keys / "private.pem"))
    closed = encore.ConsumerCryptoFailureAction.CONSUME
    await publish(client, topic, b"secret", encryption_key="its", crypto_key_reader=secret)
    async with await subscribe(client, topic, 1, crypto_key_reader=secret) as consumer:
        await die(consumer, act, 2)
        where = f"{topic}-s-DLQ"
        (letter,) = await await_letters(client, where, 1, crypto_key_reader=secret)
    assert letter.data() == b"secret"
    (letter,) = await read_out(client, where, crypto_failure_action=closed)
    assert b"secret" not in letter.data()
    blind = DeadLetters(client, where)
    assert [group.count for group in await blind.list()] == [1]
    report = await blind.replay()
    assert (report.replayed, report.refused) == (0, 1)
    assert "crypto_key_reader" in report.refusals[0].reason
    assert (await DeadLetters(client, where, crypto_key_reader=secret).replay()).replayed == 1
    home = await read_out(client, topic, crypto_failure_action=closed)
    assert [b"secret" in message.data() for message in home] == [False, False]


# Several topics


@pytest.mark.parametrize("form", ["list", "pattern"])
async def test_retries_on_several_topics(
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
        await die(consumer, "reconsume", 2)
        last = [await consumer.receive(timeout=10) for _ in topics]
        assert {message.topic_name() for message in last} == {f"{topic}-again"}
        for message in last:  # stored as bytes, which carry no topic
            stored = encore.MessageId.deserialize(message.message_id().serialize())
            await consumer.acknowledge(stored)
    for each in (*topics, f"{topic}-again"):
        assert await unacked(admin, each) == 0


# A parked nack and Java


async def test_a_parked_nack_that_java_reconsumes_has_its_looks_as_java_counts(
    client: encore.Client, java: JavaClient, topic: str
) -> None:
    """Java copies every property along; looks that were had before the parking are not its."""
    await asyncio.to_thread(java.call, "produce", topic, 1, "single")
    parking = {"nack_overflow": "retry_letter", "nack_overflow_delay": 0.5}
    async with await subscribe(client, topic, 3, **parking) as consumer:
        for delay in (0.2, 0.2, 1):
            await consumer.negative_acknowledge(await consumer.receive(timeout=10), delay)
        (parked,) = await await_letters(client, f"{topic}-s-RETRY", 1)
        assert parked.properties()[letters.PARKED_LOOKS] == "3"
    (taken,) = await asyncio.to_thread(java.call, "consume", topic, "s", 3, "reconsume", 1, 0)
    assert letters.RECONSUME_TIMES not in taken["properties"]
    await asyncio.sleep(2.5)  # until it is due: how often an early letter is put off is no look
    async with await subscribe(client, topic, 3) as consumer:
        message = await consumer.receive(timeout=10)
        assert message.redelivery_count() == 0, "the looks before the parking are not counted"
        looks = 1
        with contextlib.suppress(encore.ReceiveTimeout):
            while True:
                assert message.properties()[letters.RECONSUME_TIMES] == "1"
                await consumer.negative_acknowledge(message)
                message = await consumer.receive(timeout=5)
                looks += 1
        assert 1 < looks <= 4  # a broker may count one redelivery more than once
        assert len(await await_letters(client, f"{topic}-s-DLQ", 1)) == 1


# Looking and replaying


async def test_looking_ends_while_letters_arrive(client: encore.Client, topic: str) -> None:
    """A look that waits for a pause may wait for ever. A chunked letter may be the last."""
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

        async def keep_dying() -> None:
            async with asyncio.TaskGroup() as sends:
                while True:
                    sends.create_task(producer.send(b"x", properties={letters.FINGERPRINT: "x"}))
                    await asyncio.sleep(0.005)

        dying = asyncio.ensure_future(keep_dying())
        try:
            async with asyncio.timeout(20):
                counts = {group.fingerprint: group.count for group in await dead.list()}
                assert (await dead.show("first")).message.data() == large
        finally:
            dying.cancel()
    assert counts["first"] == 3


@pytest.mark.parametrize("chunked", [True, False])
async def test_looking_ends_at_a_chunked_letter_and_in_an_empty_topic(
    client: encore.Client, topic: str, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letters that arrive from the first look at the end on are not listed."""
    dead = DeadLetters(client, topic)
    async with await client.create_producer(
        topic, batching_enabled=False, chunking_enabled=True
    ) as producer:
        if chunked:
            await producer.send(b"before")
            await producer.send(bytes(6_000_000))

        async def keep_dying() -> None:
            while True:
                await producer.send(b"x")
                await asyncio.sleep(0.005)

        dying: list[asyncio.Future[None]] = []
        last, read = dead._last, dead._read

        def begin() -> None:
            dying.append(asyncio.ensure_future(keep_dying()))

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
            for each in dying:
                each.cancel()
    assert dying
    assert lengths == ([6, 6_000_000] if chunked else [])


async def test_a_letter_that_cannot_be_sent_holds_up_no_other(
    client: encore.Client, admin: Admin, topic: str
) -> None:
    closed = f"{topic}-closed"
    await asyncio.to_thread(admin.create_topic, closed)
    await asyncio.to_thread(admin.terminate, closed)
    dead = f"{topic}-s-DLQ"
    async with await client.create_producer(dead) as producer:
        for real in (closed, topic, closed, topic):
            said = {letters.REAL_TOPIC: real, letters.REAL_SUBSCRIPTION: "s"}
            await producer.send(b"x", properties=said)
    report = await DeadLetters(client, dead).replay(Selection(real_topics=[topic, closed]))
    assert (report.replayed, report.refused) == (2, 2)
    assert "erminated" in report.refusals[0].reason
    assert len(await read_out(client, topic)) == 2
