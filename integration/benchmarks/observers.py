"""CPU time of a receive loop, a worker and a producer, with an observer and without one.

Both sides read the same stored messages over the native transport. They take turns in one process,
and the broker is another one, whose CPU time does not count. With metrics, a thread scrapes each
second. With traces, each span is sampled, and an exporter throws it away.

    make bench ONLY=observers
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from prometheus_client import CollectorRegistry, generate_latest

import pulsar_encore as encore
from pulsar_encore import otel, prometheus
from pulsar_encore.cli.demo.workload import PAYLOAD

from .processes import broker, fresh_topic
from .rows import Row
from .trial import Benchmark, Trial

MOST: Final = 1.1  # the bar of Prometheus
MESSAGES: Final = 60_000
_TRACED: Final = 12_000  # messages with traces, which cost ten times as much
_SCRAPE_S: Final = 1.0
EARLIEST: Final = encore.InitialPosition.Earliest

Side = Callable[[encore.Client, str, int], Awaitable[float]]


async def loop_cpu(client: encore.Client, topic: str, messages: int) -> float:
    """Return the CPU seconds of one task that receives and acks one by one."""
    async with client.subscribe(
        topic, uuid.uuid4().hex, encore.ConsumerType.Shared, initial_position=EARLIEST
    ) as consumer:
        begun = time.process_time()
        for _ in range(messages):
            await consumer.acknowledge(await consumer.receive())
        return time.process_time() - begun


def handler_of(messages: int) -> tuple[Callable[[bytes], Awaitable[None]], asyncio.Event]:
    """Return a handler that awaits once, and an event that is set after so many calls."""
    left, done = messages, asyncio.Event()

    async def handler(payload: bytes) -> None:
        nonlocal left
        await asyncio.sleep(0)
        left -= 1
        if left == 0:
            done.set()

    return handler, done


async def worker_cpu(client: encore.Client, topic: str, messages: int) -> float:
    """Return the CPU seconds of a worker with 32 slots."""
    handler, done = handler_of(messages)
    worker = encore.Worker(
        client, topic, uuid.uuid4().hex, handler, concurrency=32, initial_position=EARLIEST
    )
    begun = time.process_time()
    async with worker:
        await done.wait()
        return time.process_time() - begun


async def send_cpu(client: encore.Client, topic: str, messages: int) -> float:
    """Return the CPU seconds of 1,000 tasks that send one message after another.

    A task for each message would measure the garbage collector, which visits them all.
    """
    left = iter(range(messages))

    async def send_until_none_is_left(producer: encore.Producer[bytes]) -> None:
        for _ in left:
            await producer.send(b"x" * 100)

    async with client.create_producer(fresh_topic(), max_pending_messages=1000) as producer:
        begun = time.process_time()
        await asyncio.gather(*(send_until_none_is_left(producer) for _ in range(1000)))
        return time.process_time() - begun


SIDES: Final[dict[str, Side]] = {
    "receive and ack": loop_cpu,
    "worker": worker_cpu,
    "send": send_cpu,
}


class _NoExport(SpanExporter):
    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


@contextmanager
def prometheus_metrics() -> Iterator[encore.Observer]:
    registry = CollectorRegistry()
    with scrapes(lambda: generate_latest(registry)):
        yield prometheus.Metrics(registry)


@contextmanager
def otel_metrics() -> Iterator[encore.Observer]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with scrapes(reader.get_metrics_data):
        yield otel.Metrics(provider)
    provider.shutdown()


@contextmanager
def otel_tracing() -> Iterator[encore.Observer]:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(_NoExport()))
    yield otel.Tracing(provider)
    provider.shutdown()


OBSERVERS: Final[dict[str, Callable[[], AbstractContextManager[encore.Observer]]]] = {
    "prometheus": prometheus_metrics,
    "otel-metrics": otel_metrics,
    "otel-tracing": otel_tracing,
}


@contextmanager
def scrapes(scrape_once: Callable[[], object]) -> Iterator[None]:
    """Scrape in a thread, far more often than Prometheus does."""
    ended = threading.Event()

    def scrape() -> None:
        while not ended.wait(_SCRAPE_S):
            scrape_once()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


async def observed_by(observer: str, url: str, side: Side, topic: str, messages: int) -> float:
    with OBSERVERS[observer]() as made:
        async with encore.Client(url, observers=[made]) as client:
            gc.collect()
            return await side(client, topic, messages)


async def without(url: str, side: Side, topic: str, messages: int) -> float:
    async with encore.Client(url) as client:
        gc.collect()
        return await side(client, topic, messages)


async def filled(url: str, messages: int) -> str:
    """Return a topic with stored messages."""
    topic = fresh_topic()
    async with encore.Client(url) as client:
        # A subscription that takes nothing keeps them.
        async with client.subscribe(topic, "keep", encore.ConsumerType.Shared):
            producer = client.create_producer(
                topic,
                batching_max_messages=1000,
                max_pending_messages=5000,
                block_if_queue_full=True,
            )
            async with producer as sending:
                await asyncio.gather(*(sending.send(PAYLOAD) for _ in range(messages)))
    return topic


def run(trial: Trial) -> Iterator[Row]:
    """Measure each side with each observer."""
    with broker(trial.url) as url:
        topic = asyncio.run(filled(url, MESSAGES))
        for observer in ["prometheus"] if trial.quick else OBSERVERS:
            count = _TRACED if observer == "otel-tracing" else trial.sized(MESSAGES, MESSAGES // 4)
            for name, side in SIDES.items():

                def us(measure: Callable[..., Awaitable[float]], side: Side, count: int) -> float:
                    used_s: float = asyncio.run(measure(url, side, topic, count))
                    return used_s / count * 1e6

                us(without, side, count)  # the first run fills caches
                pairs = trial.alternate(
                    f"{observer}, {name}",
                    partial(us, partial(observed_by, observer), side, count),
                    partial(us, without, side, count),
                )
                yield Row(
                    what=f"{name}, {observer}",
                    unit="us/msg",
                    ours=pairs.ours,
                    other=pairs.other,
                    beside="no observers",
                    bar=MOST if observer == "prometheus" else None,
                )


BENCHMARK: Final = Benchmark(
    name="observers",
    title="Metrics and traces: CPU",
    about=(
        "CPU time of a message with an observer, beside the same work without observers. The cost "
        "of OpenTelemetry is that of its SDK."
    ),
    seconds=70,
    quick_s=16,
    run=run,
)
