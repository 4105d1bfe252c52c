"""The colours of the charts, on a light and on a dark page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, kw_only=True)
class Palette:
    """Colours of one variant of a chart.

    Text on the background has a contrast of at least 4.5 to 1, and bars and lines of at least 3
    to 1 (WCAG 2.2, 1.4.3 and 1.4.11). The colours differ in brightness too, for readers who see
    fewer colours. The backgrounds are those of the pages, so that a chart has no visible edge.

    Attributes:
        suffix: End of the file name, before the dot.
        background: Colour behind the chart.
        text: Titles, labels and axes.
        frame: A line around the chart.
        good: Our figures, and a bar that was met.
        missed: A bar that was missed.
        muted: The lines of bars and of a ratio of 1.
        other: The figures of other subjects.
        lines: Series of a line chart, in order.
    """

    suffix: str
    background: str
    text: str
    frame: str
    good: str
    missed: str
    muted: str
    other: str
    lines: tuple[str, ...]


LIGHT: Final = Palette(
    suffix="",
    background="#ffffff",
    text="#1f2328",
    frame="#d0d7de",
    good="#1f6feb",
    missed="#b35900",
    muted="#57606a",
    other="#8a8f98",
    lines=("#1f6feb", "#b35900", "#1a7f37", "#8250df"),
)
DARK: Final = Palette(
    suffix="-dark",
    background="#131416",
    text="#e6edf3",
    frame="#3d444d",
    good="#58a6ff",
    missed="#e0883a",
    muted="#9198a1",
    other="#767c86",
    lines=("#58a6ff", "#e0883a", "#56d364", "#bc8cff"),
)
PALETTES: Final = (LIGHT, DARK)


def matplotlib_options(palette: Palette) -> dict[str, Any]:
    """Return the settings with which matplotlib draws in these colours."""
    from matplotlib import cycler

    texts = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    backgrounds = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    return {
        **dict.fromkeys(texts, palette.text),
        **dict.fromkeys(backgrounds, palette.background),
        "axes.prop_cycle": cycler(color=palette.lines),
    }
