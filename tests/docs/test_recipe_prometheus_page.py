"""The program of `docs/recipes/prometheus.md` is scraped, and its tables name all metrics."""

from __future__ import annotations

import asyncio
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

import pulsar_encore as encore
from pulsar_encore import Client, prometheus
from pulsar_encore.observability.instruments import INSTRUMENTS
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import blocks_of, run_block, text_of

PAGE = text_of("recipes/prometheus.md")
(PROGRAM,) = blocks_of("recipes/prometheus.md")
(JOB,) = blocks_of("recipes/prometheus.md", "yaml")
ROOT = Path(__file__).resolve().parents[2]


async def test_the_program_is_scraped(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    registry = CollectorRegistry()
    made, serve, workers = prometheus.Metrics, encore.health.serve, []

    def serve_registry(worker: encore.Worker[Any], port: int) -> Any:
        workers.append(worker)
        return serve(worker, port=port, metrics=registry)

    monkeypatch.setattr(prometheus, "Metrics", lambda: made(registry))
    monkeypatch.setattr(encore.health, "serve", serve_registry)
    monkeypatch.setattr(
        encore, "Client", lambda url, **options: Client(url, transport=transport, **options)
    )
    names: dict[str, Any] = {"__name__": "recipe"}
    await run_block(replace(PROGRAM, code=PROGRAM.code.replace("9000", str(port))), names)
    running = asyncio.create_task(names["main"]())
    while not workers or not workers[0].health().ready:
        await asyncio.sleep(0.001)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    assert 'pulsar_client_encore_worker_ready{worker="orders/billing"} 1.0' in text
    workers[0].stop()
    await running


def test_the_job_and_the_alerts() -> None:
    [job] = yaml.safe_load(JOB.code)["scrape_configs"]
    assert job["job_name"] == "workers"
    rules = yaml.safe_load((ROOT / "docker" / "alerts.yaml").read_text("utf-8"))["groups"][0]
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == [
        each["alert"] for each in rules["rules"]
    ]
    exported = {each.prometheus_name for each in INSTRUMENTS}
    assert set(re.findall(r"`(pulsar_client\w+)`", PAGE)) <= exported
    for path in re.findall(r"`(docker/[\w/.]+)`", PAGE):
        assert (ROOT / path).exists(), path
