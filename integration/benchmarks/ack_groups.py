"""Acks in groups beside acks one at a time: frames that reach the broker, and CPU of each ack.

A consumer holds all messages of a topic, 100 bytes each, and acks one after the other. The figures
are CPU time of its process from the first ack until the consumer is closed, which sends the last
group, and the ack commands that a development broker in another process received. In groups, an ack
waits up to 100 ms for others, at most 1000 (Java's defaults, and those of the C++ client). Each
measurement has a process and a subscription of its own. One that left a message unacked fails.

The stock client has no option to send acks one at a time.

    make bench ONLY=ack_groups
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import pulsar

import pulsar_encore as encore
from pulsar_encore.cli.demo.measurement import MeasurementError
from pulsar_encore.cli.demo.workload import Figures

from .processes import Runner, fresh_topic
from .recording_broker import ACK, Commands, command_broker
from .rows import Row, row_of
from .trial import Benchmark, Trial

_MODULE: Final = "integration.benchmarks.ack_groups"  # also when this is `__main__`
_WITHIN_S: Final = 60
MESSAGES: Final = 20_000
QUICK_MESSAGES: Final = 5_000
#: Messages of an entry, 0 for unbatched messages.
SHAPES: Final = {"unbatched": 0, "batches of 10": 10}
GROUPED, SINGLE, STOCK = "in groups", "one at a time", "stock sync"


async def native(
    url: str, topic: str, *, count: int, subscription: str, group_time_ms: int
) -> Figures:
    """Ack with this package. A `group_time_ms` of 0 sends each ack at once."""
    async with encore.Client(url) as client:
        consumer = await client.subscribe(
            topic,
            subscription,
            encore.ConsumerType.Shared,
            initial_position=encore.InitialPosition.Earliest,
            receiver_queue_size=count,
            ack_group_time_ms=group_time_ms,
        )
        messages = [await consumer.receive() for _ in range(count)]
        cpu = time.process_time()
        for message in messages:
            await consumer.acknowledge(message)
        await consumer.close()
        return {"cpu_us": (time.process_time() - cpu) / count * 1e6}


def stock(url: str, topic: str, *, count: int, subscription: str) -> Figures:
    """Ack with the stock synchronous client, in groups."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(
        topic,
        subscription,
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=count,
    )
    messages = [consumer.receive() for _ in range(count)]
    cpu = time.process_time()
    for message in messages:
        consumer.acknowledge(message)
    consumer.close()
    figures: Figures = {"cpu_us": (time.process_time() - cpu) / count * 1e6}
    client.close()
    return figures


def run(trial: Trial) -> Iterator[Row]:
    """Measure each kind of topic. A quick run measures unbatched messages.

    Raises:
        MeasurementError: if a measurement failed.
    """
    count = trial.sized(MESSAGES, QUICK_MESSAGES)
    for shape, batch in list(SHAPES.items())[: 1 if trial.quick else None]:
        with command_broker() as (url, commands):
            runner, topic = Runner(url), fresh_topic()
            asyncio.run(
                runner("stock", "fill", within_s=_WITHIN_S, topic=topic, count=count, batch=batch)
            )
            measure = partial(_measure, runner, topic, count, max(batch, 1), commands)
            found = trial.in_turns(
                shape,
                {
                    GROUPED: partial(measure, "native", group_time_ms=100),
                    SINGLE: partial(measure, "native", group_time_ms=0),
                    STOCK: partial(measure, "stock"),
                },
            )
        for title, unit, key in (("frames", "/1000", "frames"), ("CPU", "us/ack", "cpu_us")):
            for other in (SINGLE, STOCK):
                yield row_of(
                    *(found, GROUPED, other, key),
                    what=f"{title} of acks in groups, {shape}",
                    unit=unit,
                    chart=f"Ack grouping: {title}",
                )


def _measure(
    runner: Runner,
    topic: str,
    count: int,
    size: int,
    commands: Callable[[str], Commands],
    name: str,
    **parameters: int,
) -> Figures:
    commands(ACK)  # forgets those of the measurement before
    figures = runner.consume(
        _MODULE, name, topic=topic, count=count, within_s=_WITHIN_S, **parameters
    )
    received = commands(ACK)
    entries = {key for _, ids in received for key in ids}
    if len(entries) != count // size:
        raise MeasurementError(f"{name}: {len(entries)} of {count // size} entries were acked")
    return {**figures, "frames": len(received) / count * 1000}


BENCHMARK: Final = Benchmark(
    name="ack_groups",
    title="Acks in groups and one at a time",
    about=(
        "A consumer holds all messages of a topic and acks one after the other. Frames are the ack "
        "commands that the broker received, for 1000 acks. CPU is that of the process until the "
        "consumer is closed. The stock client groups its acks, and has no option against it."
    ),
    seconds=55,
    quick_s=None,
    run=run,
)
