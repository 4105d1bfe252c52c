"""Probes of a worker on a real broker: under load, in an outage, and while topics are paused."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import pulsar_encore as encore
from integration.conftest import OwnPulsar

# looptime's plugin requests a loop before every synchronous test; see the contract's fixtures.
asyncio.set_event_loop(None)

TRANSPORTS = pytest.mark.parametrize("transport", ["native", "stock"])
MESSAGES = 3_000
AWAY = "the consumer is not connected to its broker"


@dataclass(frozen=True)
class Probed:
    """The answers to one look at `/live` and `/ready`."""

    live: int
    ready: int
    reasons: str
    duration_s: float


class Prober:
    """Asks for `/live` and `/ready` from a thread, as a kubelet does from another process."""

    def __init__(self, port: int) -> None:
        self.seen: list[Probed] = []
        self._url = f"http://127.0.0.1:{port}"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._ended = threading.Event()

    def fetch(self, path: str) -> tuple[int, Any]:
        try:
            with self._opener.open(f"{self._url}{path}", timeout=5) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def look(self) -> Probed:
        began_s = time.monotonic()
        live, _ = self.fetch("/live")
        ready, body = self.fetch("/ready")
        return Probed(live, ready, " ".join(body["reasons"]), time.monotonic() - began_s)

    @contextmanager
    def asking(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            self.seen.append(self.look())


async def until(holds: Any) -> None:
    async with asyncio.timeout(90):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def publish(url: str, topic: str) -> None:
    async with encore.Client(url) as client, client.create_producer(topic) as producer:
        for start in range(0, MESSAGES, 500):
            await asyncio.gather(*(producer.send(b"%d" % (start + at)) for at in range(500)))


@TRANSPORTS
async def test_an_outage_leaves_a_loaded_worker_live_and_ready(
    own_pulsar: OwnPulsar, topic: str, transport: str
) -> None:
    broker, handled = own_pulsar(), set[bytes]()

    async def handle(value: bytes) -> None:
        await asyncio.sleep(0.01)
        handled.add(value)

    await publish(broker.service_url, topic)
    async with encore.Client(broker.service_url, transport=transport) as client:
        worker = encore.Worker(
            client, topic, "s", handle, initial_position=encore.InitialPosition.Earliest
        )
        async with worker, encore.health.serve(worker, port=0, limit=2) as server:
            prober = Prober(server.port)
            with prober.asking():
                await until(lambda: len(handled) > 200)
                await asyncio.to_thread(broker.kill)
                await until(lambda: AWAY in prober.look().reasons)
                await asyncio.sleep(3)  # longer than the limit
                await asyncio.to_thread(broker.start)
                await until(lambda: len(handled) == MESSAGES)
                await until(lambda: not prober.look().reasons)
            assert {each.live for each in prober.seen} == {200}
            assert {each.ready for each in prober.seen} == {200}
            reasons = {each.reasons for each in prober.seen}
            assert reasons == {"", f"{worker.name}: {AWAY}"}
            assert max(each.duration_s for each in prober.seen) < 2
    with encore.health.serve(worker, port=0) as server:
        ended = await asyncio.to_thread(Prober(server.port).look)
    assert (ended.live, ended.ready) == (503, 503)


@TRANSPORTS
async def test_a_worker_that_waits_for_its_broker_is_live(
    own_pulsar: OwnPulsar, topic: str, transport: str
) -> None:
    broker = own_pulsar()
    await asyncio.to_thread(broker.kill)

    async def handle(value: bytes) -> None: ...

    async with encore.Client(broker.service_url, transport=transport) as client:
        worker = encore.Worker(client, topic, "s", handle)
        running = asyncio.create_task(worker.serve())
        async with encore.health.serve(worker, port=0) as server:
            prober = Prober(server.port)
            with prober.asking():
                await until(lambda: len(prober.seen) > 40)
                assert {each.live for each in prober.seen} == {200}
                assert {each.ready for each in prober.seen} == {503}
                await asyncio.to_thread(broker.start)
                await until(lambda: prober.look().ready == 200)
            assert {each.live for each in prober.seen} == {200}
            worker.stop()
            await running


@TRANSPORTS
async def test_a_paused_worker_is_ready_and_says_what_is_paused(
    own_pulsar: OwnPulsar, topic: str, transport: str
) -> None:
    broker, handled = own_pulsar(), set[bytes]()

    async def handle(value: bytes) -> None:
        await asyncio.sleep(0.001)
        handled.add(value)

    await publish(broker.service_url, topic)
    async with encore.Client(broker.service_url, transport=transport) as client:
        worker = encore.Worker(
            client, topic, "s", handle, initial_position=encore.InitialPosition.Earliest
        )
        async with worker, encore.health.serve(worker, port=0, debug=True) as server:
            prober = Prober(server.port)
            for pause, resume, reason in (
                (worker.pause, worker.resume, "the worker is paused"),
                (lambda: worker.pause(topic), lambda: worker.resume(topic), "a topic is paused"),
            ):
                pause()
                await until(lambda: worker.health().running == 0)
                before, seen = len(handled), await asyncio.to_thread(prober.look)
                assert (seen.live, seen.ready) == (200, 200)
                assert seen.reasons == f"{worker.name}: {reason}"
                await asyncio.sleep(0.3)
                assert len(handled) == before < MESSAGES
                status, body = await asyncio.to_thread(prober.fetch, "/pending")
                assert status == 200
                assert all(each["state"] != "running" for each in body["workers"][0]["pending"])
                resume()
                enough = min(before + 300, MESSAGES)
                await until(partial(lambda count: len(handled) >= count, enough))
            await until(lambda: len(handled) == MESSAGES)
            assert (await asyncio.to_thread(prober.look)).reasons == ""
