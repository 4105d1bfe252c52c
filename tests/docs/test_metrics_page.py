"""The Python blocks of `docs/metrics.md` run, and its tables are those of the code."""

from __future__ import annotations

import asyncio
from typing import Any

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

import pulsar_encore as encore
from pulsar_encore import Client, prometheus
from pulsar_encore.observability import error_types, instruments, topic_labels
from pulsar_encore.otel.metrics import attributes_of
from pulsar_encore.testing import MemoryTransport
from tests.harness.metrics_table import lines
from tests.harness.pages import blocks_of, run_block, text_of

PAGE = text_of("metrics.md")
PROMETHEUS, OTEL = blocks_of("metrics.md")


async def test_five_lines_export_the_metrics_of_a_worker(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry()
    ports: list[int] = []
    made = prometheus.Metrics
    monkeypatch.setattr(prometheus_client, "start_http_server", ports.append)
    monkeypatch.setattr(prometheus, "Metrics", lambda: made(registry))
    monkeypatch.setattr(
        encore, "Client", lambda url, **options: Client(url, transport=transport, **options)
    )
    billed: list[bytes] = []

    async def bill(value: bytes) -> None:
        billed.append(value)

    async def run(worker: encore.Worker[Any]) -> None:
        async with worker:
            transport.put("orders", b"one")
            await asyncio.sleep(1)

    monkeypatch.setattr(encore, "run", run)
    names: dict[str, Any] = {"bill": bill}
    await run_block(PROMETHEUS, names)
    await names["client"].close()
    assert (billed, ports) == ([b"one"], [9000])
    count = registry.get_sample_value(
        "pulsar_client_encore_worker_succeeded_total", {"worker": "orders/billing"}
    )
    assert count == 1


async def test_the_block_of_opentelemetry(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        encore, "Client", lambda url, **options: Client(url, transport=transport, **options)
    )
    names: dict[str, Any] = {"encore": encore}
    await run_block(OTEL, names)
    await names["client"].close()


def test_the_table_has_every_metric() -> None:
    """`python -m tests.harness.metrics_table` prints the table."""
    assert PAGE.endswith("## All metrics\n\n" + "\n".join(lines()) + "\n")


def test_the_table_of_labels_has_every_label_and_attribute() -> None:
    table = PAGE.partition("## Labels")[2].partition("\n- **")[0]
    for each in instruments.INSTRUMENTS:
        if each.name in instruments.PIP_195:
            continue
        values = tuple("persistent://a/b/c" for _ in each.labels)
        attributes = set(attributes_of(each, values)) - {
            "messaging.system",
            "messaging.operation.name",
        }
        for name in {*each.labels, *attributes}:
            assert f"`{name}`" in table, name


def test_the_limits_of_the_page_are_those_of_the_code() -> None:
    assert f"list of more than {topic_labels.MAX_LISTED} topics" in PAGE
    assert f"After {topic_labels.MAX_NAMES:,} topics" in PAGE
    assert f"After {error_types.MAX_TYPES} classes, `{error_types.OTHER}`" in PAGE
