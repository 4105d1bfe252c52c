"""Kill a consumer with durable state at random moments: no message is lost, early, or counted too
low.

A child process receives messages, and reports each with its redelivery count on a pipe. It then
acks the message, nacks it for a while, or does neither. An ack is reported before the call, a nack
after it. The child is killed with SIGKILL, and the next child continues in the same directory,
until every message is acked.

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
    """The reports of all children.

    Attributes:
        has_due_times: False on the types that rewind, where a message is redelivered before its due
            time.
        failed: Attempts of each message that have failed for certain since its last possible ack.
        held: Messages of the current child.
        due: Due time of each message that is nacked for certain, in seconds since the epoch.
        acked: Messages with a reported ack.
        deliveries: All deliveries.
        acked_again: Deliveries of messages with a reported ack.
        failures: Broken rules, as text.
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
        """Record one line of a child."""
        what, number, value = line.split()
        message = int(number)
        if what == "has":
            self._on_delivery(message, int(value), time.time())
        elif what == "acks":  # it may be acked from now on
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
                f"{message} failed {expected_count} times and was delivered with count {count}"
            )
        due = self.due.pop(message, None)
        if self.has_due_times and due is not None and now < due:
            self.failures.append(f"{message} was delivered {due - now:.3f} s too early")
        self.held.add(message)

    def killed(self) -> None:
        """Count the attempts of the messages that the dead child held as failed.

        On types that rewind, a nack may have taken a message away from the child. Nothing is
        counted then.
        """
        for message in self.held if self.has_due_times else ():
            self.failed[message] = self.failed.get(message, 0) + 1
        self.held.clear()


def report_event(what: str, message: int, value: float = 0) -> None:
    """Report an event in a single write, so that a kill never leaves half a line."""
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
    """Work as a child until killed, or until no message arrives although all nacks are due."""
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
                due_s = time.time() + delay - 0.005  # the call itself may wait for the disk
                await consumer.negative_acknowledge(message, delay=delay)
                report_event("nacked", number, due_s)
            else:  # neither: the child is killed while it holds the message
                handling.add(number)


def listen(child: subprocess.Popen[bytes], observed: Observed) -> threading.Thread:
    """Record the lines of a child, on a thread."""

    def record() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            observed.record(line.decode())

    thread = threading.Thread(target=record)
    thread.start()
    return thread


async def publish(url: str, topic: str, kind: str, messages: int, batch: int) -> None:
    """Publish the backlog. The subscription comes first, so that the broker keeps the messages."""
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
    """Run the benchmark. Return 1 if a rule was broken, else 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--type", default="Shared", choices=list(encore.ConsumerType.__members__))
    parser.add_argument("--transport", default="native", choices=("native", "stock"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest-delay", type=float, default=5, help="longest nack delay, in s")
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
    """Run and kill one child after another."""
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
    """Start a child."""
    command = [sys.executable, "-m", "integration.benchmarks.durable_kills"]
    command += ["--url", options.url, "--type", options.type, "--transport", options.transport]
    command += ["--seed", str(seed), "--longest-delay", str(options.longest_delay)]
    command += ["--work", f"{topic}\n{path}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def wait_for_all(child: subprocess.Popen[bytes], observed: Observed, messages: int) -> None:
    """Wait until every message is acked, and a second longer for unexpected deliveries."""
    while child.poll() is None and len(observed.acked) < messages:
        time.sleep(0.05)
    time.sleep(1)


def wait_for_first(child: subprocess.Popen[bytes], observed: Observed) -> None:
    """Wait until a child has its first message, or ends without one."""
    before, until = observed.deliveries, time.monotonic() + _START_S
    while observed.deliveries == before and child.poll() is None and time.monotonic() < until:
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
