"""The Python blocks of `docs/logging.md` run, and its table has the loggers of the package."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import DOCS, Block, blocks_of, run_block, text_of

PAGE = text_of("logging.md")
BLOCKS = blocks_of("logging.md")
SDK = DOCS.parent / "sdk" / "pulsar_encore"


def block(title: str) -> Block:
    (found,) = (each for each in BLOCKS if each.title == title)
    return found


@pytest.fixture(autouse=True)
def fresh_logging() -> Iterator[None]:
    """Undo the configuration of a block."""
    root = logging.getLogger()
    names = ("pulsar_encore", "pulsar_encore.connection")
    before = [(each, each.level, list(each.handlers)) for each in map(logging.getLogger, names)]
    before.append((root, root.level, list(root.handlers)))
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture
def names(client: Client) -> dict[str, Any]:
    return {"client": client, "encore": encore, "logging": logging, "sys": sys}


EARLIEST = encore.InitialPosition.Earliest


async def fail(order: bytes) -> None:
    raise ValueError(order.decode())


async def lose_the_connection(client: Client, transport: MemoryTransport, seconds: float) -> None:
    async with client.subscribe("orders", "billing"):
        transport.disconnect()
        await asyncio.sleep(seconds)
        transport.reconnect()
        await asyncio.sleep(1)


def test_every_block_has_a_test() -> None:
    assert len({each.title for each in BLOCKS}) == len(BLOCKS) == 4


async def test_a_configured_program_sees_the_names_of_loggers(
    names: dict[str, Any],
    client: Client,
    transport: MemoryTransport,
    capsys: pytest.CaptureFixture[str],
) -> None:
    logging.getLogger().handlers.clear()  # those of pytest, which keep `basicConfig` from its work
    await run_block(block("Logging"), names)
    await lose_the_connection(client, transport, 5)
    lines = capsys.readouterr().err
    assert " WARNING pulsar_encore.connection the connection to " in lines
    assert "attached again after 5" in lines


async def test_records_of_a_handler_name_its_message(
    names: dict[str, Any],
    client: Client,
    transport: MemoryTransport,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await run_block(block("The message of a record"), names)
    log = logging.getLogger("billing")

    async def bill(order: bytes) -> None:
        log.warning("in the handler")
        await asyncio.create_task(in_a_task())

    async def in_a_task() -> None:
        log.warning("in a task")

    async with encore.Worker(client, "orders", "billing", bill):
        (message_id,) = transport.put("orders", b"lamp")
        await asyncio.sleep(1)
    log.warning("outside")
    assert capsys.readouterr().out.splitlines() == [
        f"WARNING {message_id} 1 in the handler",
        f"WARNING {message_id} 1 in a task",
        "WARNING - 0 outside",
    ]


async def test_a_client_with_a_logger_writes_there(
    names: dict[str, Any],
    transport: MemoryTransport,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        encore, "Client", lambda url, **options: Client(url, transport=transport, **options)
    )
    path = str(tmp_path / "audit.log")
    names |= {"url": "memory://", "path": path}
    await run_block(block("One logger for a client"), names)
    logger = logging.getLogger("billing.pulsar")
    logger.addHandler(caplog.handler)
    for each in (names["client"], names["audit"]):
        transport.put("orders", b"lamp")
        async with each, encore.Worker(each, "orders", "billing", fail, initial_position=EARLIEST):
            await asyncio.sleep(1)
    logger.removeHandler(caplog.handler)
    assert {each.name for each in caplog.records} == {"billing.pulsar"}
    assert "failed" in caplog.text
    assert "pulsar_encore.worker" in Path(path).read_text()


async def test_levels_make_fewer_records(
    names: dict[str, Any],
    client: Client,
    transport: MemoryTransport,
    capsys: pytest.CaptureFixture[str],
) -> None:
    logging.getLogger().handlers.clear()  # those of pytest, which keep `basicConfig` from its work
    await run_block(block("Logging"), names)
    await run_block(block("Fewer records"), names)
    await lose_the_connection(client, transport, 100)
    assert capsys.readouterr().err == ""


async def test_a_lasting_failure_is_reported_at_growing_intervals(
    client: Client, transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger().addHandler(caplog.handler)
    await lose_the_connection(client, transport, 3600)
    refused = [each for each in caplog.records if "not attached" in each.getMessage()]
    assert 10 <= len(refused) <= 25
    assert all(each.levelno == logging.WARNING for each in refused)


async def test_a_failed_attempt_is_one_record_in_ten_seconds(
    client: Client, transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger().addHandler(caplog.handler)

    retry = encore.RetryPolicy(attempts=2, backoff=[60])
    async with encore.Worker(client, "orders", "billing", fail, retry=retry):
        for number in range(5):
            transport.put("orders", b"%d" % number)
        await asyncio.sleep(5)
    (record,) = (each for each in caplog.records if "failed" in each.getMessage())
    assert record.name.startswith("pulsar_encore.worker")
    assert record.exc_info is not None


def loggers_of_the_package() -> set[str]:
    found = set[str]()
    for path in SDK.rglob("*.py"):
        text = path.read_text("utf-8")
        found |= set(re.findall(r'(?:getLogger\(|LOG_NAME: Final = )"([\w.]+)"', text))
        if re.search(r"(?:getLogger|logger_of\w*|logger_of\(client\))\(__name__\)", text):
            parts = path.relative_to(SDK.parent).with_suffix("").parts
            found.add(".".join(parts))
    return found - {"pulsar_encore"}


def test_the_table_has_all_loggers() -> None:
    section = PAGE.partition("## Loggers")[2].partition("\n## ")[0]
    listed = dict(re.findall(r"^\| `([\w.]+)`( and below)? \|", section, flags=re.MULTILINE))
    names = loggers_of_the_package()
    assert "pulsar_encore.worker.worker" in names
    assert "pulsar_encore.connection" in names
    for name in names:
        assert any(
            name == each or (below and name.startswith(f"{each}."))
            for each, below in listed.items()
        ), name
    for each in listed:
        assert any(name == each or name.startswith(f"{each}.") for name in names), each
