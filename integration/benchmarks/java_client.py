"""Our native transport beside Java's client: rate and CPU time of receiving and acking.

Both read the same topics with the same settings: Shared, from the earliest message, a receiver
queue of 1000, one `receive` and one `acknowledge` for each message. The messages have 100 bytes.
Java's client is of the version of the broker that the project tests with (4.2.4).

Java runs in one process for all pairs of a topic, and first reads the topic for some seconds on
other subscriptions, so that the JIT compiler has done its work. Our process is new in each pair.
Process CPU time counts in both cases, with all threads; the JVM has its default collector and a
heap of 512 MB.

    make bench ONLY=java_client [URL=...]
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from pulsar_encore.cli.demo.workload import Figures

from .java_programs import Answer, java_program, missing_java
from .processes import Runner, broker, fresh_topic
from .receive_cpu import SHAPES, fill
from .rows import Row, row_of
from .trial import Benchmark, Trial

_WITHIN_S: Final = 120
_WARM_S: Final = 3
_MIN_WARM_RUNS: Final = 3


def _ours(runner: Runner, topic: str, count: int) -> Figures:
    return runner.consume("encore", "throughput", topic=topic, count=count, within_s=_WITHIN_S)


def _java(ask: Callable[..., Answer], topic: str, count: int) -> Figures:
    return dict(ask(topic, uuid.uuid4().hex, count))


def warm_up(measure: Callable[[], object], seconds: float) -> None:
    """Repeat a measurement for some seconds, at least three times."""
    began, runs = time.monotonic(), 0
    while runs < _MIN_WARM_RUNS or time.monotonic() < began + seconds:
        measure()
        runs += 1


def run(trial: Trial) -> Iterator[Row]:
    """Measure each shape; in a quick run, only the first and the last.

    Raises:
        JavaProgramError: if Java's client failed or cannot be compiled.
        MeasurementError: if a measurement of ours failed.
    """
    for shape in (SHAPES[0], SHAPES[-1]) if trial.quick else SHAPES:
        # The JVM knows its CPU time in steps of 10 ms, so a measurement must take long.
        count = shape.messages * trial.sized(2, 1)
        with (
            broker(trial.url) as url,
            java_program("client", "Receive", url, options=("-Xmx512m",)) as java,
        ):
            topic = fresh_topic()
            trial.step(f"{shape.name}, messages")
            fill(Runner(url), topic, shape, count)
            theirs = partial(_java, java, topic, count)
            trial.step(f"{shape.name}, warming up Java")
            warm_up(theirs, trial.sized(_WARM_S, 1))
            results = trial.in_turns(
                shape.name, {"ours": partial(_ours, Runner(url), topic, count), "java": theirs}
            )
        for what, unit, key in (("CPU", "us/msg", "cpu_us"), ("Rate", "msg/s", "per_s")):
            yield row_of(
                *(results, "ours", "java", key),
                what=f"{what}, {shape.name}",
                unit=unit,
                beside="Java's client",
                higher_is_better=key == "per_s",
                chart=f"Java's client: {what} of receive and ack",
            )


BENCHMARK: Final = Benchmark(
    name="java_client",
    title="Beside Java's client",
    about=(
        "Receive and ack of messages of 100 bytes with the native transport, beside Java's client "
        "4.2.4 on the same topics. CPU is the time of the whole process for each message. Java's "
        "process has been warmed up for some seconds."
    ),
    seconds=120,
    quick_s=None,
    run=run,
    available=missing_java,
)
