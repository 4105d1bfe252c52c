"""Nack every 100 ms for 12 s with a delay of 3 s, and measure when the first redelivery arrives.

python -m integration.benchmarks.continuous_nacks [--url URL]
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from pulsar_encore.cli.demo.scenario import SIDES
from pulsar_encore.cli.demo.workload import Figures

from .figures import Row, report
from .processes import OURS, Runner, broker

DELAY_S = 3.0
EVERY_S = 0.1
FOR_S = 12.0
ALLOWED_S = 0.25  # a twelfth of the delay, for the transport and the machine


def run(url: str | None = None) -> list[Row]:
    """Measure all clients at the same time."""

    async def all_sides(broker_url: str) -> dict[str, Figures]:
        runner = Runner(broker_url)
        found = await asyncio.gather(
            *(
                runner(
                    *(side, "continuous_nacks"),
                    within_s=60,
                    transport=transport,
                    delay_s=DELAY_S,
                    every_s=EVERY_S,
                    for_s=FOR_S,
                )
                for side, transport in SIDES.values()
            )
        )
        return dict(zip(SIDES, found, strict=True))

    with broker(url) as broker_url:
        found = asyncio.run(all_sides(broker_url))
    return [
        Row(
            what=f"nack each 100 ms, delay 3 s: first redelivery, {name}",
            unit="s",
            figure=_seconds(found[label]["first_s"]),
            other=_seconds(found["stock"]["first_s"]),
            bar=DELAY_S + ALLOWED_S,
            beside="stock asyncio",
        )
        for label, name in OURS.items()
    ]


def _seconds(value: float | None) -> float:
    return float("inf") if value is None else value


def main() -> int:
    """Print the table. Return 1 if a bar was missed, else 0."""
    parser = argparse.ArgumentParser(description="Continuous nacks.")
    parser.add_argument("--url")
    return report(run(parser.parse_args().url))


if __name__ == "__main__":
    sys.exit(main())
