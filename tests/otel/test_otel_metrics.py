"""`otel.Metrics` exports the same instruments by OpenTelemetry's API."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint, Sum

import pulsar_encore as encore
from pulsar_encore import Client, otel
from pulsar_encore.observability.instruments import INSTRUMENTS
from pulsar_encore.testing import MemoryTransport
from tests.worker.worker_kit import running, until

ORDERS = "persistent://public/default/orders"


class Collected:
    """The data of one collection of a reader."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        data = reader.get_metrics_data()
        scopes = data.resource_metrics[0].scope_metrics if data is not None else []
        self.metrics = {each.name: each for scope in scopes for each in scope.metrics}

    def points(self, name: str) -> list[Any]:
        return list(self.metrics[name].data.data_points)

    def value(self, name: str) -> float:
        [point] = self.points(name)
        assert isinstance(point, NumberDataPoint)
        return point.value


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


async def bill(value: bytes) -> None:
    await asyncio.sleep(0.3)
    if value == b"bad":
        raise encore.Reject("bad")


async def test_a_worker_and_a_producer(
    transport: MemoryTransport, reader: InMemoryMetricReader
) -> None:
    observer = otel.Metrics(MeterProvider([reader]))
    async with Client("memory://", transport=transport, observers=[observer]) as client:
        async with client.create_producer("orders") as producer:
            for value in (b"good", b"bad"):
                await producer.send(value)
        async with running(client, bill, "orders", name="biller") as worker:
            await until(lambda: worker.report().received == 2 and worker.health().running == 0)
            during = Collected(reader)
    after = Collected(reader)
    assert during.value("pulsar.client.encore.worker.ready") == 1
    assert "pulsar.client.encore.worker.ready" not in after.metrics
    for name, expected in {
        "messaging.client.sent.messages": 2,
        "messaging.client.consumed.messages": 2,
        "pulsar.client.consumer.message.ack": 1,
        "pulsar.client.consumer.message.dlq": 1,
        "pulsar.client.producer.message.send.size": 7,
    }.items():
        assert after.value(name) == expected, name
        data = after.metrics[name].data
        assert isinstance(data, Sum)
        assert data.is_monotonic
    [received] = after.points("messaging.client.consumed.messages")
    assert dict(received.attributes) == {
        "messaging.system": "pulsar",
        "messaging.operation.name": "receive",
        "messaging.destination.name": ORDERS,
        "messaging.destination.subscription.name": "billing",
    }
    calls = {
        point.attributes.get("error.type"): point
        for point in after.points("messaging.process.duration")
    }
    assert {kind: point.count for kind, point in calls.items()} == {
        None: 1,
        _name_of(encore.Reject): 1,
    }
    assert calls[None].sum == pytest.approx(0.3)
    assert calls[None].explicit_bounds[0] == 0.005
    assert calls[None].attributes["messaging.operation.name"] == "process"
    assert calls[None].attributes["pulsar_encore.worker"] == "biller"


def _name_of(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


async def test_a_pattern_has_no_destination(
    transport: MemoryTransport, reader: InMemoryMetricReader
) -> None:
    transport.put("orders-1", b"x")
    observer = otel.Metrics(MeterProvider([reader]))
    async with Client("memory://", transport=transport, observers=[observer]) as client:
        async with running(client, bill, re.compile("orders-.*")) as worker:
            await until(lambda: worker.report().succeeded == 1)
        collected = Collected(reader)
    for name in ("messaging.client.consumed.messages", "messaging.process.duration"):
        [point] = collected.points(name)
        assert "messaging.destination.name" not in point.attributes
        assert point.attributes["messaging.destination.subscription.name"] == "billing"


async def test_units_are_those_of_the_table(
    transport: MemoryTransport, reader: InMemoryMetricReader
) -> None:
    observer = otel.Metrics(MeterProvider([reader]))
    async with Client("memory://", transport=transport, observers=[observer]) as client:
        async with running(client, bill, "orders"):
            collected = Collected(reader)
    units = {each.name: each.unit for each in INSTRUMENTS}
    assert collected.metrics
    assert {name: each.unit for name, each in collected.metrics.items()} == {
        name: units[name] for name in collected.metrics
    }


async def test_each_collection_reads_anew_and_two_readers_agree(transport: MemoryTransport) -> None:
    readers = [InMemoryMetricReader(), InMemoryMetricReader()]
    observer = otel.Metrics(MeterProvider(readers))
    async with Client("memory://", transport=transport, observers=[observer]) as client:
        consumer = await client.subscribe("orders", "billing")
        for count in (1, 2, 3):
            transport.put("orders", b"x")
            await consumer.acknowledge(await consumer.receive())
            for reader in readers:
                assert Collected(reader).value("pulsar.client.consumer.message.ack") == count


async def test_a_provider_that_fails_breaks_no_send_and_is_logged_once(
    transport: MemoryTransport, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("broken")

    provider = MeterProvider([InMemoryMetricReader()])
    meter = provider.get_meter("pulsar_encore")
    monkeypatch.setattr(type(meter.create_histogram("any")), "record", fail)
    async with Client(
        "memory://", transport=transport, observers=[otel.Metrics(provider)]
    ) as client:
        async with client.create_producer("orders") as producer:
            for _ in range(3):
                await producer.send(b"x")
    lines = [each.getMessage() for each in caplog.records]
    assert lines == ["the meter provider cannot record a duration; further errors are not logged"]
