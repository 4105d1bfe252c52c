"""CPU time of a process that receives and acks, for each message, beside the stock sync client.

Messages of 100 bytes come from a broker in another process: in producer batches of 1000 and of 10,
unbatched, and unbatched with a key and a property. The two clients take turns, each run in a new
process and on a new subscription.

    make bench ONLY=receive_cpu
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import pulsar

from pulsar_encore.cli.demo.workload import PAYLOAD, Figures

from .processes import Runner, broker, fresh_topic
from .rows import Row
from .trial import Benchmark, Trial

_MODULE: Final = "integration.benchmarks.receive_cpu"  # also when this is `__main__`
_WITHIN_S: Final = 120


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The messages of one topic.

    Attributes:
        name: Name in the table.
        batch: Messages of an entry, 0 for unbatched messages.
        keyed: With a key and a property.
        messages: Messages of one measurement.
        bar: Largest share of the stock client's time.
    """

    name: str
    batch: int = 0
    keyed: bool = False
    messages: int
    bar: float


SHAPES: Final = (
    Shape(name="batches of 1000", batch=1000, messages=200_000, bar=0.28),
    Shape(name="batches of 10", batch=10, messages=60_000, bar=0.5),
    Shape(name="unbatched", messages=40_000, bar=0.8),
    Shape(name="unbatched, key and property", keyed=True, messages=40_000, bar=1.1),
)


def fill_keyed(url: str, topic: str, *, count: int) -> Figures:
    """Publish unbatched messages with a key and a property, as `stock_side.fill` does without."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe(topic, "keep", initial_position=pulsar.InitialPosition.Earliest).close()
    producer = client.create_producer(
        topic, batching_enabled=False, max_pending_messages=20_000, block_if_queue_full=True
    )
    for number in range(count):
        producer.send_async(
            PAYLOAD,
            None,
            partition_key=f"customer-{number % 1000:03}",
            properties={"trace": f"{number:016x}"},
        )
    producer.flush()
    client.close()
    return {"messages": count}


def fill(runner: Runner, topic: str, shape: Shape, count: int) -> None:
    """Publish the messages of a shape, and one more: the first is not measured."""
    sizes = {"count": count + 1} if shape.keyed else {"count": count + 1, "batch": shape.batch}
    where = (_MODULE, "fill_keyed") if shape.keyed else ("stock", "fill")
    asyncio.run(runner(*where, within_s=_WITHIN_S, topic=topic, **sizes))


def _cpu_us(runner: Runner, topic: str, count: int, side: str, name: str) -> float:
    return runner.consume(side, name, topic=topic, count=count, within_s=_WITHIN_S)["cpu_us"] or 0.0


def run(trial: Trial) -> Iterator[Row]:
    """Measure each shape.

    Raises:
        MeasurementError: if a measurement failed.
    """
    for shape in SHAPES:
        count = shape.messages
        with broker(trial.url) as url:
            runner, topic = Runner(url), fresh_topic()
            fill(runner, topic, shape, count)
            measure = partial(_cpu_us, runner, topic, count)
            pairs = trial.alternate(
                shape.name,
                partial(measure, "encore", "throughput"),
                partial(measure, "stock", "throughput_sync"),
            )
        yield Row(
            what=f"CPU, {shape.name}",
            unit="us/msg",
            ours=pairs.ours,
            other=pairs.other,
            bar=shape.bar,
            beside="stock sync",
        )


BENCHMARK: Final = Benchmark(
    name="receive_cpu",
    title="Receive and ack: CPU",
    about=(
        "CPU time of the process for each message of 100 bytes, native transport, beside "
        "the stock synchronous client."
    ),
    seconds=60,
    quick_s=35,
    run=run,
)
