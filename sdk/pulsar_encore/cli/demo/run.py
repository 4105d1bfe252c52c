from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..broker_process import broker_process
from ..console import wide_console
from ..login import Login, access
from ..probe import probe
from . import (
    continuous_nacks,
    killed_nack,
    killed_stream,
    pending_memory,
    poison_message,
    throughput,
    timed_out_receives,
    two_delays,
)
from .measurement import MeasurementError, measure
from .scenario import MeasuredRun, Row, Scenario, row_of
from .workload import Figures, Stopwatch

SCENARIOS: tuple[Scenario, ...] = (
    continuous_nacks.SCENARIO,
    timed_out_receives.SCENARIO,
    two_delays.SCENARIO,
    poison_message.SCENARIO,
    killed_nack.SCENARIO,
    pending_memory.SCENARIO,
    throughput.SCENARIO,
    killed_stream.SCENARIO,
)


_CONNECT_S: Final = 5


def check_broker(url: str, login: Login) -> None:
    """Check the broker and the login before anything is measured."""
    asyncio.run(probe(access(url, login), None, timeout_s=_CONNECT_S))


def run_demo(
    url: str | None,
    login: Login | None = None,
    *,
    scenarios: Sequence[Scenario] = SCENARIOS,
    console: Console | None = None,
) -> int:
    """Measure and print. Rows about speed or memory run alone, and the others side by side.

    Returns 1 if a row could not be measured, else 0. `url` None starts a development broker.
    """
    console = console or wide_console()
    clock = Stopwatch()
    missing_by_title = {each.title: each.missing() for each in scenarios}
    scenarios = [each for each in scenarios if missing_by_title[each.title] is None]
    with ExitStack() as stack:
        where = url or stack.enter_context(broker_process())
        kind = "the broker you named" if url else "a development broker in another process"
        console.print(f"Stock pulsar-client and pulsar-encore side by side, on {kind}: {where}")
        run = partial(_runner, where, login if url else None)
        rows = asyncio.run(_measure_all(run, scenarios, console))
    console.print(table_of(rows))
    missing = [row for row in rows if row.missing]
    for row in missing:
        console.print(f"Not measured ({', '.join(row.missing)}): {row.title}", style="bold red")
    for title, what in missing_by_title.items():
        if what is not None:
            console.print(Text(f"Left out: {title} It needs {what}."))
    console.print(f"Every figure above was measured in this run, which took {clock():.0f} s.")
    return 1 if missing else 0


async def _measure_all(
    runner: Callable[[list[str]], MeasuredRun], scenarios: Sequence[Scenario], console: Console
) -> list[Row]:
    with Progress(
        SpinnerColumn(finished_text="done"),
        TextColumn("{task.description}", table_column=None),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        rows: dict[str, Row] = {}

        async def one(scenario: Scenario) -> None:
            if not console.is_terminal:
                console.print(f"measuring: {scenario.title}")
            task = progress.add_task(scenario.title, total=scenario.seconds)
            ticking = asyncio.ensure_future(_tick(progress, task))
            try:
                retries: list[str] = []
                row = row_of(scenario, await scenario.measure(runner(retries)))
                if retries:
                    row = replace(row, stock="\n".join((row.stock, *dict.fromkeys(retries))))
                rows[scenario.title] = row
            finally:
                ticking.cancel()
                progress.update(task, completed=scenario.seconds)

        await asyncio.gather(*(one(each) for each in scenarios if not each.alone))
        for each in scenarios:
            if each.alone:
                await one(each)
    return [rows[each.title] for each in scenarios]


async def _tick(progress: Progress, task: Any) -> None:
    while True:
        await asyncio.sleep(0.1)
        progress.advance(task, 0.1)


def _runner(url: str, login: Login | None, retries: list[str]) -> MeasuredRun:
    """Return a function that measures on `url` and adds a note to `retries` for each retry.

    The C++ client aborts its process now and then, so the stock client gets a second try.
    """

    async def run(
        side: str,
        name: str,
        *,
        within_s: float,
        transport: str = "stock",
        topic: str = "",
        **parameters: Any,
    ) -> Figures:
        async def once() -> Figures:
            where = topic or f"encore-demo-{uuid.uuid4().hex}"
            return await measure(
                *(side, name, url, where),
                within_s=within_s,
                transport=transport,
                login=login,
                **parameters,
            )

        try:
            return await once()
        except MeasurementError as error:
            if side != "stock" or not error.lost:
                raise
            retries.append(f"(in two tries; the first: {error})")
        return await once()

    return run


def table_of(rows: Sequence[Row]) -> Table:
    table = Table(show_lines=True, expand=True)
    table.add_column("what was done", ratio=3)
    table.add_column("stock pulsar-client", ratio=2)
    table.add_column("pulsar-encore over that", ratio=2)
    table.add_column("pulsar-encore, native", ratio=2, style="bold")
    for row in rows:
        cells = (row.title, row.stock, row.encore, row.native)
        table.add_row(*map(Text, cells))  # text, not markup
    return table
