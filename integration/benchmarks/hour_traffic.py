"""The measured process of `hour`: every kind of traffic, for an hour in compressed time.

Consumers of every subscription type, a worker, producers and visitors come and go, on one client
with a direct connection and one behind a proxy that damages frames. The process keeps nothing of a
message but counts, so memory that grows belongs to the package.

Each minute it prints a `Sample` as a line of JSON. At the end it closes everything and prints a
`Left`.

    python -m integration.benchmarks.hour_traffic URL FAULTY_URL MINUTES SPEED SINCE_S
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from typing import Any, Final

import psutil

import pulsar_encore as encore
from pulsar_encore.cli.demo.workload import resident_mb
from tests.harness.faults.networks import MOST_BYTES

from .fast_clock import run_fast

_PAYLOAD: Final = b"x" * 100
#: Messages published to each topic in a second, apart from bursts.
_RATES: Final = {
    "orders": 12.0,
    "keyed": 8.0,
    "partitioned": 12.0,
    "lists": 12.0,
    "jobs": 6.0,
    "chunks": 0.3,
}
_BURST: Final = 500
_BURST_EVERY_S: Final = 200  # for each topic
#: How long a consumer, producer or worker lives, in s.
_LIFE_S: Final = (60.0, 600.0)
_VISIT_EVERY_S: Final = 20.0
_SEEK_EVERY_S: Final = 180.0
_RECEIVE_S: Final = 5.0
_CLOSE_WITHIN_S: Final = 600.0
_EARLIEST: Final = encore.InitialPosition.Earliest


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The process after a minute, after a garbage collection.

    Attributes:
        minute: Compressed minutes since the start.
        mb: Resident memory.
        objects: Objects that the garbage collector tracks.
        tasks: Tasks on the loop.
        files: Open file descriptors.
        cpu_s: CPU time since the start.
        received: Deliveries since the start.
    """

    minute: float
    mb: float
    objects: int
    tasks: int
    files: int
    cpu_s: float
    received: int


@dataclass(frozen=True, kw_only=True)
class Left:
    """The process after everything was closed, beyond its state before the first client.

    Attributes:
        tasks: Tasks on the loop.
        sockets: Open connections.
        files: Open file descriptors.
        objects: Objects of this package by class.
        counts: What the traffic did.
    """

    tasks: int
    sockets: int
    files: int
    objects: dict[str, int]
    counts: dict[str, int]


class Traffic:
    """The application.

    Args:
        clients: A client of the broker, and one whose connections damage frames.
        urls: Their service URLs.
    """

    def __init__(self, clients: Sequence[encore.Client], urls: Sequence[str], rng: Random) -> None:
        self.counts: Counter[str] = Counter()
        self._clients = clients
        self._urls = urls
        self._rng = rng
        self._visits = 0

    def parts(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Return the parts of the traffic. Each runs until it is cancelled.

        The first part of a kind lives for the whole hour, if it does not fail: what a consumer
        keeps too long is freed when it closes. The others come and go.
        """
        kinds = {
            self._orders: 3,
            self._keyed: 3,
            self._partitioned: 3,
            self._lists: 2,
            self._chunks: 1,
            self._worker: 2,
            self._dead_letters: 2,
            self._reader: 2,
        }
        return [
            *(
                partial(self._repeat, part, mortal=number > 0)
                for part, count in kinds.items()
                for number in range(count)
            ),
            *(
                partial(self._repeat, self._publisher(topic), mortal=number % 2 == 0)
                for number, topic in enumerate(_RATES)
            ),
            partial(self._repeat, self._visitor, mortal=True),
        ]

    async def _repeat(self, part: Callable[[], Awaitable[None]], *, mortal: bool) -> None:
        """Run a part again whenever its life ends or it fails, as an orchestrator does."""
        while True:
            try:
                async with asyncio.timeout(self._rng.uniform(*_LIFE_S) if mortal else None):
                    await part()
            except* TimeoutError:
                self.counts["ended"] += 1
            except* encore.EncoreError as errors:
                # No name may keep an error: the frames of its traceback hold closed consumers.
                self.counts.update(f"error: {type(each).__name__}" for each in errors.exceptions)
            await asyncio.sleep(self._rng.uniform(0.5, 3.0))

    # Producers

    def _publisher(self, topic: str) -> Callable[[], Awaitable[None]]:
        async def publish() -> None:
            rate, rng = _RATES[topic], self._rng
            batched = topic in ("partitioned", "lists") or rng.random() < 0.3
            options: dict[str, Any] = {"batching_enabled": batched and topic != "chunks"}
            if topic == "chunks":
                options["chunking_enabled"] = True
            elif batched and topic == "keyed":
                options["batching_type"] = encore.BatchingType.KeyBased
            async with await self._client().create_producer(
                topic, max_pending_messages=2 * _BURST, block_if_queue_full=True, **options
            ) as producer:
                while True:
                    await asyncio.sleep(1.0)
                    burst = topic != "chunks" and rng.random() < 1 / _BURST_EVERY_S
                    count = int(rate + rng.random()) + (_BURST if burst else 0)
                    await self._send(producer, topic, count)

        return publish

    async def _send(self, producer: encore.Producer, topic: str, count: int) -> None:
        size = self._rng.randrange(10, 3 * MOST_BYTES)
        body = bytes(size) if topic == "chunks" else _PAYLOAD
        outcomes = await asyncio.gather(
            *(
                producer.send(
                    body,
                    partition_key=f"key-{self._rng.randrange(50)}" if topic == "keyed" else None,
                    properties={"trace": f"{self._rng.getrandbits(64):016x}"},
                )
                for _ in range(count)
            ),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, encore.EncoreError):
                self.counts[f"error: {type(outcome).__name__}"] += 1
            elif isinstance(outcome, BaseException):
                raise outcome
        self.counts["published"] += count

    # Consumers

    async def _orders(self) -> None:
        """Acks, nacks, ack timeouts, retry letters and dead letters of single messages."""
        policy = encore.DeadLetterPolicy(3, "dead", initial_subscription_name="inspect")
        await self._consume(
            "orders",
            self._settle,
            consumer_type=encore.ConsumerType.Shared,
            dead_letter_policy=policy,
            retry_enable=True,
            unacked_messages_timeout_ms=30_000,
            receiver_queue_size=self._rng.choice((1, 50, 1000)),
            batch_index_ack_enabled=True,
        )

    async def _settle(self, consumer: encore.Consumer, message: encore.Message) -> None:
        rng = self._rng
        if rng.random() < 0.002:
            self.counts["slow handler"] += 1
            await asyncio.sleep(rng.uniform(5, 60))
        draw = rng.random()
        if draw < 0.8:
            await consumer.acknowledge(message)
            self.counts["ack"] += 1
        elif draw < 0.9:
            await consumer.negative_acknowledge(message, delay=rng.uniform(0, 60), error="busy")
            self.counts["nack"] += 1
        elif draw < 0.95:
            with contextlib.suppress(encore.MessageNotHeldError):  # redelivered meanwhile
                await consumer.reconsume_later(message, rng.uniform(1, 120), error="later")
                self.counts["retry letter"] += 1
        elif draw < 0.97:
            with contextlib.suppress(encore.MessageNotHeldError):
                await consumer.reject(message, "never")
                self.counts["dead letter"] += 1
        else:
            self.counts["ack timeout"] += 1

    async def _keyed(self) -> None:
        async def settle(consumer: encore.Consumer, message: encore.Message) -> None:
            if self._rng.random() < 0.05:
                await consumer.negative_acknowledge(message, delay=self._rng.uniform(0, 20))
                self.counts["nack"] += 1
            else:
                await consumer.acknowledge(message)
                self.counts["ack"] += 1

        await self._consume("keyed", settle, consumer_type=encore.ConsumerType.KeyShared)

    async def _partitioned(self) -> None:
        """Cumulative acks on Failover, and rewinds."""

        async def settle(consumer: encore.Consumer, message: encore.Message) -> None:
            draw = self._rng.random()
            if draw < 0.1:
                await consumer.acknowledge_cumulative(message)
                self.counts["cumulative ack"] += 1
            elif draw < 0.101:
                await consumer.negative_acknowledge(message, delay=2.0)
                self.counts["nack"] += 1
            elif draw < 0.102:
                consumer.redeliver_unacknowledged_messages()
                self.counts["rewind"] += 1

        await self._consume("partitioned", settle, consumer_type=encore.ConsumerType.Failover)

    async def _chunks(self) -> None:
        """Large messages on Exclusive, and seeks."""
        loop = asyncio.get_running_loop()
        next_seek_s = loop.time() + self._rng.expovariate(1 / _SEEK_EVERY_S)

        async def settle(consumer: encore.Consumer, message: encore.Message) -> None:
            nonlocal next_seek_s
            await consumer.acknowledge(message)
            self.counts["ack"] += 1
            if loop.time() >= next_seek_s:
                next_seek_s = loop.time() + self._rng.expovariate(1 / _SEEK_EVERY_S)
                back_ms = self._rng.randrange(0, 60_000)
                by_id = self._rng.random() < 0.5
                await consumer.seek(
                    message.message_id() if by_id else message.publish_timestamp() - back_ms
                )
                self.counts["seek"] += 1

        await self._consume(
            "chunks",
            settle,
            consumer_type=encore.ConsumerType.Exclusive,
            max_pending_chunked_message=5,
            auto_ack_oldest_chunked_message_on_queue_full=self._rng.random() < 0.5,
            receiver_queue_size=20,
        )

    async def _lists(self) -> None:
        """`batch_receive`, and acks of lists with receipts."""
        async with await self._client().subscribe(
            "lists",
            "s",
            encore.ConsumerType.Shared,
            initial_position=_EARLIEST,
            batch_receive_policy=encore.BatchReceivePolicy(100, -1, 1000),
            ack_receipt_enabled=True,
            batch_index_ack_enabled=True,
        ) as consumer:
            while True:
                messages = await consumer.batch_receive()
                self.counts["received"] += len(messages)
                failed = {at for at in range(len(messages)) if self._rng.random() < 0.05}
                for at in failed:
                    await consumer.negative_acknowledge(messages[at], delay=10.0)
                self.counts["nack"] += len(failed)
                rest = [each for at, each in enumerate(messages) if at not in failed]
                if rest:
                    await consumer.acknowledge(rest)
                    self.counts["ack"] += len(rest)

    async def _dead_letters(self) -> None:
        async def settle(consumer: encore.Consumer, message: encore.Message) -> None:
            await consumer.acknowledge(message)

        await self._consume(
            "dead", settle, subscription="inspect", consumer_type=encore.ConsumerType.Shared
        )

    async def _consume(
        self,
        topic: str,
        settle: Callable[[encore.Consumer, encore.Message], Awaitable[None]],
        subscription: str = "s",
        **options: Any,
    ) -> None:
        """Receive and settle messages. Half of the waits end with a cancellation."""
        async with await self._client().subscribe(
            topic,
            subscription,
            initial_position=_EARLIEST,
            negative_ack_redelivery_delay_ms=5000,
            **options,
        ) as consumer:
            while True:
                try:
                    if self._rng.random() < 0.5:
                        message = await consumer.receive(timeout=_RECEIVE_S)
                    else:
                        async with asyncio.timeout(_RECEIVE_S):
                            message = await consumer.receive()
                except TimeoutError:
                    continue
                self.counts["received"] += 1
                await settle(consumer, message)

    async def _worker(self) -> None:
        rng = self._rng

        async def handle(_: bytes) -> bytes | None:
            self.counts["received"] += 1
            self.counts["handler"] += 1
            draw = rng.random()
            await asyncio.sleep(rng.uniform(20, 60) if draw < 0.005 else rng.uniform(0, 0.2))
            if draw > 0.99:
                raise encore.Reject("never")
            if draw > 0.98:
                raise encore.Retry(120.0)
            if draw > 0.9:
                raise ConnectionError("the database is away")
            return b"done" if draw > 0.5 else None

        worker = encore.Worker(
            self._client(),
            "jobs",
            "s",
            handle,
            concurrency=8,
            timeout=30,
            order=rng.choice(("none", "key")),
            drain=20,
            retry=encore.RetryPolicy(attempts=3, backoff=[1, 5], letters_after=60),
            publish="results",
            initial_position=_EARLIEST,
        )
        async with worker:
            await asyncio.Event().wait()

    async def _reader(self) -> None:
        async with await self._client().create_reader("results", encore.MessageId.latest) as reader:
            async for _ in reader:
                self.counts["received"] += 1

    async def _visitor(self) -> None:
        """A client of its own with a new subscription, which ends soon."""
        await asyncio.sleep(self._rng.expovariate(1 / _VISIT_EVERY_S))
        self._visits += 1
        self.counts["visitor"] += 1
        async with (
            encore.Client(self._rng.choice(self._urls), transport="native") as client,
            await client.subscribe(
                self._rng.choice(list(_RATES)), f"visitor-{self._visits}"
            ) as consumer,
        ):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._rng.uniform(1, 30)):
                    while True:
                        await consumer.acknowledge(await consumer.receive())
                        self.counts["received"] += 1
            await consumer.unsubscribe()

    # Helpers

    def _client(self) -> encore.Client:
        return self._rng.choice(self._clients)


async def run(urls: Sequence[str], minutes: float) -> None:
    """Run the traffic, and print a sample each minute."""
    loop = asyncio.get_running_loop()
    before, objects_before = _count_open(), _own_objects()
    begun_s, begun_cpu_s = loop.time(), time.process_time()
    clients = [encore.Client(url, transport="native") for url in urls]
    traffic = Traffic(clients, urls, Random(34))
    running = [asyncio.create_task(part()) for part in traffic.parts()]
    for minute in range(1, int(minutes) + 1):
        await asyncio.sleep(max(0.0, begun_s + 60 * minute - loop.time()))
        for task in running:
            if task.done():
                task.result()  # an error that no application expects
        sample = Sample(
            minute=round((loop.time() - begun_s) / 60, 2),
            mb=resident_mb(),  # after a garbage collection
            objects=len(gc.get_objects()),
            tasks=len(asyncio.all_tasks()),
            files=psutil.Process().num_fds(),
            cpu_s=time.process_time() - begun_cpu_s,
            received=traffic.counts["received"],
        )
        print(json.dumps(asdict(sample)), flush=True)
    async with asyncio.timeout(_CLOSE_WITHIN_S):
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for client in clients:
            await client.close()
    await asyncio.sleep(1.0)  # a transport closes its socket in a later pass of the loop
    counts = dict(traffic.counts)
    del running, task, clients, client, traffic
    gc.collect()
    tasks, sockets, files = (now - then for now, then in zip(_count_open(), before, strict=True))
    left = Left(
        tasks=tasks,
        sockets=sockets,
        files=files,
        objects=dict(_own_objects() - objects_before),
        counts=counts,
    )
    print(json.dumps(asdict(left)), flush=True)


def _count_open() -> tuple[int, int, int]:
    """Return the numbers of tasks, connections and file descriptors."""
    process = psutil.Process()
    return (len(asyncio.all_tasks()), len(process.net_connections()), process.num_fds())


def _own_objects() -> Counter[str]:
    """Count the objects of classes of this package."""
    return Counter(
        f"{kind.__module__}.{kind.__name__}"
        for kind in map(type, gc.get_objects())
        if str(kind.__module__).startswith("pulsar_encore")
    )


if __name__ == "__main__":
    *addresses, length, speed, since_s = sys.argv[1:]
    run_fast(run(addresses, float(length)), speed=float(speed), since_s=float(since_s))
