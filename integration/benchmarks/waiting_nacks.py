"""A million nacked messages of one consumer wait, on a broker without limits of unacked messages.

The topic holds unbatched messages. A worker process receives all of them, nacks each with one
delay, and acks each when it is redelivered. The program fails if a message is redelivered before
its delay is over, twice, or not at all, or if anything is left unacked at the broker. One worker
runs for each index of pending ids: in memory, with `SpillingNackIndex`, and in the C++ client
(`pulsar.asyncio`).

For each worker the table shows its resident memory above that after subscribing, the longest step
of its event loop, and the broker's heap after a full garbage collection: before the worker, while
the messages wait, and at its end. The application keeps no message.

    python -m integration.benchmarks.waiting_nacks [--count 1000000] [--delay 120]
        [--sides memory spilling cpp] [--heap 2g]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psutil

import pulsar_encore as encore
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Standalone

from .processes import fresh_topic
from .rows import Row, short

COUNT: Final = 1_000_000
DELAY_S: Final = 120.0
SIDES: Final = ("memory", "spilling", "cpp")
UNLIMITED: Final = {
    "maxUnackedMessagesPerConsumer": "0",
    "maxUnackedMessagesPerSubscription": "0",
    "maxUnackedMessagesPerBroker": "0",
    "brokerDeleteInactiveTopicsEnabled": "false",
}
_SUBSCRIPTION: Final = "waiting"
_QUIET_S: Final = 2.0  # time without a message after the last one
_SILENT_S: Final = 30.0  # longest wait for a message that is due
_MIB: Final = 2**20


@dataclass(frozen=True, kw_only=True)
class WorkerResult:
    """The figures of a worker.

    Attributes:
        nacked: Pending messages when all wait, from the client's statistics; -1 without one.
        receive_s: Seconds until all messages were received and nacked.
        redeliver_s: Seconds from the first redelivery to the last.
        waiting_mib: Resident memory when all waited, above that after subscribing.
        most_mib: The largest value of it.
        in_memory: Ids in memory when all waited; -1 if unknown.
        snapshots: Snapshots on disk then.
        stored_mib: MiB of these snapshots.
        longest_step_ms: Longest delay of a timer of the event loop.
        longest_cpu_ms: Largest CPU time of the loop's thread in such a step. On a busy machine this
            is the part that the program causes.
        problems: Broken rules, as text.
    """

    nacked: int = -1
    receive_s: float = 0.0
    redeliver_s: float = 0.0
    waiting_mib: float = 0.0
    most_mib: float = 0.0
    in_memory: int = -1
    snapshots: int = 0
    stored_mib: float = 0.0
    longest_step_ms: float = 0.0
    longest_cpu_ms: float = 0.0
    problems: Sequence[str] = ()


async def fill(url: str, topic: str, count: int) -> None:
    """Send `count` unbatched messages of 4 bytes, their numbers from 0."""
    async with encore.Client(url) as client:
        producer = await client.create_producer(
            topic,
            batching_enabled=False,
            block_if_queue_full=True,
            max_pending_messages=5_000,
        )
        for start in range(0, count, 5_000):
            numbers = range(start, min(start + 5_000, count))
            await asyncio.gather(*(producer.send(each.to_bytes(4, "big")) for each in numbers))


class Attempts:
    """The deliveries of each message, in memory that is allocated before measuring."""

    def __init__(self, count: int, delay_s: float) -> None:
        self._nacked_at = array("d", bytes(8 * count))
        self._deliveries = bytearray(count)
        self._delay_s = delay_s
        self.first = self.again = 0
        self.problems: dict[str, int] = {}

    def received(self, number: int, redelivery_count: int) -> bool:
        """Record a delivery. Return True if the message is to be nacked, False if acked."""
        self._deliveries[number] += 1
        if self._deliveries[number] == 1:
            self.first += 1
            if redelivery_count:
                self._add_problem("were redelivered before they were nacked")
            self._nacked_at[number] = time.monotonic()
            return True
        if self._deliveries[number] > 2:
            self._add_problem("were redelivered twice")
            return False
        self.again += 1
        if time.monotonic() < self._nacked_at[number] + self._delay_s:
            self._add_problem("were redelivered before their delay was over")
        if redelivery_count != 1:
            self._add_problem("had a redelivery count other than 1")
        return False

    def _add_problem(self, what: str) -> None:
        self.problems[what] = self.problems.get(what, 0) + 1


class Resident:
    """The memory of this process, above its size at the start."""

    def __init__(self) -> None:
        gc.collect()
        self._process = psutil.Process()
        self._before: int = self._process.memory_info().rss
        self.most = 0.0

    def now(self) -> float:
        """Return the current MiB. `most` is the largest value returned."""
        mib: float = (self._process.memory_info().rss - self._before) / _MIB
        self.most = max(self.most, mib)
        return mib


async def _longest_step(found: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        before, cpu = loop.time(), time.thread_time()
        await asyncio.sleep(0.001)
        found[0] = max(found[0], loop.time() - before - 0.001)
        found[1] = max(found[1], time.thread_time() - cpu)


async def work(
    url: str, topic: str, side: str, count: int, delay_s: float, path: str
) -> WorkerResult:
    """Receive and nack everything, then ack what is redelivered."""
    attempts = Attempts(count, delay_s)
    if side == "cpp":
        return await _work_cpp(url, topic, attempts, count, delay_s)
    options: dict[str, Any] = {}
    if side == "spilling":
        options["nack_index"] = encore.SpillingNackIndex(path)
    async with encore.Client(url, transport="native") as client:
        consumer = await client.subscribe(
            topic,
            _SUBSCRIPTION,
            encore.ConsumerType.Shared,
            negative_ack_redelivery_delay_ms=int(delay_s * 1000),
            max_unacked_messages=2 * count,
            **options,
        )
        resident, steps = Resident(), [0.0, 0.0]
        watch = asyncio.create_task(_longest_step(steps))
        began = time.monotonic()

        async def until(done: int) -> None:
            turns = 0
            while attempts.first + attempts.again < done:
                message = await consumer.receive(timeout=delay_s + _SILENT_S)
                number = int.from_bytes(message.data(), "big")
                if attempts.received(number, message.redelivery_count()):
                    await consumer.negative_acknowledge(message)
                else:
                    await consumer.acknowledge(message)
                turns += 1
                if not turns % 10_000:
                    resident.now()

        problems: list[str] = []
        redelivered = began
        try:
            await until(count)
            receive_s = time.monotonic() - began
            await asyncio.sleep(1)  # the last snapshot is written
            longest = steps[:]
            gc.collect()
            waiting_mib, found = resident.now(), consumer.statistics()
            await asyncio.sleep(0.01)
            steps[:] = longest  # a full collection is not part of normal operation
            _print_json(asdict(WorkerResult(nacked=found.nacked)))
            await until(count + 1)
            redelivered = time.monotonic()
            await until(2 * count)
        except encore.ReceiveTimeout:
            problems.append(f"{2 * count - attempts.first - attempts.again} were not delivered")
        redeliver_s = time.monotonic() - redelivered
        try:
            message = await consumer.receive(timeout=_QUIET_S)
            problems.append(f"{message.message_id()} was delivered once too often")
        except encore.ReceiveTimeout:
            pass
        watch.cancel()
        await consumer.close()
    index = found.nack_index
    problems += [f"{number} {what}" for what, number in attempts.problems.items()]
    return WorkerResult(
        nacked=found.nacked,
        receive_s=receive_s,
        redeliver_s=redeliver_s,
        waiting_mib=waiting_mib,
        most_mib=resident.most,
        in_memory=count if index is None else index.in_memory,
        snapshots=0 if index is None else index.snapshots,
        stored_mib=0.0 if index is None else index.stored_bytes / _MIB,
        longest_step_ms=steps[0] * 1000,
        longest_cpu_ms=steps[1] * 1000,
        problems=problems,
    )


async def _work_cpp(
    url: str, topic: str, attempts: Attempts, count: int, delay_s: float
) -> WorkerResult:
    """Do the same with the C++ client. Each due message may take `_SILENT_S` to arrive."""
    import pulsar
    import pulsar.asyncio

    client = pulsar.asyncio.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = await client.subscribe(
        topic,
        _SUBSCRIPTION,
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=int(delay_s * 1000),
    )
    resident, steps = Resident(), [0.0, 0.0]
    watch = asyncio.create_task(_longest_step(steps))
    began = time.monotonic()
    receive_s = waiting_mib = 0.0
    redelivered = began
    problems: list[str] = []
    turns = 0
    while attempts.first + attempts.again < 2 * count:
        try:
            message = await asyncio.wait_for(consumer.receive(), delay_s + _SILENT_S)
        except TimeoutError:
            problems.append(f"{2 * count - attempts.first - attempts.again} were not delivered")
            break
        number = int.from_bytes(message.data(), "big")
        if attempts.received(number, message.redelivery_count()):
            await consumer.negative_acknowledge(message)
        else:
            await consumer.acknowledge(message)
        turns += 1
        if not turns % 10_000:
            resident.now()
        if attempts.first == count and not receive_s:
            receive_s = time.monotonic() - began
            gc.collect()
            waiting_mib = resident.now()
            _print_json(asdict(WorkerResult()))
        if attempts.again == 1:
            redelivered = time.monotonic()
    redeliver_s = time.monotonic() - redelivered
    watch.cancel()
    await client.close()
    problems += [f"{number} {what}" for what, number in attempts.problems.items()]
    return WorkerResult(
        receive_s=receive_s,
        redeliver_s=redeliver_s,
        waiting_mib=waiting_mib,
        most_mib=resident.most,
        longest_step_ms=steps[0] * 1000,
        longest_cpu_ms=steps[1] * 1000,
        problems=problems,
    )


def _print_json(what: object) -> None:
    print(json.dumps(what), flush=True)


def heap_mib(broker: Standalone) -> float:
    """Collect the broker's garbage, and return the MiB of heap that are in use."""
    subprocess.run(["jcmd", str(broker.pid), "GC.run"], check=True, stdout=subprocess.DEVNULL)
    with urllib.request.urlopen(f"{broker.admin_url}/metrics/") as answer:
        text = answer.read().decode()
    used = re.search(r'^jvm_memory_bytes_used\{.*area="heap".*\} (\S+)', text, re.MULTILINE)
    assert used is not None, "the broker has no metric jvm_memory_bytes_used"
    return float(used[1]) / _MIB


def measure(
    broker: Standalone, side: str, count: int, delay_s: float
) -> tuple[WorkerResult, list[Row]]:
    """Fill a topic and run one worker on it."""
    topic = fresh_topic()
    admin = Admin(broker.admin_url)
    admin.call("PUT", f"/persistent/public/default/{topic}/subscription/{_SUBSCRIPTION}", None)
    began = time.monotonic()
    asyncio.run(fill(broker.service_url, topic, count))
    print(f"{side}: {count} messages sent in {time.monotonic() - began:.0f} s", flush=True)
    before = heap_mib(broker)
    with tempfile.TemporaryDirectory() as path:
        command = [sys.executable, "-m", __spec__.name, "--worker", side, "--topic", topic]
        command += ["--url", broker.service_url, "--directory", path]
        command += ["--count", str(count), "--delay", str(delay_s)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            worker.stdout.readline()  # all messages wait now
            waiting = heap_mib(broker)
            last = worker.stdout.read().strip()
        if worker.returncode:
            raise SystemExit(f"the worker of {side} ended with {worker.returncode}")
        left = [str(each) for each in Path(path).glob("spilled-*")]
    found = WorkerResult(**json.loads(last.splitlines()[-1]))
    after = heap_mib(broker)
    stats = admin.call("GET", f"/persistent/public/default/{topic}/stats")
    (subscription,) = stats["subscriptions"].values()
    problems = list(found.problems) + [f"{each} is left on disk" for each in left]
    for name in ("msgBacklog", "unackedMessages"):
        if subscription[name]:
            problems.append(f"{subscription[name]} {name} at the broker")
    figures = {
        "all received and nacked": ("s", found.receive_s),
        "redelivered and acked": ("s", found.redeliver_s),
        "waiting, as the client counts": ("", float(found.nacked)),
        "ids in memory": ("", float(found.in_memory)),
        "snapshots on disk": ("", float(found.snapshots)),
        "on disk": ("MiB", found.stored_mib),
        "resident, all waiting": ("MiB", found.waiting_mib),
        "resident, most": ("MiB", found.most_mib),
        "longest step of the loop": ("ms", found.longest_step_ms),
        "longest step of the loop, CPU": ("ms", found.longest_cpu_ms),
        "broker's heap before": ("MiB", before),
        "broker's heap, all waiting": ("MiB", waiting),
        "broker's heap after": ("MiB", after),
        "problems": ("", float(len(problems))),
    }
    rows = [
        Row(
            what=f"{side}: {what}",
            unit=unit,
            ours=(figure,),
            bar=0.0 if what == "problems" and side != "cpp" else None,
        )
        for what, (unit, figure) in figures.items()
    ]
    for problem in problems:
        print(f"{side}: {problem}", flush=True)
    admin.call("DELETE", f"/persistent/public/default/{topic}", force=True)
    return found, rows


def main(arguments: list[str] | None = None) -> int:
    """Print the table. Return 1 if a message was lost, early or redelivered twice, else 0."""
    parser = argparse.ArgumentParser(description="Very many waiting nacks on a real broker.")
    parser.add_argument("--count", type=int, default=COUNT, help="messages")
    parser.add_argument("--delay", type=float, default=DELAY_S, help="seconds that each waits")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES[:2])
    parser.add_argument("--heap", default="2g", help="the broker's -Xmx")
    parser.add_argument("--worker", choices=SIDES, help="one worker, as JSON")
    parser.add_argument("--url", help="for a worker")
    parser.add_argument("--topic", help="for a worker")
    parser.add_argument("--directory", help="for a worker")
    options = parser.parse_args(arguments)
    if options.worker:
        worker_arguments = (options.url, options.topic, options.worker)
        found = asyncio.run(
            work(*worker_arguments, options.count, options.delay, options.directory)
        )
        _print_json(asdict(found))
        return 0
    rows: list[Row] = []
    with Standalone(UNLIMITED, heap=options.heap) as broker:
        for side in options.sides:
            rows += measure(broker, side, options.count, options.delay)[1]
    for row in rows:
        print(f"{row.what:50}{short(row.figure.median):>12} {row.unit:5}{row.verdict}".rstrip())
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
