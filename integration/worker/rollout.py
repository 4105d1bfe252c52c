"""Rolling restarts of three workers with an order, while publishing goes on.

    python -m integration.worker.rollout [--restarts 30] [--order key] [--url URL]

Checks the order of each key, that no key stands still, and that no message is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import pulsar_encore as encore
from tests.harness.admin import Admin
from tests.harness.pulsar_server import running_server

from .fleet import QUIET, Event, Exit, Fleet, done, fleet, processed_again

KEYS = 200
PER_SECOND = 400
WORKERS = 3
PARTITIONS = 6


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The result of rolling restarts.

    Attributes:
        exits: The ends of the processes.
        published: Number of published messages.
        lost: Published messages that no handler processed.
        again: Messages that were processed again after a handler had processed them.
        disorder: Violations of the order of a key, as text.
        skipped: Violations that no redelivery explains: a message that came before an earlier one.
        longest_stall: The longest time in s in which a message of a key was the next one and was
            not processed, and the message.
    """

    exits: list[Exit]
    published: int
    lost: set[str]
    again: dict[str, list[Event]]
    disorder: list[str]
    skipped: list[str]
    longest_stall: tuple[float, str]
    stalls: list[tuple[float, str]] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{len(self.exits)} restarts, {self.published} messages, {len(self.lost)} lost, "
            f"{len(self.again)} again, {len(self.disorder)} out of order, "
            f"{len(self.skipped)} skipped, longest stall {self.longest_stall[0]:.2f} s "
            f"({self.longest_stall[1]}), exit codes "
            f"{sorted({each.code for each in self.exits})}, longest end "
            f"{max(each.took for each in self.exits):.2f} s"
        )


class Publisher:
    """Publishes numbered messages for all keys in turn, until it is stopped.

    Attributes:
        stored: When the broker had stored each message, by its text.
    """

    def __init__(self, client: encore.Client, topic: str, per_second: int = PER_SECOND) -> None:
        self._per_second = per_second
        self._client = client
        self._topic = topic
        self._is_stopped = False
        self.stored: dict[str, float] = {}

    async def run(self) -> None:
        numbers = [0] * KEYS
        began, count = time.monotonic(), 0
        async with await self._client.create_producer(
            self._topic,
            batching_max_publish_delay_ms=50,
            batching_type=encore.BatchingType.KeyBased,
            block_if_queue_full=True,
        ) as producer:
            async with asyncio.TaskGroup() as group:
                while not self._is_stopped:
                    key = count % KEYS
                    group.create_task(self._send(producer, f"k{key}", numbers[key]))
                    numbers[key] += 1
                    count += 1
                    await asyncio.sleep(
                        max(0.0, began + count / self._per_second - time.monotonic())
                    )

    async def _send(self, producer: encore.Producer, key: str, number: int) -> None:
        text = f"{key}:{number}"
        await producer.send(text.encode(), partition_key=key)
        self.stored[text] = time.monotonic()

    def stop(self) -> None:
        self._is_stopped = True


def disorder(events: Iterable[Event]) -> list[str]:
    """Return violations of the order: one handler of a key at a time, and earlier ones first."""
    found = []
    next_number: defaultdict[str, int] = defaultdict(int)
    active: dict[str, Event] = {}
    for each in events:
        key, _, text = each.text.partition(":")
        number = int(text)
        if each.what == "start":
            if key in active:
                other = active[key]
                found.append(f"{each} starts while {other} runs")
            elif number > next_number[key]:
                found.append(f"{each} starts before {key}:{next_number[key]} is processed")
            active[key] = each
        else:
            if key in active and active[key].text == each.text:
                del active[key]
            if each.what == "done":
                next_number[key] = max(next_number[key], number + 1)
    return found


def skipped(events: Iterable[Event]) -> list[str]:
    """Return messages that a handler got before an earlier message of the key had started."""
    found = []
    next_number: defaultdict[str, int] = defaultdict(int)
    for each in events:
        if each.what == "start":
            key, _, text = each.text.partition(":")
            if int(text) > next_number[key]:
                found.append(f"{each} starts before {key}:{next_number[key]}")
            next_number[key] = max(next_number[key], int(text) + 1)
    return found


def stalls(events: Iterable[Event], stored: dict[str, float]) -> list[tuple[float, str]]:
    """Return for each message how long it was the next one of its key, the longest first."""
    first_done: dict[str, float] = {}
    for each in events:
        if each.what == "done":
            first_done.setdefault(each.text, each.at)
    found = []
    for text, at in first_done.items():
        key, _, number = text.partition(":")
        earlier = first_done.get(f"{key}:{int(number) - 1}", 0.0)
        found.append((at - max(earlier, stored[text]), text))
    return sorted(found, reverse=True)


async def roll(
    url: str,
    *,
    restarts: int,
    order: str,
    admin: Admin | None = None,
    kill_every: int = 0,
    transport: str = "native",
    short_s: float = 0.02,
    per_second: int = PER_SECOND,
) -> Rollout:
    """Restart one of the workers after the other.

    Args:
        admin: Creates a topic with partitions.
        short_s: Longest run of a handler.
        per_second: Published messages for each second.
        kill_every: Each so-manieth process is killed instead of drained; 0 for none.
    """
    async with (
        fleet(url, order=order, short_s=short_s, transport=transport) as workers,
        encore.Client(url, logger=QUIET) as client,
    ):
        if admin is not None:
            await asyncio.to_thread(admin.create_partitioned_topic, workers.topic, PARTITIONS)
        running = [await workers.start() for _ in range(WORKERS)]
        publisher = Publisher(client, workers.topic, per_second)
        publishing = asyncio.ensure_future(publisher.run())
        for process in running:
            await _until_active(workers, process.name)
        exits = []
        for at in range(restarts):
            process = running.pop(0)
            if kill_every and at % kill_every == kill_every - 1:
                process.kill()
                await process.wait()
            else:
                exits.append(await process.end())
            started = await workers.start()
            running.append(started)
            await _until_active(workers, started.name)
        publisher.stop()
        await publishing
        published = set(publisher.stored)
        with contextlib.suppress(AssertionError):
            await workers.until_done(published, 30)
        await asyncio.sleep(1)
        exits += [await process.end() for process in running]
        events = workers.events()
        found = stalls(events, publisher.stored)
        return Rollout(
            exits=exits,
            published=len(published),
            lost=published - set(done(events)),
            again=processed_again(events),
            disorder=disorder(events),
            skipped=skipped(events),
            longest_stall=found[0],
            stalls=found,
        )


async def _until_active(workers: Fleet, name: str) -> None:
    """Wait up to 5 s: a standby of a Failover subscription gets no message."""
    with contextlib.suppress(AssertionError):
        await workers.until(lambda events: any(each.process == name for each in events), 5)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=30)
    parser.add_argument("--kill-every", type=int, default=0)
    parser.add_argument("--longest", type=float, default=0.02, help="run of a handler, in s")
    parser.add_argument("--rate", type=int, default=PER_SECOND, help="messages for each second")
    parser.add_argument("--order", choices=["key", "partition"])
    parser.add_argument("--transport", default="native")
    parser.add_argument("--url")
    parser.add_argument("--admin-url")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url, admin_url = arguments.url, arguments.admin_url
        if url is None:
            server = stack.enter_context(running_server())
            url, admin_url = server.service_url, server.admin_url
        for order in [arguments.order] if arguments.order else ["key", "partition"]:
            outcome = await roll(
                url,
                restarts=arguments.restarts,
                order=order,
                admin=Admin(admin_url) if order == "partition" else None,
                kill_every=arguments.kill_every,
                short_s=arguments.longest,
                per_second=arguments.rate,
                transport=arguments.transport,
            )
            print(f"order {order}: {outcome}", flush=True)
            for each in outcome.skipped[:5] or outcome.disorder[:5]:
                print("   ", each)
            for each in list(outcome.again.values())[:3]:
                print("   ", each)
            for length, text in outcome.stalls[:5]:
                print(f"    {text} stood still for {length:.2f} s")


if __name__ == "__main__":
    asyncio.run(main())
