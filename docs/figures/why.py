"""Draw docs/figures/why.svg, the chart in the README, from docs/figures/demo.json.

    python docs/figures/why.py              # draw the chart again
    python docs/figures/why.py --measure    # run `make demo` first, and record its figures

The README states the same figures. `tests/docs/test_figures.py` compares the three.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

FOLDER: Final = Path(__file__).resolve().parent
RESULTS: Final = FOLDER / "demo.json"
CHART: Final = FOLDER / "why.svg"

STOCK, NATIVE = "pulsar-client, asyncio", "pulsar-encore"
COLOURS: Final = {STOCK: "#8a8f98", NATIVE: "#1f6feb"}


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


def comparisons(results: Mapping[str, Any]) -> list[Comparison]:
    """Return the six comparisons of the README."""
    figures = results["figures"]

    def pair(scenario: str, key: str) -> tuple[float, float]:
        return figures[scenario]["stock"][key], figures[scenario]["native"][key]

    first = pair("continuous_nacks", "first_s")
    lost = [
        figures["timed_out_receives"][side]["sent"] - figures["timed_out_receives"][side]["seen"]
        for side in ("stock", "native")
    ]
    late = pair("two_delays", "long_s")
    evidence = pair("poison_message", "evidence")
    memory = pair("pending_memory", "mb")
    speed = figures["throughput"]
    rates = speed["stock asyncio"]["per_s"], speed["native"]["per_s"]
    rows = (
        ("Redelivery of a nack for 1.5 s while others are nacked", first, "{:.1f} s"),
        ("Messages lost in 1,000 by receive timeouts", lost, "{:,.0f}"),
        ("Redelivery of a nack for 3 s, after one for 1 s in its batch", late, "{:.1f} s"),
        ("Properties of a dead letter that say why it failed", evidence, "{:.0f}"),
        ("Memory of a million pending nacks", memory, "{:,.1f} MB"),
        ("Messages received and acked per second, in batches of 1,000", rates, "{:,.0f}"),
    )
    return [
        Comparison(title=title, stock=stock, native=native, form=form)
        for title, (stock, native), form in rows
    ]


def chart(results: Mapping[str, Any]) -> str:
    """Return the chart as SVG. Each pair of bars has a scale of its own."""
    width, left, right, top, step, bar = 720, 20, 110, 64, 64, 14
    rows = comparisons(results)
    height = top + step * len(rows) + 8
    description = "; ".join(
        f"{row.title}: {row.texts[0]} with {STOCK}, {row.texts[1]} with {NATIVE}" for row in rows
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{STOCK} and {NATIVE} side by side</title>",
        f"<desc>{escape(description)}</desc>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff" stroke="#d0d7de"/>',
    ]
    for number, (name, colour) in enumerate(COLOURS.items()):
        x = left + 190 * number
        lines.append(f'<rect x="{x}" y="20" width="14" height="14" fill="{colour}"/>')
        lines.append(f'<text x="{x + 22}" y="32" fill="#1f2328">{escape(name)}</text>')
    for number, row in enumerate(rows):
        y = top + step * number
        lines.append(f'<text x="{left}" y="{y + 8}" fill="#1f2328">{escape(row.title)}</text>')
        longest = max(row.stock, row.native)
        for index, value in enumerate((row.stock, row.native)):
            length = max(2, round((width - left - right) * value / longest))
            upper = y + 16 + index * (bar + 4)
            colour = list(COLOURS.values())[index]
            lines.append(
                f'<rect x="{left}" y="{upper}" width="{length}" height="{bar}" fill="{colour}"/>'
            )
            lines.append(
                f'<text x="{left + length + 8}" y="{upper + 12}" fill="#1f2328">'
                f"{escape(row.texts[index])}</text>"
            )
    return "\n".join([*lines, "</svg>", ""])


def measure() -> dict[str, Any]:
    """Run the demo without its Spark row, and return its figures with machine and versions."""
    from pulsar_encore.cli.demo.killed_stream import SCENARIO as SPARK
    from pulsar_encore.cli.demo.run import SCENARIOS, run_demo
    from pulsar_encore.cli.demo.scenario import MeasuredRun, Outcomes, Scenario

    figures: dict[str, Any] = {}

    def recorded(scenario: Scenario) -> Scenario:
        async def run(measured: MeasuredRun) -> Outcomes:
            outcomes = await scenario.measure(measured)
            name = scenario.cell.__module__.rpartition(".")[2]
            figures[name] = dict(outcomes)
            return outcomes

        return replace(scenario, measure=run)

    if run_demo(None, scenarios=[recorded(each) for each in SCENARIOS if each is not SPARK]):
        raise SystemExit("A figure is missing, so nothing was recorded.")
    return {
        "command": "python docs/figures/why.py --measure",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {
            "cores": os.cpu_count(),
            "architecture": platform.machine(),
            "system": platform.system(),
            "broker": "development broker, in another process",
        },
        "versions": {
            "python": platform.python_version(),
            "pulsar-encore": version("pulsar-encore"),
            "pulsar-client": version("pulsar-client"),
        },
        "figures": figures,
    }


def main() -> None:
    if "--measure" in sys.argv[1:]:
        RESULTS.write_text(json.dumps(measure(), indent=2, sort_keys=True) + "\n", "utf-8")
    CHART.write_text(chart(json.loads(RESULTS.read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    main()
