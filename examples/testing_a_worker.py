"""Test a handler alone, and a worker with its retries in virtual time, without a broker.

pytest examples/testing_a_worker.py (the plugin of this package has the marker and the fixtures)
"""

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
pytestmark = pytest.mark.pulsar_virtual_time


async def bill(order: Order, msg: encore.Message[Order]) -> None:
    """The code under test."""
    if order.total < 0:
        raise encore.Reject("negative total")
    if order.customer == "Grace" or msg.attempt < 3:
        raise ConnectionError("the bank is closed")
    charged.append(order.customer)


def make_worker(client: encore.Client) -> encore.Worker[Order]:
    first = encore.InitialPosition.Earliest
    return encore.Worker(
        client, "orders", "billing", bill, schema=ORDERS, retry=RETRY, initial_position=first
    )


async def test_a_negative_total_is_dead_lettered(pulsar_memory: testing.MemoryPulsar) -> None:
    """One handler, with all rules of its worker and without a connection."""
    worker = make_worker(pulsar_memory.client)
    outcome = await worker.handle(testing.message(Order("Ada", -1), attempt=2))
    assert outcome.settlement == "dead letter"
    assert "negative total" in outcome.reason


async def test_two_hours_of_backoff(pulsar_memory: testing.MemoryPulsar) -> None:
    """A worker, until nothing is left to do."""
    for customer in ("Ada", "Grace"):
        pulsar_memory.transport.put("orders", ORDERS.encode(Order(customer, 5)))
    drained = await testing.drain(make_worker(pulsar_memory.client))
    assert charged == ["Ada"]
    assert drained.elapsed >= 7200  # took milliseconds
    (letter,) = testing.letters(pulsar_memory.transport, "orders-billing-DLQ", ORDERS)
    assert letter.message.value() == Order("Grace", 5)
    assert letter.error_message == "the bank is closed"
