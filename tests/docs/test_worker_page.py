"""The Python blocks of `docs/worker.md` run, and its table of parameters is complete."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import Block, blocks_of, run_block, text_of

PAGE = text_of("worker.md")
BLOCKS = blocks_of("worker.md")
RUNS_S = 30


@dataclass
class Order:
    total: int = 5
    customer: str = "Ada"
    items: list[str] = field(default_factory=lambda: ["lamp", "chair"])


@dataclass
class Parcel:
    item: str


class Gateway:
    async def is_busy(self) -> bool:
        return False

    async def charge(self, order: Order) -> None: ...


class Database:
    async def insert(self, orders: list[Order]) -> dict[int, Exception]:
        return {}


async def archive(value: Any) -> None: ...


async def invoice(value: bytes) -> bytes:
    return value


@pytest.fixture
def names(
    client: Client, transport: MemoryTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """The names that the blocks use. Each worker stops after a while, as at a signal."""
    for kind in (encore.Worker, encore.BatchWorker):
        monkeypatch.setattr(encore, kind.__name__, _stopping(kind))
    monkeypatch.setattr(encore, "Client", lambda url: Client(url, transport=transport))
    yield {
        "FastAPI": lambda lifespan: SimpleNamespace(lifespan=lifespan, state=SimpleNamespace()),
        "Order": Order,
        "Parcel": Parcel,
        "archive": archive,
        "asynccontextmanager": asynccontextmanager,
        "bill": archive,
        "client": client,
        "database": Database(),
        "encore": encore,
        "gateway": Gateway(),
        "invoice": invoice,
        "jobs": asyncio.Queue(),
        "re": re,
        "url": "pulsar://nowhere:6650",
    }


def _stopping(kind: type[encore.Worker[Any]]) -> Callable[..., encore.Worker[Any]]:
    def make_worker(*args: Any, **options: Any) -> encore.Worker[Any]:
        options.setdefault("initial_position", encore.InitialPosition.Earliest)
        worker = kind(*args, **options)
        asyncio.get_running_loop().call_later(RUNS_S, worker.stop)
        return worker

    return make_worker


@pytest.mark.parametrize("block", BLOCKS, ids=str)
async def test_a_block_of_the_page_runs(
    block: Block, names: dict[str, Any], transport: MemoryTransport, tmp_path: Path
) -> None:
    for topic in ("orders", "documents"):
        transport.put(topic, encore.Json(Order).encode(Order()))
    block = replace(block, code=block.code.replace("/var/lib/billing", str(tmp_path / "state")))
    if "worker" in block.code and "worker =" not in block.code:
        async with encore.Worker(names["client"], "orders", "billing", archive) as worker:
            await run_block(block, names | {"worker": worker})
        return
    await run_block(block, names)
    worker = names.get("worker")
    # A state has threads, which do not work in virtual time.
    if worker is not None and worker.health().state == "new" and "state" not in names:
        report = await encore.run(worker)
        assert (report.received, report.failed) == (1, 0)
    app = names.get("app")
    if app is not None:
        async with app.lifespan(app):
            assert app.state.worker.health().ready


async def test_the_first_block_bills_and_rejects(
    names: dict[str, Any], transport: MemoryTransport
) -> None:
    for total in (5, -1):
        transport.put("orders", encore.Json(Order).encode(Order(total)), key="k")
    await run_block(BLOCKS[0], names)
    report = names["worker"].report()
    assert (report.succeeded, report.rejected) == (1, 1)


def test_the_tables_have_every_parameter() -> None:
    for kind, heading in ((encore.Worker, "## Parameters"), (encore.RetryPolicy, "## Retries")):
        section = PAGE.partition(heading)[2].partition("\n## ")[0]
        listed = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
        listed = [each for each in listed if each != kind.__name__]
        parameters = set(inspect.signature(kind.__init__).parameters) - {"self", "client"}
        assert sorted(listed) == sorted(parameters), heading
