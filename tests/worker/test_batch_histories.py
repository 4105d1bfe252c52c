"""Random histories of a batch worker with restarts. Nothing is lost, or fails for another message.

A poison message fails alone or by its index; all other messages fail only together with others, or
in an outage.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from random import Random
from typing import Any

import pytest
from worker_kit import SUBSCRIPTION, TOPIC, letters, running_lists, until

import pulsar_encore as encore
from pulsar_encore import Client, Message
from pulsar_encore.testing import MemoryTransport

_MESSAGES = 300


class Downstream:
    """The handler, and what it has processed."""

    def __init__(self, rng: Random, poison: set[bytes]) -> None:
        self.rng = rng
        self.poison = poison
        self.is_away = False
        self.is_calm = False
        self.processed: dict[str, list[bytes]] = defaultdict(list)
        self.calls = Counter[bytes]()
        self.poison_attempts: set[int] = set()

    async def handle(self, values: list[bytes], messages: list[Message]) -> None:
        for value, message in zip(values, messages, strict=True):
            if value in self.poison:
                self.poison_attempts.add(message.attempt)
            else:
                assert message.attempt == 1, f"{value!r} lost an attempt"
        await asyncio.sleep(self.rng.choice((0, 0.1, 2)))
        if self.is_away:
            raise ConnectionError("the database is away")
        named = {n: value for n, value in enumerate(values) if value in self.poison}
        chance = 1.0 if self.is_calm else self.rng.random()
        if chance < 0.1 and len(values) > 1:
            raise ValueError("all of them")
        if chance < 0.15 and len(values) > 1:
            await asyncio.sleep(3600)
        if chance < 0.2:
            raise encore.Retry(delay=3, count=False)
        if named and (len(values) == 1 or chance < 0.6):
            raise ValueError("poison")
        errors: dict[int, Exception] = {n: ValueError("poison") for n in named}
        if chance < 0.3:
            busy = self.rng.randrange(len(values))
            errors.setdefault(busy, encore.Retry(delay=5, count=False))
        for number, (value, message) in enumerate(zip(values, messages, strict=True)):
            if number in errors:
                if "partition" in message.topic_name():
                    break
                continue
            self.processed[message.topic_name()].append(value)
        if errors:
            raise encore.BatchFailure(errors)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("order", ["none", "partition"])
async def test_random_histories_lose_nothing(
    client: Client, transport: MemoryTransport, order: str, seed: int
) -> None:
    rng = Random(seed)
    partitions = 3 if order == "partition" else 0
    topics = [TOPIC]
    if partitions:
        transport.catalogue.create_partitioned(TOPIC, partitions)
        topics = [f"{TOPIC}-partition-{n}" for n in range(partitions)]
    payloads = [b"%04d" % number for number in range(_MESSAGES)]
    poison = set(rng.sample(payloads, 4))
    downstream = Downstream(rng, poison)
    options: dict[str, Any] = {
        "order": order,
        "max_messages": rng.choice((2, 7, 20)),
        "max_wait": 2,
        "concurrency": rng.choice((1, 3)),
        "timeout": 30,
        "drain": 20,
        "retry": encore.RetryPolicy(attempts=3, backoff=[5]),
        "breaker": encore.Breaker(on=(ConnectionError,), failures=3),
    }
    waiting = list(payloads)

    async def publish() -> None:
        while waiting:
            count = rng.randint(1, 20)
            transport.put(rng.choice(topics), *waiting[:count])
            del waiting[:count]
            await asyncio.sleep(rng.random() * 10)

    publishing = asyncio.ensure_future(publish())
    for _ in range(5):
        async with running_lists(client, downstream.handle, **options):
            await asyncio.sleep(rng.random() * 100)
            downstream.is_away = rng.random() < 0.3
            await asyncio.sleep(rng.random() * 100)
            downstream.is_away = False
    await publishing
    downstream.is_calm = True

    def is_done() -> bool:
        return all(transport.backlog(topic, SUBSCRIPTION) == 0 for topic in topics)

    async with running_lists(client, downstream.handle, **options):
        await until(is_done)
    dead = Counter(letter.data() for letter in await letters(client))
    assert dead == Counter(poison)
    # A poison message was tried three times; a restart begins to count again, with an order.
    assert downstream.poison_attempts == {1, 2, 3}
    processed = [value for values in downstream.processed.values() for value in values]
    assert set(processed) == set(payloads) - poison
    # The handlers of a drain end in time, so nothing is processed twice.
    assert len(processed) == len(set(processed))
    if order == "partition":
        for values in downstream.processed.values():
            assert values == sorted(values)
