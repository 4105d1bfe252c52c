"""`python -m integration.benchmarks`: run the benchmarks and write a report, as `make bench` does.

The results are in `bench-results/TIME-COMMIT`: `results.json`, `index.html` and the charts. An
interrupted run keeps those of the benchmarks that have ended.

The exit code is 1 if a benchmark failed, or with `--strict` if a bar was missed. Machines differ
and are busy, so a missed bar alone is no error.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pulsar_encore.errors import ConfigurationError

from . import suite
from .report import charts, machine, page
from .report.progress import Progress
from .report.results import Results, Section
from .trial import PAIRS, QUICK_PAIRS, Benchmark, Trial

ROOT: Final = Path(__file__).resolve().parents[2]
_FILE_COLUMNS: Final = 150  # of a file or a build log
INTERRUPTED: Final = 130  # exit code after Ctrl-C, as in a shell


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return its exit code."""
    options = _parser().parse_args(arguments)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _FILE_COLUMNS)
    try:
        benchmarks = _chosen(suite.load(options.only), quick=options.quick, only=options.only)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    pairs = options.pairs or (QUICK_PAIRS if options.quick else PAIRS)
    results = Results(
        command=_command(options),
        begun=datetime.now(UTC).isoformat(timespec="seconds"),
        pairs=pairs,
        described=machine.described(ROOT),
    )
    folder = options.out or ROOT / "bench-results" / _folder_name(results)
    folder.mkdir(parents=True, exist_ok=True)
    # Benchmarks start processes that must find the modules as well.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    )

    def keep(section: Section) -> None:
        results.sections.append(section)
        results.write(folder)
        console.print(_table(section))

    expected = [suite.expected_s(each, quick=options.quick) for each in benchmarks]
    progress = Progress(console, expected)
    trial = Trial(url=options.url, pairs=pairs, quick=options.quick, step=progress.step)
    interrupted = False
    try:
        suite.run(benchmarks, trial, progress, keep)
    except KeyboardInterrupt:
        interrupted = True
        console.print("Interrupted: the report has the benchmarks that had ended.")
    finally:
        progress.close()
    write_report(results, folder)
    console.print(_summary(results, folder), markup=False)
    if interrupted:
        return INTERRUPTED
    failed = any(section.failure for section in results.sections)
    return 1 if failed or (options.strict and results.missed) else 0


def write_report(results: Results, folder: Path) -> None:
    """Write `index.html` and the charts into the folder of a run."""
    drawn = {section.name: charts.charts_of(section) for section in results.sections}
    for chart in (chart for each in drawn.values() for chart in each):
        charts.draw(chart, folder)
    (folder / page.PAGE).write_text(page.html(results, drawn), "utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m integration.benchmarks",
        description="Run the benchmarks and write a report.",
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="benchmarks to run; all by default"
    )
    parser.add_argument(
        "--quick", action="store_true", help="less work and three pairs: three minutes in all"
    )
    parser.add_argument("--pairs", type=int, help=f"pairs of each row; {PAIRS} by default")
    parser.add_argument(
        "--url", help="a broker for the benchmarks that can use any; else development brokers"
    )
    parser.add_argument("--out", type=Path, help="folder of the report")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a bar was missed")
    return parser


def _chosen(
    benchmarks: Sequence[Benchmark], *, quick: bool, only: Sequence[str]
) -> list[Benchmark]:
    """Leave out the benchmarks that are too long for a quick run, unless they are named."""
    return [each for each in benchmarks if only or not quick or each.quick_s is not None]


def _command(options: argparse.Namespace) -> str:
    words = ["make bench"]
    if options.quick:
        words.append("QUICK=1")
    if options.only:
        words.append(f'ONLY="{" ".join(options.only)}"')
    if options.pairs:
        words.append(f"BENCH_ARGS='--pairs {options.pairs}'")
    if options.url:
        words.append("URL=...")  # the address is private
    return " ".join(words)


def _folder_name(results: Results) -> str:
    time = results.begun.partition("+")[0].replace(":", "")
    commit = str(results.described["commit"]).partition(" ")[0]
    return f"{time}Z-{commit}" if commit else f"{time}Z"


def _table(section: Section) -> Table | Text:
    problem = ""
    if not section.complete:
        outcome = "failed" if section.failure else "did not run"
        problem = f"{section.name} {outcome}: {section.failure or section.skipped}"
    if not section.rows:
        return Text(problem, style="bold red")
    table = Table(title=section.title, title_justify="left", caption=Text(problem) or None)
    for name in page.COLUMNS:
        table.add_column(name, justify="left" if name == page.COLUMNS[0] else "right")
    for row in section.rows:
        *texts, verdict = page.cells(row)
        table.add_row(*map(Text, texts), Text(verdict, style="" if row.met else "bold red"))
    return table


def _summary(results: Results, folder: Path) -> str:
    promised = [row for row in results.rows if row.bar is not None]
    failed = [f"{each.name}: {each.failure}" for each in results.sections if each.failure]
    skipped = [f"{each.name}: {each.skipped}" for each in results.sections if each.skipped]
    lines = [f"{len(promised) - len(results.missed)} of {len(promised)} bars were met."]
    lines += [f"  {page.missed(row)}" for row in results.missed]
    lines += [f"Failed: {each}" for each in failed]
    lines += [f"Did not run: {each}" for each in skipped]
    shown = folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder
    return "\n".join([*lines, f"The report: {shown / page.PAGE}"])


if __name__ == "__main__":
    sys.exit(main())
