"""Attempts at the messages of one batch on several consumers of a real Pulsar, on both transports.

`python -m integration.letters.fleet` measures more cases, and the Java client.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

import pulsar_encore as encore
from tests.harness.pulsar_server import Server

from .letters.fleet import Failure, Fleet, Outcome, run_fleet
from .letters.letter_checks import QUIET

ALL_POISON = "pppppppppp"
ONE_POISON = "phhhhhhhhh"
SIBLINGS_FAIL_ONCE = "pooooooooo"


@pytest_asyncio.fixture(params=["native", "stock"])
async def client(pulsar: Server, request: pytest.FixtureRequest) -> AsyncIterator[encore.Client]:
    logger = QUIET if request.param == "stock" else None
    url = pulsar.service_url
    async with encore.Client(url, logger=logger, transport=request.param) as client:
        yield client


async def run_together(
    client: encore.Client, topic: str, fleets: Sequence[Fleet]
) -> list[tuple[Fleet, Outcome]]:
    """Run fleets concurrently, each on its own topic, because a run mostly waits."""
    runs = [run_fleet(client, f"{topic}-{number}", each) for number, each in enumerate(fleets)]
    return list(zip(fleets, await asyncio.gather(*runs), strict=True))


@pytest.mark.parametrize("failure", ["nack", "timeout"])
async def test_three_consumers_try_a_poison_message_at_most_m_plus_2_times(
    client: encore.Client, topic: str, failure: Failure
) -> None:
    fleets = [
        Fleet(consumers=3, most=1, failure=failure, batch=batch)
        for batch in (ALL_POISON, ONE_POISON, SIBLINGS_FAIL_ONCE)
    ]
    for fleet, outcome in await run_together(client, topic, fleets):
        assert set(outcome.attempts) == set(fleet.names())
        assert fleet.most + 1 <= max(outcome.poison()) <= fleet.most + 2, fleet
        assert outcome.dead == Counter(name for name in fleet.names() if name[0] == "p")


async def test_ten_consumers_try_a_poison_message_at_most_twice_m_plus_1_times(
    client: encore.Client, topic: str
) -> None:
    fleets = [Fleet(consumers=10, most=most, failure="nack", batch=ALL_POISON) for most in (1, 3)]
    for fleet, outcome in await run_together(client, topic, fleets):
        assert fleet.most + 1 <= max(outcome.poison()) <= 2 * (fleet.most + 1), fleet
        assert outcome.dead == Counter(fleet.names())


async def test_a_sibling_without_an_attempt_is_delivered_and_not_dead_lettered(
    client: encore.Client, topic: str
) -> None:
    """The broker's redelivery count of the entry exceeds m before any message is received."""
    options = {
        "consumer_type": encore.ConsumerType.Shared,
        "dead_letter_policy": encore.DeadLetterPolicy(1),
        "batch_index_ack_enabled": True,
    }
    async with (
        await client.subscribe(topic, "s", **options) as first,
        await client.create_producer(topic, batching_enabled=True) as producer,
    ):
        await asyncio.gather(*(producer.send(each) for each in (b"one", b"two")))
        for _ in range(4):
            await asyncio.sleep(0.5)
            first.redeliver_unacknowledged_messages()
        await asyncio.sleep(0.5)
        async with await client.subscribe(topic, "s", **options) as second:
            await first.close()
            for expected in (b"one", b"two"):
                message = await second.receive(timeout=10)
                assert message.data() == expected
                assert message.redelivery_count() >= 2, (
                    "its entry was redelivered more than m times"
                )
                await second.acknowledge(message)
