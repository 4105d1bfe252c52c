"""Charts of the rows: ratios with quartiles and bars, and lines over time or size."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from ..rows import Row, Spread, short
from .palette import LIGHT, Palette, matplotlib_options
from .results import Section

_OURS: Final = "pulsar-encore"
_WIDE: Final = 8.0  # inches
_LINES_HIGH: Final = 3.2
_DASHES: Final = ("-", "--", "-.", ":")
# A fixed salt and no date make the same chart from the same figures.
SVG_OPTIONS: Final = {"svg.hashsalt": "pulsar-encore", "svg.fonttype": "none"}
# Each text of matplotlib's SVG names its font; one rule for all of them is shorter.
_FONT: Final = re.compile(r"(?<=font-size: )(\S+?px; )font-family: [^;]*, sans-serif(?:; )?")
_FONTS: Final = "text{font-family: 'DejaVu Sans', Verdana, sans-serif}"
_SPAN_OF_LOG: Final = 12.0  # ratios further apart get a logarithmic axis


class Chart(NamedTuple):
    """A chart of one section.

    `name` is that of its files; `text` says in words what it shows. `kind` is "ratios", "lines"
    for the series of the rows, or "bars" for their figures.
    """

    name: str
    title: str
    text: str
    rows: tuple[Row, ...]
    kind: Literal["ratios", "lines", "bars"] = "ratios"


def charts_of(section: Section) -> list[Chart]:
    """Return the charts of a section: one for each `Row.chart` with ratios of several pairs, one
    for its series, and one for its bars.
    """
    return [*_charts(section), *_line_charts(section), *_bar_charts(section)]


def _charts(section: Section) -> Iterator[Chart]:
    groups: dict[str, list[Row]] = {}
    for row in section.rows:
        # A single pair has no quartiles.
        if row.ratio is not None and len(row.ours) > 1 and not row.bars:
            groups.setdefault(row.chart or section.title, []).append(row)
    for title, rows in groups.items():
        promised = sum(row.bar is not None for row in rows)
        missed = sum(not row.met for row in rows)
        text = f"Ratios of {len(rows)} rows of the table below"
        if promised:
            text += f"; {missed} of {promised} bars were missed"
        yield Chart(_file_name(section.name, title), title, text, tuple(rows))


def _line_charts(section: Section) -> Iterator[Chart]:
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in section.rows:
        if row.series:
            groups.setdefault((row.chart or row.what, row.x_axis, row.y_axis), []).append(row)
    for (title, x_axis, y_axis), rows in groups.items():
        names = ", ".join(row.what for row in rows)
        name = _file_name(section.name, title, "by", x_axis)
        yield Chart(name, title, f"{y_axis} by {x_axis}: {names}", tuple(rows), "lines")


def _bar_charts(section: Section) -> Iterator[Chart]:
    groups: dict[str, list[Row]] = {}
    for row in section.rows:
        if row.bars:
            groups.setdefault(row.chart, []).append(row)
    for title, rows in groups.items():
        figures = "; ".join(
            f"{what}: "
            + ", ".join(f"{short(figure)} {rows[0].unit} {name}" for name, figure in bars.items())
            for what, bars in _bars_of(rows).items()
        )
        yield Chart(_file_name(section.name, title), title, figures, tuple(rows), "bars")


def _bars_of(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return the figure of each subject, by what was measured."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        bars = found.setdefault(row.what, {_OURS: row.figure.median})
        if row.other_figure is not None:
            bars[row.beside] = row.other_figure.median
    return found


def _file_name(*parts: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")[:80]


def draw(
    chart: Chart, folder: Path, kinds: Sequence[str] = ("svg", "png"), palette: Palette = LIGHT
) -> None:
    """Write the chart as one file for each of `kinds`."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({**SVG_OPTIONS, **matplotlib_options(palette)}):
        height = _height(chart)
        figure = Figure(figsize=(_WIDE, height), layout="constrained")
        FigureCanvasAgg(figure)
        _DRAWN[chart.kind](figure.add_subplot(), chart, palette)
        for kind in kinds:
            file = folder / file_name(chart, palette, kind)
            if kind == "svg":
                written = io.StringIO()
                metadata = {"Date": None, "Title": chart.title}
                figure.savefig(written, format=kind, metadata=metadata)
                file.write_text(compact(written.getvalue()), "utf-8")
            else:
                figure.savefig(file, dpi=150)


def file_name(chart: Chart, palette: Palette, kind: str = "svg") -> str:
    """Return the name of the file of one variant of a chart."""
    return f"{chart.name}{palette.suffix}.{kind}"


def compact(svg: str) -> str:
    """Return the same picture in about six tenths of the characters."""
    svg = re.sub(r" <metadata>.*?</metadata>\n", "", svg, flags=re.DOTALL)
    svg = re.sub(r' transform="rotate\(-?0 [^"]*"', "", svg)
    svg = re.sub(r'(?<= d=")[^"]*', lambda path: " ".join(path[0].split()), svg)
    svg = re.sub(r' (?:d|x|y)="[^"]*"', _rounded, svg)
    svg = _FONT.sub(r"\1", svg).replace("</style>", f"{_FONTS}</style>", 1)
    return re.sub(r"^ +", "", svg, flags=re.MULTILINE)


def _rounded(attribute: re.Match[str]) -> str:
    return re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", attribute[0])


def _height(chart: Chart) -> float:
    if chart.kind == "lines":
        return _LINES_HIGH
    if chart.kind == "ratios":
        return 1.1 + 0.42 * len(chart.rows)
    groups = _bars_of(chart.rows).values()
    return 0.9 + 0.22 * sum(len(bars) + 1 for bars in groups)


def _lines(axes: Any, chart: Chart, _palette: Palette) -> None:
    for row, dashes in zip(chart.rows, itertools.cycle(_DASHES)):
        axes.plot(
            *zip(*row.series, strict=True), dashes, label=row.label or row.what, linewidth=1.2
        )
    axes.set_ylim(bottom=0)  # a small growth must not look like a large one
    axes.set_xlabel(chart.rows[0].x_axis)
    axes.set_ylabel(chart.rows[0].y_axis)
    axes.set_title(chart.title, fontsize=10, loc="left")
    if len(chart.rows) > 1:
        axes.legend(fontsize=8, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _ratios(axes: Any, chart: Chart, palette: Palette) -> None:
    ratios = [row.ratio for row in chart.rows if row.ratio is not None]
    for place, (row, ratio) in enumerate(zip(chart.rows, ratios, strict=True)):
        colour = palette.good if row.met else palette.missed
        errors = [[ratio.median - ratio.low], [ratio.high - ratio.median]]
        axes.errorbar(
            [ratio.median], [place], xerr=errors, fmt="o", color=colour, capsize=4, markersize=6
        )
        axes.annotate(
            f"{ratio.median:.3g}",
            (ratio.median, place),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=colour,
        )
        if row.bar is not None:
            side = "▶" if row.higher_is_better else "◀"
            axes.plot([row.bar] * 2, [place - 0.3, place + 0.3], color=palette.muted, linewidth=2)
            axes.annotate(
                side,
                (row.bar, place - 0.3),
                ha="center",
                va="bottom",
                fontsize=7,
                color=palette.muted,
            )
    axes.axvline(1.0, color=palette.muted, linewidth=0.8, linestyle=":")
    axes.set_yticks(
        range(len(chart.rows)),
        [f"{row.what}\nbeside {row.beside}" for row in chart.rows],
        fontsize=8,
    )
    axes.set_ylim(len(chart.rows) - 0.4, -0.7)
    _scale(axes, ratios, [row.bar for row in chart.rows if row.bar])
    axes.set_xlabel("ratio: 1 is as the other; the line is the bar, and the arrow its good side")
    axes.set_title(chart.title, fontsize=10, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _bars(axes: Any, chart: Chart, palette: Palette) -> None:
    names: list[str] = []
    figures: list[float] = []
    places: list[int] = []
    place = 0
    for what, bars in _bars_of(chart.rows).items():
        axes.annotate(what, (0, place), va="center", fontsize=8, fontweight="bold")
        for name, figure in bars.items():
            place += 1
            names.append(name)
            figures.append(figure)
            places.append(place)
        place += 1
    colours = [palette.good if name == _OURS else palette.other for name in names]
    axes.barh(places, figures, height=0.75, color=colours)
    for at, figure in zip(places, figures, strict=True):
        axes.annotate(
            short(figure),
            (figure, at),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(places, names, fontsize=8)
    axes.set_ylim(place - 0.3, -0.7)
    axes.set_xlim(0, max(figures) * 1.12 or 1)
    axes.set_xlabel(chart.rows[0].unit)
    axes.set_title(chart.title, fontsize=10, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


_DRAWN: Final = {"ratios": _ratios, "lines": _lines, "bars": _bars}


def _scale(axes: Any, ratios: Sequence[Spread], bars: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    values = [*(each.low for each in ratios), *(each.high for each in ratios), *bars, 1.0]
    low, high = min(values), max(values)
    if low <= 0 or high / low < _SPAN_OF_LOG:
        axes.set_xlim(0, high * 1.1)
        return
    axes.set_xscale("log")
    axes.set_xlim(low / 1.5, high * 1.5)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
