"""`Worker.handle` calls one handler by all rules, and `testing.drain` runs a worker to its end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from worker_kit import SUBSCRIPTION, TOPIC

import pulsar_encore as encore
from pulsar_encore import Client, Message, testing
from pulsar_encore.testing import MemoryTransport


@dataclass
class Order:
    total: int


async def bill(order: Order, message: Message[Order]) -> encore.Out | None:
    if order.total < 0:
        raise encore.Reject("negative total")
    if order.total == 7:
        raise encore.Retry(delay=30, count=False)
    if order.total == 8:
        raise ValueError("no such customer")
    if order.total == 9:
        await message.ack()
        raise ValueError("after the ack")
    if order.total == 10:
        await asyncio.sleep(3600)
    return encore.Out(b"invoice", key="k")


@pytest.fixture
def worker(client: Client) -> encore.Worker[Any]:
    return encore.Worker(
        client,
        TOPIC,
        SUBSCRIPTION,
        bill,
        schema=encore.Json(Order),
        timeout=60,
        publish="invoices",
        retry=encore.RetryPolicy(attempts=3, backoff=[10, 600]),
        initial_position=encore.InitialPosition.Earliest,
    )


@pytest.mark.parametrize(
    ("total", "attempt", "settlement", "delay", "counted"),
    [
        (5, 1, "ack", None, True),
        (-1, 1, "dead letter", None, True),
        (7, 3, "retry", 30, False),
        (8, 1, "retry", 10, True),
        (8, 2, "retry", 600, True),
        (8, 3, "dead letter", None, True),
        (9, 1, "settled", None, True),
        (10, 2, "retry", 600, True),
    ],
)
async def test_handle_returns_what_a_worker_would_do(
    worker: encore.Worker[Any],
    total: int,
    attempt: int,
    settlement: str,
    delay: float | None,
    counted: bool,
) -> None:
    outcome = await worker.handle(testing.message(Order(total), attempt=attempt))
    assert (outcome.settlement, outcome.delay, outcome.counted) == (settlement, delay, counted)
    assert outcome.attempt == attempt
    assert [each.out.value for each in outcome.published] == ([b"invoice"] if total == 5 else [])


async def test_handle_decodes_a_payload_with_the_schema_of_the_worker(
    worker: encore.Worker[Any],
) -> None:
    assert (await worker.handle(testing.message(b'{"total": 5}'))).settlement == "ack"
    outcome = await worker.handle(testing.message(b'{"total": "many"}'))
    assert outcome.settlement == "dead letter"
    assert "total" in outcome.reason


@pytest.mark.parametrize("order", ["key", "partition"])
@pytest.mark.parametrize("verb", ["nack", "detach"])
async def test_verbs_that_would_break_an_order_fail_in_handle_as_in_a_running_worker(
    client: Client, transport: MemoryTransport, order: Any, verb: str
) -> None:
    async def handler(value: bytes, message: Message[bytes]) -> None:
        getattr(message, verb)()

    worker = encore.Worker(
        client,
        TOPIC,
        SUBSCRIPTION,
        handler,
        order=order,
        retry=encore.RetryPolicy(attempts=1),
        initial_position=encore.InitialPosition.Earliest,
    )
    transport.put(TOPIC, b"x", key="k")
    outcomes = [await worker.handle(testing.message(b"x"))]
    outcomes += (await testing.drain(worker)).outcomes
    assert [each.settlement for each in outcomes] == ["dead letter"] * 2
    for each in outcomes:
        assert isinstance(each.error, encore.ConfigurationError)
        assert f'order="{order}"' in str(each.error) or 'order="none"' in str(each.error)


async def test_drain_runs_two_hours_of_backoff_and_returns_the_outcomes(
    client: Client, transport: MemoryTransport
) -> None:
    async def fail(value: bytes) -> None:
        raise ValueError("no")

    transport.put(TOPIC, b"x")
    retry = encore.RetryPolicy(attempts=3, backoff=[600, 6600])
    worker = encore.Worker(
        client,
        TOPIC,
        SUBSCRIPTION,
        fail,
        retry=retry,
        initial_position=encore.InitialPosition.Earliest,
    )
    drained = await testing.drain(worker)
    assert [each.settlement for each in drained.outcomes] == ["retry", "retry", "dead letter"]
    assert 7200 <= drained.elapsed < 7400
    assert len(testing.letters(transport, f"{TOPIC}-{SUBSCRIPTION}-DLQ")) == 1


async def test_drain_names_what_is_left_when_its_time_is_over(
    client: Client, transport: MemoryTransport
) -> None:
    async def never(value: bytes) -> None:
        raise encore.Retry(delay=60, count=False)

    transport.put(TOPIC, b"x")
    worker = encore.Worker(
        client, TOPIC, SUBSCRIPTION, never, initial_position=encore.InitialPosition.Earliest
    )
    with pytest.raises(TimeoutError, match="waiting=1"):
        await testing.drain(worker, longest=3600)


async def test_drain_refuses_a_new_subscription_that_skips_the_messages_of_the_test(
    client: Client, transport: MemoryTransport
) -> None:
    async def handler(value: bytes) -> None: ...

    transport.put(TOPIC, b"x")
    with pytest.raises(encore.ConfigurationError, match=r"InitialPosition\.Earliest"):
        await testing.drain(encore.Worker(client, TOPIC, SUBSCRIPTION, handler))
    # The subscription exists now, so that a worker with the same options gets every new message.
    transport.put(TOPIC, b"y")
    drained = await testing.drain(encore.Worker(client, TOPIC, SUBSCRIPTION, handler))
    assert [each.settlement for each in drained.outcomes] == ["ack"]
