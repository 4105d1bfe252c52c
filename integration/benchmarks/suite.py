"""The benchmarks of `make bench`, in the order of the report, and their run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Final

from pulsar_encore.errors import ConfigurationError

from .report.progress import Progress
from .report.results import Section
from .trial import Benchmark, Trial

NAMES: Final = (
    "demo",
    "throughput",
    "receive_cpu",
    "java_client",
    "latency",
    "producing",
    "ack_groups",
    "forwarding",
    "workers",
    "observers",
    "nack_accuracy",
    "nack_lateness",
    "nack_index_cpu",
    "pending_set",
    "time_buckets",
    "nack_growth",
    "precision",
    "spilling",
    "leases",
    "rocks_state",
    "durable_throughput",
    "held_messages",
    "loop_steps",
    "idle_consumers",
    "idle_cpu",
    "hour",
    "spark_source",
    "spark_sink",
    "import_time",
)


def load(only: Sequence[str]) -> list[Benchmark]:
    """Return the benchmarks with these names; all without names.

    Raises:
        ConfigurationError: for a name that no benchmark has.
    """
    unknown = [name for name in only if name not in NAMES]
    if unknown:
        raise ConfigurationError(
            f"no benchmark has the name {unknown[0]!r}; there are: {', '.join(NAMES)}"
        )
    return [
        importlib.import_module(f"integration.benchmarks.{name}").BENCHMARK
        for name in NAMES
        if not only or name in only
    ]


def run(
    benchmarks: Sequence[Benchmark],
    trial: Trial,
    progress: Progress,
    on_section: Callable[[Section], None],
) -> None:
    """Run benchmarks one after the other. `on_section` gets each as soon as it has ended.

    A benchmark that fails keeps the rows that it had. The next one runs all the same.
    """
    for each in benchmarks:
        section = Section(name=each.name, title=each.title, about=each.about)
        progress.begin(each.title)
        section.skipped = each.available()
        try:
            if not section.skipped:
                section.rows.extend(each.run(trial))
        except Exception as error:
            section.failure = f"{type(error).__name__}: {error}"
        finally:
            section.seconds = progress.end()
        on_section(section)


def expected_s(benchmark: Benchmark, *, quick: bool) -> float:
    """Return the expected duration of a benchmark, 0 if a quick run leaves it out."""
    return (benchmark.quick_s or 0.0) if quick else benchmark.seconds
