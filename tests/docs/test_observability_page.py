"""The program of `docs/observability.md` gives each signal, and every name on it exists."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

import pulsar_encore as encore
from pulsar_encore import Client, prometheus
from pulsar_encore.observability.instruments import INSTRUMENTS
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import DOCS, blocks_of, run_block, text_of

PAGE = text_of("observability.md")
(PROGRAM,) = blocks_of("observability.md")


async def test_one_program_serves_probes_and_metrics(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry()
    made, serve = prometheus.Metrics, encore.health.serve
    monkeypatch.setattr(prometheus, "Metrics", lambda: made(registry))
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    monkeypatch.setattr(
        encore,
        "Client",
        lambda url, **options: Client(url, transport=transport, **options),
    )
    servers: list[Any] = []

    def serve_free_port(*workers: encore.Worker[Any], port: int) -> Any:
        assert port == 9000
        servers.append(serve(*workers, port=0, host="127.0.0.1", metrics=registry))
        return servers[-1]

    monkeypatch.setattr(encore.health, "serve", serve_free_port)
    answers: dict[str, str] = {}

    async def run(worker: encore.Worker[Any]) -> None:
        async with worker:
            transport.put("orders", b"one")
            while worker.report().succeeded == 0:
                await asyncio.sleep(0.01)
            for path in ("/live", "/ready", "/metrics"):
                answers[path] = await _get(servers[0].port, path)

    monkeypatch.setattr(encore, "run", run)

    async def bill(value: bytes) -> None: ...

    await run_block(PROGRAM, {"bill": bill})
    for path in ("/live", "/ready", "/metrics"):
        assert " 200 " in answers[path].splitlines()[0], path
    assert "pulsar_client_encore_worker_succeeded_total" in answers["/metrics"]


async def _get(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer.decode()


def test_every_metric_and_alert_of_the_page_exists() -> None:
    known = {each.prometheus_name for each in INSTRUMENTS}
    known |= {f"{each}_count" for each in known}
    named = set(re.findall(r"\b(?:pulsar_client|messaging)_\w+", PAGE))
    assert named
    assert named <= known
    rules = (DOCS.parent / "docker" / "alerts.yaml").read_text(encoding="utf-8")
    alerts = set(re.findall(r"alert: (\w+)", rules))
    assert len(alerts) == 11
    assert {"DeadLetters", "WorkerNotReady", "ProcessGone", "Backlog"} <= alerts
    dashboard = (DOCS.parent / "docker" / "grafana" / "dashboard.json").read_text(encoding="utf-8")
    assert '"Pulsar consumers and workers"' in dashboard
