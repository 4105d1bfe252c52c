"""CPU time of extending leases, and of redelivering many leases that expire at once.

Real consumers are connected to the development broker without a network, in virtual time. The
figures are CPU time of the client and of that broker together. With state in RocksDB they include
RocksDB's threads, and the application has read the handle of each lease that is extended.

    python -m integration.benchmarks.leases [--leases 1000000] [--extends 1000000]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Final

import pulsar_encore as encore
from pulsar_encore.testing import BrokerSettings, MemoryTransport, run

TOPIC: Final = "persistent://public/default/leases"
BATCH: Final = 1000
HELD: Final = 10_000


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


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--leases", type=int, default=1_000_000)
    parser.add_argument("--extends", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    rate, _ = run(extends(options.extends))
    print(f"extend: {rate:,.0f} a second of CPU, of {HELD:,} leases at random")
    with tempfile.TemporaryDirectory() as path:
        rate, handles = run(extends(options.extends, encore.RocksState(path)))
    print(f"with a state: {rate:,.0f}, and {handles:,.0f} handles a second")
    popped, requested, took, longest = run(expiring(options.leases), deadlock_timeout_s=60)
    print(
        f"{options.leases:,} leases that end at once: popped in {popped:.1f} s of CPU, nacked and "
        f"requested again in {requested:.1f} s, the longest step of the loop {longest:.1f} ms; "
        f"leased again after {took:.1f} s more"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
