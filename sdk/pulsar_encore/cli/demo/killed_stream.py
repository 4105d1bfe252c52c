"""Kill the Spark driver of a stream from Pulsar into Parquet: is each message stored once?"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .scenario import MeasuredRun, Outcomes, Scenario, attempt
from .spark_requirements import missing
from .workload import Figures

COUNT: Final = 1_000_000
BATCHES: Final = 5
_WITHIN_S: Final = 180.0
_REMOVE_TIMEOUT_S: Final = 10.0


async def stream(run: MeasuredRun, *, count: int, batches: int) -> Outcomes:
    folder = tempfile.mkdtemp(prefix="encore-demo-")
    try:
        work = run(
            *("spark", "killed_stream"),
            within_s=_WITHIN_S,
            transport="native",
            folder=folder,
            count=count,
            batches=batches,
        )
        return {"native": await attempt(work)}
    finally:
        await asyncio.to_thread(_remove, Path(folder))


def _remove(folder: Path) -> None:
    """Remove the folder repeatedly: a JVM that was just killed may still write for a moment."""
    deadline = time.monotonic() + _REMOVE_TIMEOUT_S
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.1)


async def _measure(run: MeasuredRun) -> Outcomes:
    return await stream(run, count=COUNT, batches=BATCHES)


def _cell(figures: Mapping[str, Figures], column: str) -> str:
    if column != "native":
        return "no Spark source in Python" if column == "stock" else "not measured"
    ours = {name: value or 0.0 for name, value in figures[column].items()}
    count = ours["count"]
    once = ours["rows"] == ours["distinct"] == count and ours["greatest"] == count - 1
    found = f"{ours['rows']:,.0f} rows, {ours['distinct']:,.0f} distinct"
    text = f"each once: {found}" if once else f"NOT each once: {found} of {count:,.0f}"
    text += (
        f" (killed when {ours['committed']:,.0f} were in); "
        f"first commit {ours['first_s']:.1f} s after the restart"
    )
    return f"{text}, then {ours['per_s']:,.0f}/s" if ours["per_s"] else text


SCENARIO = Scenario(
    title=(
        f"Spark streams {COUNT:,} messages into Parquet; its driver is killed (SIGKILL) midway and "
        "started again: is each message stored once?"
    ),
    labels=("native",),
    measure=_measure,
    cell=_cell,
    alone=True,
    seconds=55,
    missing=missing,
)
