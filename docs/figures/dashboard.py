"""Draw docs/figures/dashboard.svg and dashboard-dark.svg, or record their values.

    python -m docs.figures.dashboard record  # needs the program `prometheus`; five minutes
    python -m docs.figures.dashboard draw    # the same without an argument

`record` plays the incident of `dashboard_incident.py`, and writes the answers of Prometheus to the
queries of docker/grafana/dashboard.json into dashboard-series.json. `draw` makes the pictures from
that file. Record again when a query of the dashboard has changed.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from integration.benchmarks.report.charts import SVG_OPTIONS, compact
from integration.benchmarks.report.palette import PALETTES, Palette, matplotlib_options

FOLDER: Final = Path(__file__).resolve().parent
DASHBOARD: Final = FOLDER.parents[1] / "docker" / "grafana" / "dashboard.json"
SERIES: Final = FOLDER / "dashboard-series.json"
PICTURES: Final = {FOLDER / f"dashboard{palette.suffix}.svg": palette for palette in PALETTES}

_WIDE: Final = 10.0  # inches
_COLUMN: Final = _WIDE / 24  # Grafana's grid has 24 columns
_LINE: Final = 0.26  # inches of one row of the grid
_GAP: Final = 0.05
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.48, 0.22, 0.32, 0.24  # inches around the lines of a panel
_LEGEND_LINE: Final = 0.15
_LETTER: Final = 0.062  # inches of a letter of a legend
_HANDLE: Final = 0.28  # inches of the line before a name, with its gap
_SMALL, _NORMAL, _LARGE = 7.5, 8.0, 15.0
_NOTE: Final = "grey: the payment gateway is away"
_DASHES: Final = ("-", (0, (4, 1.5)), (0, (1, 1)))


def read_json(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def draw(
    dashboard: dict[str, Any], recorded: dict[str, Any], palette: Palette, kind: str = "svg"
) -> bytes:
    """Return the picture of all panels, as "svg" or "png"."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    answers = {panel["title"]: panel["targets"] for panel in recorded["panels"]}
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    sizes = {"font.size": _SMALL, "axes.linewidth": 0.6}
    options: Any = {**SVG_OPTIONS, **matplotlib_options(palette), **sizes}
    with rc_context(options):
        figure = Figure(figsize=(_WIDE, rows * _LINE))
        FigureCanvasAgg(figure)
        for panel in dashboard["panels"]:
            drawing = _Drawing(figure, panel, recorded, palette)
            if panel["type"] == "row":
                drawing.text(0.02, 0.5, panel["title"], size=_NORMAL + 1.5, weight="bold")
                continue
            drawing.frame()
            if panel["type"] == "stat":
                drawing.stat(answers[panel["title"]])
            else:
                drawing.lines(answers[panel["title"]])
        figure.text(0.995, 1 - 0.15 / (rows * _LINE), _NOTE, ha="right", va="center")
        written = io.BytesIO()
        metadata = {"Date": None, "Title": dashboard["title"]} if kind == "svg" else None
        figure.savefig(written, format=kind, metadata=metadata, dpi=120)
    if kind == "svg":
        return compact(written.getvalue().decode()).encode()
    return written.getvalue()


class _Drawing:
    """One panel of the picture. Places are in inches, from the upper left corner of the panel."""

    def __init__(
        self, figure: Any, panel: dict[str, Any], recorded: dict[str, Any], palette: Palette
    ) -> None:
        grid = panel["gridPos"]
        self._figure, self._panel, self._recorded = figure, panel, recorded
        self._palette = palette
        self._x, self._y = grid["x"] * _COLUMN + _GAP, grid["y"] * _LINE + _GAP
        self._wide, self._high = grid["w"] * _COLUMN - 2 * _GAP, grid["h"] * _LINE - 2 * _GAP
        self._defaults: dict[str, Any] = panel.get("fieldConfig", {}).get("defaults", {})

    def _place(self, x: float, y: float) -> tuple[float, float]:
        wide, high = self._figure.get_size_inches()
        return (self._x + x) / wide, 1 - (self._y + y) / high

    def _axes(self, left: float, top: float, right: float, bottom: float) -> Any:
        x, y = self._place(left, self._high - bottom)
        end, upper = self._place(self._wide - right, top)
        return self._figure.add_axes((x, y, end - x, upper - y))

    def text(self, x: float, share: float, text: str, **options: Any) -> None:
        self._figure.text(*self._place(x, self._high * share), text, va="center", **options)

    def frame(self) -> None:
        from matplotlib.patches import Rectangle

        x, y = self._place(0, self._high)
        end, upper = self._place(self._wide, 0)
        frame = Rectangle((x, y), end - x, upper - y, fill=False, edgecolor=self._palette.frame)
        frame.set_linewidth(0.8)
        frame.set_transform(self._figure.transFigure)
        self._figure.add_artist(frame)
        place = self._place(0.1, 0.16)
        self._figure.text(
            *place, self._panel["title"], size=_NORMAL, weight="bold", va="center_baseline"
        )

    def stat(self, targets: list[dict[str, Any]]) -> None:
        found = [(target["legendFormat"], each) for target in targets for each in target["series"]]
        if not found:
            self._no_data()
            return
        axes = self._axes(0.1, self._high * 0.76, 0.1, 0.06)
        axes.axis("off")
        axes.set_ylim(-0.05, 1.1)
        for number, (name, series) in enumerate(found):
            place = self._wide * (number + 0.5) / len(found)
            value = series["value"]
            text = "no data" if value is None else self._formatted(value)
            colour = self._threshold_colour(value)
            self.text(place, 0.43, text, size=_LARGE, color=colour, ha="center", weight="bold")
            if len(found) > 1:
                self.text(place, 0.66, name, ha="center")
            points = [each or 0.0 for each in series["points"]]
            highest = max(*points, 1.0)
            axes.plot([each / highest for each in points], color=colour, linewidth=1)

    def _formatted(self, value: float) -> str:
        return formatted(round(value, self._defaults.get("decimals", 2)), self._defaults["unit"])

    def _threshold_colour(self, value: float | None) -> str:
        palette = self._palette
        colours = {"green": palette.lines[2], "orange": palette.missed, "red": palette.missed}
        steps = self._defaults["thresholds"]["steps"]
        passed = [each for each in steps if each["value"] is None or (value or 0) >= each["value"]]
        return colours[passed[-1]["color"]]

    def lines(self, targets: list[dict[str, Any]]) -> None:
        named = legends(targets)
        drawn = [(name, points) for name, points in named if any(p is not None for p in points)]
        if not drawn:
            self._no_data()
            return
        rows = self._legend([name for name, _ in drawn])
        axes = self._axes(_LEFT, _TOP, _RIGHT, _BOTTOM + rows * _LEGEND_LINE + 0.06)
        step = self._recorded["step_s"]
        for number, (_, points) in enumerate(drawn):
            times = [place * step for place in range(len(points))]
            values = [float("nan") if each is None else each for each in points]
            # Lines that stay at 0 do not cover others.
            above = 3 if any(points) else 2
            axes.plot(times, values, zorder=above, clip_on=False, **self._style(number))
        self._decorate(axes)

    def _style(self, number: int) -> dict[str, Any]:
        colours = self._palette.lines
        dashes = _DASHES[number // len(colours) % len(_DASHES)]
        return {"color": colours[number % len(colours)], "linestyle": dashes, "linewidth": 1.1}

    def _legend(self, names: Sequence[str]) -> int:
        """Draw the names at the lower edge, and return the number of their rows."""
        from matplotlib.lines import Line2D

        places: list[tuple[float, int]] = []
        x, row = 0.1, 0
        for name in names:
            wide = _HANDLE + len(name) * _LETTER
            if places and x + wide > self._wide:
                x, row = 0.1, row + 1
            places.append((x, row))
            x += wide + 0.1
        for number, (name, (x, line)) in enumerate(zip(names, places, strict=True)):
            y = self._high - 0.1 - (row - line) * _LEGEND_LINE
            ends = [self._place(x, y), self._place(x + _HANDLE - 0.06, y)]
            figure = self._figure
            style = self._style(number)
            sample = Line2D(*zip(*ends, strict=True), transform=figure.transFigure, **style)
            figure.add_artist(sample)
            figure.text(*self._place(x + _HANDLE, y), name, va="center_baseline")
        return row + 1

    def _decorate(self, axes: Any) -> None:
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        axes.axvspan(*self._recorded["away_s"], color=self._palette.muted, alpha=0.16, linewidth=0)
        axes.set_xlim(0, self._recorded["seconds"])
        axes.set_xticks(range(0, self._recorded["seconds"] + 1, 60))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 60:.0f} min"))
        axes.set_ylim(bottom=0)
        unit = self._defaults["unit"]
        axes.yaxis.set_major_locator(
            MaxNLocator(4, steps=[1, 2, 2.5, 5, 10], integer=unit == "short")
        )
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formatted(value, unit)))
        axes.tick_params(length=2, width=0.6, pad=2)
        axes.grid(axis="y", color=self._palette.frame, linewidth=0.5)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)

    def _no_data(self) -> None:
        self.text(self._wide / 2, 0.5, "no data", ha="center", color=self._palette.muted)


def formatted(value: float, unit: str) -> str:
    """Return a value in one of Grafana's units."""
    if value == 0 and unit != "s":
        return "0"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s" and 0 < value < 1:
        return f"{1000 * value:.3g} ms"
    end = {"short": "", "ops": "/s", "s": " s"}[unit]
    return f"{value:.3g}{end}" if value < 1000 else f"{value:,.0f}{end}"


def legends(targets: Sequence[dict[str, Any]]) -> list[tuple[str, list[float | None]]]:
    """Return the name and the points of each series of a panel.

    A name leaves out the labels that are equal in all series of the panel, and a topic its
    namespace, because Grafana has more space for them than the picture.
    """
    labelled = [
        (target["legendFormat"], each["labels"], each["points"])
        for target in targets
        for each in target["series"]
    ]
    equal = {
        label
        for label in ("topic", "subscription", "worker")
        if len({labels[label] for _, labels, _ in labelled if label in labels}) == 1
    }
    found = []
    for form, labels, points in labelled:
        name = _name(form, labels, equal)
        # A name that has only such labels keeps them.
        found.append((name or _name(form, labels, set()), points))
    return found


def _name(form: str, labels: dict[str, str], left_out: set[str]) -> str:
    def value(label: re.Match[str]) -> str:
        if label[1] in left_out:
            return ""
        return labels.get(label[1], "").removeprefix("persistent://public/default/")

    return " ".join(re.sub(r"\{\{(\w+)\}\}", value, form).split())


def main(arguments: Sequence[str]) -> None:
    if arguments == ["record"]:
        from docs.figures.dashboard_incident import as_text, record

        SERIES.write_text(as_text(asyncio.run(record(read_json(DASHBOARD)))), "utf-8")
    elif arguments in ([], ["draw"]):
        for file, palette in PICTURES.items():
            file.write_bytes(draw(read_json(DASHBOARD), read_json(SERIES), palette))
    else:
        raise SystemExit("usage: python -m docs.figures.dashboard [record | draw]")


if __name__ == "__main__":
    main(sys.argv[1:])
