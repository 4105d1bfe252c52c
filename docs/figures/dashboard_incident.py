"""Play an incident, and record the answers of a real Prometheus to the queries of the dashboard.

Everything runs on this machine: a development broker, a shop that sends orders, two workers that
bill them, and a Prometheus that scrapes all three. Only the program `prometheus` must be installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import prometheus_client

import pulsar_encore as encore
from pulsar_encore import prometheus
from pulsar_encore.devbroker import Broker, BrokerSettings
from pulsar_encore.version import VERSION
from tests.harness.pulsar_server import free_port

SCRAPE_S: Final = 2
#: Grafana's `$__rate_interval` is at least four scrapes.
RATE_INTERVAL_S: Final = 4 * SCRAPE_S
WARM_UP_S: Final = 20  # before the picture begins, so that its first rates have values
SECONDS: Final = 240

POISON_S: Final = (40.0, 215.0)
AWAY_S: Final = (75.0, 135.0)
CONNECTIONS_LOST_S: Final = 195.0

ORDERS_PER_S: Final = 60
CONCURRENCY: Final = 10
CALL_S: Final = 0.08  # median of a handler call
BUSY_SHARE: Final = 0.03
#: Far below the 50,000 of a real broker, so that the panel of the window is not flat.
WINDOW: Final = 200


class Incident:
    """The orders, and the gateway that the handlers call.

    Attributes:
        away: True while the gateway does not answer.
    """

    def __init__(self) -> None:
        self.away: bool = False
        self._random = random.Random(1)

    async def bill(self, order: bytes, msg: encore.Message[bytes]) -> None:
        if self.away:
            await asyncio.sleep(0.5)
            raise ConnectionRefusedError("the payment gateway is away")
        await asyncio.sleep(CALL_S * self._random.lognormvariate(0, 0.5))
        if order == b"poison":
            raise ValueError("the total is negative")
        if order == b"busy" and msg.attempt == 1:
            raise encore.Retry(delay=2)

    async def send(self, producer: encore.Producer[bytes], order: bytes | None = None) -> None:
        if order is None:
            order = b"busy" if self._random.random() < BUSY_SHARE else b"order"
        await producer.send(order)

    async def send_orders(self, producer: encore.Producer[bytes]) -> None:
        """Send orders at a steady rate until the task is cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        async with asyncio.TaskGroup() as sends:
            while True:
                sends.create_task(self.send(producer))
                due += 1 / ORDERS_PER_S
                await asyncio.sleep(due - loop.time())

    async def play(self, broker: Broker, producer: encore.Producer[bytes]) -> None:
        """Let the events happen, from second 0 of the picture to its end."""
        loop = asyncio.get_running_loop()
        begin = loop.time()

        async def until(second: float) -> None:
            await asyncio.sleep(begin + second - loop.time())

        first, second = POISON_S
        await until(first)
        await self._send_poison(producer)
        await until(AWAY_S[0])
        self.away = True
        await until(AWAY_S[1])
        self.away = False
        await until(CONNECTIONS_LOST_S)
        broker.drop_connections()
        await until(second)
        await self._send_poison(producer)
        await until(SECONDS)

    async def _send_poison(self, producer: encore.Producer[bytes]) -> None:
        for _ in range(4):
            await self.send(producer, b"poison")


def billing(client: encore.Client, incident: Incident) -> encore.Worker[bytes]:
    return encore.Worker(
        client,
        "orders",
        "billing",
        incident.bill,
        concurrency=CONCURRENCY,
        retry=encore.RetryPolicy(attempts=3, backoff=[2, 5], letters_after=4),
        breaker=encore.Breaker(on=ConnectionError, pause=5),
        initial_position=encore.InitialPosition.Earliest,
        options=encore.SubscribeOptions(max_unacked_messages=WINDOW),
    )


async def record(dashboard: dict[str, Any]) -> dict[str, Any]:
    """Play the incident, and return the answers to each query of the dashboard.

    Raises:
        SystemExit: if the program `prometheus` is not installed.
    """
    program = shutil.which("prometheus")
    if program is None:
        raise SystemExit("the program `prometheus` is not on the PATH: install it first")
    # The failures are part of the play. Their tracebacks would look like errors of this program.
    logging.getLogger("pulsar_encore").setLevel(logging.CRITICAL)
    incident = Incident()
    settings = BrokerSettings(max_unacked_per_consumer=WINDOW, record=False)
    registries = [prometheus_client.CollectorRegistry() for _ in range(3)]
    async with Broker(settings) as broker, contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                encore.Client(broker.url, observers=[prometheus.Metrics(registry)])
            )
            for registry in registries
        ]
        ports = []
        for client, registry in zip(clients[:2], registries[:2], strict=True):
            worker = await stack.enter_async_context(billing(client, incident))
            server = encore.health.serve(worker, host="127.0.0.1", port=0, metrics=registry)
            ports.append((await stack.enter_async_context(server)).port)
        producer = await clients[2].create_producer("orders")
        shop, _ = prometheus_client.start_http_server(0, "127.0.0.1", registries[2])
        stack.callback(shop.shutdown)
        ports.append(shop.server_port)
        url = stack.enter_context(running_prometheus(program, ports))
        sends = asyncio.create_task(incident.send_orders(producer))
        await asyncio.sleep(WARM_UP_S)
        start = time.time()
        await incident.play(broker, producer)
        answers = await asyncio.to_thread(answers_of, url, dashboard, start)
        version = (await asyncio.to_thread(ask, url, "status/buildinfo"))["version"]
        sends.cancel()
        await asyncio.wait([sends])
    return {
        "versions": {
            "prometheus": version,
            "python": platform.python_version(),
            "pulsar-encore": VERSION,
        },
        "scrape_interval_s": SCRAPE_S,
        "rate_interval_s": RATE_INTERVAL_S,
        "seconds": SECONDS,
        "step_s": SCRAPE_S,
        "away_s": list(AWAY_S),
        "panels": answers,
    }


@contextlib.contextmanager
def running_prometheus(program: str, ports: list[int]) -> Iterator[str]:
    """Start a Prometheus that scrapes these ports, and yield the URL of its API."""
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = {
            "global": {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": f"{SCRAPE_S}s"},
            "scrape_configs": [
                {
                    "job_name": "workers",
                    "static_configs": [{"targets": [f"127.0.0.1:{each}" for each in ports]}],
                }
            ],
        }
        # Each JSON document is a YAML document too.
        (folder / "prometheus.yml").write_text(json.dumps(settings), "utf-8")
        command = [
            program,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error",
        ]
        with subprocess.Popen(command, stdout=sys.stderr) as child:
            try:
                url = f"http://127.0.0.1:{port}"
                _wait_until_ready(child, f"{url}/-/ready")
                yield f"{url}/api/v1"
            finally:
                child.terminate()


def _wait_until_ready(child: subprocess.Popen[bytes], url: str) -> None:
    for _ in range(300):
        if child.poll() is not None:
            break
        with contextlib.suppress(URLError), urlopen(url, timeout=5):
            return
        time.sleep(0.1)
    raise SystemExit("Prometheus does not start; its log is above")


def ask(url: str, path: str, **parameters: object) -> Any:
    """Return the data of an answer of the API."""
    with urlopen(f"{url}/{path}?{urlencode(parameters)}", timeout=30) as answer:
        return json.load(answer)["data"]


def answers_of(url: str, dashboard: dict[str, Any], start: float) -> list[dict[str, Any]]:
    """Return the series of each query of each panel."""
    found = []
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            continue
        targets = []
        for target in panel["targets"]:
            series = _series(url, filled(target["expr"], dashboard), start)
            if panel["type"] == "stat":
                _add_values(series, url, filled(target["expr"], dashboard), start)
            texts = {"expr": target["expr"], "legendFormat": target["legendFormat"]}
            targets.append({**texts, "series": series})
        found.append({"title": panel["title"], "targets": targets})
    return found


def filled(expression: str, dashboard: dict[str, Any]) -> str:
    """Return a query with the values of Grafana's variables: all topics, and the whole range."""
    values = {"__rate_interval": f"{RATE_INTERVAL_S}s", "__range": f"{SECONDS}s"}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            values[variable["name"]] = variable["allValue"]
    replaced: Callable[[re.Match[str]], str] = lambda name: values[name[1]]  # noqa: E731
    return re.sub(r"\$(\w+)", replaced, expression)


def _series(url: str, expression: str, start: float) -> list[dict[str, Any]]:
    end = start + SECONDS
    data = ask(url, "query_range", query=expression, start=start, end=end, step=SCRAPE_S)
    found = []
    for each in data["result"]:
        points: list[float | None] = [None] * (SECONDS // SCRAPE_S + 1)
        for moment, value in each["values"]:
            points[round((moment - start) / SCRAPE_S)] = rounded(value)
        found.append({"labels": each["metric"], "points": points})
    return sorted(found, key=lambda each: sorted(each["labels"].items()))


def _add_values(series: list[dict[str, Any]], url: str, expression: str, start: float) -> None:
    """Add the value at the end, which a stat panel shows."""
    data = ask(url, "query", query=expression, time=start + SECONDS)
    values = {json.dumps(each["metric"]): each["value"][1] for each in data["result"]}
    for each in series:
        each["value"] = rounded(values[json.dumps(each["labels"])])


def rounded(text: str) -> float | None:
    """Return a value with three digits, or None for a value that cannot be drawn."""
    value = float(text)
    return float(f"{value:.3g}") if math.isfinite(value) else None


def as_text(recorded: dict[str, Any]) -> str:
    """Return the recording as JSON, with one line for each series."""
    text = json.dumps(recorded, indent=1, ensure_ascii=False)
    # A list of numbers, or an object without others in it, goes onto one line.
    flat = re.compile(r"\[[^][{}\"]*\]|\{\s*\"labels\": \{[^{}]*\}[^{}]*\}")
    while (shorter := flat.sub(lambda found: re.sub(r"\n *", "", found[0]), text)) != text:
        text = shorter
    return re.sub(r"\b(\d+)\.0(?=[],}\n])", r"\1", text) + "\n"
