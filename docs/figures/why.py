"""Draw docs/figures/why.svg and why-dark.svg, the chart in the README, from the benchmarks.

    python -m docs.figures.why

There are two files, because GitHub chooses between files by the reader's theme there (`<picture>`).
A media query in one SVG follows the operating system instead, and so may contradict the page.

The README states the same figures. `tests/docs/test_figures.py` compares the three.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from integration.benchmarks.report.palette import LIGHT, PALETTES, Palette
from integration.benchmarks.report.results import Results, read
from integration.benchmarks.rows import Row

FOLDER: Final = Path(__file__).resolve().parent
RESULTS: Final = FOLDER / "bench"
CHARTS: Final = {FOLDER / f"why{palette.suffix}.svg": palette for palette in PALETTES}

#: Unit of a row -> format of its figures.
_FORMS: Final = {
    "s": "{:.1f} s",
    "messages": "{:,.0f}",
    "properties": "{:.0f}",
    "MB": "{:,.1f} MB",
}

STOCK, NATIVE = "pulsar-client, asyncio", "pulsar-encore"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One pair of bars.

    Attributes:
        title: What was measured.
        stock: Figure of `pulsar-client`.
        native: Figure of this package on its native transport.
        form: Format of both figures.
    """

    title: str
    stock: float
    native: float
    form: str

    @property
    def texts(self) -> tuple[str, str]:
        return self.form.format(self.stock), self.form.format(self.native)


def comparisons(results: Results) -> list[Comparison]:
    """Return the six comparisons of the README."""
    demo = next(section for section in results.sections if section.name == "demo")
    compared = [_comparison(row, row.what, _FORMS[row.unit]) for row in demo.rows]
    speed = throughput(results, "stock asyncio")
    title = "Messages received and acked per second, in batches of 1,000"
    return [*compared, _comparison(speed, title, "{:,.0f}")]


def throughput(results: Results, beside: str) -> Row:
    """Return the row of the native transport, one message at a time, beside another client."""
    return next(
        row
        for row in results.rows
        if row.what == "native, 100 B, batches of 1000" and row.beside == beside
    )


def _comparison(row: Row, title: str, form: str) -> Comparison:
    assert row.other_figure is not None
    return Comparison(
        title=title, stock=row.other_figure.median, native=row.figure.median, form=form
    )


def chart(results: Results, palette: Palette = LIGHT) -> str:
    """Return the chart as SVG. Each pair of bars has a scale of its own."""
    width, left, right, top, step, bar = 720, 20, 110, 64, 64, 14
    rows = comparisons(results)
    colours = {STOCK: palette.other, NATIVE: palette.good}
    height = top + step * len(rows) + 8
    description = "; ".join(
        f"{row.title}: {row.texts[0]} with {STOCK}, {row.texts[1]} with {NATIVE}" for row in rows
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{STOCK} and {NATIVE} side by side</title>",
        f"<desc>{escape(description)}</desc>",
        f'<rect width="{width}" height="{height}" rx="8"'
        f' fill="{palette.background}" stroke="{palette.frame}"/>',
    ]
    for number, (name, colour) in enumerate(colours.items()):
        x = left + 190 * number
        lines.append(f'<rect x="{x}" y="20" width="14" height="14" fill="{colour}"/>')
        lines.append(f'<text x="{x + 22}" y="32" fill="{palette.text}">{escape(name)}</text>')
    for number, row in enumerate(rows):
        y = top + step * number
        lines.append(
            f'<text x="{left}" y="{y + 8}" fill="{palette.text}">{escape(row.title)}</text>'
        )
        longest = max(row.stock, row.native)
        for index, value in enumerate((row.stock, row.native)):
            length = max(2, round((width - left - right) * value / longest))
            upper = y + 16 + index * (bar + 4)
            colour = list(colours.values())[index]
            lines.append(
                f'<rect x="{left}" y="{upper}" width="{length}" height="{bar}" fill="{colour}"/>'
            )
            lines.append(
                f'<text x="{left + length + 8}" y="{upper + 12}" fill="{palette.text}">'
                f"{escape(row.texts[index])}</text>"
            )
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    results = read(RESULTS)
    for file, palette in CHARTS.items():
        file.write_text(chart(results, palette), "utf-8")


if __name__ == "__main__":
    main()
