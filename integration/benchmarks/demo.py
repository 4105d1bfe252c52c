"""The rows of `make demo` as figures, for the chart in the README. Each is measured once.

make bench ONLY=demo
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from pulsar_encore.cli.demo import (
    continuous_nacks,
    pending_memory,
    poison_message,
    timed_out_receives,
    two_delays,
)
from pulsar_encore.cli.demo.scenario import Scenario
from pulsar_encore.cli.demo.workload import Figures

from .processes import Runner, broker
from .rows import Row
from .trial import Benchmark, Trial


class Compared(NamedTuple):
    """One scenario, and the figure of it that is compared."""

    scenario: Scenario
    what: str
    unit: str
    figure: Callable[[Figures], float]


def _key(name: str) -> Callable[[Figures], float]:
    return lambda figures: figures[name] or 0.0


def _lost(figures: Figures) -> float:
    return (figures["sent"] or 0.0) - (figures["seen"] or 0.0)


COMPARED: Final = (
    Compared(
        continuous_nacks.SCENARIO,
        "Redelivery of a nack for 1.5 s while others are nacked",
        "s",
        _key("first_s"),
    ),
    Compared(
        timed_out_receives.SCENARIO,
        "Messages lost in 1,000 by receive timeouts",
        "messages",
        _lost,
    ),
    Compared(
        two_delays.SCENARIO,
        "Redelivery of a nack for 3 s, after one for 1 s in its batch",
        "s",
        _key("long_s"),
    ),
    Compared(
        poison_message.SCENARIO,
        "Properties of a dead letter that say why it failed",
        "properties",
        _key("evidence"),
    ),
    Compared(pending_memory.SCENARIO, "Memory of a million pending nacks", "MB", _key("mb")),
)


def run(trial: Trial) -> Iterator[Row]:
    """Run the scenarios one after the other.

    Raises:
        MeasurementError: if a measurement failed.
    """
    for each in COMPARED:
        trial.step(each.what)
        with broker(trial.url) as url:
            outcomes = asyncio.run(_outcomes(each.scenario, url))
        yield Row(
            what=each.what,
            unit=each.unit,
            ours=(each.figure(outcomes["native"]),),
            other=(each.figure(outcomes["stock"]),),
            beside="stock asyncio",
        )


async def _outcomes(scenario: Scenario, url: str) -> Mapping[str, Figures]:
    figures: dict[str, Figures] = {}
    for label, outcome in (await scenario.measure(Runner(url))).items():
        if isinstance(outcome, Exception):
            raise outcome
        figures[label] = outcome
    return figures


BENCHMARK: Final = Benchmark(
    name="demo",
    title="What changes for an application",
    about=(
        "The rows of make demo: pulsar-client with asyncio beside the native transport, each "
        "measured once. Redelivery should take the time that was asked for."
    ),
    seconds=35,
    quick_s=None,
    run=run,
)
