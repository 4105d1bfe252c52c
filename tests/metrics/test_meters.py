"""Meters take the place of events, beside observers that get events."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import pulsar_encore as encore
from pulsar_encore import Client, prometheus
from pulsar_encore.testing import MemoryTransport
from tests.metrics.scrape import OF_CONSUMER, ORDERS, Scrape
from tests.observability.recording import Recording
from tests.worker.worker_kit import running, running_lists, until

COUNT = "messaging_process_duration_seconds_count"


async def bill(value: Any) -> None:
    if value in (b"bad", [b"bad"]):
        raise encore.Reject("bad")


@pytest.mark.parametrize("run", [running, running_lists])
@pytest.mark.parametrize("has_events", [False, True])
@pytest.mark.parametrize("order", ["none", "partition"])
async def test_calls_are_counted_once_with_and_without_events(
    transport: MemoryTransport,
    registry: CollectorRegistry,
    run: Any,
    has_events: bool,
    order: str,
) -> None:
    seen = Recording()
    observers = [prometheus.Metrics(registry), *([seen] if has_events else [])]
    for value in (b"good", b"bad"):
        transport.put("orders", value, key="k")
    options: dict[str, Any] = {"order": order, "name": "w"}
    if run is running_lists:
        options["max_messages"] = 1
    async with Client("memory://", transport=transport, observers=observers) as client:
        async with run(client, bill, "orders", **options) as worker:
            await until(lambda: worker.report().rejected == 1)
    scrape = Scrape(registry)
    labels = {**OF_CONSUMER, "worker": "w"}
    kinds = scrape.labels(COUNT, "error_type")
    assert len(kinds) == 2
    assert [scrape.value(COUNT, **labels, error_type=kind) for kind in kinds] == [1, 1]
    if has_events:
        assert [result for result, _ in seen.ends()] == ["success", "failure"]


async def test_a_call_that_the_drain_ends_is_no_failure(
    client: Client, transport: MemoryTransport, registry: CollectorRegistry
) -> None:
    async def hang(value: bytes) -> None:
        await asyncio.sleep(1000)

    transport.put("orders", b"x")
    async with running(client, hang, "orders", name="w", drain=5) as worker:
        await until(lambda: worker.health().running == 1)
    assert Scrape(registry).labels(COUNT, "error_type") == {""}


@pytest.mark.parametrize("has_events", [False, True])
async def test_sends_are_counted_once_with_and_without_events(
    transport: MemoryTransport, registry: CollectorRegistry, has_events: bool
) -> None:
    observers = [prometheus.Metrics(registry), *([Recording()] if has_events else [])]
    results: list[Any] = []
    async with Client("memory://", transport=transport, observers=observers) as client:
        async with client.create_producer("orders") as producer:
            await producer.send(b"x")
            producer.send_async(b"x", lambda result, _: results.append(result))
            await producer.flush()
            cancelled = asyncio.create_task(producer.send(b"x"))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.gather(cancelled, return_exceptions=True)
    assert results == [encore.Result.Ok]
    scrape = Scrape(registry)
    name = "messaging_client_sent_messages_total"
    assert scrape.value(name, topic=ORDERS, error_type="") == 2
    assert scrape.value(name, topic=ORDERS, error_type="asyncio.exceptions.CancelledError") == 1
    assert scrape.value("pulsar_client_producer_message_pending_count", topic=ORDERS) == 0


async def test_a_meter_that_raises_is_logged_once_and_breaks_nothing(
    transport: MemoryTransport, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(encore.Observer):
        def call_meter(self, worker: str, subscription: str) -> Broken:
            return self

        def succeeded(self, *arguments: Any) -> None:
            raise RuntimeError("broken")

    caplog.set_level(logging.ERROR, "pulsar_encore")
    transport.put("orders", *[b"x"] * 3)
    observers = [Broken(), prometheus.Metrics(registry)]
    async with Client("memory://", transport=transport, observers=observers) as client:
        async with running(client, bill, "orders", name="w") as worker:
            await until(lambda: worker.report().succeeded == 3)
    assert len(caplog.records) == 1
    labels = {**OF_CONSUMER, "worker": "w", "error_type": ""}
    assert Scrape(registry).value(COUNT, **labels) == 3


async def test_a_subclass_that_overrides_a_measured_method_is_called(
    transport: MemoryTransport, registry: CollectorRegistry
) -> None:
    class Loud(prometheus.Metrics):
        def __init__(self) -> None:
            super().__init__(registry)
            self.seen: list[str] = []

        def handler_ended(self, call: encore.HandlerCall, end: encore.HandlerEnd) -> None:
            super().handler_ended(call, end)
            self.seen.append(end.result)

        def sent(self, sending: encore.Sending, error: BaseException | None) -> None:
            super().sent(sending, error)
            self.seen.append("sent")

    loud = Loud()
    async with Client("memory://", transport=transport, observers=[loud]) as client:
        async with client.create_producer("orders") as producer:
            await producer.send(b"good")
        async with running(client, bill, "orders", name="w") as worker:
            await until(lambda: worker.report().succeeded == 1)
    assert loud.seen == ["sent", "success"]
    scrape = Scrape(registry)
    labels = {**OF_CONSUMER, "worker": "w", "error_type": ""}
    assert scrape.value(COUNT, **labels) == 1
    of_sends = {"topic": ORDERS, "error_type": ""}
    assert scrape.value("messaging_client_sent_messages_total", **of_sends) == 1
    assert scrape.value("pulsar_client_producer_message_pending_count", topic=ORDERS) == 0
