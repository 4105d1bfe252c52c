"""The programs and commands of `docs/operations.md` run, and its worked example adds up."""

from __future__ import annotations

import asyncio
import io
import re
import shlex
from collections.abc import AsyncIterator, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import cli
from pulsar_encore.devbroker import BrokerSettings, BrokerThread, run_in_thread
from pulsar_encore.observability import instruments
from pulsar_encore.testing import MemoryTransport
from pulsar_encore.worker.retry_policy import RetryPolicy
from tests.harness.pages import blocks_of, run_block, text_of

PAGE = text_of("operations.md")
EVACUATE, WINDOW = blocks_of("operations.md")
COMMANDS = [
    line
    for block in blocks_of("operations.md", "sh")
    for line in block.code.splitlines()
    if line.startswith("pulsar-encore state ")
]
DIRECTORY = "/var/lib/billing/encore"
EARLIEST = encore.InitialPosition.Earliest


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerThread]:
    with run_in_thread(BrokerSettings()) as running:
        monkeypatch.setenv("PULSAR_URL", running.url)
        yield running


@pytest.fixture
async def state(broker: BrokerThread, tmp_path: Path) -> AsyncIterator[str]:
    """The directory of a host that has stopped while a message waits for an hour."""
    path = str(tmp_path / "state")
    async with encore.Client(broker.url) as client:
        async with client.create_producer("orders") as producer:
            await producer.send(b"one")
        consumer = await client.subscribe(
            "orders",
            "billing",
            encore.ConsumerType.Shared,
            state=encore.RocksState(path),
            initial_position=EARLIEST,
        )
        await consumer.negative_acknowledge(await consumer.receive(timeout=10), delay=3600)
    yield path


async def letters(url: str) -> list[bytes]:
    async with (
        encore.Client(url) as client,
        client.create_reader("orders-billing-RETRY", encore.MessageId.earliest) as reader,
    ):
        found = []
        while await reader.has_message_available():
            found.append((await reader.read_next()).data())
        return found


async def run_command(line: str, path: str) -> tuple[int, str]:
    words = shlex.split(line.replace(DIRECTORY, path))[1:]
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = await asyncio.wait_for(asyncio.to_thread(cli.main, words), 60)
    return code, out.getvalue()


async def test_the_commands_look_at_a_directory_and_move_its_messages(
    broker: BrokerThread, state: str
) -> None:
    assert len(COMMANDS) == 4
    for line in COMMANDS:
        code, out = await run_command(line, state)
        assert code == 0, out
        assert out
    assert await letters(broker.url) == [b"one"]


async def test_the_program_moves_the_waiting_messages(
    broker: BrokerThread, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    block = replace(EVACUATE, code=EVACUATE.code.replace(DIRECTORY, state))
    async with encore.Client(broker.url) as client:
        await run_block(block, {"client": client})
    assert capsys.readouterr().out == "1 messages wait at the broker now\n"
    assert await letters(broker.url) == [b"one"]


async def test_the_worked_example(capsys: pytest.CaptureFixture[str]) -> None:
    await run_block(WINDOW, {})
    assert capsys.readouterr().out == "2550 messages, 5% of a consumer's window\n"
    assert "That prints 2,550 messages, 5 % of the window." in PAGE
    names: dict[str, Any] = {}
    await run_block(replace(WINDOW, code=WINDOW.code.replace("0.02", "1")), names)
    assert f"it is\n{names['window']:,}" in PAGE
    assert 50_000 / names["rate"] / 60 == pytest.approx(4, abs=0.5)


def test_the_default_backoff_of_a_worker_waits_31_s() -> None:
    class NoJitter:
        def random(self) -> float:
            return 0.0

    retry = RetryPolicy()
    delays = [retry.delays.delay_ms(each, NoJitter()) for each in range(retry.attempts - 1)]  # type: ignore[arg-type]
    assert sum(delays) == 31_000
    assert "at most 31 s in all" in PAGE


async def test_waiting_nacks_fill_the_window_and_the_broker_stops() -> None:
    rules = BrokerSettings(namespaces=None, rewind_overtaken=0, max_unacked_per_consumer=10)
    transport = MemoryTransport(rules)
    for each in range(20):
        transport.put("orders", b"%d" % each)
    async with (
        encore.Client("pulsar://nowhere:6650", transport=transport) as client,
        client.subscribe(
            "orders",
            "billing",
            encore.ConsumerType.Shared,
            receiver_queue_size=1,
            initial_position=EARLIEST,
        ) as consumer,
    ):
        with pytest.raises(encore.ReceiveTimeout):
            while True:
                message = await consumer.receive(timeout=0.5)
                await consumer.negative_acknowledge(message, delay=3600)
        assert 10 <= consumer.statistics().nacked <= 11


def test_every_metric_of_the_page_exists() -> None:
    names = set(re.findall(r"\bpulsar_client_\w+", PAGE))
    known = {each.prometheus_name for each in instruments.INSTRUMENTS}
    assert names <= known


async def test_at_an_unload_messages_and_nacks_stay(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    shared = encore.ConsumerType.Shared
    async with (
        encore.Client(broker.url) as client,
        client.create_producer("orders") as producer,
        client.subscribe("orders", "billing", shared, initial_position=EARLIEST) as consumer,
    ):
        for value in (b"held", b"nacked"):
            await producer.send(value)
        held, nacked = [await consumer.receive(timeout=10) for _ in range(2)]
        await consumer.negative_acknowledge(nacked, delay=1)
        broker.unload("orders")
        await consumer.acknowledge(held)
        again = await consumer.receive(timeout=10)
        assert (again.data(), again.attempt) == (b"nacked", 2)
        await consumer.acknowledge(again)
        assert consumer.counters().reconnects == 1
        assert not [each for each in caplog.records if "devbroker" not in each.name]
        await consumer.flush()
    assert broker.backlog("orders", "billing") == 0


async def test_a_message_that_waits_in_a_worker_loses_its_delay_and_keeps_its_attempts(
    transport: MemoryTransport, tmp_path: Path
) -> None:
    """As `docs/delays.md` says, also with a state."""
    transport.put("orders", b"one", key="k")
    attempts: list[int] = []
    called = asyncio.Event()

    async def bill(_: bytes, msg: encore.Message[bytes]) -> None:
        attempts.append(msg.attempt)
        called.set()
        if len(attempts) == 1:
            raise encore.Retry(delay=3600)

    for _ in range(2):
        called.clear()
        async with encore.Client("pulsar://nowhere:6650", transport=transport) as client:
            state = encore.RocksState(tmp_path / "state")
            async with encore.Worker(
                client,
                "orders",
                "billing",
                bill,
                order="key",
                state=state,
                initial_position=EARLIEST,
            ):
                await asyncio.wait_for(called.wait(), 30)
                await asyncio.sleep(0.2)
    assert attempts == [1, 2]
