"""Retry and dead letters at size: exact counts, the overflow, kills, and Java on the other end.

Counts are of distinct payloads and of deliveries, so that a message missing or seen twice shows.
ENCORE_KILLS (4) and ENCORE_SEED (random) steer the kills, ENCORE_LETTERS (20,000) how many die on
the development broker, ENCORE_NACK_S (40; the bar says 60) how long the nacked wait; the seed is
printed.
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
from harness.admin import Admin
from harness.pulsar_server import Server
from pulsar_encore import letters
from pulsar_encore.cli.broker_process import child, first_line

from .benchmarks.processes import broker
from .letters.java_client import JavaClient, java_client, missing
from .letters.letter_comparison import alike, generation, mine, pointers

QUIET = encore.ConsoleLogger(encore.LoggerLevel.Error)
WORKERS = 200

Act = Callable[[encore.Consumer, encore.Message], Awaitable[None]]


async def nack(consumer: encore.Consumer, message: encore.Message) -> None:
    await consumer.negative_acknowledge(message)


async def reconsume(consumer: encore.Consumer, message: encore.Message) -> None:
    await consumer.reconsume_later(message)


@pytest_asyncio.fixture
async def client(pulsar: Server) -> AsyncIterator[encore.Client]:
    async with encore.Client(pulsar.service_url, logger=QUIET) as client:
        yield client


async def publish(client: encore.Client, topic: str, count: int, name: bytes = b"") -> None:
    """Numbered payloads, batched as producers do by default."""
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


async def look(
    consumer: encore.Consumer, act: Act, *, until: int | None = None, quiet_s: float = 4.0
) -> Counter[bytes]:
    """Do `act` with every message, `WORKERS` at a time; how often each payload was seen."""
    seen: Counter[bytes] = Counter()
    looks = 0

    async def worker() -> None:
        nonlocal looks
        while until is None or looks < until:
            looks += 1
            try:
                message = await consumer.receive(timeout=quiet_s)
            except encore.ReceiveTimeout:
                return
            seen[message.data()] += 1
            await act(consumer, message)

    await asyncio.gather(*(worker() for _ in range(WORKERS)))
    return seen


async def read_out(client: encore.Client, topic: str) -> list[encore.Message]:
    found = []
    async with await client.create_reader(topic, encore.MessageId.earliest) as reader:
        while await reader.has_message_available():
            found.append(await reader.read_next(timeout_millis=10_000))
    return found


def numbers(count: int) -> set[bytes]:
    return {b"%d" % each for each in range(count)}


# Counts


async def exact(client: encore.Client, topic: str, count: int, act: Act) -> str:
    """`count` messages, M = 3: four looks at each, one dead letter of each, nothing left."""
    await publish(client, topic, count)
    began = time.perf_counter()
    async with await subscribe(client, topic) as consumer:
        seen = await look(consumer, act)
        seconds = time.perf_counter() - began - 4
        assert consumer.statistics().unacked == 0
    assert set(seen) == numbers(count)
    assert set(seen.values()) == {4}
    assert seen.total() == 4 * count
    dead = Counter(message.data() for message in await read_out(client, f"{topic}-s-DLQ"))
    assert set(dead) == numbers(count)
    assert set(dead.values()) == {1}
    return f"{seen.total()} deliveries, {dead.total()} dead letters in {seconds:.1f} s"


@pytest.mark.parametrize("act", [nack, reconsume])
async def test_ten_thousand_die_after_four_looks(
    client: encore.Client, topic: str, act: Act
) -> None:
    print(await exact(client, topic, 10_000, act))


LETTERS = int(os.environ.get("ENCORE_LETTERS", "20000"))


@pytest.mark.parametrize(("act", "messages"), [(nack, LETTERS), (reconsume, LETTERS // 4)])
async def test_very_many_letters_on_the_development_broker(
    topic: str, act: Act, messages: int
) -> None:
    """A nacked message becomes one letter; what is reconsumed four times becomes four.

    ENCORE_LETTERS=100000 is what it was written for; the default takes a fifth of its two minutes.
    """
    with broker(None) as url:
        async with encore.Client(url, logger=QUIET) as client:
            print(await exact(client, topic, messages, act))


# The overflow


WINDOW = 50_000  # the broker's default
FRESH = 10_000


async def put_off(
    client: encore.Client, topic: str, old: int, wait_s: float, **options: Any
) -> tuple[list[float], int, float]:
    """`old` messages nacked, then fresh ones: seconds each of these took, how many came back, and
    seconds from the first fresh one to when the old are due.

    All nacks are due `wait_s` after the first.
    """
    await publish(client, topic, old)
    took: list[float] = []
    back: Counter[bytes] = Counter()
    loop = asyncio.get_running_loop()
    async with await subscribe(client, topic, 10, **options) as consumer:
        due = loop.time() + wait_s

        async def postpone(consumer: encore.Consumer, message: encore.Message) -> None:
            await consumer.negative_acknowledge(message, max(0.0, due - loop.time()))

        reachable = old if options else WINDOW
        seen = await look(consumer, postpone, until=reachable, quiet_s=1)
        while options and consumer.statistics().in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0.2)  # nacking is faster than parking: until all are persisted
        left_s = due - loop.time()
        print(f"{seen.total()} nacked, {left_s:.1f} s before they are due")
        feeding = asyncio.create_task(_feed(client, topic))
        while len(took) < FRESH or len(back) < old:
            message = await consumer.receive(timeout=wait_s)
            payload = message.data()
            if payload.startswith(b"f"):
                took.append(time.time() - float(payload[1:].split(b"/")[1]))
            elif message.redelivery_count() == 0 and loop.time() < due:
                await postpone(consumer, message)
                continue
            else:
                back[payload] += 1
            await consumer.acknowledge(message)
        await feeding
    print(f"fresh: median {sorted(took)[FRESH // 2]:.3f} s, slowest {max(took):.2f} s")
    assert set(back) == numbers(old)
    return took, back.total(), left_s


async def _feed(client: encore.Client, topic: str) -> None:
    """Fresh messages over some seconds, each with the time it was sent."""
    async with await client.create_producer(topic, block_if_queue_full=True) as producer:
        for start in range(0, FRESH, 500):
            await asyncio.gather(
                *(
                    producer.send(b"f%d/%f" % (each, time.time()))
                    for each in range(start, start + 500)
                )
            )
            await asyncio.sleep(0.1)


@pytest.mark.timeout(480)
async def test_with_the_overflow_fresh_ones_do_not_wait(client: encore.Client, topic: str) -> None:
    first_s = float(os.environ.get("ENCORE_NACK_S", "40"))
    for wait_s in (first_s, 4 * first_s):
        where = f"{topic}-{wait_s:.0f}"
        took, back, left_s = await put_off(
            client, where, 60_000, wait_s, nack_overflow="retry_letter"
        )
        if left_s > wait_s / 2:
            break  # else the machine was too busy with the nacks: again, with more time
    assert max(took) < left_s, "before what was put off is due, as they would have to without it"
    assert back == 60_000


async def test_without_it_the_consumer_stands_still(client: encore.Client, topic: str) -> None:
    """The comparison: the broker stops at 50,000 unacked, whatever else arrives."""
    took, _, _ = await put_off(client, topic, 60_000, 30)
    assert sorted(took)[FRESH // 10] > 3


# Kills


async def test_killed_while_forwarding(client: encore.Client, pulsar: Server, topic: str) -> None:
    """Nothing is missing from input, retry and dead-letter topic; doubles are counted."""
    count, kills = 10_000, int(os.environ.get("ENCORE_KILLS", "4"))
    seed = int(os.environ.get("ENCORE_SEED", str(random.SystemRandom().randrange(10**6))))
    moments = random.Random(seed)
    print(f"seed {seed}, {kills} kills")
    await publish(client, topic, count)
    command = [sys.executable, "-m", "integration.letters.forwarding_process"]
    command += [pulsar.service_url, topic, "s", "2"]
    done = 0
    for _ in range(kills):
        with child(command) as process:
            if await asyncio.to_thread(first_line, process, 30) == "idle":
                break
            await asyncio.sleep(moments.uniform(0, 6 / kills))
            process.kill()
            done += 1
    with child(command) as process:
        while await asyncio.to_thread(first_line, process, 60) != "idle":
            pass
        await asyncio.to_thread(process.wait, 20)
    retry = await read_out(client, f"{topic}-s-RETRY")
    dead = Counter(message.data() for message in await read_out(client, f"{topic}-s-DLQ"))
    assert set(dead) == numbers(count)
    # Every copy of a letter goes on to the next generation, so the doubles among the dead are all
    # there ever were: copies persisted whose originals were not acked at a kill. In that state are
    # the letters under way and those of the last 200 ms, for which acks are grouped here and in
    # the engine.
    copies = Counter((m.data(), m.properties()[letters.RECONSUME_TIMES]) for m in retry)
    doubles = sum(number - 1 for number in dead.values())
    print(
        f"{done} kills, {doubles} of {count} dead letters double; {len(copies)} retry letters, "
        f"{copies.total() - len(copies)} double"
    )
    assert done >= kills / 2, "it was over before most of the kills"
    assert doubles <= done * 2000
    async with await subscribe(client, topic, 2) as consumer:
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=1)


# Java


@pytest.fixture(scope="module")
def java(pulsar: Server) -> Iterator[JavaClient]:
    absent = missing()
    if absent is not None:
        pytest.fail(f"the Java side of the letters needs {absent}", pytrace=False)
    with java_client(pulsar.service_url) as client:
        yield client


async def test_java_goes_on_with_our_letters(
    client: encore.Client, java: JavaClient, topic: str
) -> None:
    await asyncio.to_thread(java.call, "produce", topic, 1, "single")
    async with await subscribe(client, topic, 2) as consumer:
        message = await consumer.receive(timeout=10)
        origin = message.message_id()
        before = time.time() * 1000
        await consumer.reconsume_later(message, 2, {"custom": "yes"}, error=ValueError("why"))
    (first,) = await asyncio.to_thread(java.call, "consume", topic, "s", 2, "reconsume", 1, 1500)
    assert first["at_ms"] - before > 1000  # it was delayed; brokers are up to a tick early
    assert generation(first) == ("1", "2000")
    text = f"{origin.ledger_id()}:{origin.entry_id()}:-1"
    back = {
        letters.ORIGIN_MESSAGE_ID: text,
        letters.ORIGIN_MESSAGE_ID_LEGACY: text,
        letters.REAL_TOPIC: topic,
        letters.REAL_SUBSCRIPTION: "s",
    }
    assert pointers(first["properties"]) == back
    assert (first["properties"]["custom"], first["properties"]["colour"]) == ("yes", "red")
    assert (first["key"], first["ordering_key"], first["event_ms"]) == ("k0", "o0", 1000)
    async with await subscribe(client, topic, 2) as consumer:
        second = await consumer.receive(timeout=10)
        assert generation(mine(second)) == ("2", "1500")
        assert pointers(second.properties()) == back
        assert second.properties()[letters.ERROR_MESSAGE] == "why"
        await consumer.reconsume_later(second)
    (dead,) = await asyncio.to_thread(java.call, "read", f"{topic}-s-DLQ")
    assert generation(dead) == ("3", "0")
    assert pointers(dead["properties"]) == back
    assert dead["producer"].startswith(f"{topic}-s-RETRY-s-")
    assert (dead["key"], dead["ordering_key"], dead["event_ms"]) == ("k0", "o0", 1000)


@pytest.mark.parametrize("batched", ["single", "batched"])
async def test_we_go_on_with_javas_letters(
    client: encore.Client, java: JavaClient, topic: str, batched: str
) -> None:
    count = 3
    await asyncio.to_thread(java.call, "produce", topic, count, batched)
    await asyncio.to_thread(java.call, "consume", topic, "s", 2, "reconsume", count, 800)
    async with await subscribe(client, topic, 2) as consumer:
        messages = [await consumer.receive(timeout=10) for _ in range(count)]
        for message in messages:
            # DELAY_TIME is honoured on our side too: the broker's tick would be early.
            assert time.time() * 1000 - message.publish_timestamp() >= 800
            assert generation(mine(message)) == ("1", "800")
            await consumer.reconsume_later(message)
    twice = await asyncio.to_thread(java.call, "consume", topic, "s", 2, "reconsume", count, 0)
    assert {generation(letter) for letter in twice} == {("2", "0")}
    dead = await read_out(client, f"{topic}-s-DLQ")
    assert sorted(message.data() for message in dead) == [b"m0", b"m1", b"m2"]
    assert {generation(mine(message)) for message in dead} == {("3", "0")}
    shape = 4 if batched == "batched" else 3
    for message in dead:
        assert message.properties()[letters.ORIGIN_MESSAGE_ID].count(":") == shape - 1
        number = message.data()[1:].decode()
        assert (message.partition_key(), message.ordering_key()) == (f"k{number}", f"o{number}")
        assert message.event_timestamp() == 1000 + int(number)


@pytest.mark.parametrize("action", ["nack", "reconsume"])
@pytest.mark.parametrize("form", ["single", "batched", "partitioned"])
async def test_both_write_the_same_dead_letters(
    client: encore.Client,
    java: JavaClient,
    pulsar: Server,
    topic: str,
    action: str,
    form: str,
) -> None:
    """Section 20.1, column by column: one message each, dead by Java and dead by us."""
    if form == "partitioned":
        await asyncio.to_thread(Admin(pulsar.admin_url).create_partitioned_topic, topic, 2)
    count = 2
    await asyncio.to_thread(java.call, "produce", topic, count, form)
    # Two subscriptions see the same messages; the name is in the letter, and in its topic.
    theirs = await asyncio.to_thread(java.call, "consume", topic, "j", 1, action, 2 * count, 0)
    assert Counter(letter["data"] for letter in theirs) == {"m0": 2, "m1": 2}
    async with await subscribe(client, topic, 1) as consumer:
        act = nack if action == "nack" else reconsume
        assert await look(consumer, act, quiet_s=1.5) == Counter({b"m0": 2, b"m1": 2})
    written = await asyncio.to_thread(java.call, "read", f"{topic}-j-DLQ")
    ours = [mine(message) for message in await read_out(client, f"{topic}-s-DLQ")]
    assert len(written) == len(ours) == count
    for letter in written:
        assert letter["properties"].pop(letters.REAL_SUBSCRIPTION) == "j"
    for letter in ours:
        assert letter["properties"].pop(letters.REAL_SUBSCRIPTION) == "s"
    by_data = {letter["data"]: letter for letter in written}
    for letter in ours:
        assert alike(letter, by_data[letter["data"]]), (letter, by_data[letter["data"]])


@pytest.mark.parametrize("queue", [1000, 2])
@pytest.mark.parametrize("kind", [encore.ConsumerType.Shared, encore.ConsumerType.KeyShared])
async def test_what_nobody_saw_has_no_attempts(
    client: encore.Client, kind: encore.ConsumerType, queue: int
) -> None:
    """The broker counts a redelivery of all that waits here when everything is asked for again."""
    topic = f"persistent://public/default/unseen-{uuid.uuid4().hex[:12]}"
    async with await client.create_producer(topic, batching_enabled=False) as producer:
        for payload in (b"poison", b"good", b"nacked"):
            await producer.send(payload, partition_key="k")
    looks: list[tuple[bytes, int]] = []
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
            looks.append((message.data(), message.redelivery_count()))
            if message.data() == b"poison":
                await asyncio.sleep(0.2)
                consumer.redeliver_unacknowledged_messages()
            elif message.data() == b"nacked" and message.redelivery_count() < 2:
                await consumer.negative_acknowledge(message)
            else:
                await consumer.acknowledge(message)
    poison, nacked = ([(name, count) for count in range(3)] for name in (b"poison", b"nacked"))
    assert sorted(looks) == [(b"good", 0), *nacked, *poison]
    dead = await client.create_reader(f"{topic}-s-DLQ", encore.MessageId.earliest)
    async with dead:
        assert (await dead.read_next(timeout_millis=5000)).data() == b"poison"
        assert not await dead.has_message_available()
