"""The longest step of the client's event loop while 50,000 messages are held, queued or acked.

A step is one callback of the loop: everything else on the loop waits until it returns. The figure
is CPU time of the loop's thread (`time.thread_time`), so neither the broker, which runs in another
thread, nor processes that take turns with this one add to it. They still slow it down, because they
share the caches of the processor. The figure of a row is therefore the least of several runs: each
run has the longest step of one situation. The benchmark's own loop around a call, such as one that
receives all messages, is a part of the step.

The garbage collector is off while a situation is measured, because a full collection also walks
over the application's objects. Its pause is a row of its own, without a promise.

    make bench ONLY=loop_steps
    python -m integration.benchmarks.loop_steps [--only NAME] [--messages 50000] [--url URL]

With `--url` the broker is a real one, and the scenarios that cut connections are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerSettings
from pulsar_encore.devbroker.thread import BrokerThread, run_in_thread

from .rows import Row, short
from .trial import Benchmark, Trial

MESSAGES: Final = 50_000  # the broker's default unacked window
GOAL_MS: Final = 10.0
RUNS: Final = 3
QUICK_RUNS: Final = 2
QUICK_SUITE: Final = ("redelivered", "asked")
#: The situations that a user meets.
SUITE: Final = (
    *QUICK_SUITE,
    "first_received",
    "nacked",
    "acked",
    "listed",
    "rewound",
    "rewound_queued",
    "sought",
    "ended",
    "lost_holding",
    "lost_queued",
)
_BODY: Final = b"x" * 10  # small, so that a read of 256 KiB has many messages
_SHARED: Final = encore.ConsumerType.Shared
_EXCLUSIVE: Final = encore.ConsumerType.Exclusive


class Steps:
    """CPU time of each callback that the event loop of this thread runs.

    `asyncio` has no public hook around a callback: `loop.slow_callback_duration` only logs, and
    only in debug mode, which changes the figures. So `Handle._run` is replaced for the duration.
    """

    def __init__(self) -> None:
        self.longest: list[tuple[float, str]] = []

    def __enter__(self) -> Steps:
        self._run: Callable[[asyncio.Handle], None] = asyncio.Handle._run
        run, thread, clock, longest = self._run, threading.get_ident(), time.thread_time, [0.0]

        def timed(handle: asyncio.Handle) -> None:
            if threading.get_ident() != thread:
                run(handle)
                return
            begun = clock()
            run(handle)
            took = clock() - begun
            if took > 0.003 or took > longest[0]:
                longest[0] = max(longest[0], took)
                self.longest.append((took * 1000, _label(handle)))

        asyncio.Handle._run = timed  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]


def _label(handle: asyncio.Handle) -> str:
    callback: Any = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {getattr(owner.get_coro(), '__qualname__', '?')}"
    return str(getattr(callback, "__qualname__", callback))[:60]


@dataclass
class Bench:
    """The means of a scenario."""

    client: encore.Client
    broker: BrokerThread | None
    messages: int
    topics: dict[int, str]
    say: Callable[[str], None]
    found: list[tuple[str, float, str, int]] = field(default_factory=list)
    collector_ms: float = 0.0  # the longest full collection before a measurement

    @contextlib.asynccontextmanager
    async def measured(self, what: str) -> AsyncIterator[None]:
        """Record the longest step of the body. The body begins and ends in separate steps."""
        begun = time.thread_time()
        gc.collect()
        self.collector_ms = max(self.collector_ms, (time.thread_time() - begun) * 1000)
        gc.disable()
        try:
            with Steps() as steps:
                await asyncio.sleep(0)
                try:
                    yield
                finally:
                    await asyncio.sleep(0.3)
        finally:
            gc.enable()
        ordered = sorted(steps.longest, reverse=True)
        ms, label = ordered[0] if ordered else (0.0, "")
        over = sum(each[0] > GOAL_MS for each in ordered)
        self.found.append((what, ms, label, over))
        self.say(f"{what:58}{ms:8.1f} ms  {over:4} over {GOAL_MS:g}   {label}")
        for other_ms, label_of_step in ordered[1:3]:
            if other_ms > GOAL_MS / 2:
                self.say(f"{'':58}{other_ms:8.1f} ms{'':16}{label_of_step}")

    async def consumer(
        self, kind: encore.ConsumerType = _SHARED, *, batch: int = 0, **options: Any
    ) -> encore.Consumer:
        """Open a consumer on a new subscription, at the start of the topic with such batches."""
        options.setdefault("negative_ack_redelivery_delay_ms", 1_000)
        options.setdefault("receiver_queue_size", 5_000)
        return await self.client.subscribe(
            self.topics[batch],
            f"s-{uuid.uuid4().hex}",
            kind,
            initial_position=encore.InitialPosition.Earliest,
            max_unacked_messages=4 * self.messages,
            **options,
        )

    async def held(self, consumer: encore.Consumer) -> list[encore.Message]:
        """Receive all messages of the topic."""
        return [await consumer.receive(timeout=30) for _ in range(self.messages)]

    async def queued(self, consumer: encore.Consumer, least: int = 0) -> None:
        """Wait until all messages of the topic are in the receiver queue."""
        while consumer.statistics().queued < (least or self.messages):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


Scenario = Callable[[Bench], Awaitable[None]]
SCENARIOS: Final[dict[str, Scenario]] = {}
CUTS: Final[set[str]] = set()


def scenario(*, cuts: bool = False) -> Callable[[Scenario], Scenario]:
    def add(function: Scenario) -> Scenario:
        name = function.__name__.strip("_")
        SCENARIOS[name] = function
        if cuts:
            CUTS.add(name)
        return function

    return add


# Redeliveries


@scenario()
async def redelivered(bench: Bench) -> None:
    for batch in bench.topics:
        consumer = await bench.consumer(batch=batch)
        kept = await bench.held(consumer)
        async with bench.measured(f"redeliver all, batch {batch}: the call"):
            consumer.redeliver_unacknowledged_messages()
        async with bench.measured(f"redeliver all, batch {batch}: received again"):
            again = await bench.held(consumer)
        del again
        del kept
        await consumer.close()


@scenario()
async def redelivered_elsewhere(bench: Bench) -> None:
    for policy in (False, True):
        name, first = f"s-{uuid.uuid4().hex}", await bench.consumer()
        options: dict[str, Any] = {}
        if policy:
            options = {"dead_letter_policy": encore.ConsumerDeadLetterPolicy(10)}
        first = await bench.client.subscribe(
            bench.topics[0],
            name,
            _SHARED,
            initial_position=encore.InitialPosition.Earliest,
            receiver_queue_size=5_000,
        )
        await bench.held(first)
        await first.close()
        second = await bench.client.subscribe(
            bench.topics[0], name, _SHARED, receiver_queue_size=5_000, **options
        )
        with_policy = ", dead-letter policy" if policy else ""
        async with bench.measured(f"redelivered to another consumer{with_policy}"):
            # freed later, because freeing is a step of its own
            again = await bench.held(second)
        del again
        await second.close()


@scenario()
async def rewound(bench: Bench) -> None:
    for batch in (0, 10):
        consumer = await bench.consumer(_EXCLUSIVE, batch=batch)
        await bench.held(consumer)
        async with bench.measured(f"Exclusive rewind, batch {batch}: the call, held"):
            consumer.redeliver_unacknowledged_messages()
        async with bench.measured(f"Exclusive rewind, batch {batch}: received again"):
            # freed later, because freeing is a step of its own
            again = await bench.held(consumer)
        del again
        await consumer.close()


@scenario()
async def rewound_queued(bench: Bench) -> None:
    for kind in (_EXCLUSIVE, _SHARED):
        consumer = await bench.consumer(kind, receiver_queue_size=bench.messages + 5_000)
        await bench.queued(consumer)
        async with bench.measured(f"{kind.name} redeliver all, queued"):
            consumer.redeliver_unacknowledged_messages()
            await asyncio.sleep(1)
        await consumer.close()


# Acks


@scenario()
async def cumulative(bench: Bench) -> None:
    for batch in bench.topics:
        for kept_by_application in (True, False):
            consumer = await bench.consumer(_EXCLUSIVE, batch=batch)
            messages = await bench.held(consumer)
            last, kept = messages[-2], messages if kept_by_application else []
            del messages
            kind = "kept" if kept_by_application else "not kept"
            async with bench.measured(f"acknowledge_cumulative, batch {batch}, {kind}"):
                await consumer.acknowledge_cumulative(last)
            del kept
            await consumer.close()


@scenario()
async def cumulative_queued(bench: Bench) -> None:
    consumer = await bench.consumer(_EXCLUSIVE, receiver_queue_size=bench.messages + 5_000)
    await bench.queued(consumer)
    last = await consumer.get_last_message_id()
    async with bench.measured("acknowledge_cumulative by id, all queued"):
        await consumer.acknowledge_cumulative(last)
    async with bench.measured("receive after that"):
        with contextlib.suppress(encore.ReceiveTimeout):
            await consumer.receive(timeout=0.2)
    await consumer.close()


@scenario()
async def cumulative_nacked(bench: Bench) -> None:
    consumer = await bench.consumer(_EXCLUSIVE, unacked_messages_timeout_ms=100_000)
    messages = await bench.held(consumer)
    for message in messages:
        await consumer.negative_acknowledge(message, 1_000)
    async with bench.measured("acknowledge_cumulative over all nacks and ack timeouts"):
        await consumer.acknowledge_cumulative(messages[-1])
    await consumer.close()


@scenario()
async def listed(bench: Bench) -> None:
    for batch in bench.topics:
        consumer = await bench.consumer(batch=batch)
        messages = await bench.held(consumer)
        async with bench.measured(f"acknowledge(list), batch {batch}"):
            await consumer.acknowledge(messages)
        await consumer.close()
    consumer = await bench.consumer()
    messages = await bench.held(consumer)
    ids = [each.message_id() for each in messages]
    async with bench.measured("acknowledge(list of ids)"):
        await consumer.acknowledge(ids)
    await consumer.close()


@scenario()
async def acked(bench: Bench) -> None:
    for batch in bench.topics:
        consumer = await bench.consumer(batch=batch)
        messages = await bench.held(consumer)
        async with bench.measured(f"acknowledge one by one, batch {batch}"):
            for message in messages:
                await consumer.acknowledge(message)
        del messages
        await consumer.close()


@scenario()
async def listed_receipts(bench: Bench) -> None:
    consumer = await bench.consumer(ack_receipt_enabled=True)
    messages = await bench.held(consumer)
    async with bench.measured("acknowledge(list), with receipts"):
        await consumer.acknowledge(messages)
    await consumer.close()
    consumer = await bench.consumer(ack_receipt_enabled=True)
    messages = await bench.held(consumer)
    async with bench.measured("tasks for all that each await a receipt"):
        tasks = []
        for message in messages:
            tasks.append(asyncio.ensure_future(_acked(consumer, message)))
            if len(tasks) % 500 == 0:
                await asyncio.sleep(0)
        while not tasks[-1].done():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await consumer.close()


async def _acked(consumer: encore.Consumer, message: encore.Message) -> None:
    await consumer.acknowledge(message)


@scenario()
async def listed_then_closed(bench: Bench) -> None:
    consumer = await bench.consumer()
    messages = await bench.held(consumer)
    async with bench.measured("close right after acknowledge(list)"):
        acked = consumer.acknowledge(messages)
        await asyncio.sleep(0)
        await asyncio.gather(consumer.close(), acked, return_exceptions=True)


@scenario(cuts=True)
async def offline(bench: Bench) -> None:
    assert bench.broker is not None
    for kind in (_SHARED, _EXCLUSIVE):
        for batch in (0, 10):
            consumer = await bench.consumer(kind, batch=batch)
            messages = await bench.held(consumer)
            async with bench.measured(f"{kind.name}, batch {batch}: the connection is lost"):
                await asyncio.to_thread(bench.broker.outage, None)
                while consumer.is_connected():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            async with bench.measured(f"{kind.name}, batch {batch}: acks made offline"):
                for message in messages:
                    await consumer.acknowledge(message)
            async with bench.measured(f"{kind.name}, batch {batch}: back, acks sent again"):
                await asyncio.to_thread(bench.broker.resume)
                while not consumer.is_connected():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await asyncio.sleep(1)
            await consumer.close()


@scenario(cuts=True)
async def lost_holding(bench: Bench) -> None:
    assert bench.broker is not None
    for kind in (_SHARED, _EXCLUSIVE):
        for batch in (0, 10):
            consumer = await bench.consumer(kind, batch=batch)
            messages = await bench.held(consumer)
            async with bench.measured(f"{kind.name}, batch {batch}, held: lost and back"):
                await asyncio.to_thread(bench.broker.drop_connections)
                await asyncio.sleep(0.3)
                while not consumer.is_connected():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await asyncio.sleep(2)
            del messages
            await consumer.close()


@scenario(cuts=True)
async def lost_queued(bench: Bench) -> None:
    assert bench.broker is not None
    for kind in (_SHARED, _EXCLUSIVE):
        for batch in (0, 10):
            consumer = await bench.consumer(
                kind, batch=batch, receiver_queue_size=bench.messages + 5_000
            )
            await bench.queued(consumer)
            async with bench.measured(f"{kind.name}, batch {batch}, queued: lost and back"):
                await asyncio.to_thread(bench.broker.drop_connections)
                await asyncio.sleep(0.3)
                while not consumer.is_connected():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await asyncio.sleep(2)
            await consumer.close()


# Nacks and timeouts


@scenario()
async def nacked(bench: Bench) -> None:
    for batch in bench.topics:
        consumer = await bench.consumer(batch=batch)
        messages = await bench.held(consumer)
        async with bench.measured(f"all nacks, batch {batch}"):
            for message in messages:
                await consumer.negative_acknowledge(message, 3)
        del messages
        async with bench.measured(f"all nacks, batch {batch}: due at once and received"):
            # freed later, because freeing is a step of its own
            again = await bench.held(consumer)
        del again
        await consumer.close()


@scenario(cuts=True)
async def nacked_offline(bench: Bench) -> None:
    assert bench.broker is not None
    consumer = await bench.consumer()
    messages = await bench.held(consumer)
    async with bench.measured("nacks that come due while disconnected"):
        for message in messages:
            await consumer.negative_acknowledge(message, 1)
        await asyncio.to_thread(bench.broker.outage, None)
        await asyncio.sleep(2)
        await asyncio.to_thread(bench.broker.resume)
        while not consumer.is_connected():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(2)
    await consumer.close()


@scenario()
async def timed_out(bench: Bench) -> None:
    for kind in (_SHARED, _EXCLUSIVE):
        consumer = await bench.consumer(kind, unacked_messages_timeout_ms=10_000)
        await bench.held(consumer)
        async with bench.measured(f"{kind.name}: all ack timeouts at once"):
            await asyncio.sleep(9)
            again = await asyncio.wait_for(bench.held(consumer), 60)
        del again
        await consumer.close()


@scenario()
async def dead_lettered(bench: Bench) -> None:
    consumer = await bench.consumer(
        dead_letter_policy=encore.ConsumerDeadLetterPolicy(1),
        negative_ack_redelivery_delay_ms=0,
    )
    await bench.held(consumer)
    consumer.redeliver_unacknowledged_messages()
    messages = [await consumer.receive(timeout=30) for _ in range(bench.messages)]
    async with bench.measured("all nacks that are dead-lettered"):
        for message in messages:
            await consumer.negative_acknowledge(message, 0)
        while consumer.statistics().unacked:  # noqa: ASYNC110
            await asyncio.sleep(1)
    await consumer.close()


# Leases


@scenario()
async def leased(bench: Bench) -> None:
    consumer = await bench.consumer(max_leases=2 * bench.messages)
    leases: list[encore.Lease] = []
    async with bench.measured("pop of up to 10,000"):
        while len(leases) < bench.messages:
            leases += await consumer.pop(10_000, lease=8, wait=10)
    async with bench.measured("all leases that expire, popped again"):
        again = 0
        while again < bench.messages:
            again += len(await consumer.pop(10_000, lease=60, wait=20))
    async with bench.measured("redeliver all with all leases"):
        consumer.redeliver_unacknowledged_messages()
    await consumer.close()


@scenario()
async def leased_closed(bench: Bench) -> None:
    consumer = await bench.consumer(max_leases=2 * bench.messages)
    leases: list[encore.Lease] = []
    while len(leases) < bench.messages:
        leases += await consumer.pop(1_000, lease=100, wait=10)
    async with bench.measured("close with all leases"):
        await consumer.close()


@scenario()
async def ordered_leases(bench: Bench) -> None:
    consumer = await bench.consumer(
        encore.ConsumerType.KeyShared,
        ordered_leases=True,
        max_leases=bench.messages,
        receiver_queue_size=bench.messages,
    )
    await asyncio.sleep(3)
    async with bench.measured("ordered leases: pops of one key, all queued"):
        for _ in range(200):
            for lease in await consumer.pop(100, lease=60, wait=1):
                await lease.ack()
    async with bench.measured("ordered leases: redeliver all"):
        consumer.redeliver_unacknowledged_messages()
    async with bench.measured("ordered leases: close"):
        await consumer.close()


# Receiving


@scenario()
async def batch_received(bench: Bench) -> None:
    for batch in (0, 10):
        consumer = await bench.consumer(
            batch=batch,
            receiver_queue_size=bench.messages,
            batch_receive_policy=encore.BatchReceivePolicy(bench.messages, -1, 20_000),
        )
        async with bench.measured(f"batch_receive of all, batch {batch}"):
            # freed later, because freeing is a step of its own
            kept = await consumer.batch_receive()
        assert len(kept) == bench.messages
        del kept
        await consumer.close()
        consumer = await bench.consumer(
            batch=batch,
            receiver_queue_size=bench.messages,
            batch_receive_policy=encore.BatchReceivePolicy(bench.messages, 10**9, 20_000),
        )
        async with bench.measured(f"the same by bytes, batch {batch}"):
            kept = await consumer.batch_receive()
        assert len(kept) == bench.messages
        del kept
        await consumer.close()


@scenario()
async def first_received(bench: Bench) -> None:
    for batch in bench.topics:
        for options in ({}, {"dead_letter_policy": encore.ConsumerDeadLetterPolicy(3)}):
            consumer = await bench.consumer(
                batch=batch, receiver_queue_size=bench.messages, **options
            )
            with_policy = ", dead-letter policy" if options else ""
            async with bench.measured(f"first deliveries, batch {batch}{with_policy}"):
                await bench.queued(consumer)
            await consumer.close()


# Position and life


@scenario()
async def sought(bench: Bench) -> None:
    for kind in (_SHARED, _EXCLUSIVE):
        for batch in (0, 10):
            consumer = await bench.consumer(kind, batch=batch)
            kept = await bench.held(consumer)
            async with bench.measured(f"{kind.name}, batch {batch}: seek with all held"):
                await consumer.seek(encore.MessageId.latest)
            del kept
            await consumer.close()
        consumer = await bench.consumer(kind, receiver_queue_size=bench.messages)
        await bench.queued(consumer, bench.messages - 10)
        async with bench.measured(f"{kind.name}: seek with all queued"):
            await consumer.seek(encore.MessageId.latest)
        await consumer.close()


@scenario()
async def ended(bench: Bench) -> None:
    for kind in (_SHARED, _EXCLUSIVE):
        for how in ("close", "unsubscribe"):
            consumer = await bench.consumer(kind)
            kept = await bench.held(consumer)
            async with bench.measured(f"{kind.name}: {how} with all held"):
                await getattr(consumer, how)()
            async with bench.measured(f"{kind.name}: it is forgotten"):
                del kept, consumer
            consumer = await bench.consumer(kind, receiver_queue_size=bench.messages)
            await bench.queued(consumer, bench.messages - 10)
            async with bench.measured(f"{kind.name}: {how} with all queued"):
                await getattr(consumer, how)()
            del consumer
            consumer = await bench.consumer(kind, ack_group_time_ms=60_000)
            messages = await bench.held(consumer)
            for message in messages:
                consumer.acknowledge(message)
            async with bench.measured(f"{kind.name}: {how} with all acked just now"):
                await getattr(consumer, how)()


@scenario(cuts=True)
async def closed_offline(bench: Bench) -> None:
    assert bench.broker is not None
    consumer = await bench.consumer()
    messages = await bench.held(consumer)
    await asyncio.to_thread(bench.broker.outage, None)
    while consumer.is_connected():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    for message in messages:
        await consumer.acknowledge(message)
    async with bench.measured("close with all acks made offline, back meanwhile"):
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0.5)
        await asyncio.to_thread(bench.broker.resume)
        await closing


@scenario()
async def asked(bench: Bench) -> None:
    for batch in (0, 10):
        for state in ("held", "queued"):
            size = 5_000 if state == "held" else bench.messages + 5_000
            consumer = await bench.consumer(batch=batch, receiver_queue_size=size)
            kept = await bench.held(consumer) if state == "held" else []
            if state == "queued":
                await bench.queued(consumer)
            async with bench.measured(f"statistics(), batch {batch}, {state}"):
                consumer.statistics()
            async with bench.measured(f"pending(), batch {batch}, {state}"):
                consumer.pending()
            async with bench.measured(f"lag(), batch {batch}, {state}"):
                await consumer.lag()
            del kept
            await consumer.close()


# Producers


@scenario(cuts=True)
async def producing(bench: Bench) -> None:
    assert bench.broker is not None
    kept = []  # freeing tasks for all would be a long step of the benchmark's own
    for batching in (False, True):
        topic = f"steps-{uuid.uuid4().hex}"
        producer = await bench.client.create_producer(
            topic,
            batching_enabled=batching,
            max_pending_messages=2 * bench.messages,
            send_timeout_millis=4_000,
        )
        await producer.send(b"first")

        async def send(producer: encore.Producer = producer) -> list[Any]:
            sends = []
            for number in range(bench.messages):
                sends.append(asyncio.ensure_future(producer.send(_BODY)))
                if number % 200 == 0:
                    await asyncio.sleep(0)
            return sends

        label = "batching" if batching else "unbatched"
        async with bench.measured(f"producer, {label}: all sends"):
            kept.append(sends := await send())
            await _all_done(sends)
        async with bench.measured(f"producer, {label}: offline, all sends, and back"):
            await asyncio.to_thread(bench.broker.outage, None)
            kept.append(sends := await send())
            await asyncio.sleep(0.1)
            await asyncio.to_thread(bench.broker.resume)
            await _all_done(sends)
        async with bench.measured(f"producer, {label}: all sends time out"):
            await asyncio.to_thread(bench.broker.outage, None)
            kept.append(sends := await send())
            await _all_done(sends)
        async with bench.measured(f"producer, {label}: all sends, offline"):
            kept.append(sends := await send())
        async with bench.measured(f"producer, {label}: close with all sends pending"):
            await producer.close()
            await _all_done(sends)
        await asyncio.to_thread(bench.broker.resume)


async def _all_done(futures: list[Any]) -> None:
    """Wait without a callback on each future: `asyncio.gather` would be a long step itself."""
    while not all(each.done() for each in futures[-100:]):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    for at, each in enumerate(futures):
        if each.exception() and at % 500 == 0:
            await asyncio.sleep(0)


# Readers


@scenario(cuts=True)
async def reading(bench: Bench) -> None:
    assert bench.broker is not None
    for batch in (0, 10):
        reader = await bench.client.create_reader(
            bench.topics[batch], encore.MessageId.earliest, receiver_queue_size=bench.messages
        )
        async with bench.measured(f"reader, batch {batch}: queued"):
            await asyncio.sleep(4)
        async with bench.measured(f"reader, batch {batch}: lost and back"):
            await asyncio.to_thread(bench.broker.drop_connections)
            await asyncio.sleep(1)
        async with bench.measured(f"reader, batch {batch}: read"):
            for _ in range(bench.messages // 2):
                await reader.read_next()
        async with bench.measured(f"reader, batch {batch}: seek"):
            await reader.seek(encore.MessageId.earliest)
            await asyncio.sleep(3)
        async with bench.measured(f"reader, batch {batch}: close"):
            await reader.close()


async def _filled(client: encore.Client, messages: int, batch: int) -> str:
    topic = f"steps-{uuid.uuid4().hex}"
    producer = await client.create_producer(
        topic,
        batching_enabled=batch > 0,
        batching_max_messages=max(batch, 2),
        batching_max_publish_delay_ms=100,
        max_pending_messages=2 * messages,
    )
    sends = []
    for _ in range(messages):
        sends.append(asyncio.ensure_future(producer.send(_BODY)))
        if len(sends) % 1_000 == 0:
            await asyncio.gather(*sends[-1_000:])
    await producer.flush()
    await asyncio.gather(*sends)
    await producer.close()
    return topic


async def play(
    only: Collection[str], messages: int, url: str | None, say: Callable[[str], None] = print
) -> Bench:
    """Run the scenarios, all without names. The result has one row for each measurement."""
    with _broker(url) as (broker_url, broker):
        async with encore.Client(broker_url) as client:
            topics = {size: await _filled(client, messages, size) for size in (0, 10, 1_000)}
            bench = Bench(client, broker, messages, topics, say)
            for name, each in SCENARIOS.items():
                if (only and name not in only) or (broker is None and name in CUTS):
                    continue
                await each(bench)
    return bench


@contextlib.contextmanager
def _broker(url: str | None) -> Iterator[tuple[str, BrokerThread | None]]:
    if url is not None:
        yield url, None
        return
    settings = BrokerSettings(
        record=False,
        max_unacked_per_consumer=0,
        max_unacked_per_subscription=0,
        rewind_overtaken=0,
        keep_acked=True,
    )
    with run_in_thread(settings) as thread:
        yield thread.url, thread


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", default=[], choices=[*SCENARIOS])
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--url")
    options = parser.parse_args()
    bench = asyncio.run(play(options.only, options.messages, options.url))
    over = [each for each in bench.found if each[1] > GOAL_MS]
    print(f"{len(over)} of {len(bench.found)} measurements have a step over {GOAL_MS:g} ms")
    return 1 if over else 0


def run(trial: Trial) -> Iterator[Row]:
    """Measure the situations that a user meets, several times over."""
    only, runs = (QUICK_SUITE, QUICK_RUNS) if trial.quick else (SUITE, RUNS)
    figures: dict[str, list[tuple[float, str]]] = {}
    collector = []
    for number in range(runs):
        trial.step(f"run {number + 1} of {runs}")
        bench = asyncio.run(play(only, MESSAGES, trial.url, lambda _line: None))
        for what, ms, label, _ in bench.found:
            figures.setdefault(what, []).append((ms, label))
        collector.append(bench.collector_ms)
    for what, found in figures.items():
        least, label = min(found)
        yield Row(
            what=what,
            unit="ms",
            ours=(least,),
            bar=GOAL_MS,
            note=f"{label}; the runs: {', '.join(short(ms) for ms, _ in found)}",
        )
    yield Row(what="the garbage collector, full collection", unit="ms", ours=tuple(collector))


BENCHMARK: Final = Benchmark(
    name="loop_steps",
    title="The longest step of the event loop, 50,000 messages held",
    about=(
        "CPU time of the longest callback on the application's event loop, for each situation, on "
        "a development broker in another thread. The figure is the least of the runs, because "
        "other work of the machine makes a step longer, not shorter. The garbage collector is off, "
        "and its full collection with all these objects is the last row."
    ),
    seconds=150,
    quick_s=None,
    run=run,
)


if __name__ == "__main__":
    sys.exit(main())
