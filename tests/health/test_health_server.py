"""`encore.health.serve` answers probes over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pytest

import pulsar_encore as encore
from pulsar_encore.testing import MemoryTransport

_OPENER = build_opener(ProxyHandler({}))


def fetch(port: int, path: str, host: str = "127.0.0.1", **options: Any) -> tuple[int, Any]:
    """Return the status and the body; a JSON body is parsed."""
    try:
        with _OPENER.open(Request(f"http://{host}:{port}{path}", **options), timeout=10) as found:
            status, body, kind = found.status, found.read(), found.headers["content-type"]
    except HTTPError as error:
        with error:  # else Python 3.14 warns that nobody has closed it
            status, body, kind = error.code, error.read(), error.headers["content-type"]
    return status, json.loads(body) if kind == "application/json" and body else body.decode()


async def ask(port: int, path: str, **options: Any) -> tuple[int, Any]:
    return await asyncio.to_thread(fetch, port, path, **options)


async def ignore(value: bytes) -> None: ...


@dataclass
class Waiting:
    """Some fields of a pending message."""

    id: str
    key: str
    due: datetime


async def test_a_worker_is_live_before_it_is_ready_and_dead_after_its_end(
    client: encore.Client,
) -> None:
    worker = encore.Worker(client, "jobs", "s", ignore)
    async with encore.health.serve(worker, port=0) as server:
        assert (await ask(server.port, "/live"))[0] == 200
        status, body = await ask(server.port, "/ready")
        assert (status, body["reasons"]) == (503, ["jobs/s: the worker is new"])
        async with worker:
            assert (await ask(server.port, "/live"))[0] == 200
            status, body = await ask(server.port, "/ready")
            assert (status, body["ready"], body["reasons"]) == (200, True, [])
        status, body = await ask(server.port, "/live")
        assert status == 503
        assert body["workers"][0]["reasons"] == ["the worker has ended"]
        assert (await ask(server.port, "/ready"))[0] == 503


async def test_a_lost_connection_leaves_a_worker_live_and_ready(
    client: encore.Client, transport: MemoryTransport
) -> None:
    worker = encore.Worker(client, "jobs", "s", ignore)
    async with worker, encore.health.serve(worker, port=0) as server:
        transport.disconnect()
        assert (await ask(server.port, "/live"))[0] == 200
        status, body = await ask(server.port, "/ready")
        assert (status, body["workers"][0]["connected"]) == (200, False)
        assert body["reasons"] == ["jobs/s: the consumer is not connected to its broker"]


async def test_the_text_of_an_error_is_not_shown(
    client: encore.Client, transport: MemoryTransport
) -> None:
    async def fail(value: bytes) -> None:
        raise ConnectionError("of customer Ada")

    breaker = encore.Breaker(on=ConnectionError, failures=1)
    worker = encore.Worker(client, "jobs", "s", fail, breaker=breaker)
    async with worker, encore.health.serve(worker, port=0) as server:
        transport.put("jobs", b"a")
        while not worker.health().reasons:
            await asyncio.sleep(0.001)
        status, body = await ask(server.port, "/ready")
    assert (status, body["reasons"]) == (200, ["jobs/s: the breaker is open"])


async def test_a_worker_at_its_reject_limit_is_live_and_not_ready(
    client: encore.Client, transport: MemoryTransport
) -> None:
    async def fail(value: bytes) -> None:
        raise ValueError("of customer Ada")

    retry = encore.RetryPolicy(reject=(ValueError,))
    worker = encore.Worker(client, "jobs", "s", fail, retry=retry, reject_limit=3)
    async with worker, encore.health.serve(worker, port=0) as server:
        for each in range(5):
            transport.put("jobs", b"%d" % each)
        async with asyncio.timeout(5):
            while not worker.is_reject_limit_reached:
                await asyncio.sleep(0.001)
        assert (await ask(server.port, "/live"))[0] == 200
        status, body = await ask(server.port, "/ready")
    assert status == 503
    (reason,) = body["reasons"]
    assert "messages in a row were rejected" in reason and "Ada" not in reason


async def test_a_blocked_event_loop_is_dead_after_the_limit(client: encore.Client) -> None:
    worker = encore.Worker(client, "jobs", "s", ignore)
    async with worker, encore.health.serve(worker, port=0, limit=0.7) as server:
        assert (await ask(server.port, "/ready"))[0] == 200
        # The calls below block the event loop.
        assert fetch(server.port, "/live")[0] == 200
        assert fetch(server.port, "/ready")[0] == 503  # the same question is open for 1 s
        status, body = fetch(server.port, "/live")
        assert status == 503
        assert "the event loop has not answered" in body["workers"][0]["reasons"][0]
        await asyncio.sleep(0)
        assert (await ask(server.port, "/live"))[0] == 200


async def test_an_answer_about_many_workers_takes_no_longer_than_about_one(
    client: encore.Client,
) -> None:
    """While their loop is blocked: a probe that had to wait for each would get no answer."""
    workers = [encore.Worker(client, f"jobs{each}", "s", ignore) for each in range(20)]
    async with AsyncExitStack() as running:
        for each in workers:
            await running.enter_async_context(each)
        with encore.health.serve(*workers, port=0, limit=60) as server:
            began = time.monotonic()
            # The calls below block the event loop.
            assert fetch(server.port, "/live")[0] == 200
            assert fetch(server.port, "/ready")[0] == 503
            assert time.monotonic() - began < 4, "20 waits of half a second for each call"
            await asyncio.sleep(0)
            assert (await ask(server.port, "/ready"))[0] == 200


async def test_a_draining_worker_is_live_and_not_ready(
    client: encore.Client, transport: MemoryTransport
) -> None:
    begun, done = asyncio.Event(), asyncio.Event()

    async def wait(value: bytes) -> None:
        begun.set()
        await done.wait()

    worker = encore.Worker(client, "jobs", "s", wait)
    async with encore.health.serve(worker, port=0) as server, worker:
        transport.put("jobs", b"a")
        await begun.wait()
        worker.stop()
        await asyncio.sleep(0.01)
        assert (await ask(server.port, "/live"))[0] == 200
        status, body = await ask(server.port, "/ready")
        assert (status, body["workers"][0]["state"]) == (503, "draining")
        done.set()


async def test_unknown_paths_methods_and_head(client: encore.Client) -> None:
    worker = encore.Worker(client, "jobs", "s", ignore)
    with encore.health.serve(worker, port=0) as server:
        assert (await ask(server.port, "/"))[0] == 404
        status, text = await ask(server.port, "/pending")
        assert (status, "/pending needs debug=True" in text) == (404, True)
        assert await ask(server.port, "/live", method="HEAD") == (200, "")
        assert (await ask(server.port, "/live?verbose=1"))[0] == 200
        assert (await ask(server.port, "/live", method="POST"))[0] == 501


async def test_a_port_in_use_says_what_to_change(client: encore.Client) -> None:
    worker = encore.Worker(client, "jobs", "s", ignore)
    with encore.health.serve(worker, port=0) as server:
        with pytest.raises(encore.ConfigurationError, match=r"cannot listen .*Give another port="):
            encore.health.serve(worker, port=server.port).__enter__()
        with pytest.raises(encore.ConfigurationError, match="already listens"):
            server.__enter__()
        with encore.health.serve(worker, port=0) as another:
            assert another.port != server.port
    with encore.health.serve(worker, port=server.port):  # it is free again
        pass


async def test_a_port_is_not_shared_with_another_process(client: encore.Client) -> None:
    """Newer Pythons set SO_REUSEPORT for their HTTP servers."""
    worker = encore.Worker(client, "jobs", "s", ignore)
    with encore.health.serve(worker, port=0, host="127.0.0.1") as server:
        with socket.socket() as another:
            another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            with pytest.raises(OSError, match="in use"):
                another.bind(("127.0.0.1", server.port))


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this computer has no IPv6")
@pytest.mark.parametrize("host", [None, "::1"])
async def test_it_listens_on_ipv6(client: encore.Client, host: str | None) -> None:
    worker = encore.Worker(client, "jobs", "s", ignore)
    with encore.health.serve(worker, port=0, host=host) as server:
        assert (await ask(server.port, "/live", host="[::1]"))[0] == 200
        if host is None:
            assert (await ask(server.port, "/live"))[0] == 200
            with pytest.raises(encore.ConfigurationError, match="of all addresses"):
                encore.health.serve(worker, port=server.port).__enter__()


async def test_it_listens_without_ipv6(
    client: encore.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = encore.Worker(client, "jobs", "s", ignore)
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with encore.health.serve(worker, port=0) as server:
        assert (await ask(server.port, "/live"))[0] == 200


async def test_silent_clients_do_not_keep_out_a_probe_nor_delay_the_end(
    client: encore.Client,
) -> None:
    worker = encore.Worker(client, "jobs", "s", ignore)
    with encore.health.serve(worker, port=0) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        assert (await ask(server.port, "/live"))[0] == 200
        began = time.monotonic()
    assert time.monotonic() - began < 2
    for each in silent:
        each.close()


async def test_wrong_arguments(client: encore.Client) -> None:
    worker = encore.Worker(client, "jobs", "s", ignore)
    wrong = encore.ConfigurationError
    with pytest.raises(wrong, match="at least one worker"):
        encore.health.serve()
    with pytest.raises(wrong, match="twice"):
        encore.health.serve(worker, worker)
    with pytest.raises(wrong, match="got list"):
        encore.health.serve([worker])  # type: ignore[arg-type]
    with pytest.raises(wrong, match="host must be 127"):
        encore.health.serve(worker, host="0.0.0.0", debug=True)
    with pytest.raises(wrong, match="port must be from 0 to 65535"):
        encore.health.serve(worker, port=70_000)


async def test_a_forked_process_gives_up_the_port(client: encore.Client) -> None:
    worker = encore.Worker(client, "jobs", "s", ignore)
    read, write = os.pipe()
    begun_read, begun_write = os.pipe()
    with encore.health.serve(worker, port=0) as server:
        child = os.fork()
        if child == 0:
            os.close(write)
            os.write(begun_write, b"1")
            os.read(read, 1)  # until the parent closes its end
            os._exit(0)
        os.close(read)
        os.read(begun_read, 1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))
    for each in (write, begun_read, begun_write):
        os.close(each)
    os.waitpid(child, 0)


async def test_metrics_of_a_registry_and_without_one(client: encore.Client) -> None:
    from prometheus_client import CollectorRegistry, Counter

    registry = CollectorRegistry()
    Counter("orders", "Orders.", registry=registry).inc()
    worker = encore.Worker(client, "jobs", "s", ignore)
    with encore.health.serve(worker, port=0, metrics=registry) as server:
        status, body = await ask(server.port, "/metrics")
        assert (status, "orders_total 1.0" in body) == (200, True)


async def test_pending_is_for_debug_and_for_this_host(
    client: encore.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = encore.Worker(client, "jobs", "s", ignore)
    listed = [Waiting("4612:0:-1", "Ada", datetime(2026, 1, 2, tzinfo=UTC))]
    monkeypatch.setattr(worker, "pending", lambda: listed, raising=False)
    async with worker, encore.health.serve(worker, port=0, debug=True) as server:
        status, body = await ask(server.port, "/pending")
        message = {"id": "4612:0:-1", "key": "Ada", "due": "2026-01-02T00:00:00+00:00"}
        assert (status, body) == (200, {"workers": [{"name": "jobs/s", "pending": [message]}]})
        for headers in ({"Host": "rebound.example"}, {"X-Forwarded-For": "10.0.0.9"}):
            assert (await ask(server.port, "/pending", headers=headers))[0] == 403
