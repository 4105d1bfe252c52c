"""Metrics of a worker on a real broker, scraped over HTTP, on both transports."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import pulsar_encore as encore
from pulsar_encore import prometheus
from tests.harness.pulsar_server import Server

# looptime's plugin requests a loop before every synchronous test; see the contract's fixtures.
asyncio.set_event_loop(None)


async def values_of(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    def fetch() -> str:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    text = await asyncio.to_thread(fetch)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("transport", ["native", "stock"])
async def test_a_worker_is_scraped(pulsar: Server, topic: str, transport: str) -> None:
    registry = CollectorRegistry()
    metrics = prometheus.Metrics(registry)

    ended, left = asyncio.Event(), 51

    async def bill(value: bytes) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            ended.set()
        if value == b"bad":
            raise ConnectionError("away")

    async with encore.Client(
        pulsar.service_url, transport=transport, observers=[metrics]
    ) as client:
        worker = encore.Worker(
            client,
            topic,
            "billing",
            bill,
            retry=encore.RetryPolicy(attempts=2, backoff=[0.1]),
            initial_position=encore.InitialPosition.Earliest,
            name="w",
        )
        server = encore.health.serve(worker, port=0, metrics=registry)
        async with worker, server, client.create_producer(topic) as producer:
            for number in range(50):
                await producer.send(b"bad" if number == 7 else b"good")
            async with asyncio.timeout(30):
                await ended.wait()
            await asyncio.sleep(1)  # the last dead letter or ack is on its way
            values = await values_of(server.port)
    of_consumer = (("subscription", "billing"), ("topic", topic))
    of_worker = (("worker", "w"),)
    success = (("error_type", ""), ("topic", topic))
    for name, labels, expected in (
        ("messaging_client_sent_messages_total", success, 50),
        ("messaging_client_operation_duration_seconds_count", success, 50),
        ("messaging_client_consumed_messages_total", of_consumer, 51),
        ("pulsar_client_consumer_message_ack_total", of_consumer, 49),
        ("pulsar_client_consumer_message_dlq_total", of_consumer, 1),
        ("pulsar_client_encore_consumer_connected", of_consumer, 1),
        ("pulsar_client_encore_worker_failed_total", of_worker, 2),
        ("pulsar_client_encore_worker_ready", of_worker, 1),
        ("pulsar_client_encore_snapshot_age_seconds", (), 0),
    ):
        assert values[name, labels] == expected, name
    calls = {
        dict(labels)["error_type"]: value
        for (name, labels), value in values.items()
        if name == "messaging_process_duration_seconds_count"
    }
    assert calls == {"": 49, "ConnectionError": 2}
