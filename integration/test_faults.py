"""A real broker is restarted or killed while 5,000 messages are processed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random, randrange

import pytest

import pulsar_encore as encore
from tests.harness.admin import Admin
from tests.harness.contract.cluster import ENGINES, Engine
from tests.harness.contract.contract_kit import (
    SUBSCRIPTION,
    bodies,
    eventually,
    publish,
    subscribe,
    work_off,
)
from tests.harness.pulsar_server import Broker

from .conftest import OwnPulsar

# looptime's plugin requests a loop before every synchronous test; see the suite's fixtures.
asyncio.set_event_loop(None)

MESSAGES = 5000

# Timeout in s, with a broker's start, which takes over a minute on a busy machine.
TIMEOUT = 300


def restart(broker: Broker) -> None:
    broker.restart()


def kill(broker: Broker) -> None:
    broker.kill()
    broker.start()


@pytest.mark.timeout(2 * TIMEOUT)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize("fault", [restart, kill])
async def test_a_broker_restart_or_kill_loses_no_message(
    own_pulsar: OwnPulsar, topic: str, engine: Engine, fault: Callable[[Broker], None]
) -> None:
    seed = randrange(2**32)
    print(f"seed {seed}")
    rng = Random(seed)
    broker = await asyncio.to_thread(own_pulsar)
    admin = Admin(broker.admin_url)
    sent = bodies(MESSAGES)
    fault_at = rng.randrange(MESSAGES // 5, MESSAGES)
    fault_task: asyncio.Task[None] | None = None

    async def step(received: int) -> None:
        nonlocal fault_task
        if received == fault_at:
            fault_task = asyncio.create_task(asyncio.to_thread(fault, broker))

    async def backlog() -> int:
        stats = await asyncio.to_thread(admin.subscription_stats, topic, SUBSCRIPTION)
        return int(stats["msgBacklog"])

    async with engine.client(broker.service_url) as client:
        await publish(client, topic, sent[: MESSAGES // 2], batch=20)
        await publish(client, topic, sent[MESSAGES // 2 :])
        consumer = await subscribe(client, topic, encore.ConsumerType.Shared)
        redelivered = await work_off(
            consumer, sent, rng, nack_share=0.2, step=step, timeout=TIMEOUT
        )
        # A killed broker loses acks that its cursor has not written, which it does once a second at
        # most.
        assert len(redelivered) <= (MESSAGES // 20 if fault is kill else 0)
        assert fault_task is not None
        await fault_task
        await eventually(backlog, 0, timeout=30)
