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
class Known:
    """What children said.

    Attributes:
        failed: By message: attempts that surely failed since it was perhaps acked last.
        held: Messages that the child now has.
        due: By message that surely waits: until when, in seconds since the epoch.
        acked: Messages of which an ack was told.
        timed: Nobody is rewound along: what waits comes at its own time.
        hand_overs: All of them.
        again: Those of what was acked.
        wrong: What must not have been, in words.
    """

    timed: bool = True
    failed: dict[int, int] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    due: dict[int, float] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    hand_overs: int = 0
    again: int = 0
    wrong: list[str] = field(default_factory=list)

    def hear(self, line: str) -> None:
        """One thing a child said."""
        what, number, value = line.split()
        message = int(number)
        if what == "has":
            self._has(message, int(value), time.time())
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

    def _has(self, message: int, count: int, now: float) -> None:
        self.hand_overs += 1
        self.again += message in self.acked
        least = self.failed.get(message, 0)
        if count < least:
            self.wrong.append(f"{message} had failed {least} times and came with {count}")
        due = self.due.pop(message, None)
        if self.timed and due is not None and now < due:
            self.wrong.append(f"{message} came {due - now:.3f} s too early")
        self.held.add(message)

    def killed(self) -> None:
        """The child is dead: its attempts at what it had have failed.

        Where a nack rewinds all, it may have had a message no more: that is not known here.
        """
        for message in self.held if self.timed else ():
            self.failed[message] = self.failed.get(message, 0) + 1
        self.held.clear()


def tell(what: str, message: int, value: float = 0) -> None:
    """Say something, in one write: who is killed then has said it, or not."""
    os.write(1, f"{what} {message} {value}\n".encode())


async def work(
    url: str, topic: str, path: str, kind: str, transport: str, seed: int, most: int, longest: float
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
        while time.monotonic() - quiet_since < longest + _QUIET_S:
            try:
                message = await consumer.receive(timeout=1)
            except encore.ReceiveTimeout:
                continue
            quiet_since = time.monotonic()
            number = int(message.data())
            tell("has", number, message.redelivery_count())
            choice = rng.random()
            if choice < 0.7 or message.redelivery_count() >= most:
                tell("acks", number)
                await consumer.acknowledge(message)
            elif choice < 0.97:
                delay = rng.uniform(0.2, longest)
                tell("nacks", number)
                await consumer.negative_acknowledge(message, delay=delay)
                tell("nacked", number, time.time() + delay - 0.005)
            else:  # neither: it is killed with it
                handling.add(number)


def listen(child: subprocess.Popen[bytes], known: Known) -> threading.Thread:
    """Hear what a child says, in a thread."""

    def hear() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            known.hear(line.decode())

    thread = threading.Thread(target=hear)
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
    given = parser.parse_args(arguments)
    if given.work:
        topic, path = given.work.split("\n")
        asyncio.run(
            work(
                given.url,
                topic,
                path,
                given.type,
                given.transport,
                given.seed,
                6,
                given.longest_delay,
            )
        )
        return 0
    return watch(given)


def watch(given: argparse.Namespace) -> int:
    """Child after child."""
    timed = given.type in ("Shared", "KeyShared")
    rng, known, topic = random.Random(given.seed), Known(timed=timed), fresh_topic()
    asyncio.run(publish(given.url, topic, given.type, given.messages, given.batch))
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        life = kills = 0
        while len(known.acked) < given.messages and time.monotonic() - begun < _WITHIN_S:
            with start(given, topic, path, given.seed * 1000 + life) as child:
                hearing = listen(child, known)
                if life < given.kills:
                    wait_for_first(child, known)
                    time.sleep(rng.uniform(0, 2))
                else:
                    wait_for_all(child, known, given.messages)
                kills += child.poll() is None
                child.kill()
                child.wait()
                hearing.join()
            known.killed()
            life += 1
    missing = given.messages - len(known.acked)
    for each in known.wrong[:20]:
        print(each)
    print(
        f"{given.type}, {given.transport}, batches of {given.batch}: {kills} kills, "
        f"{known.hand_overs} hand-overs of {given.messages} messages, {known.again} of what was "
        f"acked (its ack died with a process); {missing} lost, {len(known.wrong)} "
        f"{'too early or ' if timed else ''}counted too low, seed {given.seed}"
    )
    return 1 if missing or known.wrong else 0


def start(given: argparse.Namespace, topic: str, path: Path, seed: int) -> subprocess.Popen[bytes]:
    """A child that works."""
    command = [sys.executable, "-m", "integration.benchmarks.durable_kills"]
    command += ["--url", given.url, "--type", given.type, "--transport", given.transport]
    command += ["--seed", str(seed), "--longest-delay", str(given.longest_delay)]
    command += ["--work", f"{topic}\n{path}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def wait_for_all(child: subprocess.Popen[bytes], known: Known, messages: int) -> None:
    """Until everything is acked, and a moment in which nothing may come any more."""
    while child.poll() is None and len(known.acked) < messages:
        time.sleep(0.05)
    time.sleep(1)


def wait_for_first(child: subprocess.Popen[bytes], known: Known) -> None:
    """Until a child has its first message, or there is none for it."""
    before, until = known.hand_overs, time.monotonic() + _START_S
    while known.hand_overs == before and child.poll() is None and time.monotonic() < until:
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
