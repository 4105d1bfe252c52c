"""The Python blocks of `docs/performance.md` run, and its counts and figures are right."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import blocks_of, run_block, text_of

PAGE = text_of("performance.md")
WATCH, CONCURRENCY, PRODUCING, LISTS, UVLOOP = blocks_of("performance.md")
EARLIEST = encore.InitialPosition.Earliest
TABLES = text_of("figures/bench/tables.md")
TOPIC = "persistent://public/default/orders"


@pytest.fixture
def names(client: Client) -> dict[str, Any]:
    return {"asyncio": asyncio, "client": client, "encore": encore, "time": time}


async def for_a_while(call: Awaitable[None], seconds: float = 25) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call, seconds)


async def test_watch_prints_the_rate_and_the_handlers(
    names: dict[str, Any],
    client: Client,
    transport: MemoryTransport,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def wait(_value: dict[str, int]) -> None:
        await asyncio.sleep(1)

    await run_block(WATCH, names)
    transport.put("orders", *(b"{}" for _ in range(1_000)))
    async with encore.Worker(
        client, "orders", "billing", wait, schema=encore.Json(dict), initial_position=EARLIEST
    ) as worker:
        await for_a_while(names["watch"](worker))
        worker.stop()
    first, second = capsys.readouterr().out.splitlines()
    pattern = r"16/s, \d+% of a core, 16 handlers, \d+ queued, \d+ of 50000 unacked"
    assert re.fullmatch(pattern, second)
    assert "16 handlers" in first


class Bill:
    """A handler that waits, and counts its calls."""

    def __init__(self, messages: int) -> None:
        self._left = messages
        self.done = asyncio.Event()

    async def __call__(self, _value: bytes) -> None:
        await asyncio.sleep(0.25)
        self._left -= 1
        if not self._left:
            self.done.set()


@pytest.mark.parametrize(("concurrency", "seconds"), [(1, 250), (16, 15.75), (50, 5)])
async def test_handlers_that_wait_need_slots(
    names: dict[str, Any],
    transport: MemoryTransport,
    monkeypatch: pytest.MonkeyPatch,
    concurrency: int,
    seconds: float,
) -> None:
    assert f"{seconds:g} s with " in PAGE
    assert "concurrency=50" in CONCURRENCY.code
    transport.put("orders", *(b"x" for _ in range(1_000)))
    bill, made = Bill(1_000), encore.Worker
    chosen: dict[str, Any] = {"concurrency": concurrency, "initial_position": EARLIEST}
    monkeypatch.setattr(encore, "Worker", lambda *args, **options: made(*args, **options | chosen))
    names["bill"] = bill
    await run_block(CONCURRENCY, names)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with names["worker"]:
        await bill.done.wait()
        took = loop.time() - begun
    assert took == pytest.approx(seconds, abs=0.1)


async def test_concurrent_sends_share_entries(
    names: dict[str, Any], client: Client, transport: MemoryTransport
) -> None:
    async with client.create_reader(TOPIC, encore.MessageId.earliest):
        await run_block(PRODUCING, names | {"orders": [b"order"] * 2_000})
        entries = transport.state(TOPIC).log.entries
        assert [each.messages for each in entries] == [500] * 4


async def test_lists_are_received_and_acked(
    names: dict[str, Any], client: Client, transport: MemoryTransport
) -> None:
    stored: list[list[bytes]] = []

    async def store(payloads: list[bytes]) -> None:
        stored.append(payloads)

    async with client.subscribe("orders", "archive", encore.ConsumerType.Shared):
        pass
    transport.put("orders", *(b"x" for _ in range(900)))
    await for_a_while(run_block(LISTS, names | {"store": store}))
    assert [len(each) for each in stored] == [500, 400]
    assert transport.backlog(TOPIC, "archive") == 0


@pytest.mark.parametrize(("queue", "requests"), [(1_000, 19), (100, 101), (10, 1_002)])
async def test_a_consumer_asks_for_half_of_its_queue(
    client: Client, transport: MemoryTransport, queue: int, requests: int
) -> None:
    assert f"{requests:,} times with {queue:,}" in PAGE
    for _ in range(10_000):
        transport.put("orders", b"x")
    async with client.subscribe(
        "orders",
        "billing",
        encore.ConsumerType.Shared,
        receiver_queue_size=queue,
        initial_position=EARLIEST,
    ) as consumer:
        for _ in range(10_000):
            await consumer.acknowledge(await consumer.receive())
        assert len(transport.recorded("FLOW")) == requests


async def test_the_block_of_uvloop_runs_the_program() -> None:
    ran: list[Any] = []

    class Uvloop:
        run = staticmethod(ran.append)

    await run_block(UVLOOP, {"uvloop": Uvloop, "main": lambda: "main"})
    assert ran == ["main"]


@pytest.mark.parametrize(
    ("what", "stated"),
    [
        ("CPU, worker, unbatched", "49.3"),
        ("CPU, worker, batches of 1000", "36.3"),
        ("rate, worker, unbatched", "19,438"),
        ("rate, worker, batches of 1000", "27,545"),
        ("CPU, unbatched", "8.82"),
        ("CPU, batches of 10", "4.21"),
        ("CPU, batches of 1000", "2.82"),
        ("native gather, unbatched, CPU", "37.1"),
        ("native gather, batches of 1000, CPU", "24.8"),
        ("native send_async, batches of 1000, CPU", "12"),
        ("native, lists, 100 B, batches of 1000", "905,056"),
        ("native, 100 B, batches of 1000", "322,734"),
        ("native, lists, 100 B, unbatched", "90,976"),
        ("native, 100 B, unbatched", "69,712"),
        ("over stock, 100 B, batches of 1000", "158,264"),
        ("over stock, 100 B, unbatched", "29,575"),
        ("native, 10,000 B, unbatched", "28,087"),
        ("over stock, 10,000 B, unbatched", "29,375"),
        ("CPU of acks in groups, unbatched", "2.24"),
    ],
)
def test_a_figure_of_the_page_is_published(what: str, stated: str) -> None:
    assert f"\n| {what} | " in TABLES
    line = TABLES.partition(f"\n| {what} | ")[2].partition("\n")[0]
    assert f"| {stated} |" in line
    assert re.search(rf"(?<![\d.,]){re.escape(stated)}(?![\d])", PAGE)


@pytest.mark.parametrize(
    ("what", "ratio"),
    [
        ("receive and ack, prometheus", "1.02"),
        ("worker, prometheus", "1.08"),
        ("send, prometheus", "1.21"),
        ("receive and ack, otel-metrics", "0.991"),
        ("worker, otel-metrics", "1.91"),
        ("send, otel-metrics", "2.74"),
        ("receive and ack, otel-tracing", "1.01"),
        ("worker, otel-tracing", "5.18"),
        ("send, otel-tracing", "10.3"),
        ("rate, lazy, one at a time, batches of 1000", "0.778"),
        ("rate, lazy, lists, batches of 1000", "0.964"),
        ("rate, before, one at a time, batches of 1000", "0.0544"),
        ("rate, before, lists, batches of 1000", "0.137"),
    ],
)
def test_a_ratio_of_the_page_is_published(what: str, ratio: str) -> None:
    line = TABLES.partition(f"\n| {what} | ")[2].partition("\n")[0]
    assert f"| {ratio} (" in line
    assert re.search(rf"(?<![\d.]){re.escape(ratio)}(?![\d])", PAGE)
