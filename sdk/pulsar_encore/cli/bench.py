"""`pulsar-encore bench`: run the benchmarks of a checkout and print one table."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import ConfigurationError, EncoreError
from .console import wide_console

#: Names for ``--only``, in the order in which they run.
BENCHMARKS: Final = (
    "throughput",
    "latency",
    "producing",
    "forwarding",
    "nack_accuracy",
    "continuous_nacks",
    "idle_consumers",
    "idle_cpu",
    "held_messages",
    "pending_set",
    "rocks_state",
    "import_time",
)


def checkout() -> Path:
    for root in (Path(__file__).resolve().parents[3], Path.cwd()):
        if (root / "integration" / "benchmarks" / "pending_set.py").is_file():
            return root
    raise ConfigurationError(
        "the benchmarks are in integration/benchmarks of a checkout, not in the installed "
        "package: clone the repository and run the command there"
    )


def run_bench(
    only: Sequence[str] | None,
    url: str | None,
    json_file: Path | None,
    *,
    console: Console | None = None,
) -> int:
    """Run benchmarks one after the other; all if `only` is empty.

    `url` is a broker for the benchmarks that can use any. Returns 1 if a bar was missed or a
    benchmark failed, else 0.
    """
    console = console or wide_console()
    names = list(only or BENCHMARKS)
    for name in names:
        if name not in BENCHMARKS:
            raise ConfigurationError(f"no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    root = str(checkout())
    sys.path.insert(0, root)
    # Benchmarks start processes that must find the modules as well.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    rows: list[dict[str, Any]] = []
    failed = False
    for name in names:
        console.print(f"running {name}")
        run = importlib.import_module(f"integration.benchmarks.{name}").run
        takes_url = "url" in inspect.signature(run).parameters
        try:
            found = run(url) if takes_url else run()
        except (EncoreError, AssertionError) as error:
            failed = True
            console.print(Text(f"{name} failed: {error}", style="bold red"))
            continue
        mine = [{"benchmark": name, **_values(row)} for row in found]
        console.print(_table(mine))
        rows += mine
    if json_file is not None:
        json_file.write_text(json.dumps(rows, indent=2) + "\n")
    return 1 if failed or not all(row["met"] for row in rows) else 0


def _values(row: Any) -> dict[str, Any]:
    other = row.other if hasattr(row, "other") else row.plain
    return {
        "what": row.what,
        "unit": row.unit,
        "figure": row.figure,
        "other": other,
        "beside": getattr(row, "beside", "plain layout"),
        "ratio": row.figure / other if other else None,
        "bar": row.bar,
        "met": row.met,
    }


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table()
    for name in ("what", "unit", "figure", "beside", "", "ratio", "bar", ""):
        table.add_column(name, justify="left" if name == "what" else "right")
    for row in rows:
        verdict = "" if row["bar"] is None else "met" if row["met"] else "MISSED"
        numbers = [_short(row[key]) for key in ("figure", "other", "ratio", "bar")]
        figure, other, ratio, bar = numbers
        cells = (row["what"], row["unit"], figure, other, row["beside"], ratio, bar, verdict)
        table.add_row(*map(Text, cells))
    return table


def _short(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
