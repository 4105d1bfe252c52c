"""The HTML page of a run, and its tables as Markdown for the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..rows import Row, short, spread_text
from .charts import Chart
from .results import Results

_FOLDER: Final = Path(__file__).resolve().parent
_PYTHON: Final = ("python", "python_build")  # on a line of their own
PAGE: Final = "index.html"


def html(results: Results, charts: dict[str, list[Chart]]) -> str:
    """Return the page. `charts` has those of each section, in files beside the page."""
    return _rendered("page.html.j2", results, charts, escape=True)


def markdown(results: Results, charts: dict[str, list[Chart]]) -> str:
    """Return the tables and charts as Markdown, for a page of the documentation."""
    return _rendered("page.md.j2", results, charts, escape=False)


def _rendered(
    template: str, results: Results, charts: dict[str, list[Chart]], *, escape: bool
) -> str:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["facts"] = _facts
    environment.filters["cells"] = cells
    environment.filters["missed"] = missed
    return environment.get_template(template).render(
        results=results, charts=charts, columns=COLUMNS
    )


COLUMNS: Final = ("Measurement", "Unit", "pulsar-encore", "Beside", "", "Ratio", "Bar", "")


def cells(row: Row) -> tuple[str, ...]:
    """Return the texts of a row, one for each of `COLUMNS`."""
    other = row.other_figure
    bar = ""
    if row.bar is not None:
        side = "at least" if row.higher_is_better else "at most"
        bar = f"{side} {short(row.bar)}"
    return (
        row.what,
        row.unit,
        short(row.figure.median) if other else spread_text(row.figure),
        short(other.median) if other else "",
        row.beside,
        spread_text(row.ratio) if row.ratio else "",
        bar,
        row.verdict,
    )


def missed(row: Row) -> str:
    """Return a missed bar in words."""
    beside = f", beside {row.beside}" if row.ratio else ""
    bar, figure = cells(row)[6], short(row.judged.median)
    return f"{row.what}{beside}: {figure}, and the bar is {bar} ({row.verdict})"


def _facts(results: Results) -> dict[str, Any]:
    """Return the facts about a run, by their names."""
    machine, versions = results.described["machine"], results.described["versions"]
    return {
        "Begun": results.begun,
        "Duration": f"{sum(each.seconds for each in results.sections) / 60:.0f} minutes",
        "Pairs": results.pairs,
        "Command": results.command,
        "Commit": results.described["commit"] or "unknown",
        "Machine": f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB",
        "System": f"{machine['system']} {machine['architecture']}",
        "Python": ", ".join(filter(None, (versions["python"], versions["python_build"]))),
        "Load before": f"{machine['load_before']} (one busy core is 1)",
        "Versions": ", ".join(
            f"{name} {value}" for name, value in versions.items() if name not in _PYTHON and value
        ),
    }
