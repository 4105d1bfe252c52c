"""Receive and acknowledge, one task: both transports, stock asyncio, stock's synchronous loop.

Messages from a broker in another process: 100 bytes in producer batches of 1000 and of 10, and
unbatched 100 bytes and 10 kB. The four take turns, each time in a new process and on a new
subscription, and the medians count.

    python -m integration.benchmarks.throughput [--url URL] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pulsar_encore.cli.demo.throughput import compare
from pulsar_encore.cli.demo.workload import Figures

from .figures import Row, report
from .processes import OURS, Runner, broker, fresh_topic

ROUNDS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of topic, and what is promised for it.

    Attributes:
        batch: Messages in an entry; 0 for no batches.
        size: Bytes of a message.
        messages: How many there are.
        rates: By transport and who stands beside it: at least so many times as fast.
        cpu: The native transport's CPU time is at most this share of stock's synchronous loop.
    """

    batch: int
    size: int
    messages: int
    rates: Mapping[tuple[str, str], float]
    cpu: float

    def __str__(self) -> str:
        size = f"{self.size:,} B"
        return f"{size}, batches of {self.batch}" if self.batch else f"{size}, unbatched"


KINDS = (
    Kind(
        batch=1000,
        size=100,
        messages=301_000,
        rates={
            ("native", "stock asyncio"): 15.0,
            ("native", "stock sync"): 2.0,
            ("encore", "stock asyncio"): 6.0,
            ("encore", "stock sync"): 1.0,
        },
        cpu=0.35,
    ),
    Kind(batch=10, size=100, messages=101_000, rates={}, cpu=0.4),
    Kind(batch=0, size=100, messages=101_000, rates={}, cpu=0.6),
    Kind(batch=0, size=10_000, messages=11_000, rates={}, cpu=0.8),
)
BESIDE = ("stock asyncio", "stock sync")


def run(url: str | None = None, *, rounds: int = ROUNDS) -> list[Row]:
    """Measure every kind of topic.

    Raises:
        MeasurementError: One of the measurements failed.
    """
    return [row for kind in KINDS for row in rows_of(kind, _medians(url, rounds, kind))]


def _medians(url: str | None, rounds: int, kind: Kind) -> dict[str, Figures]:
    sizes = {"messages": kind.messages, "batch": kind.batch, "size": kind.size}
    with broker(url) as where:
        work = compare(Runner(where), topic=fresh_topic(), rounds=rounds, **sizes)
        outcomes = asyncio.run(work)
    medians: dict[str, Figures] = {}
    for label, outcome in outcomes.items():
        if isinstance(outcome, Exception):
            raise outcome
        medians[label] = outcome
    return medians


def rows_of(kind: Kind, medians: Mapping[str, Figures]) -> Iterator[Row]:
    """The rows of one kind of topic."""
    for label, name in OURS.items():
        rate, cpu_us = (medians[label][key] or 0.0 for key in ("per_s", "cpu_us"))
        for beside in BESIDE:
            other = medians[beside]["per_s"] or 0.0
            factor = kind.rates.get((label, beside))
            yield Row(
                what=f"receive + ack {name}, {kind}",
                unit="msg/s",
                figure=rate,
                other=other,
                bar=None if factor is None else factor * other,
                higher_is_better=True,
                beside=beside,
            )
        for beside in BESIDE:
            other = medians[beside]["cpu_us"] or 0.0
            promised = (label, beside) == ("native", "stock sync")
            yield Row(
                what=f"client CPU {name}, {kind}",
                unit="us/msg",
                figure=cpu_us,
                other=other,
                bar=kind.cpu * other if promised else None,
                beside=beside,
            )


def main() -> int:
    """Print the table; the exit code says whether every bar was met."""
    parser = argparse.ArgumentParser(description="Receive and acknowledge.")
    parser.add_argument("--url")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    return report(run(options.url, rounds=options.rounds))


if __name__ == "__main__":
    sys.exit(main())
