"""A consumer with state, killed at random moments: nothing lost, too early, or counted too low.

A child receives, and of each message says on a pipe that it has it and with which count, and then
acks it, nacks it for a while, or does neither; an ack is told before the call, a nack after it. It
is killed with SIGKILL, and the next child goes on in the same directory, until everything is acked.

    python -m integration.benchmarks.durable_kills --url pulsar://localhost:6650 [--kills 50]
        [--messages 20000] [--batch 10] [--type Shared] [--transport native] [--seed 1]
        [--longest-delay 5]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pulsar_encore as encore

from .processes import fresh_topic

_START_S: Final = 60.0
_QUIET_S: Final = 3.0
_WITHIN_S: Final = 3600.0


@dataclass
class Observed:
    """What children said.

    Attributes:
        failed: By message: attempts that surely failed since it was perhaps acked last.
        held: Messages that the child now has.
        due: By message that surely waits: until when, in seconds since the epoch.
        acked: Messages of which an ack was told.
        has_due_times: Nobody is rewound along: what waits comes at its own time.
        deliveries: All of them.
        acked_again: Those of what was acked.
        failures: What must not have been, in words.
    """

    has_due_times: bool = True
    failed: dict[int, int] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    due: dict[int, float] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    deliveries: int = 0
    acked_again: int = 0
    failures: list[str] = field(default_factory=list)

    def record(self, line: str) -> None:
        """One thing a child said."""
        what, number, value = line.split()
        message = int(number)
        if what == "has":
            self._on_delivery(message, int(value), time.time())
        elif what == "acks":  # from now on, perhaps
            self.acked.add(message)
            self.held.discard(message)
            self.due.pop(message, None)
            self.failed.pop(message, None)
        elif what == "nacks":
            self.due.pop(message, None)
        elif what == "nacked":
            self.held.discard(message)
            self.failed[message] = self.failed.get(message, 0) + 1
            self.due[message] = float(value)

    def _on_delivery(self, message: int, count: int, now: float) -> None:
        self.deliveries += 1
        self.acked_again += message in self.acked
        expected_count = self.failed.get(message, 0)
        if count < expected_count:
            self.failures.append(
                f"{message} had failed {expected_count} times and came with {count}"
            )
        due = self.due.pop(message, None)
        if self.has_due_times and due is not None and now < due:
            self.failures.append(f"{message} came {due - now:.3f} s too early")
        self.held.add(message)

    def killed(self) -> None:
        """The child is dead: its attempts at what it had have failed.

        Where a nack rewinds all, it may have had a message no more: that is not known here.
        """
        for message in self.held if self.has_due_times else ():
            self.failed[message] = self.failed.get(message, 0) + 1
        self.held.clear()


def report_event(what: str, message: int, value: float = 0) -> None:
    """Say something, in one write: who is killed then has said it, or not."""
    os.write(1, f"{what} {message} {value}\n".encode())


async def work(
    url: str,
    topic: str,
    path: str,
    kind: str,
    transport: str,
    seed: int,
    max_attempts: int,
    longest_delay_s: float,
) -> None:
    """A child: until it is killed, or nothing comes though all that it nacked was due."""
    rng = random.Random(seed)
    consumer_type = encore.ConsumerType[kind]
    async with encore.Client(url, transport=transport) as client:
        consumer = await client.subscribe(
            topic,
            "s",
            consumer_type,
            receiver_queue_size=200,
            initial_position=encore.InitialPosition.Earliest,
            state=encore.RocksState(path, count_attempts="before"),
        )
        quiet_since = time.monotonic()
        handling: set[int] = set()
        while time.monotonic() - quiet_since < longest_delay_s + _QUIET_S:
            try:
                message = await consumer.receive(timeout=1)
            except encore.ReceiveTimeout:
                continue
            quiet_since = time.monotonic()
            number = int(message.data())
            report_event("has", number, message.redelivery_count())
            choice = rng.random()
            if choice < 0.7 or message.redelivery_count() >= max_attempts:
                report_event("acks", number)
                await consumer.acknowledge(message)
            elif choice < 0.97:
                delay = rng.uniform(0.2, longest_delay_s)
                report_event("nacks", number)
                await consumer.negative_acknowledge(message, delay=delay)
                report_event("nacked", number, time.time() + delay - 0.005)
            else:  # neither: it is killed with it
                handling.add(number)


def listen(child: subprocess.Popen[bytes], observed: Observed) -> threading.Thread:
    """Hear what a child says, in a thread."""

    def record() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            observed.record(line.decode())

    thread = threading.Thread(target=record)
    thread.start()
    return thread


async def publish(url: str, topic: str, kind: str, messages: int, batch: int) -> None:
    """The backlog; the subscription is made first, so that nothing is deleted under it."""
    async with encore.Client(url) as client:
        consumer = await client.subscribe(topic, "s", encore.ConsumerType[kind])
        producer = await client.create_producer(
            topic,
            batching_enabled=batch > 1,
            batching_max_messages=max(batch, 2),
            batching_max_publish_delay_ms=1000,
            block_if_queue_full=True,
        )
        await asyncio.gather(*(producer.send(b"%d" % each) for each in range(messages)))
        await consumer.close()


def main(arguments: list[str] | None = None) -> int:
    """Run it; 0 when nothing was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--type", default="Shared", choices=list(encore.ConsumerType.__members__))
    parser.add_argument("--transport", default="native", choices=("native", "stock"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest-delay", type=float, default=5, help="of a nack, in seconds")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        topic, path = options.work.split("\n")
        asyncio.run(
            work(
                options.url,
                topic,
                path,
                options.type,
                options.transport,
                options.seed,
                6,
                options.longest_delay,
            )
        )
        return 0
    return watch(options)


def watch(options: argparse.Namespace) -> int:
    """Child after child."""
    has_due_times = options.type in ("Shared", "KeyShared")
    rng, observed, topic = (
        random.Random(options.seed),
        Observed(has_due_times=has_due_times),
        fresh_topic(),
    )
    asyncio.run(publish(options.url, topic, options.type, options.messages, options.batch))
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        run_number = kills = 0
        while len(observed.acked) < options.messages and time.monotonic() - started < _WITHIN_S:
            with start(options, topic, path, options.seed * 1000 + run_number) as child:
                listener = listen(child, observed)
                if run_number < options.kills:
                    wait_for_first(child, observed)
                    time.sleep(rng.uniform(0, 2))
                else:
                    wait_for_all(child, observed, options.messages)
                kills += child.poll() is None
                child.kill()
                child.wait()
                listener.join()
            observed.killed()
            run_number += 1
    missing = options.messages - len(observed.acked)
    for each in observed.failures[:20]:
        print(each)
    print(
        f"{options.type}, {options.transport}, batches of {options.batch}: {kills} kills, "
        f"{observed.deliveries} deliveries of {options.messages} messages, "
        f"{observed.acked_again} of acked ones (the ack died with a process); "
        f"{missing} lost, {len(observed.failures)} "
        f"{'too early or ' if has_due_times else ''}counted too low, seed {options.seed}"
    )
    return 1 if missing or observed.failures else 0


def start(
    options: argparse.Namespace, topic: str, path: Path, seed: int
) -> subprocess.Popen[bytes]:
    """A child that works."""
    command = [sys.executable, "-m", "integration.benchmarks.durable_kills"]
    command += ["--url", options.url, "--type", options.type, "--transport", options.transport]
    command += ["--seed", str(seed), "--longest-delay", str(options.longest_delay)]
    command += ["--work", f"{topic}\n{path}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def wait_for_all(child: subprocess.Popen[bytes], observed: Observed, messages: int) -> None:
    """Until everything is acked, and a moment in which nothing may come any more."""
    while child.poll() is None and len(observed.acked) < messages:
        time.sleep(0.05)
    time.sleep(1)


def wait_for_first(child: subprocess.Popen[bytes], observed: Observed) -> None:
    """Until a child has its first message, or there is none for it."""
    before, until = observed.deliveries, time.monotonic() + _START_S
    while observed.deliveries == before and child.poll() is None and time.monotonic() < until:
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
