"""The program of `docs/recipes/outage.md`: an hour without its gateway, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsar_encore import Client, testing
from pulsar_encore.testing import MemoryTransport
from tests.harness.recipes import load_recipe

OUTAGE_S = 3600
DEAD_LETTERS = "orders-billing-DLQ"


@pytest.fixture
def recipe() -> Any:
    return load_recipe("outage")


class Gateway:
    """Stands for the gateway of the program."""

    def __init__(self, recipe: Any) -> None:
        self.error: Exception | None = recipe.GatewayAway("connection refused")
        self.calls = 0
        self.charged: list[bytes] = []

    async def charge(self, order: bytes) -> None:
        self.calls += 1
        await asyncio.sleep(0.1)
        if self.error is not None:
            raise self.error
        self.charged.append(order)


async def test_an_outage_costs_no_attempt_and_no_order(
    recipe: Any, client: Client, transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = Gateway(recipe)
    for number in range(60):
        transport.put("orders", b"%d" % number, key=f"customer-{number % 3}")
    async with recipe.billing(client, gateway) as worker:
        await asyncio.sleep(OUTAGE_S)
        assert gateway.calls < 30
        (reason,) = worker.health().reasons
        assert reason == "the breaker is open: GatewayAway('connection refused')"
        assert (worker.report().succeeded, worker.report().rejected) == (0, 0)
        assert "the breaker is open and only probes start" in caplog.text
        gateway.error = None
        await asyncio.sleep(310)  # the longest pause is 5 minutes
        assert (worker.health().ready, worker.health().reasons) == (True, ())
    assert "goes on: the outage ended" in caplog.text
    for customer in range(3):
        mine = [int(each) for each in gateway.charged if int(each) % 3 == customer]
        assert mine == list(range(customer, 60, 3))
    assert testing.letters(transport, DEAD_LETTERS) == []
    assert worker.report().succeeded == 60


async def test_another_error_uses_up_attempts(
    recipe: Any, client: Client, transport: MemoryTransport
) -> None:
    gateway = Gateway(recipe)
    gateway.error = ValueError("the gateway refused the order")
    transport.put("orders", b"1", key="a")
    drained = await testing.drain(recipe.billing(client, gateway))
    assert [each.settlement for each in drained.outcomes] == ["retry"] * 5 + ["dead letter"]


async def test_an_order_that_breaks_the_gateway_is_dead_lettered_while_others_are_charged(
    recipe: Any, client: Client, transport: MemoryTransport
) -> None:
    gateway = Gateway(recipe)
    away = gateway.error
    charged = []

    async def charge(order: bytes) -> None:
        if order == b"poison":
            raise away  # type: ignore[misc]
        charged.append(order)

    gateway.charge = charge  # type: ignore[method-assign]
    transport.put("orders", b"poison", key="a")

    async def publish() -> None:
        for number in range(400):
            transport.put("orders", b"%d" % number, key="b")
            await asyncio.sleep(5)

    publishing = asyncio.create_task(publish())
    async with recipe.billing(client, gateway):
        await publishing
    (letter,) = testing.letters(transport, DEAD_LETTERS)
    assert letter.message.data() == b"poison"
    assert len(charged) == 400
