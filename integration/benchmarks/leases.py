"""CPU time of extending leases, and of redelivering many leases that expire at once.

Extending is measured with and without state in RocksDB. The leases that expire are 50,000 and
200,000, because the cost of each should not depend on their number. Every measurement has a process
of its own.

Real consumers are connected to the development broker without a network, in virtual time. The
figures are CPU time of the client and of that broker together. With state in RocksDB they include
RocksDB's threads, and the application has read the handle of each lease that is extended.

    make bench ONLY=leases
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import pulsar_encore as encore
from pulsar_encore.testing import BrokerSettings, MemoryTransport
from pulsar_encore.testing import run as run_in_virtual_time

from .own_process import in_own_process
from .rows import Row, column, row_of
from .trial import Benchmark, Trial

TOPIC: Final = "persistent://public/default/leases"
BATCH: Final = 1000
HELD: Final = 10_000
EXTENDS: Final = 30_000
FEW, MANY = 25_000, 100_000
Figures = dict[str, float]


async def filled(
    transport: MemoryTransport, messages: int, most: int, state: encore.RocksState | None = None
) -> encore.Consumer:
    """Return a consumer for up to `most` leases, on a topic with `messages` messages."""
    for _ in range(0, messages, BATCH):
        transport.put(TOPIC, *(b"x" * 100 for _ in range(BATCH)))
    client = encore.Client("pulsar://nowhere:6650", transport=transport)
    return await client.subscribe(
        TOPIC,
        "s",
        encore.ConsumerType.Shared,
        initial_position=encore.InitialPosition.Earliest,
        receiver_queue_size=5_000,
        negative_ack_redelivery_delay_ms=0,
        max_unacked_messages=4 * messages,
        max_leases=most,
        state=state,
    )


async def pop_all(
    consumer: encore.Consumer, count: int, lease: float
) -> tuple[list[encore.Lease], float]:
    """Return `count` leases, and the CPU seconds it took to pop them."""
    begun, leases = time.process_time(), []
    while len(leases) < count:
        leases += await consumer.pop(1_000, lease=lease, wait=10 * lease)
    return leases, time.process_time() - begun


async def extends(count: int, state: encore.RocksState | None = None) -> tuple[float, float]:
    """Return extends per second of random leases, and handles read per second before that."""
    consumer = await filled(MemoryTransport(_settings()), HELD, HELD, state)
    leases, _ = await pop_all(consumer, HELD, 1_000_000)
    begun = time.process_time()
    assert len({each.handle for each in leases}) == HELD
    handles = HELD / (time.process_time() - begun)
    chosen = random.Random(1).choices(leases, k=count)
    begun, next_yield = time.process_time(), time.monotonic()
    for each in chosen:
        await each.extend(1_000_000)
        # Virtual time advances like real time, so that pending records are written.
        if time.monotonic() >= next_yield:
            next_yield += 0.1
            await asyncio.sleep(0.1)
    await asyncio.sleep(2)
    took = time.process_time() - begun
    await consumer.close()
    return count / took, handles


async def expiring(count: int) -> tuple[float, float, float, float]:
    """Measure `count` leases that expire at once.

    Returns:
        CPU seconds of popping them, of requesting them again when they expire, and of popping them
        again; and the longest step of the loop at the expiry, in ms.
    """
    consumer = await filled(MemoryTransport(_settings()), count, count)
    leases, popped = await pop_all(consumer, count, 1_000)
    del leases
    gc.collect()
    gc.freeze()  # or garbage collections over a million messages would be measured
    begun = time.process_time()
    with Longest() as longest:
        await asyncio.sleep(1_100)
    assert consumer.statistics().leased == 0
    requested = time.process_time() - begun
    second_leases, took = await pop_all(consumer, count, 10**6)
    assert all(lease.attempt == 2 for lease in second_leases)
    await consumer.close()
    return popped, requested, took, longest.ms


class Longest:
    """Measures the longest callback of the running loop."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __enter__(self) -> Longest:
        self._run: Callable[[asyncio.Handle], None] = asyncio.Handle._run
        before, longest = self._run, self

        def timed(handle: asyncio.Handle) -> None:
            begun = time.perf_counter()
            before(handle)
            longest.ms = max(longest.ms, (time.perf_counter() - begun) * 1000)

        asyncio.Handle._run = timed  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]


def _settings() -> BrokerSettings:
    return BrokerSettings(
        namespaces=None,
        record=False,
        max_unacked_per_consumer=0,
        max_unacked_per_subscription=0,
        rewind_overtaken=0,
    )


def measure_extends(count: int) -> Figures:
    """Measure extends without state."""
    rate, _ = run_in_virtual_time(extends(count))
    return {"us": 1e6 / rate}


def measure_durable(count: int) -> Figures:
    """Measure extends with state, and reading the handles before."""
    with tempfile.TemporaryDirectory() as path:
        rate, handles = run_in_virtual_time(extends(count, encore.RocksState(path)))
    return {"us": 1e6 / rate, "handle_us": 1e6 / handles}


def measure_expiry(count: int) -> Figures:
    """Measure leases that expire at once."""
    popped, requested, again, longest = run_in_virtual_time(expiring(count), deadlock_timeout_s=60)
    return {
        "pop_us": popped / count * 1e6,
        "expire_us": requested / count * 1e6,
        "again_us": again / count * 1e6,
        "longest_ms": longest,
    }


CASES: Final[dict[str, Callable[[int], Figures]]] = {
    each.__name__: each for each in (measure_extends, measure_durable, measure_expiry)
}


def _measured(case: str, count: int) -> Figures:
    figures: Figures = in_own_process("leases", "--case", case, "--count", count)
    return figures


def run(trial: Trial) -> Iterator[Row]:
    """Measure extends, and the expiry of few and of many leases."""
    count = trial.sized(EXTENDS, EXTENDS // 5)
    found = trial.in_turns(
        "extends",
        {
            "durable": partial(_measured, "measure_durable", count),
            "plain": partial(_measured, "measure_extends", count),
        },
    )
    yield row_of(
        *(found, "durable", "plain", "us"),
        what="extend with a state",
        unit="us",
        beside="without a state",
    )
    handles = column(found["durable"], "handle_us")
    yield Row(what="handle of a lease read, with a state", unit="us", ours=handles)
    if trial.quick:
        return
    sizes = trial.in_turns(
        "expiry",
        {
            "many": partial(_measured, "measure_expiry", MANY),
            "few": partial(_measured, "measure_expiry", FEW),
        },
    )
    for what, key in (
        ("popped", "pop_us"),
        ("expired and requested again", "expire_us"),
        ("popped again", "again_us"),
    ):
        yield row_of(
            *(sizes, "many", "few", key),
            what=f"{what}, each of {MANY:,} leases",
            unit="us",
            beside=f"each of {FEW:,}",
        )
    longest = column(sizes["many"], "longest_ms")
    yield Row(what=f"longest step, {MANY:,} leases expire", unit="ms", ours=longest)


BENCHMARK: Final = Benchmark(
    name="leases",
    title="Leases: extends, and many that expire at once",
    about=(
        "CPU of the consumer and of a development broker in the same process, in virtual time. "
        "Extends are of 10,000 leases at random; with state in RocksDB, the handle of each lease "
        "was read before."
    ),
    seconds=55,
    quick_s=None,
    run=run,
)


def main() -> None:
    """Run one case, and print JSON."""
    parser = argparse.ArgumentParser(description="One case of the benchmark of leases.")
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--count", type=int, required=True)
    options = parser.parse_args()
    print(json.dumps(CASES[options.case](options.count)))


if __name__ == "__main__":
    main()
