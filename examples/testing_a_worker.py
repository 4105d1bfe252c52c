"""Test a handler alone, and a worker with its retries in virtual time, without a broker.

pytest examples/testing_a_worker.py (the plugin of this package has the marker and the fixtures)
"""

import asyncio
from dataclasses import dataclass

import pytest

import pulsar_encore as encore
from pulsar_encore import testing


@dataclass
class Order:
    customer: str
    total: int


ORDERS = encore.Json(Order)
RETRY = encore.RetryPolicy(attempts=3, backoff=[3600])
charged: list[str] = []


async def bill(order: Order, msg: encore.Message[Order]) -> None:
    """The code under test."""
    if order.total < 0:
        raise encore.Reject("negative total")
    if order.customer == "Ada" and msg.attempt < 3:
        raise ConnectionError("the bank is closed")
    if order.customer == "Grace":
        raise ConnectionError("the bank refuses")
    charged.append(order.customer)


@pytest.mark.pulsar_virtual_time
async def test_a_negative_total_is_rejected() -> None:
    with pytest.raises(encore.Reject, match="negative total"):
        await bill(Order("Ada", -1), testing.message(attempt=2))


@pytest.mark.pulsar_virtual_time
async def test_an_order_is_tried_three_times(
    pulsar_memory: testing.MemoryPulsar,
) -> None:
    client, transport = pulsar_memory.client, pulsar_memory.transport
    worker = encore.Worker(client, "orders", "billing", bill, schema=ORDERS, retry=RETRY)
    async with worker:
        for customer in ("Ada", "Grace"):
            transport.put("orders", ORDERS.encode(Order(customer, 5)))
        await asyncio.sleep(2.1 * 3600)  # takes milliseconds
    assert charged == ["Ada"]
    assert transport.backlog("orders", "billing") == 0
    (letter,) = testing.letters(transport, "orders-billing-DLQ", ORDERS)
    assert letter.message.value() == Order("Grace", 5)
    assert letter.error_message == "the bank refuses"
