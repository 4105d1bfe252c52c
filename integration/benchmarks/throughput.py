"""Receive and acknowledge, one task: this package, stock asyncio and stock's synchronous loop.

100-byte messages from a broker in another process, in producer batches of 1000 and unbatched; the
three take turns, each time in a new process and on a new subscription, and the medians count.

    python -m integration.benchmarks.throughput [--url URL] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping

from pulsar_encore.cli.demo.throughput import compare
from pulsar_encore.cli.demo.workload import Figures

from .figures import Row, report
from .processes import Runner, broker, fresh_topic

ROUNDS = 3
BATCHED = 301_000
UNBATCHED = 101_000


def run(url: str | None = None, *, rounds: int = ROUNDS) -> list[Row]:
    """Measure both kinds of topic.

    Raises:
        MeasurementError: One of the measurements failed.
    """
    return [
        row
        for batch, messages in ((1000, BATCHED), (0, UNBATCHED))
        for row in rows_of(batch, _medians(url, rounds, messages, batch))
    ]


def _medians(url: str | None, rounds: int, messages: int, batch: int) -> dict[str, Figures]:
    size = {"rounds": rounds, "messages": messages, "batch": batch}
    with broker(url) as where:
        outcomes = asyncio.run(compare(Runner(where), topic=fresh_topic(), **size))
    medians: dict[str, Figures] = {}
    for label, outcome in outcomes.items():
        if isinstance(outcome, Exception):
            raise outcome
        medians[label] = outcome
    return medians


def rows_of(batch: int, medians: Mapping[str, Figures]) -> Iterator[Row]:
    """The rows of one kind of topic; the bars are promised for batches."""
    kind = f"batches of {batch}" if batch else "unbatched"
    ours = medians["encore"]
    for label, factor in (("stock asyncio", 6.0), ("stock sync", 1.0)):
        rate, stock = ours["per_s"] or 0.0, medians[label]["per_s"] or 0.0
        yield Row(
            what=f"receive + ack, {kind}",
            unit="msg/s",
            figure=rate,
            other=stock,
            bar=factor * stock if batch else None,
            higher_is_better=True,
            beside=label,
        )
    for label in ("stock asyncio", "stock sync"):
        cpu_us, stock_us = ours["cpu_us"] or 0.0, medians[label]["cpu_us"] or 0.0
        what = f"client CPU, {kind}"
        yield Row(what=what, unit="us/msg", figure=cpu_us, other=stock_us, beside=label)


def main() -> int:
    """Print the table; the exit code says whether every bar was met."""
    parser = argparse.ArgumentParser(description="Receive and acknowledge.")
    parser.add_argument("--url")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    return report(run(options.url, rounds=options.rounds))


if __name__ == "__main__":
    sys.exit(main())
