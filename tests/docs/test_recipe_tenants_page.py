"""The program of `docs/recipes/tenants.md`: 1,000 tenants on one client, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pulsar_encore import Client
from pulsar_encore.testing import Fault, FaultPlan, MemoryTransport
from tests.harness.recipes import load_recipe

TENANTS = {f"t{number}" for number in range(1000)}


class Bill:
    """The handler. It counts its calls, and notes the tenant of each order that is done."""

    def __init__(self) -> None:
        self.running = self.most_at_once = 0
        self.done: list[str] = []
        self.took_s = 1.0
        self.failing: set[str] = set()

    async def __call__(self, order: bytes, msg: Any) -> None:
        tenant = msg.topic_name().rpartition("-")[2]
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            await asyncio.sleep(self.took_s)
        finally:
            self.running -= 1
        if tenant in self.failing:
            raise ValueError("no such customer")
        self.done.append(tenant)


@pytest.fixture
def bill() -> Bill:
    return Bill()


@pytest.fixture
async def tenants(
    client: Client, bill: Bill, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Any]:
    recipe = load_recipe("tenants")
    monkeypatch.setattr(recipe, "bill", bill)
    made = recipe.Tenants(client, handlers=20)
    yield made
    await made.close()
    assert made.workers == {}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(3600):
        while not condition():
            await asyncio.sleep(0.1)


def states(tenants: Any) -> Counter[str]:
    return Counter(worker.health().state for worker in tenants.workers.values())


def put(transport: MemoryTransport, tenant: str, count: int = 1) -> None:
    for _ in range(count):
        transport.put(f"orders-{tenant}", b"order")


def refusals(times: int) -> FaultPlan:
    """Return a plan in which the tenant `refused` may not consume, for some attempts."""
    topic = "persistent://public/default/orders-refused"
    fault = Fault(
        kind="refuse", command="SUBSCRIBE", times=times, error="AuthorizationError", topic=topic
    )
    return FaultPlan([fault])


async def test_a_thousand_tenants_share_the_slots(
    tenants: Any, bill: Bill, transport: MemoryTransport
) -> None:
    tenants.update(TENANTS)
    await until(lambda: states(tenants) == {"running": 1000})
    for tenant in TENANTS:
        put(transport, tenant)
    await until(lambda: len(bill.done) == 1000)
    assert set(bill.done) == TENANTS
    assert bill.most_at_once == 20


async def test_a_tenant_with_a_backlog_takes_no_more_than_its_share(
    tenants: Any, bill: Bill, transport: MemoryTransport
) -> None:
    many = {"large", *(f"small{number}" for number in range(50))}
    tenants.update(many)
    await until(lambda: states(tenants) == {"running": 51})
    put(transport, "large", 500)
    await asyncio.sleep(3)
    for tenant in many - {"large"}:
        put(transport, tenant)
    before = len(bill.done)
    await until(lambda: many <= set(bill.done))
    # At most 4 of the large tenant wait in the line, so all others are served within 4 s.
    assert bill.done[before:].count("large") <= 16


async def test_a_tenant_is_added_and_another_one_removed(
    tenants: Any, bill: Bill, transport: MemoryTransport
) -> None:
    tenants.update({"a", "b"})
    await until(lambda: states(tenants) == {"running": 2})
    put(transport, "a")
    await until(lambda: bill.running == 1)
    tenants.update({"b", "c"})
    await until(lambda: set(tenants.workers) == {"b", "c"})
    assert bill.done == ["a"]  # the drain waited for its handler
    put(transport, "c")
    await until(lambda: bill.done == ["a", "c"])
    tenants.update({"a", "b", "c"})
    put(transport, "a")
    await until(lambda: bill.done == ["a", "c", "a"])


async def test_a_worker_that_fails_starts_again_and_the_others_go_on(
    tenants: Any,
    bill: Bill,
    transport: MemoryTransport,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = "persistent://public/default/orders-refused"
    transport.faults = FaultPlan(
        [
            Fault(
                kind="refuse",
                command="SUBSCRIBE",
                times=2,
                error="AuthorizationError",
                topic=refused,
            )
        ]
    )
    tenants.update({"good", "refused"})
    put(transport, "good")
    put(transport, "refused")
    await asyncio.sleep(20)
    assert states(tenants) == {"running": 1, "failed": 1}
    assert bill.done == ["good"]
    assert "the worker of refused failed: another one starts in 30 s" in caplog.text
    await asyncio.sleep(60)
    assert states(tenants) == {"running": 2}
    assert bill.done == ["good", "refused"]


async def test_a_tenant_whose_worker_has_failed_can_be_removed_at_once(
    tenants: Any, transport: MemoryTransport
) -> None:
    refused = "persistent://public/default/orders-refused"
    transport.faults = FaultPlan(
        [
            Fault(
                kind="refuse",
                command="SUBSCRIBE",
                times=9,
                error="AuthorizationError",
                topic=refused,
            )
        ]
    )
    tenants.update({"refused"})
    await until(lambda: states(tenants) == {"failed": 1})
    began = asyncio.get_running_loop().time()
    await tenants.close()
    assert asyncio.get_running_loop().time() - began < 1


async def test_a_tenant_whose_orders_fail_does_not_delay_the_others(
    tenants: Any, bill: Bill, transport: MemoryTransport
) -> None:
    bill.failing = {"bad"}
    tenants.update({"good", "bad"})
    await until(lambda: states(tenants) == {"running": 2})
    put(transport, "bad", 50)
    put(transport, "good", 50)
    began = asyncio.get_running_loop().time()
    await until(lambda: bill.done.count("good") == 50)
    assert asyncio.get_running_loop().time() - began < 20


async def test_a_handler_that_is_too_slow_fails_and_the_wait_for_a_slot_does_not_count(
    tenants: Any, bill: Bill, transport: MemoryTransport
) -> None:
    bill.took_s = 50.0
    names = {f"t{number}" for number in range(30)}
    tenants.update(names)
    await until(lambda: states(tenants) == {"running": 30})
    for tenant in names:
        put(transport, tenant)
    await until(lambda: len(bill.done) == 30)  # the last ten waited for 50 s, and took 50 s
    assert all(worker.report().failed == 0 for worker in tenants.workers.values())
