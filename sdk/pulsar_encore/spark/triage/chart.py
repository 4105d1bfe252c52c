"""A chart of failures over time: bars of letters by hour, stacked by fingerprint, as a PNG.

Needs no display: Agg draws a figure that is independent of pyplot. Texts of letters are untrusted.
They are reduced to printable ASCII and never parsed as mathematics.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain, count
from typing import Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ...deadletters import printable
from .failure_groups import HOUR_MS
from .summary import failure_of
from .tally import OTHERS, HourGroup

TOP: Final = 7
"""Number of fingerprints with a colour of their own."""

_DPI: Final = 100
# Inches: total width, height of the plot, height of a line of the legend.
_WIDTH, _PLOT, _LINE = 12.0, 5.0, 0.24
_MARGIN: Final = 0.08  # inches
_HEADROOM: Final = 1.05
_MAX_BARS: Final = 60
_MIN_BARS: Final = 6  # room for bars, so that a single hour does not fill the plot
_MAX_TICKS: Final = 12
_MAX_LABEL: Final = 110
# The colours of Okabe and Ito, which people with colour blindness can tell apart.
_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442")
_GREY: Final = "#999999"


def chart_png(groups: Iterable[HourGroup], *, title: str = "", top: int = TOP) -> bytes:
    """Draw the groups of a report.

    Args:
        groups: `TriageReport.groups`.
        title: Text above the bars, before the number of letters.
        top: Number of fingerprints with a colour and a line in the legend, 1 to 7. All others form
            one grey part.

    Returns:
        A PNG, 1200 pixels wide and at least 500 pixels high; the height grows with the legend.

    Raises:
        ValueError: if `top` is out of range.
    """
    if not 1 <= top <= len(_COLOURS):
        raise ValueError(f"top must be from 1 to {len(_COLOURS)}, got {top}")
    listed = list(groups)
    dated = [each for each in listed if each.hour_ms is not None]
    series = _series(listed, top)
    figure = Figure(
        figsize=(_WIDTH, _PLOT + _LINE * len(series)),
        dpi=_DPI,
        layout=ConstrainedLayoutEngine(w_pad=_MARGIN, h_pad=_MARGIN),
    )
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    total = sum(each.count for each in listed)
    heading = f"{total:,} dead letters"
    named = _ascii(title, _MAX_LABEL - len(heading) - 2)
    figure.suptitle(
        f"{named}: {heading}" if named else heading, x=0.01, ha="left", parse_math=False
    )
    if not dated:
        axes.text(0.5, 0.5, "no letters", ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return _png(figure)

    starts, hours = _bins([each.hour_ms or 0 for each in dated])
    heights = _heights(dated, series, starts, hours)
    base = [0] * len(starts)
    handles, labels = [], []
    for (name, label), colour in zip(series, _colours(series), strict=True):
        axes.bar(range(len(starts)), heights[name], bottom=base, color=colour, width=0.86)
        base = [below + height for below, height in zip(base, heights[name], strict=True)]
        handles.append(Patch(color=colour))
        labels.append(label)
    spare = max(0, _MIN_BARS - len(starts)) / 2
    axes.set_xlim(-0.6 - spare, len(starts) - 0.4 + spare)
    axes.set_ylim(0, max(base) * _HEADROOM)
    axes.set_ylabel("letters an hour" if hours == 1 else f"letters in {_span(hours)}")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("time of the failure, UTC")
    ticks = _ticks(starts, hours)
    axes.set_xticks([at for at, _ in ticks], [label for _, label in ticks])
    axes.grid(axis="y", color="#dddddd")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    legend = figure.legend(
        handles, labels, loc="outside lower left", frameon=False, prop={"family": "monospace"}
    )
    for legend_text in legend.get_texts():
        legend_text.set_parse_math(False)
    return _png(figure)


def _png(figure: Figure) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=_DPI)
    return data.getvalue()


def _series(groups: Sequence[HourGroup], top: int) -> list[tuple[str, str]]:
    """Return fingerprints and their lines in the legend, largest first and "(others)" last."""
    counts: Counter[str] = Counter()
    largest: dict[str, HourGroup] = {}
    for each in groups:
        counts[each.fingerprint] += each.count
        if each.fingerprint not in largest or each.count > largest[each.fingerprint].count:
            largest[each.fingerprint] = each
    unlisted = counts.pop(OTHERS, 0)
    ranked = sorted(counts, key=lambda name: (-counts[name], name))
    lines = []
    rest = ranked[top:]
    others = sum(counts[name] for name in rest) + unlisted
    widest = max(len(f"{count:,}") for count in (*counts.values(), others))
    for name in ranked[:top]:
        shown = "no fingerprint" if name == "-" else printable(name, 16)
        label = f"{counts[name]:>{widest},}  {shown:<14}  {failure_of(largest[name], 200)}"
        lines.append((name, _ascii(label, _MAX_LABEL)))
    if others:
        remainder = f"{len(rest):,} fingerprints" if not unlisted else "too many to list; not drawn"
        lines.append((OTHERS, f"{others:>{widest},}  others ({remainder})"))
    return lines


def _colours(series: Sequence[tuple[str, str]]) -> list[str]:
    return [_GREY if name == OTHERS else _COLOURS[at] for at, (name, _) in enumerate(series)]


def _bins(hours_ms: Sequence[int]) -> tuple[list[int], int]:
    """Return the start of each bar, in ms since the epoch, and the length of a bar in hours."""
    first, last = min(hours_ms), max(hours_ms)
    lengths = chain((1, 2, 3), (6 << doubled for doubled in count()))
    hours = next(each for each in lengths if _bar_count(first, last, each) <= _MAX_BARS)
    step = hours * HOUR_MS
    return list(range(first // step * step, last + 1, step)), hours


def _bar_count(first: int, last: int, hours: int) -> int:
    step = hours * HOUR_MS
    return last // step - first // step + 1


def _heights(
    groups: Iterable[HourGroup],
    series: Sequence[tuple[str, str]],
    starts: Sequence[int],
    hours: int,
) -> dict[str, list[int]]:
    heights = {name: [0] * len(starts) for name, _ in series}
    for each in groups:
        assert each.hour_ms is not None
        name = each.fingerprint if each.fingerprint in heights else OTHERS
        heights[name][(each.hour_ms - starts[0]) // (hours * HOUR_MS)] += each.count
    return heights


def _ticks(starts: Sequence[int], hours: int) -> list[tuple[int, str]]:
    """Return positions and labels of the x axis."""
    every = -(-len(starts) // _MAX_TICKS)
    ticks, day = [], ""
    for at in range(0, len(starts), every):
        moment = datetime.fromtimestamp(starts[at] / 1000, UTC)
        today = moment.strftime("%Y-%m-%d")
        if hours >= 24:
            label = today
        else:
            label = moment.strftime("%H:%M") + (f"\n{today}" if today != day else "")
        day = today
        ticks.append((at, label))
    return ticks


def _span(hours: int) -> str:
    if hours < 24:
        return f"{hours} hours"
    return "a day" if hours == 24 else f"{hours // 24} days"


def _ascii(text: str, max_length: int) -> str:
    """Reduce a text to the characters that every font has."""
    return printable(text.encode("ascii", "backslashreplace").decode(), max_length)
