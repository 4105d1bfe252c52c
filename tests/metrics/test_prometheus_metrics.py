"""What a scrape of `prometheus.Metrics` says about consumers, producers and workers."""

from __future__ import annotations

import asyncio
import gc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

import pulsar_encore as encore
from pulsar_encore import (
    Client,
    ConfigurationError,
    ConsumerType,
    prometheus,
)
from pulsar_encore.observability import topic_labels
from pulsar_encore.observability.error_types import error_type
from pulsar_encore.observability.instruments import INSTRUMENTS
from pulsar_encore.testing import MemoryTransport
from tests.metrics.scrape import OF_CONSUMER, ORDERS, Scrape
from tests.worker.worker_kit import running, until

SDK = Path(encore.__file__).parents[1]
EARLIEST = encore.InitialPosition.Earliest
CONSUMED = "messaging_client_consumed_messages_total"
ACKED = "pulsar_client_consumer_message_ack_total"
PROCESSED = "messaging_process_duration_seconds_count"


async def subscribe(client: Client, topics: Any = "orders", **options: Any) -> encore.Consumer[Any]:
    options.setdefault("initial_position", EARLIEST)
    return await client.subscribe(topics, "billing", ConsumerType.Shared, **options)


async def test_a_consumer(
    client: Client, transport: MemoryTransport, registry: CollectorRegistry
) -> None:
    consumer = await subscribe(client, max_unacked_messages=500)
    for _ in range(5):
        transport.put("orders", b"x")
    await asyncio.sleep(1)
    first, second = await consumer.receive(), await consumer.receive()
    await consumer.receive()
    await consumer.acknowledge(first)
    await consumer.negative_acknowledge(second)
    scrape = Scrape(registry)
    own = "pulsar_client_encore_consumer_"
    expected = {
        CONSUMED: 3,
        ACKED: 1,
        "pulsar_client_consumer_message_nack_total": 1,
        "pulsar_client_consumer_receive_queue_count": 2,
        "pulsar_client_consumer_opened_total": 1,
        f"{own}in_flight": 1,
        f"{own}nacks_waiting": 1,
        f"{own}window_unacked": 4,
        f"{own}window_size": 500,
        f"{own}connected": 1,
        f"{own}reconnects_total": 0,
    }
    assert {name: scrape.value(name, **OF_CONSUMER) for name in expected} == expected


async def test_counters_do_not_fall_when_another_consumer_takes_over(
    client: Client, transport: MemoryTransport, registry: CollectorRegistry
) -> None:
    values = []
    for _ in range(3):
        consumer = await subscribe(client)
        transport.put("orders", b"x")
        await consumer.acknowledge(await consumer.receive())
        await consumer.close()
        values.append(Scrape(registry).value(ACKED, **OF_CONSUMER))
    assert values == [1, 2, 3]
    scrape = Scrape(registry)
    assert scrape.value("pulsar_client_consumer_closed_total", **OF_CONSUMER) == 3
    assert not [name for name, _ in scrape.samples if name.endswith("consumer_open")]


async def test_clients_that_share_a_registry_are_added_up(
    transport: MemoryTransport, registry: CollectorRegistry
) -> None:
    for _ in range(2):
        metrics = prometheus.Metrics(registry)
        async with Client("memory://", transport=transport, observers=[metrics]) as client:
            consumer = await subscribe(client)
            transport.put("orders", b"x")
            await consumer.acknowledge(await consumer.receive())
            assert Scrape(registry).value("pulsar_client_encore_consumer_open", **OF_CONSUMER) == 1
    assert Scrape(registry).value(ACKED, **OF_CONSUMER) == 2


async def test_a_registry_keeps_no_consumer_alive(registry: CollectorRegistry) -> None:
    """A consumer whose loop has ended without a close leaves its counters."""
    metrics = prometheus.Metrics(registry)
    transport = MemoryTransport()
    client = Client("memory://", transport=transport)
    consumer = await subscribe(client)
    metrics.consumer_opened(consumer)
    transport.put("orders", b"x")
    await consumer.acknowledge(await consumer.receive())
    assert Scrape(registry).value(ACKED, **OF_CONSUMER) == 1
    await client.close()  # which tells this observer nothing
    del consumer, client, transport
    gc.collect()
    scrape = Scrape(registry)
    assert scrape.value(ACKED, **OF_CONSUMER) == 1
    assert "pulsar_client_encore_consumer_open" not in scrape.families


# Labels


async def test_a_short_list_has_its_topics_and_its_sums(
    client: Client, transport: MemoryTransport, registry: CollectorRegistry
) -> None:
    consumer = await subscribe(client, ["orders", "parcels"])
    for topic in ("orders", "parcels", "parcels"):
        transport.put(topic, b"x")
        await consumer.acknowledge(await consumer.receive())
    scrape = Scrape(registry)
    parcels = "persistent://public/default/parcels"
    assert scrape.value(ACKED, **OF_CONSUMER) == 1
    assert scrape.value(ACKED, topic=parcels, subscription="billing") == 2
    assert scrape.value(CONSUMED, topic="billing", subscription="billing") == 3


@pytest.mark.parametrize("topic_label", [None, "topic"])
@pytest.mark.parametrize("is_pattern", [False, True])
async def test_a_pattern_and_a_long_list_have_the_subscription(
    transport: MemoryTransport, registry: CollectorRegistry, topic_label: Any, is_pattern: bool
) -> None:
    names = [f"orders-{number}" for number in range(21)]
    for name in names:
        transport.put(name, b"x")
    metrics = prometheus.Metrics(registry, topic_label=topic_label)
    async with Client("memory://", transport=transport, observers=[metrics]) as client:
        consumer = await subscribe(client, re.compile("orders-.*") if is_pattern else names)
        for _ in names:
            await consumer.acknowledge(await consumer.receive())
        await consumer.close()
        for name in names:
            transport.put(name, b"x")
        topics = re.compile("orders-.*") if is_pattern else names
        async with running(client, _ignore, topics) as worker:
            await until(lambda: worker.report().succeeded == 21)
        scrape = Scrape(registry)
    full = {f"persistent://public/default/{name}" for name in names}
    expected = full if topic_label else {"billing"}
    assert scrape.labels(ACKED, "topic") == expected
    assert scrape.labels(PROCESSED, "topic") == expected
    assert scrape.labels(CONSUMED, "topic") == {"billing"}


async def _ignore(value: bytes) -> None: ...


async def test_partitions_have_the_label_of_their_topic(
    client: Client, transport: MemoryTransport, registry: CollectorRegistry
) -> None:
    transport.catalogue.create_partitioned(ORDERS, 3)
    consumer = await subscribe(client)
    async with client.create_producer("orders") as producer:
        for number in range(9):
            await producer.send(b"x", partition_key=str(number))
    for _ in range(9):
        await consumer.acknowledge(await consumer.receive())
    scrape = Scrape(registry)
    assert scrape.labels(ACKED, "topic") == {ORDERS}
    assert scrape.labels("messaging_client_sent_messages_total", "topic") == {ORDERS}
    assert scrape.value(ACKED, **OF_CONSUMER) == 9


async def test_errors_and_topics_of_a_program_that_makes_ever_new_ones_are_bounded(
    registry: CollectorRegistry,
) -> None:
    meter = prometheus.Metrics(registry).call_meter("w", "s")
    for number in range(3000):
        error = type(f"Error{number}", (Exception,), {})("text")
        meter.failed(f"topic-{number}", 1.0, error)
    scrape = Scrape(registry)
    assert len(scrape.labels(PROCESSED, "error_type")) == 101
    assert len(scrape.labels(PROCESSED, "topic")) == 2001
    other = {"topic": "_OTHER", "subscription": "s", "worker": "w", "error_type": "_OTHER"}
    assert scrape.value(PROCESSED, **other) == 1000
    assert "text" not in scrape.text.replace("# ", "").split()


# Producers


async def test_a_producer(client: Client, registry: CollectorRegistry) -> None:
    async with client.create_producer("orders") as producer:
        await producer.send(b"four")
        await producer.send(b"fives")
        scrape = Scrape(registry)
        assert scrape.value("pulsar_client_encore_producer_connected", topic=ORDERS) == 1
    scrape = Scrape(registry)
    success = {"topic": ORDERS, "error_type": ""}
    assert scrape.value("messaging_client_sent_messages_total", **success) == 2
    assert scrape.value("messaging_client_operation_duration_seconds_count", **success) == 2
    assert scrape.value("pulsar_client_producer_message_send_size_bytes_total", topic=ORDERS) == 9
    assert scrape.value("pulsar_client_producer_message_pending_count", topic=ORDERS) == 0
    assert scrape.value("pulsar_client_producer_closed_total", topic=ORDERS) == 1


async def test_a_failed_send_has_the_type_of_its_error(registry: CollectorRegistry) -> None:
    meter = prometheus.Metrics(registry).send_meter(ORDERS)
    begun_s = meter.begin()
    assert Scrape(registry).value("pulsar_client_producer_message_pending_count", topic=ORDERS) == 1
    await asyncio.sleep(3)
    meter.failed(begun_s, TimeoutError("slow"))
    scrape = Scrape(registry)
    labels = {"topic": ORDERS, "error_type": "TimeoutError"}
    assert scrape.value("messaging_client_sent_messages_total", **labels) == 1
    name = "messaging_client_operation_duration_seconds"
    assert scrape.value(f"{name}_sum", **labels) == 3
    assert scrape.value(f"{name}_bucket", le="2.5", **labels) == 0
    assert scrape.value(f"{name}_bucket", le="5.0", **labels) == 1
    assert scrape.value(f"{name}_bucket", le="+Inf", **labels) == 1


# Workers


async def test_a_worker(
    client: Client, transport: MemoryTransport, registry: CollectorRegistry
) -> None:
    async def bill(value: bytes) -> None:
        await asyncio.sleep(0.3)
        if value == b"bad":
            raise ValueError("bad")
        if value == b"worse":
            raise encore.Reject("worse")

    for value in (b"good", b"bad", b"worse"):
        transport.put("orders", value)
    retry = encore.RetryPolicy(attempts=2)
    async with running(client, bill, "orders", retry=retry, name="biller") as worker:
        await until(lambda: worker.report().rejected == 2)
        scrape = Scrape(registry)
        own = "pulsar_client_encore_worker_"
        expected = {
            "received_total": 4,
            "succeeded_total": 1,
            "failed_total": 3,
            "rejected_total": 2,
            "running": 0,
            "ready": 1,
            "started_total": 1,
        }
        assert {name: scrape.value(own + name, worker="biller") for name in expected} == expected
        assert scrape.value(f"{own}breaker_open", worker="biller") == 0
        for state, count in {"running": 1, "draining": 0, "failed": 0}.items():
            assert scrape.value(f"{own}state", worker="biller", state=state) == count
    scrape = Scrape(registry)
    labels = {**OF_CONSUMER, "worker": "biller"}
    counts = {
        error_type: scrape.value(PROCESSED, **labels, error_type=error_type)
        for error_type in scrape.labels(PROCESSED, "error_type")
    }
    assert counts == {"": 1, "ValueError": 2, "pulsar_encore.Reject": 1}
    total = scrape.value("messaging_process_duration_seconds_sum", **labels, error_type="")
    assert total == pytest.approx(0.3)
    assert scrape.value(f"{own}received_total", worker="biller") == 4
    assert scrape.value(f"{own}ended_total", worker="biller", error_type="") == 1
    assert f"{own}ready" not in scrape.families
    assert scrape.value("pulsar_client_consumer_message_dlq_total", **OF_CONSUMER) == 2


async def test_a_worker_that_failed_has_the_type_of_its_error(
    client: Client, registry: CollectorRegistry
) -> None:
    async with client.subscribe("orders", "billing"):  # Exclusive: the worker cannot subscribe
        worker = encore.Worker(client, "orders", "billing", _ignore, name="w", start_retry=False)
        with pytest.raises(encore.EncoreError) as raised:
            await worker.run()
    scrape = Scrape(registry)
    kinds = scrape.labels("pulsar_client_encore_worker_ended_total", "error_type")
    assert kinds == {error_type(raised.value)} == {"pulsar_encore.errors.ConsumerBusy"}
    state = {"worker": "w", "state": "failed"}
    assert scrape.value("pulsar_client_encore_worker_state", **state) == 1
    async with running(client, _ignore, "orders", name="w"):
        assert Scrape(registry).value("pulsar_client_encore_worker_state", **state) == 0


async def test_the_breaker_of_a_worker(
    client: Client, transport: MemoryTransport, registry: CollectorRegistry
) -> None:
    is_away = True

    async def bill(value: bytes) -> None:
        if is_away:
            raise ConnectionError("away")

    def breaker() -> tuple[float, float]:
        scrape = Scrape(registry)
        own = "pulsar_client_encore_worker_breaker_"
        return (
            scrape.value(f"{own}open", worker="w"),
            scrape.value(f"{own}openings_total", worker="w"),
        )

    for _ in range(20):
        transport.put("orders", b"x")
    options = {"breaker": encore.Breaker(on=ConnectionError, failures=3), "name": "w"}
    async with running(client, bill, "orders", **options) as worker:
        await until(lambda: not worker.health().ready or worker.health().reasons != ())
        assert breaker() == (1, 1)
        is_away = False
        await until(lambda: worker.report().succeeded == 20)
        assert breaker() == (0, 1)


# PIP-195


async def test_the_metrics_of_pip_195_have_the_names_of_the_broker(
    client: Client, transport: MemoryTransport, registry: CollectorRegistry, tmp_path: Any
) -> None:
    index = encore.SpillingNackIndex(tmp_path)
    consumer = await subscribe(client, nack_index=index, negative_ack_redelivery_delay_ms=60_000)
    transport.put("orders", b"x")
    await consumer.negative_acknowledge(await consumer.receive())
    scrape = Scrape(registry)
    name = "pulsar_delayed_message_index_"
    for sample in consumer.metrics():
        labels = {**sample.labels, "topic": ORDERS}
        assert scrape.value(sample.name, **labels) == sample.value, sample
    assert scrape.value(f"{name}loaded", **OF_CONSUMER) == 1
    assert len([each for each in scrape.families if each.startswith(name)]) == 7
    count = scrape.value(f"{name}bucket_op_count", **OF_CONSUMER, state="all", type="create")
    await consumer.close()
    scrape = Scrape(registry)
    again = scrape.value(f"{name}bucket_op_count", **OF_CONSUMER, state="all", type="create")
    assert again >= count
    assert scrape.value(CONSUMED, **OF_CONSUMER) == 1


# Names


def test_every_metric_is_named_and_labelled_as_the_table_says(
    registry: CollectorRegistry,
) -> None:
    prometheus.Metrics(registry)
    names = [each.prometheus_name for each in INSTRUMENTS]
    assert len(set(names)) == len(names)
    for each in INSTRUMENTS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", each.prometheus_name)
        if not each.keeps_name:
            assert each.prometheus_name.endswith("_total") == (each.kind == "counter")
        assert each.help.endswith(".")


def test_a_registry_with_a_metric_of_the_same_name() -> None:
    registry = CollectorRegistry()
    Counter("pulsar_client_consumer_opened", "Mine.", registry=registry)
    with pytest.raises(ConfigurationError, match="CollectorRegistry of its own"):
        prometheus.Metrics(registry)


@pytest.mark.parametrize("options", [{"topic_label": "all"}, {"registry": "default"}])
def test_wrong_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="must be"):
        prometheus.Metrics(**options)


def test_without_prometheus_client_the_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "try:\n    import pulsar_encore.prometheus\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SDK)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith("ConfigurationError")
    assert "extra prometheus" in done.stdout


async def test_the_name_of_an_error_never_breaks_a_scrape(
    client: Client, transport: MemoryTransport, registry: CollectorRegistry
) -> None:
    kind = type('A"\n', (Exception,), {"__module__": "m\ud800"})

    async def fail(value: bytes) -> None:
        raise kind

    transport.put("orders", b"x")
    retry = encore.RetryPolicy(attempts=1)
    async with running(client, fail, "orders", name="w", retry=retry) as worker:
        await until(lambda: worker.report().failed == 1)
    assert Scrape(registry).labels(PROCESSED, "error_type") == {'m\\ud800.A"\n'}


async def test_subscriptions_and_workers_have_a_limit(
    client: Client, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(value: bytes) -> None:
        pass

    monkeypatch.setattr(topic_labels, "MAX_NAMES", 2)
    for number in range(4):
        subscription = f"s{number}"
        async with client.subscribe("orders", subscription, ConsumerType.Shared):
            pass
        async with encore.Worker(client, "orders", subscription, nothing, name=f"w{number}"):
            pass
    scrape = Scrape(registry)
    assert scrape.labels(CONSUMED, "subscription") == {"s0", "s1", "_OTHER"}
    assert scrape.value("pulsar_client_encore_worker_started_total", worker="_OTHER") == 2
    assert scrape.labels("pulsar_client_encore_worker_ended_total", "worker") == {
        "w0",
        "w1",
        "_OTHER",
    }
    other = {"topic": ORDERS, "subscription": "_OTHER"}
    assert scrape.value("pulsar_client_consumer_closed_total", **other) == 4
