"""Dead letters on a real Pulsar: dead-lettered, listed and replayed."""

from __future__ import annotations

import asyncio

import pytest

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.deadletters import DeadLetters, NothingSelectedError, Selection
from tests.harness.admin import Admin
from tests.harness.contract.cluster import ENGINES, Engine
from tests.harness.contract.contract_kit import SUBSCRIPTION, bodies, data, publish, subscribe, take
from tests.harness.pulsar_server import Server

# looptime's plugin requests a loop before every synchronous test; see the suite's fixtures.
asyncio.set_event_loop(None)

LETTERS = 400

pytestmark = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)


async def test_a_dead_lettered_message_is_replayed_with_all_its_attempts(
    pulsar: Server, topic: str, engine: Engine
) -> None:
    async with engine.client(pulsar.service_url) as client:
        consumer = await subscribe(
            client, topic, dead_letter_policy=encore.DeadLetterPolicy(max_redeliver_count=1)
        )
        await publish(client, topic, [b"poison"], keys=["k"], properties={"colour": "red"})
        dead = DeadLetters(client, f"{topic}-{SUBSCRIPTION}-DLQ")
        for attempt in range(2):
            [message] = await take(consumer, 1)
            error = ValueError(f"attempt {attempt}")
            await consumer.negative_acknowledge(message, delay=0.1, error=error)
        for _ in range(100):
            if groups := await dead.list():
                break
            await asyncio.sleep(0.1)
        [group] = groups
        assert (group.count, group.real_topic, group.error_class) == (1, topic, "ValueError")
        letter = await dead.show(group.sample_id)
        assert letter.message.data() == b"poison"
        assert letter.evidence()[letters.ATTEMPTS] == "2"
        report = await dead.replay(Selection(fingerprints=[group.fingerprint]))
        assert (report.replayed, report.reached_end) == (1, True)
        [message] = await take(consumer, 1)
        properties = message.properties()
        assert (message.data(), message.partition_key()) == (b"poison", "k")
        assert (message.redelivery_count(), properties["colour"]) == (0, "red")
        assert properties[letters.REPLAYED_FROM] == letter.id
        assert letters.ATTEMPTS not in properties
        await consumer.acknowledge(message)
        with pytest.raises(NothingSelectedError, match="replayed under"):
            await dead.replay(quiet=1)


async def test_replays_continue_without_duplicates_after_cancellations_and_unloads(
    pulsar: Server, admin: Admin, topic: str, engine: Engine
) -> None:
    """On an Exclusive subscription the broker stores single acks, also over an unload."""
    async with engine.client(pulsar.service_url) as client:
        real_topic = f"{topic}-home"
        sent = bodies(LETTERS)
        kinds = {"even": sent[::2], "odd": sent[1::2]}
        for kind, payloads in kinds.items():
            properties = {letters.REAL_TOPIC: real_topic, letters.FINGERPRINT: kind}
            await publish(client, topic, payloads, properties=properties)
        dead = DeadLetters(client, topic)
        odd = Selection(fingerprints=["odd"], real_topics=[real_topic])
        for number in range(3):
            work = asyncio.ensure_future(dead.replay(odd, rate=100))
            await asyncio.sleep(0.5 + number * 0.1)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            await asyncio.to_thread(admin.unload, topic)
        await dead.replay(odd)
        await dead.replay(Selection(real_topics=[real_topic]), quiet=1)
        async with await client.create_reader(real_topic, encore.MessageId.earliest) as reader:
            found = [await reader.read_next(timeout_millis=10_000) for _ in sent]
            assert not await reader.has_message_available()
        assert data(found[: LETTERS // 2]) == kinds["odd"]
        assert data(found[LETTERS // 2 :]) == kinds["even"]
