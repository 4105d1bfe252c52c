"""Connections of transactions are cut at random, on a real Pulsar: whole or absent, never twice.

The seed of each case is its parameter. A commit that returns must be visible, one that raises
`TransactionAbortedError` must not be, and an unknown outcome is whole or absent.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from random import Random

import pytest

from pulsar_encore import (
    Client,
    EncoreError,
    MessageId,
    NotAllowedError,
    Producer,
    TransactionAbortedError,
    TransactionOutcomeUnknown,
)
from tests.harness.admin import Admin
from tests.harness.histories.proxy import Proxy
from tests.harness.pulsar_server import Broker

TRANSACTIONS = 60
MESSAGES = 5  # of each transaction, in each of two topics


@pytest.fixture
async def namespace(transactional: Broker, request: pytest.FixtureRequest) -> str:
    """A namespace, which deduplicates if the parameter is True."""
    name = f"public/cuts-{uuid.uuid4().hex[:8]}"
    admin = Admin(transactional.admin_url)
    policies = {"deduplicationEnabled": request.param}
    await asyncio.to_thread(admin.create_namespace, name, policies)
    return name


@contextlib.asynccontextmanager
async def cuts(proxy: Proxy, rng: Random) -> AsyncIterator[None]:
    """Cut all connections at random moments of the block."""

    async def cut() -> None:
        while True:
            await asyncio.sleep(rng.uniform(0.05, 0.5))
            proxy.cut()
            await asyncio.sleep(rng.uniform(0.0, 0.05))
            proxy.heal()

    cutting = asyncio.create_task(cut())
    try:
        yield
    finally:
        cutting.cancel()
        await asyncio.gather(cutting, return_exceptions=True)
        proxy.heal()


async def visible(client: Client, topic: str) -> Counter[str]:
    async with client.create_reader(topic, MessageId.earliest) as reader:
        found: Counter[str] = Counter()
        while await reader.has_message_available():
            message = await reader.read_next(timeout_millis=20_000)
            found[message.data().decode()] += 1
        return found


async def all_visible(client: Client, topic: str) -> Counter[str]:
    """Return the values of a topic in which every transaction has ended."""
    async with client.create_producer(topic) as producer:
        await producer.send(b"end")
    async with asyncio.timeout(60):
        while (found := await visible(client, topic))["end"] != 1:  # noqa: ASYNC110 - the cluster's timeout
            await asyncio.sleep(0.5)
    return found


async def play(client: Client, producers: list[Producer], number: int) -> str:
    """Send the messages of one transaction, and return how it ended."""
    try:
        async with client.transaction(timeout=20) as txn:
            for at in range(MESSAGES):
                for producer in producers:
                    producer.send_async(f"{number}-{at}".encode(), None, txn=txn)
                await asyncio.sleep(0.01)
    except TransactionAbortedError:
        return "aborted"
    except TransactionOutcomeUnknown:
        return "unknown"
    except EncoreError:
        return "not begun"
    return "committed"


@pytest.mark.parametrize("namespace", [False, True], indirect=True, ids=["plain", "deduplicating"])
@pytest.mark.parametrize("seed", [1, 2])
async def test_transactions_are_whole_or_absent_when_connections_are_cut(
    namespace: str, transactional: Broker, seed: int
) -> None:
    rng = Random(seed)
    proxy = Proxy(transactional.service_url)
    await proxy.start()
    topics = [f"persistent://{namespace}/{name}" for name in ("a", "b")]
    try:
        async with Client(proxy.url, transport="native") as client:
            producers = [await client.create_producer(each) for each in topics]
            outcomes: dict[int, str] = {}
            limit = asyncio.Semaphore(6)

            async def one(number: int) -> None:
                async with limit:
                    outcomes[number] = await play(client, producers, number)

            async with cuts(proxy, rng):
                await asyncio.gather(*(one(number) for number in range(TRANSACTIONS)))
        async with Client(transactional.service_url, transport="native") as client:
            found = [await all_visible(client, topic) for topic in topics]
    finally:
        await proxy.close()
    for number, outcome in outcomes.items():
        counts = [[each[f"{number}-{at}"] for at in range(MESSAGES)] for each in found]
        flat = {count for each in counts for count in each}
        assert flat in ({0}, {1}), f"transaction {number}, {outcome}: {counts}"
        if outcome == "committed":
            assert flat == {1}, f"transaction {number}"
        elif outcome in ("aborted", "not begun"):
            assert flat == {0}, f"transaction {number}"
    summary = Counter(outcomes.values())
    print(seed, namespace, dict(summary))
    assert summary["committed"] >= TRANSACTIONS // 4, summary


@pytest.mark.parametrize("namespace", [True], indirect=True, ids=["deduplicating"])
async def test_a_sequence_id_of_an_aborted_transaction_fails_the_next_send(
    namespace: str, transactional: Broker
) -> None:
    """The broker drops the message without an error, and the commit would lose it."""
    topic = f"persistent://{namespace}/a"
    async with (
        Client(transactional.service_url, transport="native") as client,
        client.create_producer(topic, "importer", batching_enabled=False) as producer,
    ):
        with pytest.raises(KeyError):
            async with client.transaction() as txn:
                await producer.send(b"line 0", sequence_id=0, txn=txn)
                raise KeyError
        with pytest.raises(TransactionAbortedError):
            async with client.transaction() as txn:
                with pytest.raises(NotAllowedError, match="which was used before"):
                    await producer.send(b"line 0", sequence_id=0, txn=txn)
        async with client.transaction() as txn:
            await producer.send(b"line 0", sequence_id=1, txn=txn)
        assert await visible(client, topic) == {"line 0": 1}
