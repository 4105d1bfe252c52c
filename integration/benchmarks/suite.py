"""The benchmarks of `make bench`, in the order of the report, and their run."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

from pulsar_encore.errors import ConfigurationError

from .report.progress import Progress
from .report.results import Section
from .rows import Row
from .trial import PAIRS, Benchmark, Trial

_LIMIT: Final = 5  # times the expected duration
_LEAST_LIMIT_S: Final = 600.0
_LIMIT_AGAIN_S: Final = 30.0  # the error is raised again if a benchmark has swallowed it

NAMES: Final = (
    "demo",
    "throughput",
    "receive_cpu",
    "java_client",
    "latency",
    "producing",
    "compression",
    "event_loops",
    "ack_groups",
    "forwarding",
    "workers",
    "transaction_cost",
    "java_transactions",
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
    "scale",
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
    return [_loaded(name) for name in NAMES if not only or name in only]


def _loaded(name: str) -> Benchmark:
    """Return a benchmark. One that cannot be imported fails when it runs, and the others run."""
    try:
        found: Benchmark = importlib.import_module(f"integration.benchmarks.{name}").BENCHMARK
    except ImportError as error:
        failure = error

        def run(_trial: Trial) -> Iterator[Row]:
            raise failure

        return Benchmark(name=name, title=name, about="", seconds=0, quick_s=0, run=run)
    return found


class BenchmarkTimeoutError(RuntimeError):
    """A benchmark took much longer than expected, and was ended."""


def run(
    benchmarks: Sequence[Benchmark],
    trial: Trial,
    progress: Progress,
    on_section: Callable[[Section], None],
) -> None:
    """Run benchmarks one after the other. `on_section` gets each as soon as it has ended.

    A benchmark that fails, or takes too long, keeps the rows that it had. The next one runs all the
    same.
    """
    for each in benchmarks:
        section = Section(name=each.name, title=each.title, about=each.about)
        progress.begin(each.title)
        try:
            section.skipped = each.available()
            if not section.skipped:
                with _time_limit(limit_s(each, trial)):
                    section.rows.extend(each.run(trial))
                if not section.rows:
                    section.failure = "It measured nothing."
        except (Exception, SystemExit) as error:
            section.failure = f"{type(error).__name__}: {error}"
        finally:
            section.seconds = progress.end(ran=not (section.skipped or section.failure))
        on_section(section)


def limit_s(benchmark: Benchmark, trial: Trial) -> float:
    """Return how long a benchmark may take, on a slow or busy machine too."""
    expected = expected_s(benchmark, quick=trial.quick)
    return max(_LEAST_LIMIT_S, _LIMIT * expected * max(1.0, trial.pairs / PAIRS))


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `BenchmarkTimeoutError` in the block after a time. Windows has no limit."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        raise BenchmarkTimeoutError(f"ended after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, end)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, _LIMIT_AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def expected_s(benchmark: Benchmark, *, quick: bool) -> float:
    """Return the expected duration in s. Without `quick_s`, a quick run takes as long."""
    return benchmark.quick_s if quick and benchmark.quick_s is not None else benchmark.seconds
