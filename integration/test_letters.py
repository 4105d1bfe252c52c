"""Retry and dead letters in large numbers: exact counts, the overflow, kills, and Java's client.

Counts are of distinct payloads and of deliveries, so that missing and duplicate messages show.
ENCORE_KILLS (4) and ENCORE_SEED (random, printed) control the kills. ENCORE_LETTERS (20,000) is the
number of letters on the development broker. ENCORE_WINDOW (10,000; a broker's default is 50,000)
and ENCORE_NACK_S (30) are the unacked window and the delay of the nacked messages.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.cli.broker_process import child, first_line
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server

from .benchmarks.processes import broker
from .conftest import OwnPulsar
from .letters.java_client import JavaClient, java_client, missing_tools
from .letters.letter_comparison import as_letter, equal_letters, generation, origin_of

QUIET = encore.ConsoleLogger(encore.LoggerLevel.Error)
WORKERS = 200

Act = Callable[[encore.Consumer, encore.Message], Awaitable[None]]


async def nack(consumer: encore.Consumer, message: encore.Message) -> None:
    await consumer.negative_acknowledge(message)


async def reconsume(consumer: encore.Consumer, message: encore.Message) -> None:
    await consumer.reconsume_later(message)


@pytest_asyncio.fixture
async def client(pulsar: Server) -> AsyncIterator[encore.Client]:
    async with encore.Client(pulsar.service_url, transport="stock", logger=QUIET) as client:
        yield client


async def publish(client: encore.Client, topic: str, count: int, name: bytes = b"") -> None:
    """Publish numbered payloads, batched as by default."""
    async with await client.create_producer(topic, block_if_queue_full=True) as producer:
        for start in range(0, count, 2000):
            numbers = range(start, min(count, start + 2000))
            await asyncio.gather(*(producer.send(name + b"%d" % each) for each in numbers))


async def subscribe(
    client: encore.Client, topic: str, most: int = 3, **options: Any
) -> encore.Consumer:
    return await client.subscribe(
        topic,
        "s",
        consumer_type=encore.ConsumerType.Shared,
        initial_position=encore.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=options.pop("negative_ack_redelivery_delay_ms", 200),
        dead_letter_policy=encore.DeadLetterPolicy(most),
        retry_enable=True,
        batch_index_ack_enabled=True,
        **options,
    )


async def process_all(
    consumer: encore.Consumer, act: Act, *, until: int | None = None, quiet_s: float = 4.0
) -> Counter[bytes]:
    """Call `act` for every message, `WORKERS` at a time. Return the deliveries of each payload."""
    deliveries: Counter[bytes] = Counter()
    attempts = 0

    async def worker() -> None:
        nonlocal attempts
        while until is None or attempts < until:
            attempts += 1
            try:
                message = await consumer.receive(timeout=quiet_s)
            except encore.ReceiveTimeout:
                return
            deliveries[message.data()] += 1
            await act(consumer, message)

    await asyncio.gather(*(worker() for _ in range(WORKERS)))
    return deliveries


async def read_out(client: encore.Client, topic: str) -> list[encore.Message]:
    found = []
    async with await client.create_reader(topic, encore.MessageId.earliest) as reader:
        while await reader.has_message_available():
            found.append(await reader.read_next(timeout_millis=10_000))
    return found


def numbers(count: int) -> set[bytes]:
    return {b"%d" % each for each in range(count)}


# Counts


async def check_exact_counts(client: encore.Client, topic: str, count: int, act: Act) -> str:
    """Check M = 3: four deliveries and one dead letter for each message, and nothing left
    unacked.
    """
    await publish(client, topic, count)
    began = time.perf_counter()
    async with await subscribe(client, topic) as consumer:
        deliveries = await process_all(consumer, act)
        async with asyncio.timeout(120):  # the last letters may still be on their way
            while consumer.statistics().unacked:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        seconds = time.perf_counter() - began - 4
    assert set(deliveries) == numbers(count)
    assert set(deliveries.values()) == {4}
    assert deliveries.total() == 4 * count
    dead = Counter(message.data() for message in await read_out(client, f"{topic}-s-DLQ"))
    assert set(dead) == numbers(count)
    assert set(dead.values()) == {1}
    return f"{deliveries.total()} deliveries, {dead.total()} dead letters in {seconds:.1f} s"


@pytest.mark.parametrize("act", [nack, reconsume])
async def test_ten_thousand_messages_are_dead_lettered_after_four_attempts(
    client: encore.Client, topic: str, act: Act
) -> None:
    print(await check_exact_counts(client, topic, 10_000, act))


LETTERS = int(os.environ.get("ENCORE_LETTERS", "20000"))


@pytest.mark.parametrize(("act", "messages"), [(nack, LETTERS), (reconsume, LETTERS // 4)])
async def test_many_letters_on_the_development_broker_have_exact_counts(
    topic: str, act: Act, messages: int
) -> None:
    """A nacked message becomes one letter, a message that is reconsumed four times becomes four.

    The test was written for ENCORE_LETTERS=100000. The default takes a fifth of its two minutes.
    """
    with broker(None) as url:
        async with encore.Client(url, transport="stock", logger=QUIET) as client:
            print(await check_exact_counts(client, topic, messages, act))


# The overflow


WINDOW = int(os.environ.get("ENCORE_WINDOW", "10000"))
OLD_MESSAGES = WINDOW * 6 // 5
FRESH_MESSAGES = WINDOW // 5


@pytest_asyncio.fixture
async def windowed_client(own_pulsar: OwnPulsar) -> AsyncIterator[encore.Client]:
    """A client of a broker that stops delivering at `WINDOW` unacked messages."""
    broker = await asyncio.to_thread(own_pulsar, maxUnackedMessagesPerConsumer=WINDOW)
    async with encore.Client(broker.service_url, transport="stock", logger=QUIET) as client:
        yield client


async def nack_and_publish_fresh(
    client: encore.Client, topic: str, wait_s: float, **options: Any
) -> tuple[list[float], int, float]:
    """Nack `OLD_MESSAGES`, then receive fresh ones.

    All nacks are due `wait_s` after the first.

    Returns:
        The latency of each fresh message in s, the number of redelivered old messages, and the
        seconds from the first fresh message to the due time.
    """
    old = OLD_MESSAGES
    await publish(client, topic, old)
    fresh_latencies: list[float] = []
    redelivered: Counter[bytes] = Counter()
    loop = asyncio.get_running_loop()
    limits = {"max_unacked_messages": WINDOW, **options}
    async with await subscribe(client, topic, 10, **limits) as consumer:
        due = loop.time() + wait_s

        async def nack_until_due(consumer: encore.Consumer, message: encore.Message) -> None:
            await consumer.negative_acknowledge(message, max(0.0, due - loop.time()))

        nack_count = old if options else WINDOW
        deliveries = await process_all(consumer, nack_until_due, until=nack_count, quiet_s=1)
        while options and consumer.statistics().in_flight:  # noqa: ASYNC110
            # nacking is faster than forwarding: wait until all letters are persisted
            await asyncio.sleep(0.2)
        left_s = due - loop.time()
        print(f"{deliveries.total()} nacked, {left_s:.1f} s before they are due")
        fresh_task = asyncio.create_task(_publish_fresh(client, topic))
        while len(fresh_latencies) < FRESH_MESSAGES or len(redelivered) < old:
            message = await consumer.receive(timeout=wait_s)
            payload = message.data()
            if payload.startswith(b"f"):
                fresh_latencies.append(time.time() - float(payload[1:].split(b"/")[1]))
            elif message.redelivery_count() == 0 and loop.time() < due:
                await nack_until_due(consumer, message)
                continue
            else:
                redelivered[payload] += 1
            await consumer.acknowledge(message)
        await fresh_task
    median = sorted(fresh_latencies)[FRESH_MESSAGES // 2]
    print(f"fresh: median {median:.3f} s, slowest {max(fresh_latencies):.2f} s")
    assert set(redelivered) == numbers(old)
    return fresh_latencies, redelivered.total(), left_s


async def _publish_fresh(client: encore.Client, topic: str) -> None:
    """Publish fresh messages over some seconds, each with the time it was sent."""
    async with await client.create_producer(topic, block_if_queue_full=True) as producer:
        for start in range(0, FRESH_MESSAGES, 500):
            await asyncio.gather(
                *(
                    producer.send(b"f%d/%f" % (each, time.time()))
                    for each in range(start, start + 500)
                )
            )
            await asyncio.sleep(0.1)


@pytest.mark.timeout(480)
async def test_with_the_nack_overflow_fresh_messages_are_not_delayed(
    windowed_client: encore.Client, topic: str
) -> None:
    first_s = float(os.environ.get("ENCORE_NACK_S", "30"))
    for wait_s in (first_s, 4 * first_s):
        where = f"{topic}-{wait_s:.0f}"
        fresh_latencies, redelivered, left_s = await nack_and_publish_fresh(
            windowed_client, where, wait_s, nack_overflow="retry_letter"
        )
        if left_s > wait_s / 2:
            break  # otherwise the nacks took too long: repeat with more time
    assert max(fresh_latencies) < left_s, (
        "before what was put off is due, as they would have to without it"
    )
    assert redelivered == OLD_MESSAGES


async def test_without_the_nack_overflow_fresh_messages_wait(
    windowed_client: encore.Client, topic: str
) -> None:
    """For comparison: the broker stops at `WINDOW` unacked messages, whatever else arrives."""
    fresh_latencies, _, _ = await nack_and_publish_fresh(windowed_client, topic, 15)
    assert sorted(fresh_latencies)[FRESH_MESSAGES // 10] > 3


# Kills


async def test_kills_during_forwarding_lose_no_message(
    client: encore.Client, pulsar: Server, topic: str
) -> None:
    """No message is missing from the topic and its letter topics. Duplicates are counted."""
    count, kills = 10_000, int(os.environ.get("ENCORE_KILLS", "4"))
    seed = int(os.environ.get("ENCORE_SEED", str(random.SystemRandom().randrange(10**6))))
    rng = random.Random(seed)
    print(f"seed {seed}, {kills} kills")
    await publish(client, topic, count)
    command = [sys.executable, "-m", "integration.letters.forwarding_process"]
    command += [pulsar.service_url, topic, "s", "2"]
    done = 0
    for _ in range(kills):
        with child(command) as process:
            if await asyncio.to_thread(first_line, process, 30) == "idle":
                break
            await asyncio.sleep(rng.uniform(0, 6 / kills))
            process.kill()
            done += 1
    with child(command) as process:
        while await asyncio.to_thread(first_line, process, 60) != "idle":
            pass
        await asyncio.to_thread(process.wait, 20)
    retry = await read_out(client, f"{topic}-s-RETRY")
    dead = Counter(message.data() for message in await read_out(client, f"{topic}-s-DLQ"))
    assert set(dead) == numbers(count)
    # Every copy of a letter moves on to the next generation, so the duplicates among the dead
    # letters are all duplicates. They are copies that were persisted before a kill and with unacked
    # originals: letters in flight, and those of the last 200 ms, for which acks are grouped here
    # and in the C++ client.
    copies = Counter((m.data(), m.properties()[letters.RECONSUME_TIMES]) for m in retry)
    duplicates = sum(number - 1 for number in dead.values())
    print(
        f"{done} kills, {duplicates} of {count} dead letters double; {len(copies)} retry letters, "
        f"{copies.total() - len(copies)} double"
    )
    assert done >= kills / 2, "it was over before most of the kills"
    assert duplicates <= done * 2000
    async with await subscribe(client, topic, 2) as consumer:
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=1)


# Java


@pytest.fixture(scope="module")
def java(pulsar: Server) -> Iterator[JavaClient]:
    missing_names = missing_tools()
    if missing_names is not None:
        pytest.fail(f"the Java side of the letters needs {missing_names}", pytrace=False)
    with java_client(pulsar.service_url) as client:
        yield client


async def test_java_processes_our_letters(
    client: encore.Client, java: JavaClient, topic: str
) -> None:
    await asyncio.to_thread(java.call, "produce", topic, 1, "single")
    async with await subscribe(client, topic, 2) as consumer:
        message = await consumer.receive(timeout=10)
        origin = message.message_id()
        before = time.time() * 1000
        await consumer.reconsume_later(message, 2, {"custom": "yes"}, error=ValueError("why"))
    (first,) = await asyncio.to_thread(java.call, "consume", topic, "s", 2, "reconsume", 1, 1500)
    assert first["at_ms"] - before > 1000  # it was delayed, but brokers are up to a tick early
    assert generation(first) == ("1", "2000")
    text = f"{origin.ledger_id()}:{origin.entry_id()}:-1"
    redelivered = {
        letters.ORIGIN_MESSAGE_ID: text,
        letters.ORIGIN_MESSAGE_ID_LEGACY: text,
        letters.REAL_TOPIC: topic,
        letters.REAL_SUBSCRIPTION: "s",
    }
    assert origin_of(first["properties"]) == redelivered
    assert (first["properties"]["custom"], first["properties"]["colour"]) == ("yes", "red")
    assert (first["key"], first["ordering_key"], first["event_ms"]) == ("k0", "o0", 1000)
    async with await subscribe(client, topic, 2) as consumer:
        second = await consumer.receive(timeout=10)
        assert generation(as_letter(second)) == ("2", "1500")
        assert origin_of(second.properties()) == redelivered
        assert second.properties()[letters.ERROR_MESSAGE] == "why"
        await consumer.reconsume_later(second)
    (dead,) = await asyncio.to_thread(java.call, "read", f"{topic}-s-DLQ")
    assert generation(dead) == ("3", "0")
    assert origin_of(dead["properties"]) == redelivered
    assert dead["producer"].startswith(f"{topic}-s-RETRY-s-")
    assert (dead["key"], dead["ordering_key"], dead["event_ms"]) == ("k0", "o0", 1000)


@pytest.mark.parametrize("batched", ["single", "batched"])
async def test_we_process_letters_of_java(
    client: encore.Client, java: JavaClient, topic: str, batched: str
) -> None:
    count = 3
    await asyncio.to_thread(java.call, "produce", topic, count, batched)
    await asyncio.to_thread(java.call, "consume", topic, "s", 2, "reconsume", count, 800)
    async with await subscribe(client, topic, 2) as consumer:
        messages = [await consumer.receive(timeout=10) for _ in range(count)]
        for message in messages:
            # DELAY_TIME is also applied by the consumer, because the broker's tick may be early.
            assert time.time() * 1000 - message.publish_timestamp() >= 800
            assert generation(as_letter(message)) == ("1", "800")
            await consumer.reconsume_later(message)
    second_letters = await asyncio.to_thread(
        java.call, "consume", topic, "s", 2, "reconsume", count, 0
    )
    assert {generation(letter) for letter in second_letters} == {("2", "0")}
    dead = await read_out(client, f"{topic}-s-DLQ")
    assert sorted(message.data() for message in dead) == [b"m0", b"m1", b"m2"]
    assert {generation(as_letter(message)) for message in dead} == {("3", "0")}
    parts = 4 if batched == "batched" else 3
    for message in dead:
        assert message.properties()[letters.ORIGIN_MESSAGE_ID].count(":") == parts - 1
        number = message.data()[1:].decode()
        assert (message.partition_key(), message.ordering_key()) == (f"k{number}", f"o{number}")
        assert message.event_timestamp() == 1000 + int(number)


@pytest.mark.parametrize("action", ["nack", "reconsume"])
@pytest.mark.parametrize("form", ["single", "batched", "partitioned"])
async def test_java_and_we_write_equal_dead_letters(
    client: encore.Client,
    java: JavaClient,
    pulsar: Server,
    topic: str,
    action: str,
    form: str,
) -> None:
    """Compare all properties, with one message dead-lettered by Java and one by us."""
    if form == "partitioned":
        await asyncio.to_thread(Admin(pulsar.admin_url).create_partitioned_topic, topic, 2)
    count = 2
    await asyncio.to_thread(java.call, "produce", topic, count, form)
    # Two subscriptions receive the same messages. The name is in the letter and in its topic.
    java_deliveries = await asyncio.to_thread(
        java.call, "consume", topic, "j", 1, action, 2 * count, 0
    )
    assert Counter(letter["data"] for letter in java_deliveries) == {"m0": 2, "m1": 2}
    async with await subscribe(client, topic, 1) as consumer:
        act = nack if action == "nack" else reconsume
        assert await process_all(consumer, act, quiet_s=1.5) == Counter({b"m0": 2, b"m1": 2})
    java_letters = await asyncio.to_thread(java.call, "read", f"{topic}-j-DLQ")
    own_letters = [as_letter(message) for message in await read_out(client, f"{topic}-s-DLQ")]
    assert len(java_letters) == len(own_letters) == count
    for letter in java_letters:
        assert letter["properties"].pop(letters.REAL_SUBSCRIPTION) == "j"
    for letter in own_letters:
        assert letter["properties"].pop(letters.REAL_SUBSCRIPTION) == "s"
    by_data = {letter["data"]: letter for letter in java_letters}
    for letter in own_letters:
        assert equal_letters(letter, by_data[letter["data"]]), (letter, by_data[letter["data"]])


@pytest.mark.parametrize("queue", [1000, 2])
@pytest.mark.parametrize("kind", [encore.ConsumerType.Shared, encore.ConsumerType.KeyShared])
async def test_undelivered_messages_have_no_attempts(
    client: encore.Client, kind: encore.ConsumerType, queue: int
) -> None:
    """When everything is requested again, the broker counts a redelivery of all queued messages."""
    topic = f"persistent://public/default/unseen-{uuid.uuid4().hex[:12]}"
    async with await client.create_producer(topic, batching_enabled=False) as producer:
        for payload in (b"poison", b"good", b"nacked"):
            await producer.send(payload, partition_key="k")
    attempts: list[tuple[bytes, int]] = []
    async with await client.subscribe(
        topic,
        "s",
        kind,
        initial_position=encore.InitialPosition.Earliest,
        receiver_queue_size=queue,
        negative_ack_redelivery_delay_ms=200,
        dead_letter_policy=encore.DeadLetterPolicy(2),
    ) as consumer:
        while True:
            try:
                message = await consumer.receive(timeout=1.5)
            except encore.ReceiveTimeout:
                break
            attempts.append((message.data(), message.redelivery_count()))
            if message.data() == b"poison":
                await asyncio.sleep(0.2)
                consumer.redeliver_unacknowledged_messages()
            elif message.data() == b"nacked" and message.redelivery_count() < 2:
                await consumer.negative_acknowledge(message)
            else:
                await consumer.acknowledge(message)
    poison, nacked = ([(name, count) for count in range(3)] for name in (b"poison", b"nacked"))
    assert sorted(attempts) == [(b"good", 0), *nacked, *poison]
    dead = await client.create_reader(f"{topic}-s-DLQ", encore.MessageId.earliest)
    async with dead:
        assert (await dead.read_next(timeout_millis=5000)).data() == b"poison"
        assert not await dead.has_message_available()
