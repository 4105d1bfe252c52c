"""An hour of mixed traffic with every kind of fault, in compressed time: memory, CPU and leaks.

The broker and the measured process have clocks that run thirty times as fast as the machine's
(`fast_clock`), so the hour takes two minutes. `hour_broker` injects the faults, and
`hour_traffic` is measured. Each is a process of its own.

Memory is sampled each minute after a garbage collection, while the traffic goes on. After ten
minutes of warm-up, each sample of the last third is divided by the sample at the same place in the
first third.

    make bench ONLY=hour
    python -m integration.benchmarks.hour [MINUTES [SPEED]]  # a longer run, with each sample
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from pulsar_encore.cli.broker_process import child, first_line
from pulsar_encore.errors import EncoreError

from .hour_traffic import Left, Sample
from .rows import Row, spread_text
from .trial import Benchmark, Pairs, Trial

MINUTES: Final = 60
SPEED: Final = 30.0
WARM_UP: Final = 10  # minutes
#: Most growth of the memory from the first third to the last.
GROWTH: Final = 1.05
_FAULTS_WITHIN_S: Final = 120.0


class Hour(NamedTuple):
    """The measurements of one run. `faults` counts the faults by kind."""

    samples: list[Sample]
    left: Left
    faults: dict[str, int]


def measure(minutes: int, speed: float, on_sample: Callable[[Sample], None]) -> Hour:
    """Run broker and traffic.

    Raises:
        EncoreError: if the traffic ended early.
    """
    times = [str(minutes), str(speed), str(time.monotonic())]
    module = f"{__package__}.hour"
    with child([sys.executable, "-m", f"{module}_broker", *times]) as broker:
        urls = json.loads(first_line(broker))
        addresses = [urls["url"], urls["faulty_url"]]
        samples: list[Sample] = []
        with child([sys.executable, "-m", f"{module}_traffic", *addresses, *times]) as traffic:
            assert traffic.stdout is not None  # created with a pipe
            for line in traffic.stdout:
                document = json.loads(line)
                if "minute" not in document:
                    left = Left(**document)
                    break
                samples.append(Sample(**document))
                on_sample(samples[-1])
            else:
                raise EncoreError(f"the traffic ended after {len(samples)} of {minutes} minutes")
        return Hour(samples, left, json.loads(first_line(broker, _FAULTS_WITHIN_S)))


def thirds(values: Sequence[float], warm_up: int) -> Pairs:
    """Return the last and the first third of the values after the warm-up."""
    steady = values[warm_up:]
    count = len(steady) // 3
    if not count:
        raise ValueError(f"{len(values)} values have no thirds after a warm-up of {warm_up}")
    return Pairs(ours=tuple(steady[-count:]), other=tuple(steady[:count]))


def rows(hour: Hour) -> Iterator[Row]:
    """Return the rows of a run."""
    samples, left = hour.samples, hour.left
    minutes = [each.minute for each in samples]
    warm_up = min(WARM_UP, len(samples) // 4)

    def compared(
        what: str, unit: str, values: Sequence[float], bar: float | None = None, note: str = ""
    ) -> Row:
        pairs = thirds(values, warm_up)
        return Row(
            what=what,
            unit=unit,
            ours=pairs.ours,
            other=pairs.other,
            beside="the first third",
            bar=bar,
            note=note,
            series=tuple(zip(minutes, values, strict=True)),
            x_axis="minutes",
            y_axis=unit,
        )

    yield compared("resident memory", "MB", [each.mb for each in samples], GROWTH, _described(hour))
    yield compared("objects of Python", "objects", [float(each.objects) for each in samples])
    yield compared("CPU of a delivery with its acks and publishing", "us", _cpu_us(samples))
    for what, count in (
        ("tasks", left.tasks),
        ("sockets", left.sockets),
        ("file descriptors", left.files),
    ):
        yield Row(what=f"{what} left after close", unit=what, ours=(float(count),), bar=0.0)


def _cpu_us(samples: Sequence[Sample]) -> list[float]:
    """Return the CPU time of a delivery in each minute."""
    found = []
    cpu_s, received = 0.0, 0
    for each in samples:
        found.append((each.cpu_s - cpu_s) * 1e6 / max(1, each.received - received))
        cpu_s, received = each.cpu_s, each.received
    return found


def _described(hour: Hour) -> str:
    """Return what happened, for the note of a row."""
    counts = hour.left.counts
    faults = sum(hour.faults.values())
    return (
        f"{counts['published']:,} messages were published, and {counts['received']:,} deliveries "
        f"were received. {faults:,} faults happened: "
        + ", ".join(f"{count} x {name}" for name, count in sorted(hour.faults.items()))
        + ". The application: "
        + ", ".join(f"{count:,} x {name}" for name, count in sorted(counts.items()))
        + "."
    )


def run(trial: Trial) -> Iterator[Row]:
    """Measure one hour.

    Raises:
        EncoreError: if the traffic ended early.
    """

    def on_sample(sample: Sample) -> None:
        trial.step(f"minute {sample.minute:.0f} of {MINUTES}, {sample.mb:.0f} MB")

    yield from rows(measure(MINUTES, SPEED, on_sample))


def main(arguments: Sequence[str]) -> None:
    """Print the samples and the rows of a run."""
    minutes = int(arguments[0]) if arguments else MINUTES
    speed = float(arguments[1]) if arguments[1:] else SPEED
    hour = measure(minutes, speed, print)
    print(_described(hour))
    print(f"objects left: {hour.left.objects}")
    for row in rows(hour):
        print(f"{row.what}: {spread_text(row.judged)} {row.verdict}")


BENCHMARK: Final = Benchmark(
    name="hour",
    title="An hour of mixed traffic with faults",
    about=(
        "Consumers of all four subscription types, a worker, a reader and producers come and go: "
        "acks, nacks, ack timeouts, retry letters, dead letters, batches, chunks, seeks, slow "
        "handlers and bursts. The broker, in another process, drops connections, unloads topics, "
        "restarts, and loses, delays, repeats and refuses commands; a proxy damages frames. The "
        "clocks of both processes run thirty times as fast as the machine's. Memory is sampled "
        "each minute; the last third is compared with the first, after ten minutes of warm-up."
    ),
    seconds=130,
    quick_s=None,
    run=run,
)

if __name__ == "__main__":
    main(sys.argv[1:])
