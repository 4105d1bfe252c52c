"""Publish a run in the documentation: `python -m integration.benchmarks.publish FOLDER`.

It copies the results and draws the charts in `docs/figures/bench`, for light and for dark pages,
writes the tables in `docs/figures/bench/tables.md`, which `docs/benchmarks.md` includes, and draws
the chart of the README. `docs/extensions/dark_figures.py` shows the variant that a page needs.
Without a folder, it writes everything again from the published results.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from .report import charts, page, results
from .report.palette import PALETTES

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "figures" / "bench"
TABLES: Final = "tables.md"


def tables(published: results.Results) -> str:
    """Return the tables of the published results as Markdown."""
    drawn = {section.name: charts.charts_of(section) for section in published.sections}
    return page.markdown(published, drawn)


def file_names(drawn: Iterable[charts.Chart]) -> set[str]:
    """Return the names of the files of published charts, in both variants."""
    return {charts.file_name(chart, palette) for chart in drawn for palette in PALETTES}


def publish(run: results.Results) -> None:
    """Write results, tables and charts, and remove charts that the results no longer have."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    drawn = [chart for section in run.sections for chart in charts.charts_of(section)]
    for palette in PALETTES:
        for chart in drawn:
            charts.draw(chart, FOLDER, ("svg",), palette)
    for old in FOLDER.glob("*.svg"):
        if old.name not in file_names(drawn):
            old.unlink()
    run.write(FOLDER)
    (FOLDER / TABLES).write_text(tables(run), "utf-8")


def main() -> None:
    """Publish the run in the folder that the command names."""
    from docs.figures import why

    publish(results.read(Path(sys.argv[1]) if sys.argv[1:] else FOLDER))
    why.main()


if __name__ == "__main__":
    main()
