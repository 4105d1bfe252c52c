"""Tests of the order service, and of behaviour that a newcomer to workers may not expect."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from decimal import Decimal
from random import Random

import pytest
from order_service import (
    DEAD_LETTER_TOPIC,
    INVOICE_TOPIC,
    INVOICES,
    ORDERS,
    REPLAY_TOPIC,
    SUBSCRIPTION,
    TOPIC,
    Invoice,
    Order,
    make_worker,
)

import pulsar_encore as encore
from pulsar_encore import Client, testing
from pulsar_encore.deadletters import Letter
from pulsar_encore.testing import Drained, MemoryTransport

CREATED = datetime(2026, 1, 1, tzinfo=UTC)
CHARGE_S = 0.2
OUTAGE_S = 600.0
BREAKER = encore.Breaker(on=ConnectionError)


async def answer(order: Order, call: int) -> None:
    await asyncio.sleep(CHARGE_S)


class MemoryGateway:
    """A payment gateway in memory.

    Args:
        before: Awaited before each charge, with the order and the number of its call from 1. The
            error that it raises is the error of the call.

    Attributes:
        calls: The id of the order of each call.
        charged: The order of each call that succeeded.
        overlaps: Orders whose call began while another order of their customer was in a call.
    """

    def __init__(self, before: Callable[[Order, int], Awaitable[None]] = answer) -> None:
        self.calls: list[str] = []
        self.charged: list[Order] = []
        self.overlaps: list[str] = []
        self._before = before
        self._customers: Counter[str] = Counter()

    async def charge(self, order: Order) -> str:
        self.calls.append(order.id)
        if self._customers[order.customer]:
            self.overlaps.append(order.id)
        self._customers[order.customer] += 1
        try:
            await self._before(order, self.calls.count(order.id))
        finally:
            self._customers[order.customer] -= 1
        self.charged.append(order)
        return f"receipt-{order.id}"

    def by_customer(self) -> dict[str, list[int]]:
        """Return the ids of the charged orders of each customer, as numbers."""
        found: dict[str, list[int]] = defaultdict(list)
        for order in self.charged:
            found[order.customer].append(int(order.id))
        return found


def order_of(number: int, customer: str, total: str = "5") -> Order:
    return Order(str(number), customer, Decimal(total), CREATED)


def put(
    transport: MemoryTransport,
    number: int,
    customer: str = "Ada",
    total: str = "5",
    topic: str = TOPIC,
) -> None:
    transport.put(topic, ORDERS.encode(order_of(number, customer, total)), key=customer)


def dead(transport: MemoryTransport) -> list[Letter]:
    return testing.letters(transport, DEAD_LETTER_TOPIC, ORDERS)


def dead_ids(transport: MemoryTransport) -> set[str]:
    return {each.message.value().id for each in dead(transport)}


def settlements(drained: Drained) -> Counter[str]:
    return Counter(each.settlement for each in drained.outcomes)


async def invoices(client: Client) -> list[Invoice]:
    found = []
    first = encore.MessageId.earliest
    async with client.create_reader(INVOICE_TOPIC, first, schema=INVOICES) as reader:
        while await reader.has_message_available():
            found.append((await reader.read_next()).value())
    return found


async def send(client: Client, batching: encore.BatchingType) -> None:
    """Send 140 orders of 7 customers in batches of 10."""
    async with client.create_producer(TOPIC, schema=ORDERS, batching_type=batching) as producer:
        for start in range(0, 140, 10):
            orders = [order_of(each, f"c{each % 7}") for each in range(start, start + 10)]
            sends = (producer.send(each, partition_key=each.customer) for each in orders)
            await asyncio.gather(*sends)


# Charges and invoices


async def test_each_order_is_charged_and_has_an_invoice(
    client: Client, transport: MemoryTransport
) -> None:
    for number in range(50):
        put(transport, number, f"c{number}", "12.50")
    drained = await testing.drain(make_worker(client, MemoryGateway()))
    assert settlements(drained) == {"ack": 50}
    found = {each.order_id: each for each in await invoices(client)}
    assert found.keys() == {str(number) for number in range(50)}
    assert found["7"] == Invoice("7", "c7", Decimal("12.50"), "receipt-7")
    assert drained.elapsed == pytest.approx(4 * CHARGE_S, abs=0.1)  # 16 at a time


async def test_an_order_without_the_customer_as_its_key_is_logged(
    client: Client, transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    transport.put(TOPIC, ORDERS.encode(order_of(1, "Ada")))
    await testing.drain(make_worker(client, MemoryGateway()))
    assert len(await invoices(client)) == 1
    assert "order 1 has the key None" in caplog.text


def test_an_amount_may_be_a_number_and_a_time_as_a_number_is_in_milliseconds() -> None:
    text = '{"id": "1", "customer": "Ada", "total": %s, "created_at": %s}'
    seconds = int(CREATED.timestamp())
    for total, created in (("12.5", f'"{CREATED.isoformat()}"'), ('"12.5"', f"{seconds * 1000}")):
        order = ORDERS.decode((text % (total, created)).encode())
        assert (order.total, order.created_at) == (Decimal("12.5"), CREATED)
    assert ORDERS.decode((text % ("12.5", seconds)).encode()).created_at.year == 1970


async def test_a_returned_out_without_publish_fails_until_it_is_a_dead_letter(
    client: Client, transport: MemoryTransport
) -> None:
    gateway = MemoryGateway()
    put(transport, 1)
    drained = await testing.drain(make_worker(client, gateway, publish=None))
    assert settlements(drained) == {"retry": 4, "dead letter": 1}
    assert gateway.calls == ["1"] * 5
    (letter,) = dead(transport)
    assert letter.error_class == "pulsar_encore.errors.ConfigurationError"
    assert "publish" in letter.error_message


# Poison


async def test_poison_is_dead_lettered_at_once(client: Client, transport: MemoryTransport) -> None:
    gateway = MemoryGateway()
    put(transport, 1, total="-3")
    put(transport, 2)
    drained = await testing.drain(make_worker(client, gateway))
    (letter,) = dead(transport)
    assert letter.message.value() == order_of(1, "Ada", "-3")
    assert letter.error_class == "pulsar_encore.Reject"
    assert letter.error_message == "negative total"
    assert letter.evidence()["ENCORE_REASON"] == "reject"
    assert gateway.calls == ["2"]
    assert drained.elapsed < 1


async def test_a_payload_that_does_not_decode_is_dead_lettered(
    client: Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"{}", key="Ada")
    await testing.drain(make_worker(client, MemoryGateway()))
    (letter,) = testing.letters(transport, DEAD_LETTER_TOPIC)
    assert letter.error_class == "pulsar_encore.errors.DecodeError"


async def test_a_worker_without_reject_limit_dead_letters_25_poison_messages_at_once(
    client: Client, transport: MemoryTransport
) -> None:
    for number in range(25):
        put(transport, number, f"c{number}", total="-3")
    drained = await testing.drain(make_worker(client, MemoryGateway(), reject_limit=None))
    assert settlements(drained) == {"dead letter": 25}
    assert drained.elapsed < 1


async def test_by_default_a_worker_keeps_poison_from_the_20th_in_a_row_on(
    client: Client, transport: MemoryTransport
) -> None:
    limit = inspect.signature(encore.Worker.__init__).parameters["reject_limit"].default
    assert limit == 20
    for number in range(25):
        put(transport, number, f"c{number}", total="-3")
    async with make_worker(client, MemoryGateway(), reject_limit=limit) as worker:
        await asyncio.sleep(3600)
        assert len(dead(transport)) == 19
        assert transport.backlog(TOPIC, SUBSCRIPTION) == 6
        assert not worker.health().ready
        assert any("in a row were rejected" in each for each in worker.health().reasons)
        put(transport, 100, "Grace")
        await asyncio.sleep(120)
        assert len(dead(transport)) == 25
        assert transport.backlog(TOPIC, SUBSCRIPTION) == 0
        assert worker.health().ready


async def test_a_drain_until_nothing_is_left_names_the_reject_limit(
    client: Client, transport: MemoryTransport
) -> None:
    for number in range(25):
        put(transport, number, f"c{number}", total="-3")
    with pytest.raises(TimeoutError, match="in a row were rejected"):
        await testing.drain(make_worker(client, MemoryGateway(), reject_limit=20), longest=600)


# Retries


async def test_an_order_is_dead_lettered_after_5_attempts(
    client: Client, transport: MemoryTransport
) -> None:
    async def fail(order: Order, call: int) -> None:
        await asyncio.sleep(CHARGE_S)
        if order.id == "1":
            raise ValueError("a bug")

    gateway = MemoryGateway(fail)
    put(transport, 1)
    put(transport, 2)
    put(transport, 3, "Grace")
    drained = await testing.drain(make_worker(client, gateway))
    assert [each for each in gateway.calls if each != "3"] == ["1"] * 5 + ["2"]
    assert gateway.calls.index("3") < 2  # another customer does not wait
    assert [each.delay for each in drained.outcomes if each.settlement == "retry"] == [1, 3, 10, 30]
    (letter,) = dead(transport)
    assert letter.error_class == "ValueError"
    assert letter.evidence()["ENCORE_ATTEMPTS"] == "5"
    assert letter.evidence()["ENCORE_REASON"] == "attempts"


async def test_a_slow_charge_is_given_up_and_retried(
    client: Client, transport: MemoryTransport
) -> None:
    async def hang_once(order: Order, call: int) -> None:
        await asyncio.sleep(3600 if call == 1 else CHARGE_S)

    gateway = MemoryGateway(hang_once)
    put(transport, 1)
    drained = await testing.drain(make_worker(client, gateway))
    assert [each.settlement for each in drained.outcomes] == ["retry", "ack"]
    assert isinstance(drained.outcomes[0].error, TimeoutError)
    assert drained.elapsed == pytest.approx(10 + 1 + CHARGE_S, abs=0.1)
    assert len(gateway.charged) == len(await invoices(client)) == 1


async def test_failures_that_do_not_count_advance_the_backoff(
    client: Client, transport: MemoryTransport
) -> None:
    async def fail(order: Order, call: int) -> None:
        if call <= 3:
            raise ConnectionError("away")
        if call <= 5:
            raise ValueError("a bug")

    put(transport, 1)
    drained = await testing.drain(make_worker(client, MemoryGateway(fail)))
    assert [(each.attempt, each.counted, each.delay) for each in drained.outcomes] == [
        (1, False, 1),
        (1, False, 3),
        (1, False, 10),
        (1, True, 30),
        (2, True, 30),
        (3, True, None),
    ]
    assert drained.outcomes[-1].settlement == "ack"


async def test_attempts_begin_at_1_in_the_next_process_without_a_state(
    client: Client, transport: MemoryTransport
) -> None:
    async def fail(order: Order, call: int) -> None:
        raise ValueError("a bug")

    gateway = MemoryGateway(fail)
    put(transport, 1)
    async with make_worker(client, gateway):
        await asyncio.sleep(8)
    assert len(gateway.calls) == 3
    drained = await testing.drain(make_worker(client, gateway))
    assert [each.attempt for each in drained.outcomes] == [1, 2, 3, 4, 5]


async def test_a_replay_to_the_retry_letter_topic_is_charged(
    client: Client, transport: MemoryTransport
) -> None:
    gateway = MemoryGateway()
    put(transport, 1, topic=REPLAY_TOPIC)
    put(transport, 2, total="-1", topic=REPLAY_TOPIC)
    await testing.drain(make_worker(client, gateway))
    assert gateway.calls == ["1"]
    assert dead_ids(transport) == {"2"}


# A gateway that is away


@pytest.mark.parametrize("breaker", [None, BREAKER], ids=["uncounted", "breaker"])
async def test_an_outage_of_10_minutes_costs_no_attempt(
    client: Client, transport: MemoryTransport, breaker: encore.Breaker | None
) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def fail(order: Order, call: int) -> None:
        await asyncio.sleep(CHARGE_S)
        if 1 < loop.time() - began < OUTAGE_S:
            raise ConnectionError("away")

    gateway = MemoryGateway(fail)
    for number in range(100):
        put(transport, number, f"c{number % 25}", total="-1" if number % 25 == 24 else "5")
    worker = make_worker(client, gateway, breaker=breaker)
    readiness: list[bool] = []
    loop.call_later(OUTAGE_S / 2, lambda: readiness.append(worker.health().ready))
    drained = await testing.drain(worker)
    assert dead_ids(transport) == {"24", "49", "74", "99"}
    assert {each.attempt for each in drained.outcomes} == {1}
    assert settlements(drained)["ack"] == len(gateway.charged) == len(await invoices(client)) == 96
    assert all(ids == sorted(ids) for ids in gateway.by_customer().values())
    assert drained.elapsed > OUTAGE_S
    assert readiness == [True]  # an outage does not stop the rollout of a version


@pytest.mark.parametrize("breaker", [None, BREAKER], ids=["uncounted", "breaker"])
async def test_an_outage_for_every_second_customer_costs_attempts_with_a_breaker(
    client: Client, transport: MemoryTransport, breaker: encore.Breaker | None
) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def fail(order: Order, call: int) -> None:
        await asyncio.sleep(CHARGE_S)
        if order.customer == "Ada" and loop.time() - began < OUTAGE_S:
            raise ConnectionError("away")

    gateway = MemoryGateway(fail)
    async with make_worker(client, gateway, breaker=breaker) as worker:
        for number in range(120):
            put(transport, number, "Ada" if number % 2 == 0 else "Grace")
            await asyncio.sleep(OUTAGE_S / 120)
            assert worker.health().ready  # the successes of one half keep the breaker closed
        await asyncio.sleep(120)
    assert transport.backlog(TOPIC, SUBSCRIPTION) == 0
    letters = dead(transport)
    assert len(gateway.charged) + len(letters) == 120
    if breaker is None:
        assert letters == []
    else:
        assert {each.error_class for each in letters} == {"ConnectionError"}
        assert [each.message.value().id for each in letters] == ["0", "2", "4", "6"]
        assert {each.evidence()["ENCORE_ATTEMPTS"] for each in letters} == {"5"}


async def test_uncounted_retries_lose_no_order_to_a_gateway_that_fails_half_of_the_calls(
    client: Client, transport: MemoryTransport
) -> None:
    loop = asyncio.get_running_loop()
    began, rng = loop.time(), Random(2)

    async def fail(order: Order, call: int) -> None:
        await asyncio.sleep(CHARGE_S)
        if loop.time() - began < OUTAGE_S and rng.random() < 0.5:
            raise ConnectionError("away")

    gateway = MemoryGateway(fail)
    for number in range(200):
        put(transport, number, f"c{number % 40}")
    await testing.drain(make_worker(client, gateway))
    assert dead(transport) == []
    assert len(gateway.charged) == len(await invoices(client)) == 200
    assert all(ids == sorted(ids) for ids in gateway.by_customer().values())


# Order by customer


@pytest.mark.parametrize("batching", list(encore.BatchingType), ids=lambda each: each.name)
async def test_two_workers_need_a_producer_that_batches_by_key(
    client: Client, batching: encore.BatchingType
) -> None:
    async def answer_late(order: Order, call: int) -> None:
        await asyncio.sleep(5 if order.id == "8" else CHARGE_S)

    gateway = MemoryGateway(answer_late)
    workers = [make_worker(client, gateway), make_worker(client, gateway)]
    async with workers[0], workers[1]:
        await send(client, batching)
        await asyncio.sleep(60)
        counts = [each.report().succeeded for each in workers]
    assert sum(counts) == 140
    assert min(counts) > 0
    customers = gateway.by_customer()
    mixed_up = {each for each, ids in customers.items() if ids != sorted(ids)}
    if batching is encore.BatchingType.KeyBased:
        assert mixed_up == set()
        assert gateway.overlaps == []
    else:
        assert "c1" in mixed_up
        assert gateway.overlaps


# Stops


@pytest.mark.parametrize("overlap", [False, True], ids=["one_after_the_other", "overlap"])
async def test_a_worker_that_stops_and_its_successor_charge_each_order_once(
    client: Client, transport: MemoryTransport, overlap: bool
) -> None:
    gateway = MemoryGateway()
    for number in range(200):
        put(transport, number, f"c{number % 20}")
    old = make_worker(client, gateway)
    async with old:
        await asyncio.sleep(0.5)
        if overlap:
            successor = asyncio.create_task(testing.drain(make_worker(client, gateway)))
            await asyncio.sleep(0.25)
    if not overlap:
        successor = asyncio.create_task(testing.drain(make_worker(client, gateway)))
    charged = old.report().succeeded
    drained = await successor
    assert 16 <= charged < 200
    assert settlements(drained)["ack"] == 200 - charged
    assert Counter(gateway.calls) == Counter(str(number) for number in range(200))
    assert all(ids == sorted(ids) for ids in gateway.by_customer().values())
    assert gateway.overlaps == []
