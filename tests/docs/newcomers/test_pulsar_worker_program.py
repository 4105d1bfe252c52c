"""A worker behaves as a user of Pulsar expects after reading the documentation, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import testing
from tests.docs.newcomers import pulsar_drop_in
from tests.docs.newcomers import pulsar_worker as program
from tests.docs.newcomers.pulsar_worker import INVOICES, ORDERS, Invoice, Order, make_worker

pytestmark = pytest.mark.pulsar_virtual_time

DELAYS = [10, 60, 600]
LETTERS = "orders-billing-DLQ"


def put(pulsar: testing.MemoryPulsar, *orders: Order) -> None:
    for order in orders:
        pulsar.transport.put("orders", ORDERS.encode(order), key=order.customer)


def only_letter(pulsar: testing.MemoryPulsar) -> Any:
    [letter] = testing.letters(pulsar.transport, LETTERS)
    return letter


@pytest.fixture
def charge(monkeypatch: pytest.MonkeyPatch) -> None:
    """A payment service that fails for a total of 13 and does not answer for a total of 99."""

    async def charge(order: Order) -> str:
        if order.total == 13:
            raise RuntimeError(f"unlucky {order.number}")
        if order.total == 99:
            await asyncio.sleep(1000)
        return f"receipt-{order.number}"

    monkeypatch.setattr(program, "charge", charge)


@pytest.mark.usefixtures("charge")
async def test_a_failing_order_takes_the_delays_of_the_policy_and_holds_back_its_key(
    pulsar_memory: testing.MemoryPulsar,
) -> None:
    put(pulsar_memory, Order(1, "Ada", 13), Order(2, "Ada", 5), Order(3, "Grace", 5))
    drained = await testing.drain(make_worker(pulsar_memory.client))
    first = [each for each in drained.outcomes if each.message.value().number == 1]
    assert [each.delay for each in first] == [*DELAYS, None]
    assert [each.settlement for each in first] == ["retry", "retry", "retry", "dead letter"]
    assert drained.elapsed >= sum(DELAYS)
    earliest = encore.MessageId.earliest
    async with pulsar_memory.client.create_reader("invoices", earliest, schema=INVOICES) as reader:
        invoices = [(await reader.read_next()).value() for _ in range(2)]
    assert invoices == [Invoice(3, "receipt-3"), Invoice(2, "receipt-2")]


@pytest.mark.usefixtures("charge")
@pytest.mark.parametrize(
    ("payload", "reason", "error", "attempts"),
    [
        (ORDERS.encode(Order(1, "Ada", 13)), "attempts", "RuntimeError", "4"),
        (ORDERS.encode(Order(1, "Ada", 99)), "attempts", "TimeoutError", "4"),
        (ORDERS.encode(Order(1, "Ada", -1)), "reject", "pulsar_encore.Reject", "1"),
        (b"{no JSON", "reject", "pulsar_encore.errors.DecodeError", "1"),
        (
            b'{"number": 1, "customer": null, "total": 5}',
            "reject",
            "pulsar_encore.errors.DecodeError",
            "1",
        ),
    ],
    ids=["error", "timeout", "reject", "no JSON", "null in a field that is not optional"],
)
async def test_a_letter_says_how_its_message_failed(
    pulsar_memory: testing.MemoryPulsar, payload: bytes, reason: str, error: str, attempts: str
) -> None:
    pulsar_memory.transport.put("orders", payload, key="Ada")
    await testing.drain(make_worker(pulsar_memory.client))
    letter = only_letter(pulsar_memory)
    assert letter.error_class == error
    assert letter.evidence()["ENCORE_REASON"] == reason
    assert letter.evidence()["ENCORE_ATTEMPTS"] == attempts


@pytest.mark.usefixtures("charge")
async def test_the_timeout_of_the_worker_is_a_failed_attempt(
    pulsar_memory: testing.MemoryPulsar,
) -> None:
    put(pulsar_memory, Order(1, "Ada", 99))
    drained = await testing.drain(make_worker(pulsar_memory.client))
    assert [each.counted for each in drained.outcomes[:-1]] == [True, True, True]
    assert drained.elapsed >= sum(DELAYS) + 4 * 5


@pytest.mark.usefixtures("charge")
async def test_a_breaker_with_timeouterror_does_not_count_the_timeout_of_the_worker(
    pulsar_memory: testing.MemoryPulsar,
) -> None:
    put(pulsar_memory, *(Order(each, f"customer {each}", 99) for each in range(10)))
    worker = make_worker(pulsar_memory.client, breaker=encore.Breaker(on=(TimeoutError,)))
    with pytest.raises(TimeoutError, match="breaker"):
        await testing.drain(worker, longest=20_000)
    assert testing.letters(pulsar_memory.transport, LETTERS) == []


async def test_a_dependency_that_is_away_uses_up_no_attempt(
    pulsar_memory: testing.MemoryPulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    back = loop.time() + 3600
    reasons: set[str] = set()
    worker = make_worker(pulsar_memory.client)

    async def charge(order: Order) -> str:
        if loop.time() < back:
            loop.call_later(1, lambda: reasons.update(worker.health().reasons))
            raise ConnectionError("the payment service is away")
        return "receipt"

    monkeypatch.setattr(program, "charge", charge)
    put(pulsar_memory, *(Order(each, f"customer {each}", 5) for each in range(20)))
    drained = await testing.drain(worker)
    assert [each.settlement for each in drained.outcomes].count("ack") == 20
    assert not any(each.counted for each in drained.outcomes if each.settlement == "retry")
    assert any("breaker" in each for each in reasons)
    assert testing.letters(pulsar_memory.transport, LETTERS) == []


@pytest.mark.usefixtures("charge")
async def test_a_failed_message_of_a_batch_runs_alone_again(
    pulsar_memory: testing.MemoryPulsar,
) -> None:
    batch = [ORDERS.encode(Order(each, "Ada", 13 if each == 2 else 5)) for each in range(5)]
    pulsar_memory.transport.put("orders", *batch, key="Ada")
    drained = await testing.drain(make_worker(pulsar_memory.client))
    numbers = [each.message.value().number for each in drained.outcomes]
    assert numbers == [0, 1, 2, 2, 2, 2, 3, 4]
    assert pulsar_memory.transport.backlog("orders", "billing") == 0


async def test_a_record_without_a_field_needs_a_dataclass_with_none(
    pulsar_memory: testing.MemoryPulsar,
) -> None:
    @dataclass
    class Optional:
        number: int
        total: int
        customer: str | None = None

    schema = pulsar_drop_in.JsonSchema(pulsar_drop_in.Order)
    payload = schema.encode(pulsar_drop_in.Order(number=1, total=5))
    assert b"null" in payload
    assert encore.Json(Optional).decode(payload) == Optional(1, 5)
    pulsar_memory.transport.put("orders", payload)
    await testing.drain(make_worker(pulsar_memory.client))
    assert only_letter(pulsar_memory).error_class == "pulsar_encore.errors.DecodeError"


async def test_drain_ends_if_the_worker_only_rejects(pulsar_memory: testing.MemoryPulsar) -> None:
    for _ in range(30):
        pulsar_memory.transport.put("orders", b"{no JSON")
    with pytest.raises(TimeoutError, match="reject"):
        await testing.drain(make_worker(pulsar_memory.client))


@pytest.mark.parametrize(
    ("bits", "delay", "late"),
    [(None, 0.5, 0.064), (None, 1, 0.064), (None, 60, 60 / 64), (None, 600, 8.2), (0, 60, 0.001)],
)
async def test_a_nack_is_late_by_less_than_its_bucket(
    pulsar_memory: testing.MemoryPulsar, bits: int | None, delay: float, late: float
) -> None:
    loop = asyncio.get_running_loop()
    pulsar_memory.transport.put("orders", b"one")
    consumer = await pulsar_memory.client.subscribe(
        "orders",
        "billing",
        encore.ConsumerType.Shared,
        initial_position=encore.InitialPosition.Earliest,
        negative_ack_precision_bit_cnt=bits,
    )
    message = await consumer.receive()
    due = loop.time() + delay
    consumer.negative_acknowledge(message, delay=delay)
    await consumer.receive()
    assert 0 <= loop.time() - due <= late + 0.002  # the clocks of the loop and of the broker
