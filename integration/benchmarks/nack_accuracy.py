"""How far from its due time a nacked message is requested, with 0.05 s and 1 s, at 20 and 10,000/s.

The times come from the record of the development broker, in another process: the first request for
each entry, minus the time of the nack, minus the delay. A negative figure is early. With `--url` it
is the time at which each message is back in the application, with the broker's part included. The
bar is 10 ms after the bucket to which the due time is rounded up. It is 100 ms on the stock
transport, where the C++ client's timer sends the requests.

    make bench ONLY=nack_accuracy
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pulsar_encore as encore
from pulsar_encore.cli.demo.scenario import SIDES
from pulsar_encore.cli.demo.stock_side import publish
from pulsar_encore.core.due_index import precision_bits

from .processes import OURS, fresh_topic
from .recording_broker import Redeliveries, recording_broker
from .rows import Row, percentile
from .trial import Benchmark, Trial

DELAYS_S: Final = (0.05, 1.0)
TICK_S: Final = 0.005
#: The bars: how long after its bucket a request may come, in ms.
LATE_MS: Final = {"native": 10.0, "encore": 100.0}
#: Nacks per second -> number of nacks.
RATES: Final = {20: 100, 10_000: 20_000}
SETTLE_S: Final = 1.0

Key = tuple[int, int]


async def errors_ms(
    url: str,
    read: Callable[[], Redeliveries] | None,
    *,
    transport: str,
    delay_s: float,
    per_s: int,
) -> list[float]:
    """Return how far from its due time each entry was requested, in ms.

    Without `read`, the time of the redelivery counts.

    Raises:
        AssertionError: if an entry was never requested.
    """
    count = RATES[per_s]
    topic = fresh_topic()
    await asyncio.to_thread(publish, url, topic, count)
    async with (
        encore.Client(url, transport=transport) as client,
        await client.subscribe(
            topic,
            "accuracy",
            consumer_type=encore.ConsumerType.Shared,
            initial_position=encore.InitialPosition.Earliest,
            max_unacked_messages=1_000_000,
        ) as consumer,
    ):
        messages = [await consumer.receive() for _ in range(count)]
        redelivered_at: dict[Key, float] = {}
        receive_task = (
            asyncio.ensure_future(_record_redeliveries(consumer, count, redelivered_at))
            if read is None
            else None
        )
        nacked: dict[Key, float] = {}
        start = time.monotonic()
        for number, message in enumerate(messages):
            wait_s = start + number / per_s - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(max(wait_s, TICK_S))
            identity = message.message_id()
            nacked[identity.ledger_id(), identity.entry_id()] = time.monotonic() * 1000
            await consumer.negative_acknowledge(message, delay=delay_s)
        if receive_task is None:
            await asyncio.sleep(delay_s + SETTLE_S)
        else:
            await asyncio.wait((receive_task,), timeout=delay_s + 10 * SETTLE_S)
            receive_task.cancel()
        requested_at = redelivered_at if read is None else await asyncio.to_thread(read)
    missing = nacked.keys() - requested_at.keys()
    assert not missing, f"{len(missing)} of {count} entries were never requested again"
    return [requested_at[key] - at_ms - delay_s * 1000 for key, at_ms in nacked.items()]


async def _record_redeliveries(
    consumer: encore.Consumer, count: int, redelivered_at: dict[Key, float]
) -> None:
    while len(redelivered_at) < count:
        message = await consumer.receive()
        identity = message.message_id()
        redelivered_at.setdefault(
            (identity.ledger_id(), identity.entry_id()), time.monotonic() * 1000
        )
        consumer.acknowledge(message)


@contextmanager
def _broker(url: str | None) -> Iterator[tuple[str, Callable[[], Redeliveries] | None]]:
    if url is not None:
        yield url, None
    else:
        with recording_broker() as (made, read):
            yield made, read


def run(trial: Trial) -> Iterator[Row]:
    """Measure every delay at every rate, on both transports."""
    for delay_s in DELAYS_S:
        bucket_ms = 1 << precision_bits(round(delay_s * 1000))
        for per_s in RATES:
            for label, name in OURS.items():
                what = f"nack of {delay_s:g} s at {per_s:,}/s, {name}"
                trial.step(what)
                with _broker(trial.url) as (url, read):
                    transport = SIDES[label][1]
                    work = errors_ms(url, read, transport=transport, delay_s=delay_s, per_s=per_s)
                    errors = asyncio.run(work)
                yield Row(
                    what=f"{what}: earliest",
                    unit="ms",
                    ours=(min(errors),),
                    bar=0.0,
                    higher_is_better=True,
                )
                yield Row(what=f"{what}: p50", unit="ms", ours=(percentile(errors, 0.5),))
                yield Row(
                    what=f"{what}: p99",
                    unit="ms",
                    ours=(percentile(errors, 0.99),),
                    bar=bucket_ms + LATE_MS[label],
                )


BENCHMARK: Final = Benchmark(
    name="nack_accuracy",
    title="Due times of nacks",
    about=(
        "How long after its due time a nacked message is requested from the broker, measured once. "
        "Due times are rounded up to a bucket of 32 ms, and the bars include it. No request may be "
        "early."
    ),
    seconds=55,
    quick_s=None,
    run=run,
)
