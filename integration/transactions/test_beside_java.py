"""Java's client and ours, in the same cases of transactions on one broker.

A third implementation, the C++ client, reads the visible messages and the input that comes again.
Each case has topics and a proxy of its own, so that many run at a time.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from pulsar_encore import Client
from tests.harness.pulsar_server import Broker

from ..letters.java_client import missing_tools
from .beside_java_cases import CASES, TABLES, Case, Result, agrees, table
from .client_sides import Java, Ours, Side
from .faulty_link import FaultyLink
from .java_sessions import JavaProcess, build_classes, java_process
from .transaction_cases import Run, World, sweep

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "notes" / "transactions-beside-java.md"
_AT_ONCE: Final = {"java": 10, "ours": 16}
_CASE_S: Final = 90.0

pytestmark = pytest.mark.timeout(600)  # all cases run in one fixture

Results = dict[tuple[int, str], Result | Exception]


async def _run(world: World, java: JavaProcess, case: Case, client: str) -> Result:
    side: Side = Ours() if client == "ours" else Java(java, uuid.uuid4().hex)
    async with FaultyLink(world.broker.service_url) as link:
        namespace = world.deduplicating if case.deduplicates else "public/default"
        run = Run(world, side, link, namespace, case.kind)
        async with asyncio.timeout(_CASE_S):
            await case.play(run)
            await side.close()
    again = await (sweep(run) if case.swept else run.left())
    return Result(tuple(run.reports), await run.visible(), again, tuple(run.delivered))


async def _run_all(broker: Broker, classes: str) -> Results:
    async with (
        Client(broker.service_url, transport="native") as other,
        Client(broker.service_url, transport="stock") as reader,
        java_process(classes) as java,
    ):
        world = World(broker, other, reader, f"public/beside-{uuid.uuid4().hex[:8]}")
        policies = {"deduplicationEnabled": True}
        await asyncio.to_thread(world.admin.create_namespace, world.deduplicating, policies)
        limits = {client: asyncio.Semaphore(count) for client, count in _AT_ONCE.items()}
        results: Results = {}

        async def one(number: int, client: str) -> None:
            async with limits[client]:
                try:
                    results[number, client] = await _run(world, java, CASES[number], client)
                except Exception as error:  # for the test of the case
                    results[number, client] = error

        for alone in (False, True):
            numbers = [at for at, case in enumerate(CASES) if case.alone is alone]
            if alone:
                for number in numbers:
                    for client in limits:
                        await one(number, client)
            else:
                await asyncio.gather(*(one(at, client) for at in numbers for client in limits))
        # A busy machine can miss a time limit of a case. A fault comes again.
        for (at, client), found in list(results.items()):
            if found != (CASES[at].java if client == "java" else CASES[at].ours):
                await one(at, client)
        return results


@pytest.fixture(scope="session")  # so that Maven runs while the broker starts
def classes() -> Iterator[Future[str]]:
    missing_names = missing_tools()
    if missing_names is not None:
        pytest.fail(f"the Java side of the transactions needs {missing_names}")
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(build_classes)


@pytest.fixture(scope="module")
def results(classes: Future[str], transactional: Broker) -> Results:
    with asyncio.Runner() as runner:
        return runner.run(_run_all(transactional, classes.result()))


def _found(results: Results, case: Case, client: str) -> Result:
    found = results[CASES.index(case), client]
    if isinstance(found, Exception):
        raise found
    return found


each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@each_case
def test_java(results: Results, case: Case) -> None:
    assert _found(results, case, "java") == case.java


@each_case
def test_ours(results: Results, case: Case) -> None:
    assert _found(results, case, "ours") == case.ours


@each_case
def test_our_report_agrees_with_the_truth(results: Results, case: Case) -> None:
    assert agrees(case, _found(results, case, "ours")) is not case.limit


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_the_table(name: str) -> None:
    wanted = table(TABLES[name])
    assert wanted in PAGE.read_text(encoding="utf-8"), f"write this to {PAGE}:\n{wanted}"
