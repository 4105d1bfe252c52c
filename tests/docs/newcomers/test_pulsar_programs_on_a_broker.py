"""Programs of a user of Pulsar share a subscription, on the development broker in real time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerSettings, run_in_thread
from tests.docs.newcomers import pulsar_drop_in
from tests.docs.newcomers.pulsar_worker import make_worker

KEYS = 12


@pytest.fixture
def url() -> Iterator[str]:
    with run_in_thread(BrokerSettings()) as running:
        yield running.url


async def test_the_blocking_program_works_as_a_coroutine(url: str) -> None:
    calls, letter = await pulsar_drop_in.main(url)
    assert [count for number, count in calls if number == 1] == [0, 1, 2, 3]
    assert letter.value().number == 1
    assert letter.properties()["ENCORE_REASON"] == "nack"


@pytest.mark.parametrize("by_key", [False, True], ids=["default batches", "batches by key"])
async def test_two_workers_keep_keys_apart_only_if_producers_batch_by_key(
    url: str, by_key: bool, caplog: pytest.LogCaptureFixture
) -> None:
    workers: dict[str | None, set[str]] = defaultdict(set)
    handled: list[bytes] = []

    def worker(client: encore.Client, name: str) -> encore.Worker[Any]:
        async def note(value: bytes, msg: encore.Message) -> None:
            workers[msg.key].add(name)
            handled.append(value)

        earliest = encore.InitialPosition.Earliest
        return encore.Worker(
            client, "orders", "billing", note, order="key", initial_position=earliest
        )

    kind = encore.BatchingType.KeyBased if by_key else encore.BatchingType.Default
    async with (
        encore.Client(url) as first,
        encore.Client(url) as second,
        worker(first, "first") as one,
        worker(second, "second") as other,
    ):
        await _ready(one, other)
        producer = await first.create_producer("orders", batching_type=kind)
        for start in range(KEYS):  # each batch begins with another key
            keys = [f"key-{(start + each) % KEYS}" for each in range(KEYS)]
            await asyncio.gather(*(producer.send(b"x", partition_key=each) for each in keys))
        async with asyncio.timeout(20):
            while len(handled) < KEYS * KEYS:
                await asyncio.sleep(0.01)
    shared = [key for key, names in workers.items() if len(names) > 1]
    assert bool(shared) is not by_key
    assert ("batching_type=BatchingType.KeyBased" in caplog.text) is not by_key


async def test_results_of_a_worker_with_different_keys_share_no_batch(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def copy(value: bytes, msg: encore.Message) -> encore.Out:
        return encore.Out(value, key=msg.key)

    async def ignore(value: bytes) -> None: ...

    earliest = encore.InitialPosition.Earliest
    async with encore.Client(url) as client, client.create_producer("orders") as producer:
        await asyncio.gather(
            *(producer.send(b"x", partition_key=f"key-{each}") for each in range(KEYS))
        )
        options: dict[str, Any] = {"initial_position": earliest}
        async with (
            encore.Worker(client, "orders", "copy", copy, publish="results", **options),
            encore.Worker(client, "results", "billing", ignore, order="key", **options) as worker,
            asyncio.timeout(20),
        ):
            while worker.report().succeeded < KEYS:
                await asyncio.sleep(0.01)
    assert "a batch of persistent://public/default/results" not in caplog.text


@pytest.mark.parametrize(("order", "attempt"), [("none", 2), ("key", 1), ("partition", 1)])
async def test_in_a_rolling_restart_the_broker_keeps_attempts_of_order_none_only(
    url: str, order: Any, attempt: int
) -> None:
    attempts: dict[str, list[int]] = {"old": [], "new": []}

    def worker(client: encore.Client, name: str) -> encore.Worker[Any]:
        async def fail(value: bytes, msg: encore.Message) -> None:
            attempts[name].append(msg.attempt)
            raise ValueError

        return encore.Worker(
            client,
            "orders",
            "billing",
            fail,
            order=order,
            retry=encore.RetryPolicy(attempts=4, backoff=[0.2, 60]),
            initial_position=encore.InitialPosition.Earliest,
        )

    async with (
        encore.Client(url) as old_client,
        encore.Client(url) as new_client,
        old_client.create_producer("orders", batching_enabled=False) as producer,
    ):
        await producer.send(b"x", partition_key="key")
        async with worker(old_client, "old"):
            async with asyncio.timeout(20):
                while attempts["old"] != [1, 2]:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            new = worker(new_client, "new")
            await new.__aenter__()
            await _ready(new)
        async with asyncio.timeout(20):
            while not attempts["new"]:  # at once, and not after the delay of 60 s
                await asyncio.sleep(0.01)
        await new.__aexit__(None, None, None)
    assert attempts["new"] == [attempt]


async def test_a_worker_with_another_order_waits_until_the_old_consumer_has_left(url: str) -> None:
    async with encore.Client(url) as client, encore.Client(url) as new_client:
        old = await client.subscribe("orders", "billing", encore.ConsumerType.Shared)
        async with make_worker(new_client, order="none") as worker:
            await _ready(worker)
        worker = make_worker(new_client, order="key")
        running = asyncio.create_task(encore.run(worker))
        async with asyncio.timeout(20):
            while not any("ConsumerBusy" in each for each in worker.health().reasons):
                await asyncio.sleep(0.01)
        assert not worker.health().ready
        await old.close()
        await _ready(worker)
        worker.stop()
        await running


async def _ready(*workers: encore.Worker[Any]) -> None:
    async with asyncio.timeout(20):
        while not all(each.health().ready for each in workers):
            await asyncio.sleep(0.01)
