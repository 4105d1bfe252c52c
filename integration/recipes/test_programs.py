"""Programs of `docs/recipes` run as they are, on a real Pulsar."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sqlite3
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import pulsar_encore as encore
from tests.harness.admin import Admin, AdminError
from tests.harness.key_lines import KeyLines
from tests.harness.pulsar_server import Server
from tests.harness.recipes import KILLED_AFTER_COMMIT, RecipeProcess, load_recipe

from .postgres_server import NoPostgresError, PostgresServer

# looptime's plugin requests a loop before every synchronous test; see the contract's fixtures.
asyncio.set_event_loop(None)

LONGEST_S = 60
KEYS = [f"customer-{number}" for number in range(8)]


@pytest.fixture(autouse=True)
def no_topics(admin: Admin) -> None:
    """The programs have one topic, so each test begins without it."""
    for topic in ("orders", "orders-billing-DLQ", "orders-billing-RETRY", "orders-archive-DLQ"):
        with contextlib.suppress(AdminError):
            admin.delete_topic(topic)


@pytest.fixture
async def client(pulsar: Server) -> AsyncIterator[encore.Client]:
    async with encore.Client(pulsar.service_url) as client:
        yield client


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer()
    except NoPostgresError as error:
        pytest.fail(str(error), pytrace=False)
    with server:
        yield server


@contextlib.asynccontextmanager
async def running(*processes: RecipeProcess) -> AsyncIterator[None]:
    """Kill processes at the end that the test did not end."""
    try:
        yield
    finally:
        for each in processes:
            await asyncio.to_thread(each.kill)


async def wait_until(condition: Any) -> None:
    async with asyncio.timeout(LONGEST_S):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)


def consumers(admin: Admin, subscription: str) -> int:
    with contextlib.suppress(AdminError, KeyError):
        return len(admin.subscription_stats("orders", subscription)["consumers"])
    return 0


def backlog(admin: Admin, subscription: str) -> int:
    count: int = admin.subscription_stats("orders", subscription)["msgBacklog"]
    return count


async def evidence(client: encore.Client, topic: str) -> list[dict[str, str]]:
    """Return the properties of the dead letters."""
    found = []
    async with client.create_reader(topic, encore.MessageId.earliest) as reader:
        while await reader.has_message_available():
            found.append((await reader.read_next()).properties())
    return found


async def test_pydantic_reads_the_schemas_of_both_versions(
    pulsar: Server, admin: Admin, client: encore.Client, tmp_path: Path
) -> None:
    import pydantic

    recipe = load_recipe("pydantic")
    old = pydantic.create_model("Order", number=(int, ...), total=(str, ...), name=(str, ...))
    output = tmp_path / "output"
    process = RecipeProcess("pydantic", pulsar.service_url, output=output)
    async with running(process):
        before = await client.create_producer("orders", schema=encore.Json(old))
        await before.send(old(number=1, total="9.90", name="Ada"))
        after = await client.create_producer("orders", schema=recipe.ORDERS)
        await after.send(recipe.Order(number=2, total=5, customer="Grace", currency="USD"))
        await before.send(old(number=3, total="1", name="Edsger"))
        plain = await client.create_producer("orders")
        await plain.send(b'{"number": 4, "total": -1, "customer": "4111-1111"}')
        await wait_until(lambda: consumers(admin, "billing") and not backlog(admin, "billing"))
        log = await asyncio.to_thread(process.end)
    assert sorted(output.read_text().splitlines()) == [
        "billed 1 EUR to Edsger",
        "billed 5 USD to Grace",
        "billed 9.90 EUR to Ada",
    ]
    (letter,) = await evidence(client, "orders-billing-DLQ")
    assert letter["ENCORE_ERROR_MESSAGE"] == "Json(Order): total greater_than"
    assert "4111" not in str(letter) + log


async def test_two_processes_keep_the_order_of_each_key(
    pulsar: Server, admin: Admin, client: encore.Client, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    processes = [RecipeProcess("key_order", pulsar.service_url, output=output) for _ in range(2)]
    async with running(*processes):
        await wait_until(lambda: consumers(admin, "billing") == 2)
        producer = await load_recipe("key_order").publisher(client)
        expected: dict[str, list[str]] = {key: [] for key in KEYS}
        sends = []
        for number in range(20):
            for key in KEYS:
                value = "declined" if (key, number) == (KEYS[0], 3) else f"order{number}"
                expected[key].append(value)
                sends.append(producer.send(value.encode(), partition_key=key))
        await asyncio.gather(*sends)
        await wait_until(lambda: not backlog(admin, "billing"))
        shares = await asyncio.to_thread(admin.subscription_stats, "orders", "billing")
        assert all(each["msgOutCounter"] for each in shares["consumers"])
        await asyncio.gather(*(asyncio.to_thread(each.end) for each in processes))
    lines = KeyLines(output.read_text())
    for key in KEYS:
        assert lines.values(key, "ends") == expected[key]
        assert not lines.overlaps(key)
    assert lines.values(KEYS[0], "begins").count("declined") == 3


async def test_an_outage_of_the_gateway_costs_nothing(
    pulsar: Server, admin: Admin, client: encore.Client
) -> None:
    charged: list[str] = []

    async def charge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        order = (await reader.readline()).decode().strip()
        charged.append(order)
        writer.write(b"charged\n")
        writer.close()

    async with await asyncio.start_server(charge, "127.0.0.1", 0) as before:
        port = before.sockets[0].getsockname()[1]
    process = RecipeProcess("outage", pulsar.service_url, str(port))
    async with running(process):
        producer = await client.create_producer("orders", batching_enabled=False)
        for number in range(30):
            await producer.send(b"%d" % number, partition_key=f"customer-{number % 3}")
        await asyncio.sleep(12)
        assert backlog(admin, "billing") == 30
        async with await asyncio.start_server(charge, "127.0.0.1", port):
            await wait_until(lambda: not backlog(admin, "billing"))
        log = await asyncio.to_thread(process.end)
    for customer in range(3):
        mine = [int(each) for each in charged if int(each) % 3 == customer]
        assert mine == list(range(customer, 30, 3))
    assert log.count("the breaker is open and only probes start") == 1
    assert log.count("goes on: the outage ended") == 1
    assert await evidence(client, "orders-billing-DLQ") == []


def in_postgres(server: PostgresServer) -> list[int]:
    try:
        with psycopg.connect(server.conninfo) as database:
            rows = database.execute("SELECT number FROM orders ORDER BY number").fetchall()
    except psycopg.errors.UndefinedTable:
        return []
    return [row[0] for row in rows]


def in_sqlite(file: Path) -> list[int]:
    with closing(sqlite3.connect(file)) as database:
        try:
            rows = database.execute("SELECT number FROM orders ORDER BY number").fetchall()
        except sqlite3.OperationalError:
            return []
    return [row[0] for row in rows]


@pytest.fixture
def table(postgres: PostgresServer) -> PostgresServer:
    """The server, without the table of an earlier test."""
    with psycopg.connect(postgres.conninfo) as database:
        database.execute("DROP TABLE IF EXISTS orders")
    return postgres


async def publish(client: encore.Client, orders: Iterator[tuple[int, int | None]]) -> None:
    order = load_recipe("postgres").Order
    producer = await client.create_producer("orders", schema=encore.Json(order))
    await asyncio.gather(*(producer.send(order(number, cents)) for number, cents in orders))


async def test_postgres_gets_each_order_once_and_refused_rows_are_dead_lettered(
    pulsar: Server, admin: Admin, client: encore.Client, table: PostgresServer
) -> None:
    process = RecipeProcess("postgres", pulsar.service_url, table.conninfo)
    refused = {3: None, 777: -4111}
    async with running(process):
        await publish(client, ((number, refused.get(number, 995)) for number in range(1000)))
        await wait_until(lambda: consumers(admin, "archive") and not backlog(admin, "archive"))
        log = await asyncio.to_thread(process.end)
    assert in_postgres(table) == [each for each in range(1000) if each not in refused]
    letters = await evidence(client, "orders-archive-DLQ")
    texts = sorted(each["ENCORE_ERROR_MESSAGE"] for each in letters)
    assert len(texts) == 2
    assert "violates check constraint" in texts[0]
    assert "violates not-null constraint" in texts[1]
    assert "4111" not in str(letters) + log


async def test_a_restart_of_postgres_costs_nothing(
    pulsar: Server, admin: Admin, client: encore.Client, table: PostgresServer
) -> None:
    process = RecipeProcess("postgres", pulsar.service_url, table.conninfo)
    async with running(process):
        await publish(client, ((number, 5) for number in range(1000)))
        await wait_until(lambda: in_postgres(table))
        await asyncio.to_thread(table.stop)
        await publish(client, ((number, 5) for number in range(1000, 2000)))
        await asyncio.sleep(5)
        await asyncio.to_thread(table.start)
        await wait_until(lambda: not backlog(admin, "archive"))
        await asyncio.to_thread(process.end)
    assert in_postgres(table) == list(range(2000))
    assert await evidence(client, "orders-archive-DLQ") == []


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_a_kill_between_commit_and_ack_makes_no_row_twice(
    pulsar: Server,
    admin: Admin,
    client: encore.Client,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    kind: str,
) -> None:
    if kind == "postgres":
        server = request.getfixturevalue("table")
        database, stored = server.conninfo, lambda: in_postgres(server)
        words = {"define": "async def", "wait": "await "}
    else:
        file = tmp_path / "orders.db"
        database, stored = str(file), lambda: in_sqlite(file)
        words = {"define": "def", "wait": ""}
    code = KILLED_AFTER_COMMIT.format(module=f"recipe_{kind}", **words)
    killed = RecipeProcess(kind, pulsar.service_url, database, code=code)
    following = None
    async with running(killed):
        await publish(client, ((number, 5) for number in range(500)))
        await asyncio.to_thread(killed.wait, -signal.SIGKILL)
        assert stored()
        assert backlog(admin, "archive") > 0  # nothing is acked
        following = RecipeProcess(kind, pulsar.service_url, database)
        async with running(following):
            await wait_until(lambda: not backlog(admin, "archive"))
            await asyncio.to_thread(following.end)
    assert stored() == list(range(500))


async def test_tenants_come_and_go(
    pulsar: Server, admin: Admin, client: encore.Client, tmp_path: Path
) -> None:
    run = uuid.uuid4().hex[:8]
    names = [f"{run}t{number}" for number in range(100)]
    file, output = tmp_path / "tenants", tmp_path / "output"
    file.write_text("\n".join(names[:-1]))
    process = RecipeProcess("tenants", pulsar.service_url, str(file), output=output)

    def billed() -> set[str]:
        found = re.findall(r"^billed hello of .*/orders-(\w+)$", output.read_text(), re.MULTILINE)
        assert len(found) == len(set(found))
        return set(found)

    async def publish_to(names: list[str]) -> None:
        for name in names:
            async with client.create_producer(f"orders-{name}", batching_enabled=False) as each:
                await each.send(b"hello")

    async with running(process):
        await publish_to(names[:5])
        await publish_to(names[-6:-1])
        await wait_until(lambda: billed() == {*names[:5], *names[-6:-1]})
        file.write_text("\n".join(names[1:]))  # the last one is new, and the first one is gone
        await publish_to(names[-1:])
        await wait_until(lambda: names[-1] in billed())
        gone = await asyncio.to_thread(admin.subscription_stats, f"orders-{names[0]}", "billing")
        assert gone["consumers"] == []
        log = await asyncio.to_thread(process.end)
    assert "failed" not in log
