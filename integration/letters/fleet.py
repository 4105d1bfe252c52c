"""Several consumers of one subscription try the messages of one batch until each is settled.

`run_fleet` counts the attempts at each message and reads the dead letter topic. As a program it
prints a table of attempts per message, for this client and for the Java client:

    python -m integration.letters.fleet URL [--consumers 3,10,30] [--java] [--transport stock]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import pulsar_encore as encore

from .java_client import JavaClient, java_client
from .letter_checks import QUIET, read_out

Failure = Literal["nack", "timeout"]
"""How a message fails: by a negative ack, or by an ack timeout."""

NACK_DELAY_MS = 200
ACK_TIMEOUT_MS = 1_000  # the smallest value that clients accept
SLOW_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """A batch and the consumers that try it.

    Attributes:
        consumers: Number of consumers of the subscription.
        most: `max_redeliver_count`.
        failure: How a message fails.
        batch: One letter for each message: "p" for a poison message, of which every attempt fails;
            "h" for a healthy message, which is acked at once; "s" for a healthy message that takes
            `SLOW_S`; "o" for a message that fails once, at any consumer.
    """

    consumers: int
    most: int
    failure: Failure
    batch: str

    def names(self) -> list[str]:
        """Return the payloads."""
        return [f"{kind}{number}" for number, kind in enumerate(self.batch)]


@dataclass
class Outcome:
    """The result of a run.

    Attributes:
        attempts: Deliveries of each payload to an application.
        dead: Letters on the dead letter topic, by payload.
    """

    attempts: Counter[str]
    dead: Counter[str]

    def poison(self) -> list[int]:
        """Return the number of attempts at each poison message."""
        return [count for name, count in sorted(self.attempts.items()) if name[0] == "p"]

    def healthy_dead(self) -> list[str]:
        """Return the dead-lettered messages that are not poison."""
        return sorted(name for name in self.dead if name[0] != "p")


async def publish_batch(client: encore.Client, topic: str, names: list[str]) -> None:
    """Publish one entry with all these messages."""
    async with await client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_publish_delay_ms=500,
        batching_max_messages=len(names),
    ) as producer:
        ids = await asyncio.gather(*(producer.send(name.encode()) for name in names))
    assert len({(each.ledger_id(), each.entry_id()) for each in ids}) == 1, "not one batch"


async def run_fleet(client: encore.Client, topic: str, fleet: Fleet, **options: Any) -> Outcome:
    """Publish a batch, and let the consumers try it until no message is delivered any more."""
    timeout = ACK_TIMEOUT_MS if fleet.failure == "timeout" else None
    attempts: Counter[str] = Counter()
    names = fleet.names()
    async with contextlib.AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(
                await client.subscribe(
                    topic,
                    "s",
                    consumer_type=encore.ConsumerType.Shared,
                    dead_letter_policy=encore.DeadLetterPolicy(fleet.most),
                    negative_ack_redelivery_delay_ms=NACK_DELAY_MS,
                    unacked_messages_timeout_ms=timeout,
                    batch_index_ack_enabled=True,
                    **options,
                )
            )
            for _ in range(fleet.consumers)
        ]
        delivered = asyncio.Event()

        async def work(consumer: encore.Consumer) -> None:
            while True:
                message = await consumer.receive()
                delivered.set()
                name = message.data().decode()
                attempts[name] += 1
                if name[0] == "s":
                    await asyncio.sleep(SLOW_S)
                fails = name[0] == "p" or (name[0] == "o" and attempts[name] == 1)
                if not fails:
                    await consumer.acknowledge(message)
                elif fleet.failure == "nack":
                    await consumer.negative_acknowledge(message)

        tasks = [asyncio.ensure_future(work(consumer)) for consumer in consumers]
        await publish_batch(client, topic, names)
        quiet = 4.0 if fleet.failure == "timeout" else 2.0
        with contextlib.suppress(TimeoutError):
            while True:
                delivered.clear()
                async with asyncio.timeout(quiet):
                    await delivered.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        letters = await read_out(client, f"{topic}-s-DLQ")
    return Outcome(attempts, Counter(each.data().decode() for each in letters))


def run_java_fleet(java: JavaClient, topic: str, fleet: Fleet) -> Outcome:
    """Like `run_fleet`, with consumers of the Java client."""
    names = fleet.names()
    deliveries = java.call("fleet", topic, "s", fleet.most, fleet.consumers, fleet.failure, *names)
    letters = java.call("read", f"{topic}-s-DLQ")
    return Outcome(
        Counter(each["data"] for each in deliveries), Counter(each["data"] for each in letters)
    )


def row(who: str, batch: str, fleet: Fleet, outcome: Outcome) -> str:
    """Return one line of the table."""
    attempts = outcome.poison()
    return (
        f"| {who} | {batch} | {fleet.failure} | {fleet.consumers} | {fleet.most} | "
        f"{max(attempts)} | "
        f"{statistics.median(attempts):g} | {', '.join(outcome.healthy_dead()) or 'none'} | "
        f"{sum(outcome.dead.values())} |"
    )


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--consumers", default="3,10,30")
    parser.add_argument("--most", default="1,3")
    parser.add_argument("--failures", default="nack,timeout")
    parser.add_argument("--batches", default="pppppppppp,phhhhhhhhh")
    parser.add_argument("--java", action="store_true")
    parser.add_argument("--transport", default="native")
    options = parser.parse_args()
    fleets = [
        (batch, Fleet(consumers=int(consumers), most=int(most), failure=failure, batch=batch))
        for batch in options.batches.split(",")
        for failure in options.failures.split(",")
        for most in options.most.split(",")
        for consumers in options.consumers.split(",")
    ]
    print("| client | batch | fails by | consumers | m | max | median | healthy dead | letters |")
    print("|---|---|---|---|---|---|---|---|---|")
    if options.java:
        with java_client(options.url) as java:
            for batch, fleet in fleets:
                outcome = await asyncio.to_thread(run_java_fleet, java, _topic(), fleet)
                print(row("Java", batch, fleet, outcome), flush=True)
        return
    logger = QUIET if options.transport == "stock" else None
    async with encore.Client(options.url, logger=logger, transport=options.transport) as client:
        for batch, fleet in fleets:
            outcome = await run_fleet(client, _topic(), fleet)
            print(row(options.transport, batch, fleet, outcome), flush=True)


def _topic() -> str:
    return f"persistent://public/default/fleet-{uuid.uuid4().hex[:8]}"


if __name__ == "__main__":
    asyncio.run(_main())
