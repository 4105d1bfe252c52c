"""The program for SQLite of `docs/recipes/database.md`. `integration` runs that for PostgreSQL."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client, testing
from pulsar_encore.testing import MemoryTransport
from tests.harness.recipes import KILLED_AFTER_COMMIT, RecipeProcess, load_recipe

TOPIC = "persistent://public/default/orders"
DEAD_LETTERS = "orders-archive-DLQ"
LONGEST_S = 40


@pytest.fixture
def recipe() -> Any:
    return load_recipe("sqlite")


@pytest.fixture
def file(recipe: Any, tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "orders.db")) as database:
        database.execute(recipe.TABLE)
    return tmp_path / "orders.db"


def numbers_in(file: Path) -> list[int]:
    with closing(sqlite3.connect(file)) as database:
        return [row[0] for row in database.execute("SELECT number FROM orders ORDER BY number")]


@asynccontextmanager
async def running(
    worker: encore.BatchWorker[Any], transport: MemoryTransport
) -> AsyncIterator[None]:
    """Run a worker until its backlog is empty."""
    async with worker, asyncio.timeout(LONGEST_S):
        yield
        while transport.backlog("orders", "archive"):
            await asyncio.sleep(0.02)


async def test_each_order_is_a_row_and_a_row_that_is_refused_is_dead_lettered(
    recipe: Any, client: Client, transport: MemoryTransport, file: Path
) -> None:
    for number in range(20):
        cents = {3: "null", 7: "-1"}.get(number, "995")
        transport.put("orders", b'{"number": %d, "cents": %s}' % (number, cents.encode()))
    async with running(recipe.archiving(client, recipe.Archive(str(file))), transport):
        pass
    assert numbers_in(file) == [each for each in range(20) if each not in (3, 7)]
    letters = testing.letters(transport, DEAD_LETTERS)
    assert [each.message.data()[:12] for each in letters] == [b'{"number": 3', b'{"number": 7']
    texts = [each.evidence()["ENCORE_ERROR_MESSAGE"] for each in letters]
    assert texts == [
        "NOT NULL constraint failed: orders.cents",
        "CHECK constraint failed: cents > 0",
    ]


async def test_a_list_that_fails_after_its_commit_makes_no_row_twice(
    recipe: Any, client: Client, transport: MemoryTransport, file: Path
) -> None:
    lists = []

    class Archive(recipe.Archive):  # type: ignore[misc]
        def store(self, orders: list[Any], msgs: list[encore.Message[Any]]) -> None:
            super().store(orders, msgs)
            lists.append(len(orders))
            if len(lists) == 1:
                raise sqlite3.OperationalError("disk I/O error")

    for number in range(10):
        transport.put("orders", b'{"number": %d, "cents": 5}' % number)
    async with running(recipe.archiving(client, Archive(str(file))), transport):
        pass
    assert sum(lists) > 10
    assert numbers_in(file) == list(range(10))


async def test_a_database_that_is_away_uses_up_no_attempt(
    recipe: Any, client: Client, tmp_path: Path
) -> None:
    worker = recipe.archiving(client, recipe.Archive(str(tmp_path / "missing" / "orders.db")))
    message = testing.message(recipe.Order(1, 5), schema=encore.Json(recipe.Order))
    outcome = await worker.handle(message)
    assert (outcome.settlement, outcome.counted) == ("retry", False)
    assert isinstance(outcome.error, sqlite3.OperationalError)


async def test_a_kill_between_commit_and_ack_makes_no_row_twice(tmp_path: Path) -> None:
    file = tmp_path / "orders.db"
    code = KILLED_AFTER_COMMIT.format(module="recipe_sqlite", define="def", wait="")
    async with testing.broker() as url, encore.Client(url) as client:
        producer = await client.create_producer("orders")
        killed = RecipeProcess("sqlite", url, str(file), code=code)
        sends = [producer.send(b'{"number": %d, "cents": 5}' % number) for number in range(30)]
        await asyncio.gather(*sends)
        await asyncio.to_thread(killed.wait, -signal.SIGKILL)
        stored = numbers_in(file)
        assert stored
        assert url.broker.backlog(TOPIC, "archive") > 0  # nothing is acked
        following = RecipeProcess("sqlite", url, str(file))
        try:
            async with asyncio.timeout(LONGEST_S):
                while url.broker.backlog(TOPIC, "archive"):
                    await asyncio.sleep(0.05)
            await asyncio.to_thread(following.end)
        finally:
            following.kill()
    assert numbers_in(file) == list(range(30))
