"""The cost of transactions: sends, acks and a worker, each beside the same without transactions.

100-byte messages, native transport, one transaction after the other. The bars of sends and acks
are ratios of Java's client on a Pulsar of a quiet machine, and 0.3 for a worker. A transaction has
a fixed cost of several answers of the broker, so a slow broker costs small transactions more than
the development broker does. The benchmark `java_transactions` measures both clients on a Pulsar.

    make bench ONLY=transaction_cost [URL=pulsar://localhost:6650]
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Final

import pulsar_encore as encore
from pulsar_encore.cli.demo.workload import PAYLOAD, Figures, Stopwatch

from .processes import Runner, broker, fresh_topic
from .rows import Row, row_of
from .trial import Benchmark, Trial

_MODULE: Final = "integration.benchmarks.transaction_cost"  # also when this is `__main__`
_WITHIN_S: Final = 180
#: Messages in a transaction -> messages in one measurement, and Java's ratio.
SENDS: Final = {10_000: (100_000, 0.5), 1_000: (50_000, 0.09), 100: (5_000, 0.008)}
#: Messages of an entry, 0 for unbatched -> messages in one measurement, and Java's ratio.
ACKS: Final = {100: (40_000, 0.31), 0: (20_000, 0.71)}
WORKER_MESSAGES: Final = 12_000
GROUP: Final = 1_000


def run(trial: Trial) -> Iterator[Row]:
    """Measure sends, acks and workers.

    Raises:
        MeasurementError: if a measurement failed.
    """
    with broker(trial.url) as url:
        runner = Runner(url)
        yield from _sends(trial, runner)
        for batch, (count, bar) in ACKS.items():
            kind = f"batches of {batch}" if batch else "unbatched"
            yield from _on_backlog(
                *(trial, runner, "acks", f"acks in lists, {kind}", count, batch, bar)
            )
        yield from _on_backlog(
            *(trial, runner, "worker", "worker with results", WORKER_MESSAGES, 0, 0.3)
        )


def _sends(trial: Trial, runner: Runner) -> Iterator[Row]:
    for size, (count, bar) in SENDS.items():

        def measure(size: int, count: int = trial.sized(count, count // 2)) -> Figures:
            work = runner(
                *(_MODULE, "sends"), within_s=_WITHIN_S, transport="native", count=count, size=size
            )
            return asyncio.run(work)

        label = f"transactions of {size:,}"
        found = trial.in_turns(
            f"sends in {label}", {label: partial(measure, size), "plain": partial(measure, 0)}
        )
        yield row_of(
            *(found, label, "plain", "per_s"),
            what=f"sends in {label}",
            unit="msg/s",
            bar=bar,
            higher_is_better=True,
            chart="Transactions: messages per second",
        )


def _on_backlog(
    trial: Trial, runner: Runner, name: str, what: str, count: int, batch: int, bar: float
) -> Iterator[Row]:
    count, topic = trial.sized(count, count // 2), fresh_topic()
    filling = runner(
        "stock", "fill", within_s=_WITHIN_S, topic=topic, count=count + GROUP, batch=batch
    )
    asyncio.run(filling)

    def measure(transactional: bool) -> Figures:
        work = runner(
            *(_MODULE, name),
            within_s=_WITHIN_S,
            topic=topic,
            transport="native",
            count=count,
            transactional=transactional,
        )
        return asyncio.run(work)

    label = f"transactions of {GROUP:,}"
    found = trial.in_turns(what, {label: partial(measure, True), "plain": partial(measure, False)})
    for key, unit in (("per_s", "msg/s"), ("cpu_us", "us/msg")):
        yield row_of(
            *(found, label, "plain", key),
            what=what + ("" if key == "per_s" else ", CPU"),
            unit=unit,
            bar=bar if key == "per_s" else None,
            higher_is_better=key == "per_s",
            chart="Transactions: "
            + ("messages per second" if key == "per_s" else "CPU for each message"),
        )


@asynccontextmanager
async def transaction_if(client: encore.Client, wanted: bool) -> AsyncIterator[Any]:
    """Yield a transaction that is committed at the end of the block, or None."""
    if not wanted:
        yield None
        return
    async with client.transaction() as txn:
        yield txn


def exclusive_consumer(
    client: encore.Client, topic: str
) -> AbstractAsyncContextManager[encore.Consumer[bytes]]:
    """Subscribe to a topic from its first message, with receipts of acks that leave at once."""
    return client.subscribe(
        topic,
        uuid.uuid4().hex,
        encore.ConsumerType.Exclusive,
        initial_position=encore.InitialPosition.Earliest,
        ack_receipt_enabled=True,
        ack_group_time_ms=0,  # else each plain list waits for the end of this time
    )


async def sends(url: str, topic: str, *, count: int, size: int) -> Figures:
    """Send in transactions of `size`, or plainly with size 0; wait after each 10,000 then."""
    async with (
        encore.Client(url) as client,
        client.create_producer(
            topic, block_if_queue_full=True, max_pending_messages=20_000
        ) as producer,
    ):

        async def publish(messages: int) -> None:
            async with transaction_if(client, size > 0) as txn:
                for _ in range(messages):
                    producer.send_async(PAYLOAD, None, txn=txn)
                if txn is None:  # a commit waits for its sends
                    await producer.flush()

        each = size or 10_000
        await publish(min(each, 1_000))
        clock, cpu = Stopwatch(), time.process_time()
        for start in range(0, count, each):
            await publish(min(each, count - start))
        return _figures(count, clock, cpu)


async def acks(url: str, topic: str, *, count: int, transactional: bool) -> Figures:
    """Receive, and ack lists of 1,000 with receipts."""
    async with encore.Client(url) as client, exclusive_consumer(client, topic) as consumer:

        async def take() -> None:
            messages = [await consumer.receive() for _ in range(GROUP)]
            async with transaction_if(client, transactional) as txn:
                await consumer.acknowledge(messages, txn=txn)

        await take()
        clock, cpu = Stopwatch(), time.process_time()
        for _ in range(count // GROUP):
            await take()
        return _figures(count, clock, cpu)


async def worker(url: str, topic: str, *, count: int, transactional: bool) -> Figures:
    """Handle messages with a worker that publishes one result for each."""
    handled, first = 0, asyncio.Event()

    async def handler(payload: bytes) -> bytes:
        nonlocal handled
        await asyncio.sleep(0)
        handled += 1
        if handled == GROUP:
            first.set()
        return payload

    async with encore.Client(url) as client:
        made = encore.Worker(
            client,
            topic,
            uuid.uuid4().hex,
            handler,
            concurrency=32,
            publish=f"{topic}-results-{uuid.uuid4().hex}",
            transactional=transactional,
            initial_position=encore.InitialPosition.Earliest,
        )
        async with made:
            await first.wait()
            before = made.report().succeeded
            clock, cpu = Stopwatch(), time.process_time()
            while made.report().succeeded < GROUP + count:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.002)
            return _figures(GROUP + count - before, clock, cpu)


def _figures(count: int, clock: Stopwatch, cpu: float) -> Figures:
    seconds, cpu_s = clock(), time.process_time() - cpu
    return {"per_s": count / seconds, "cpu_us": cpu_s / count * 1e6}


BENCHMARK: Final = Benchmark(
    name="transaction_cost",
    title="Transactions",
    about=(
        "100-byte messages, native transport, one transaction after the other, beside the same "
        "without transactions. Sends are in batches. Acks are lists of 1,000 with receipts, on an "
        "Exclusive subscription. The worker publishes one result for each message, with 32 slots. "
        "The bars of sends and acks are the ratios of Java's client on Pulsar."
    ),
    seconds=120,
    quick_s=None,
    run=run,
)
