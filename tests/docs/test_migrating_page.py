"""The programs of `docs/migrating.md`, before and after, do the same on a development broker."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerSettings, BrokerThread, run_in_thread
from tests.harness.pages import Block, blocks_of, run_block, text_of

PAGE = text_of("migrating.md")
IMPORTS, BEFORE, AFTER, WORKER = blocks_of("migrating.md")
ORDERS = 4


class Busy(Exception):
    pass


class Gateway:
    """Bills orders; the second one is refused at first."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []

    def bill(self, order: bytes) -> None:
        self.calls.append(order)
        if order == b"1" and self.calls.count(order) == 1:
            raise Busy


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    with run_in_thread(BrokerSettings()) as running:
        yield running


@pytest.fixture
async def url(broker: BrokerThread) -> str:
    """A broker with orders for the subscription `billing`."""
    async with encore.Client(broker.url) as client:
        async with client.subscribe("orders", "billing", encore.ConsumerType.Shared):
            pass
        async with client.create_producer("orders", batching_enabled=False) as producer:
            for each in range(ORDERS):
                await producer.send(b"%d" % each)
    return broker.url


def check(calls: list[bytes]) -> None:
    """Check that each order was billed once, and the refused one again after the others."""
    assert calls == [b"0", b"1", b"2", b"3", b"1"]


async def left_over(url: str) -> list[bytes]:
    """Return the messages that the program did not ack."""
    found = []
    async with (
        encore.Client(url) as client,
        client.subscribe("orders", "billing", encore.ConsumerType.Shared) as consumer,
    ):
        while True:
            try:
                found.append((await consumer.receive(timeout=0.3)).data())
            except encore.ReceiveTimeout:
                return found


async def test_the_program_before(url: str) -> None:
    gateway = inspect.getsource(Gateway)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c"),
        f"from __future__ import annotations\nimport json\nclass Busy(Exception): pass\n{gateway}\n"
        f"gateway = Gateway()\nbill = gateway.bill\n{BEFORE.code}\nmain({url!r})\n"
        "print(json.dumps([each.decode() for each in gateway.calls]))",
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0
    check([each.encode() for each in json.loads(out.splitlines()[-1])])
    assert await left_over(url) == []


@pytest.mark.parametrize("transport", ["native", "stock"])
async def test_the_program_after(url: str, transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSAR_ENCORE_TRANSPORT", transport)
    gateway = Gateway()
    await _run(AFTER, url, gateway)
    check(gateway.calls)
    assert await left_over(url) == []


async def test_the_worker(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway()

    async def run(worker: encore.Worker[Any]) -> encore.Report:
        asyncio.get_running_loop().call_later(3, worker.stop)
        return await encore_run(worker)

    encore_run = encore.run
    monkeypatch.setattr(encore, "run", run)
    await _run(WORKER, url, gateway)
    assert sorted(gateway.calls) == [b"0", b"1", b"1", b"2", b"3"]
    assert await left_over(url) == []


async def _run(block: Block, url: str, gateway: Gateway) -> None:
    names: dict[str, Any] = {"bill": gateway.bill, "Busy": Busy}
    await run_block(block, names)
    await names["main"](url)


def test_the_new_imports_work() -> None:
    new = [line.partition("->")[2].strip() for line in IMPORTS.code.splitlines()]
    assert len(new) == 3
    for line in new:
        exec(line, {})


def test_defaults_in_the_table_of_differences() -> None:
    subscribe = inspect.signature(encore.Client.subscribe).parameters
    assert f"`ack_group_time_ms` ({subscribe['ack_group_time_ms'].default})" in PAGE
    assert f"`ack_group_max_size` ({subscribe['ack_group_max_size'].default})" in PAGE
    assert subscribe["schema"].default is None
    producer = inspect.signature(encore.Client.create_producer).parameters
    assert producer["batching_enabled"].default is True


async def test_errors_in_the_table_of_differences(broker: BrokerThread) -> None:
    async with encore.Client(broker.url) as client:
        with pytest.raises(encore.InvalidTopicName) as raised:
            await client.subscribe("persistent://t/cluster/n/a", "billing")
        assert isinstance(raised.value, encore.ConfigurationError)
        with pytest.raises(encore.ConfigurationError, match="1000"):
            await client.subscribe("orders", "billing", unacked_messages_timeout_ms=999)
        consumer = await client.subscribe("orders", "billing", unacked_messages_timeout_ms=1000)
        await consumer.close()
        await consumer.close()
