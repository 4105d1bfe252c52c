"""A real broker that is restarted, or killed, in the middle of 5,000 messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random, randrange

import pytest

import pulsar_encore as encore
from harness.admin import Admin
from harness.contract.cluster import ENGINES, Engine
from harness.contract.contract_kit import (
    SUBSCRIPTION,
    bodies,
    eventually,
    publish,
    subscribe,
    work_off,
)
from harness.pulsar_server import Broker

from .conftest import OwnPulsar

# looptime's plugin asks for a loop before every synchronous test; see the suite's fixtures.
asyncio.set_event_loop(None)

MESSAGES = 5000

# Seconds; a broker's start is among them, a minute and more on a busy machine.
TIMEOUT = 300


def restart(broker: Broker) -> None:
    broker.restart()


def kill(broker: Broker) -> None:
    broker.kill()
    broker.start()


@pytest.mark.timeout(2 * TIMEOUT)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize("fault", [restart, kill])
async def test_a_broker_gone_in_the_middle_loses_nothing(
    own_pulsar: OwnPulsar, topic: str, engine: Engine, fault: Callable[[Broker], None]
) -> None:
    seed = randrange(2**32)
    print(f"seed {seed}")
    rng = Random(seed)
    broker = await asyncio.to_thread(own_pulsar)
    admin = Admin(broker.admin_url)
    sent = bodies(MESSAGES)
    at = rng.randrange(MESSAGES // 5, MESSAGES)
    gone: asyncio.Task[None] | None = None

    async def step(received: int) -> None:
        nonlocal gone
        if received == at:
            gone = asyncio.create_task(asyncio.to_thread(fault, broker))

    async def backlog() -> int:
        stats = await asyncio.to_thread(admin.subscription_stats, topic, SUBSCRIPTION)
        return int(stats["msgBacklog"])

    async with engine.client(broker.service_url) as client:
        await publish(client, topic, sent[: MESSAGES // 2], batch=20)
        await publish(client, topic, sent[MESSAGES // 2 :])
        consumer = await subscribe(client, topic, encore.ConsumerType.Shared)
        again = await work_off(consumer, sent, rng, nack_share=0.2, step=step, timeout=TIMEOUT)
        # A broker that is killed forgets what its cursor did not write, once a second at most.
        assert len(again) <= (MESSAGES // 20 if fault is kill else 0)
        assert gone is not None
        await gone
        await eventually(backlog, 0, timeout=30)
