"""`encore.health.app` answers in an ASGI server."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore.testing import MemoryTransport


async def request(
    app: Any,
    path: str,
    *,
    method: str = "GET",
    root_path: str = "",
    headers: Mapping[str, str] | None = None,
    client: tuple[str, int] | None = ("127.0.0.1", 5000),
) -> tuple[int, Any, str]:
    """Call an application as a server does. Return the status, the body and its content type."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    named = {"host": "127.0.0.1:8000", **(headers or {})}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": root_path,
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
        "client": client,
    }
    await app(scope, receive, send)
    start, body = sent
    kind = dict(start["headers"])[b"content-type"].decode()
    text = body["body"]
    return start["status"], json.loads(text) if kind == "application/json" and text else text, kind


async def ignore(value: bytes) -> None: ...


class OtherLoop:
    """A worker on an event loop of another thread, which can be blocked."""

    def __init__(self, *observers: Any) -> None:
        self._observers = observers
        self.worker: encore.Worker[Any]
        self._begun = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._ends: asyncio.Event
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        self._loop, self._ends = asyncio.get_running_loop(), asyncio.Event()
        async with encore.Client(
            "pulsar://memory", transport=MemoryTransport(), observers=self._observers
        ) as client:
            self.worker = encore.Worker(client, "elsewhere", "s", ignore)
            async with self.worker:
                self._begun.set()
                await self._ends.wait()

    async def start(self) -> None:
        self._thread.start()
        await asyncio.to_thread(self._begun.wait)

    def block(self) -> threading.Event:
        """Block the loop until the result is set."""
        event, begun = threading.Event(), threading.Event()

        def wait() -> None:
            begun.set()
            event.wait(30)

        self._loop.call_soon_threadsafe(wait)
        begun.wait()
        return event

    async def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)
        await asyncio.to_thread(self._thread.join)


@asynccontextmanager
async def other_loop(*observers: Any) -> AsyncIterator[OtherLoop]:
    other = OtherLoop(*observers)
    await other.start()
    try:
        yield other
    finally:
        await other.stop()


async def test_the_answers_over_the_life_of_a_worker(client: encore.Client) -> None:
    worker = encore.Worker(client, "jobs", "s", ignore)
    app = encore.health.app(worker)
    assert (await request(app, "/live"))[0] == 200
    assert (await request(app, "/ready"))[0] == 503
    async with worker:
        status, body, kind = await request(app, "/ready")
        assert (status, body["ready"], kind) == (200, True, "application/json")
        assert (await request(app, "/ready", method="HEAD"))[:2] == (200, b"")
        assert (await request(app, "/ready", method="POST"))[0] == 405
        assert (await request(app, "/pending"))[0] == 404
        assert (await request(app, "/nothing"))[0] == 404
    assert (await request(app, "/live"))[0] == 503


@pytest.mark.parametrize(
    ("path", "root_path"),
    [("/live", ""), ("/health/live", "/health"), ("/live", "/health"), ("/api/h/live", "/api/h")],
)
async def test_a_prefix_is_removed(client: encore.Client, path: str, root_path: str) -> None:
    """Servers before ASGI 3 leave the prefix out of the path."""
    app = encore.health.app(encore.Worker(client, "jobs", "s", ignore))
    assert (await request(app, path, root_path=root_path))[0] == 200


async def test_it_is_mounted_in_fastapi(client: encore.Client) -> None:
    import fastapi

    api, nested = fastapi.FastAPI(), fastapi.FastAPI()
    worker = encore.Worker(client, "jobs", "s", ignore)
    api.mount("/health", encore.health.app(worker))
    nested.mount("/probes", encore.health.app(worker))
    api.mount("/nested", nested)
    for prefix in ("/health", "/nested/probes"):
        assert (await request(api, f"{prefix}/live"))[0] == 200
        assert (await request(api, f"{prefix}/nothing"))[0] == 404
        behind = await request(api, f"/proxied{prefix}/live", root_path="/proxied")
        assert behind[0] == 200


async def test_pending_is_for_clients_of_this_host(client: encore.Client) -> None:
    worker = encore.Worker(client, "jobs", "s", ignore)
    app = encore.health.app(worker, debug=True)
    async with worker:
        listed = {"workers": [{"name": "jobs/s", "pending": []}]}
        assert (await request(app, "/pending"))[:2] == (200, listed)
        refused: list[dict[str, Any]] = [
            {"client": ("10.0.0.9", 5000)},
            {"client": None},
            {"headers": {"host": "rebound.example"}},
            {"headers": {"x-forwarded-for": "10.0.0.9"}},
        ]
        for options in refused:
            assert (await request(app, "/pending", **options))[0] == 403, options


async def test_a_blocked_loop_of_another_thread_is_dead_after_the_limit(
    client: encore.Client,
) -> None:
    """The loop of the server goes on meanwhile, and so does its own worker."""
    from prometheus_client import CollectorRegistry

    from pulsar_encore import prometheus

    metrics = prometheus.Metrics(CollectorRegistry())
    worker = encore.Worker(client, "jobs", "s", ignore)
    async with other_loop(metrics) as other, worker:
        app = encore.health.app(worker, other.worker, limit=0.7, debug=True, metrics=metrics)
        status, body, _ = await request(app, "/ready")
        assert status == 200 and len(body["workers"]) == 2
        assert len((await request(app, "/pending"))[1]["workers"]) == 2
        release = other.block()
        longest_s = 0.0

        async def watch() -> None:
            nonlocal longest_s
            while True:
                began_s = time.monotonic()
                await asyncio.sleep(0.01)
                longest_s = max(longest_s, time.monotonic() - began_s)

        watching = asyncio.create_task(watch())
        assert (await request(app, "/live"))[0] == 200
        status, body, _ = await request(app, "/live")
        assert status == 503
        assert [each["live"] for each in body["workers"]] == [True, False]
        assert (await request(app, "/pending"))[0] == 503
        assert (await request(app, "/metrics"))[0] == 200
        await asyncio.sleep(0.05)  # a delay is seen after it
        watching.cancel()
        assert longest_s < 0.8
        release.set()
        assert (await request(app, "/live"))[0] == 200


async def test_the_format_of_metrics_is_the_one_that_the_client_accepts(
    client: encore.Client,
) -> None:
    from prometheus_client import CollectorRegistry, Counter

    registry = CollectorRegistry()
    Counter("orders", "Orders.", registry=registry).inc()
    app = encore.health.app(encore.Worker(client, "jobs", "s", ignore), metrics=registry)
    status, text, kind = await request(app, "/metrics")
    assert status == 200 and kind.startswith("text/plain") and b"# EOF" not in text
    accept = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    status, text, kind = await request(app, "/metrics", headers=accept)
    assert kind.startswith("application/openmetrics-text") and text.endswith(b"# EOF\n")


async def test_it_takes_part_in_the_lifespan_of_its_server(client: encore.Client) -> None:
    app = encore.health.app(encore.Worker(client, "jobs", "s", ignore))
    events, answers = iter(("startup", "shutdown")), []

    async def receive() -> dict[str, str]:
        return {"type": f"lifespan.{next(events)}"}

    async def send(message: dict[str, str]) -> None:
        answers.append(message["type"])

    await app({"type": "lifespan"}, receive, send)  # type: ignore[arg-type]
    assert answers == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    with pytest.raises(ValueError, match="serves HTTP"):
        await app({"type": "websocket"}, receive, send)  # type: ignore[arg-type]
