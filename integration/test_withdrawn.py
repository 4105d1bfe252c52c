"""A topic, a subscription or a working broker that is taken away from a consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random, randrange

import pytest

import pulsar_encore as encore
from tests.harness.admin import Admin
from tests.harness.contract.cluster import ENGINES, Engine
from tests.harness.contract.contract_kit import (
    SUBSCRIPTION,
    bodies,
    data,
    eventually,
    publish,
    subscribe,
    take,
    work_off,
)
from tests.harness.pulsar_server import Server

# looptime's plugin requests a loop before every synchronous test; see the suite's fixtures.
asyncio.set_event_loop(None)

MESSAGES = 3000
engines = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)


@engines
@pytest.mark.parametrize("kind", ["Shared", "Failover"])
async def test_unloads_while_consuming_lose_no_message_and_redeliver_no_acked_one(
    pulsar: Server, admin: Admin, topic: str, engine: Engine, kind: str
) -> None:
    seed = randrange(2**32)
    print(f"seed {seed}")
    rng = Random(seed)
    sent = bodies(MESSAGES)
    unloads = {rng.randrange(100, MESSAGES) for _ in range(3)}

    async def step(received: int) -> None:
        if received in unloads:
            await asyncio.to_thread(admin.unload, topic)

    async def backlog() -> int:
        stats = await asyncio.to_thread(admin.subscription_stats, topic, SUBSCRIPTION)
        return int(stats["msgBacklog"])

    async with engine.client(pulsar.service_url) as client:
        await publish(client, topic, sent[: MESSAGES // 2], batch=20)
        await publish(client, topic, sent[MESSAGES // 2 :])
        consumer = await subscribe(
            client, topic, encore.ConsumerType[kind], receiver_queue_size=200
        )
        redelivered = await work_off(consumer, sent, rng, nack_share=0.02, step=step, timeout=120)
        assert redelivered == []
        await eventually(backlog, 0, timeout=30)


@engines
async def test_a_deleted_subscription_is_recreated_by_its_consumer(
    pulsar: Server, admin: Admin, topic: str, engine: Engine
) -> None:
    async with engine.client(pulsar.service_url) as client:
        await publish(client, topic, bodies(10))
        consumer = await subscribe(client, topic)
        held = await take(consumer, 5)
        await asyncio.to_thread(admin.delete_subscription, topic, SUBSCRIPTION)
        for message in held:
            await consumer.acknowledge(message)
        # The new subscription begins at `initial_position`. The consumer filters the messages it
        # acked before.
        rest = data(await take(consumer, 5, timeout=30))
        assert sorted(rest) == bodies(5, 5)
        await publish(client, topic, [b"new"])
        assert data(await take(consumer, 1, timeout=30)) == [b"new"]


@asynccontextmanager
async def silent_server(response: bytes) -> AsyncIterator[str]:
    """Yield the URL of a port that accepts connections, sends `response`, and then nothing."""
    writers: set[asyncio.StreamWriter] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        if response:
            await reader.read(1)
            writer.write(response)
        while await reader.read(1 << 16):
            pass

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


@engines
async def test_a_silent_broker_raises_a_timeout(topic: str, engine: Engine) -> None:
    async with (
        silent_server(b"") as url,
        engine.client(url, operation_timeout_seconds=2, connection_timeout_ms=1000) as client,
    ):
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(encore.TransportError) as refused:
            await subscribe(client, topic)
        assert refused.value.retryable
        assert loop.time() - began < 20


@engines
@pytest.mark.parametrize(
    "response", [b"HTTP/1.1 400 Bad Request\r\n\r\n", Random(7).randbytes(500), b"\0" * 64]
)
async def test_an_invalid_answer_raises_a_transport_error(
    topic: str, engine: Engine, response: bytes
) -> None:
    async with (
        silent_server(response) as url,
        engine.client(url, operation_timeout_seconds=2, connection_timeout_ms=1000) as client,
    ):
        with pytest.raises(encore.TransportError):
            await subscribe(client, topic)
