"""The Python blocks of `docs/retries.md` run, and each retries as the page says."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client, testing
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import blocks_of, run_block

BLOCKS = {each.title: each for each in blocks_of("retries.md")}
DAY_S = 86_400


class Billing:
    """A handler that fails the first times, or always, and records when it was called."""

    def __init__(self, failures: float = 1) -> None:
        self.failures = failures
        self.calls: list[float] = []

    async def __call__(self, value: bytes) -> None:
        self.calls.append(asyncio.get_running_loop().time())
        if len(self.calls) <= self.failures:
            raise OSError("the bank is closed")

    @property
    def delays(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.calls, self.calls[1:], strict=False)]


class Page:
    def __init__(self, client: Client, transport: MemoryTransport, folder: Path) -> None:
        self.transport = transport
        self.folder = folder
        self.bill = Billing()
        self.names: dict[str, Any] = {"client": client, "encore": encore, "bill": self.bill}

    async def run(self, title: str, seconds: float) -> dict[str, Any]:
        """Run a block for so long. One message is published when it has subscribed."""
        block = BLOCKS[title]
        code = block.code.replace("/var/lib/billing", str(self.folder / "state"))
        running = asyncio.create_task(run_block(replace(block, code=code), self.names))
        while not self.transport.consumers:  # a state is opened in a thread, in real time
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.1)
        self.transport.put("orders", b"one")
        with suppress(TimeoutError):
            await asyncio.wait_for(running, seconds)
        return self.names

    @property
    def backlog(self) -> int:
        return self.transport.backlog("orders", "billing")

    def letters(self, ending: str) -> int:
        return len(testing.letters(self.transport, f"orders-billing-{ending}"))


@pytest.fixture
def page(client: Client, transport: MemoryTransport, tmp_path: Path) -> Page:
    return Page(client, transport, tmp_path)


def assert_delays(page: Page, *expected: float) -> None:
    """The delays between attempts are never early, and late by a bucket at most."""
    found = page.bill.delays
    assert len(found) == len(expected)
    for delay, wanted in zip(found, expected, strict=True):
        assert wanted - 0.001 <= delay <= wanted * (1 + 1 / 64) + 0.1


async def test_a_nack_with_a_delay(page: Page) -> None:
    await page.run("A nack with a delay", 120)
    assert_delays(page, 30)
    assert page.backlog == 0


async def test_a_backoff(page: Page) -> None:
    page.bill.failures = 99
    await page.run("A backoff", 3_600)
    assert_delays(page, 10, 60, 600, 600)
    assert page.letters("DLQ") == 1


async def test_an_ack_timeout(page: Page) -> None:
    consumer = (await page.run("An ack timeout", 10))["consumer"]
    began = asyncio.get_running_loop().time()
    again = await consumer.receive()
    assert asyncio.get_running_loop().time() - began == pytest.approx(300, rel=0.05)
    assert again.attempt == 2
    await consumer.receive()
    assert asyncio.get_running_loop().time() - began == pytest.approx(360, rel=0.05)


async def test_a_retry_letter(page: Page) -> None:
    page.bill.failures = 99
    await page.run("A retry letter", 5 * DAY_S)
    assert_delays(page, 60, 3_600, DAY_S, DAY_S, DAY_S)
    assert page.letters("RETRY") == 5
    assert page.letters("DLQ") == 1


async def test_nack_overflow(page: Page) -> None:
    consumer = (await page.run("nack_overflow", 10))["consumer"]
    await asyncio.sleep(1)
    assert page.letters("RETRY") == 1
    assert consumer.statistics().unacked == 0
    again = await consumer.receive()
    assert again.attempt == 2
    assert again.redelivery_count() == 1


async def test_a_lease(page: Page) -> None:
    page.bill.failures = 0
    await page.run("A lease", 10)
    await asyncio.sleep(1)
    assert len(page.bill.calls) == 1
    assert page.backlog == 0


async def test_durable_state(page: Page, transport: MemoryTransport) -> None:
    consumer = (await page.run("Durable state", 10))["consumer"]
    began = asyncio.get_running_loop().time()
    await consumer.close()
    async with Client("pulsar://nowhere:6650", transport=transport) as next_process:
        page.names["client"] = next_process
        block = BLOCKS["Durable state"]
        code = block.code.replace("/var/lib/billing", str(page.folder / "state"))
        await run_block(replace(block, code=code), page.names)
        assert asyncio.get_running_loop().time() - began >= 3_600 - 0.1
        assert page.names["msg"].attempt == 2


async def test_worker_retry_policy(page: Page, transport: MemoryTransport) -> None:
    page.bill.failures = 99
    await run_block(BLOCKS["Worker: RetryPolicy"], page.names)
    async with page.names["worker"]:
        await asyncio.sleep(1)
        transport.put("orders", b"one")
        await asyncio.sleep(2 * 3_600)
    assert_delays(page, 10, 60, 3_600)
    assert (page.letters("RETRY"), page.letters("DLQ")) == (1, 1)


def test_every_block_has_its_own_test() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    titles = {title.lower().replace(": ", "_").replace(" ", "_") for title in BLOCKS}
    assert {each.replace("retrypolicy", "retry_policy") for each in titles} <= tested
