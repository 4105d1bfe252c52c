"""Two transactional workers in a row. Their processes are killed, and each input has one output.

Worker A reads `in` and writes `mid`, worker B reads `mid` and writes `out`. At random moments a
process is killed and started again; the broker is killed just after a commit, and started again; a
topic or the coordinator is unloaded. At the end each input is in `out` exactly once, and in order
for each key if the workers have an order.

    python -m integration.transactions.worker_chain [--kills 50] [--broker-kills 20] \
        [--unloads 10] [--order key]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pulsar_encore as encore
from tests.harness.admin import Admin, AdminError
from tests.harness.pulsar_server import Broker, own_broker

ROOT: Final = Path(__file__).resolve().parents[2]
QUIET: Final = encore.ConsoleLogger(encore.LoggerLevel.Error)
KEYS: Final = 20
_LONGEST_S: Final = 240.0
#: For a broker that is killed: it starts, and the processes find it again.
_BROKER_KILL_S: Final = 90.0
_MODULE: Final = "integration.transactions.worker_chain"
_COORDINATOR: Final = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"


@dataclass(frozen=True, kw_only=True)
class ChainOutcome:
    """The result of one run.

    Attributes:
        lost: Inputs without an output.
        doubled: Inputs with several outputs.
        crossed: Keys with outputs out of order.
        faults: How many there were of each kind.
        took: Seconds from the first start to the last output.
    """

    lost: list[int]
    doubled: list[int]
    crossed: list[str]
    faults: dict[str, int]
    took: float

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.crossed)

    def __repr__(self) -> str:
        parts = {"lost": self.lost, "doubled": self.doubled, "crossed": self.crossed}
        found = ", ".join(f"{len(each)} {name} {each[:5]}" for name, each in parts.items())
        return f"<{found}; {self.faults} in {self.took:.0f} s>"


class _Stage:
    """The processes of one worker."""

    def __init__(self, setup: dict[str, Any], processes: int, folder: Path) -> None:
        self._setup = setup
        self._folder = folder
        topic = setup["source"].rpartition("/")[2]
        self._names = [f"{topic}-{n}" for n in range(processes)]
        self.running: dict[str, asyncio.subprocess.Process] = {}

    async def start(self) -> None:
        for name in self._names:
            if name not in self.running:
                setup = self._setup | {"state": str(self._folder / f"state-{name}")}
                with (self._folder / f"{name}.log").open("ab") as log:
                    self.running[name] = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-m", _MODULE, "--child", json.dumps(setup)),
                        cwd=ROOT,
                        stdin=asyncio.subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                    )

    async def kill_one(self, rng: random.Random) -> None:
        name = rng.choice(self._names)
        process = self.running.pop(name)
        if process.returncode is None:
            process.kill()
        await process.wait()

    async def end(self) -> None:
        for process in self.running.values():
            if process.returncode is None:
                process.terminate()
        for process in self.running.values():
            await process.wait()


async def play(
    broker: Broker,
    *,
    order: str = "none",
    kills: int = 6,
    broker_kills: int = 0,
    unloads: int = 0,
    messages: int = 600,
    seed: int = 1,
) -> ChainOutcome:
    """Run the chain with its faults, and read the outputs."""
    rng = random.Random(seed)
    run = uuid.uuid4().hex[:8]
    topics = [f"persistent://public/default/{run}-{each}" for each in ("in", "mid", "out")]
    url = broker.service_url
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        client = await stack.enter_async_context(encore.Client(url, logger=QUIET))
        for source in topics[:2]:  # the subscriptions exist before their first message
            kind = _KINDS[order]
            await (await client.subscribe(source, "s", kind)).close()
        outputs = await stack.enter_async_context(
            client.create_reader(topics[2], encore.MessageId.earliest)
        )
        filling = asyncio.ensure_future(_fill(client, topics[0], messages, rng))
        if broker_kills:
            await filling  # a plain message whose receipt is lost would be sent twice
        # Input of several consumers is not batched: see docs/transactions.md.
        stages = [
            await stack.enter_async_context(
                _stage(
                    {"url": url, "source": source, "target": target, "order": order},
                    processes,
                    folder,
                )
            )
            for source, target, processes in (
                # The order holds within one process.
                (topics[0], topics[1], 2 if order == "none" else 1),
                (topics[1], topics[2], 1),
            )
        ]
        began = time.monotonic()
        seen = _Outputs(outputs)
        reading = asyncio.ensure_future(seen.read(messages))
        faults = _Faults(broker, stages, seen, rng, topics)
        names = ["kill"] * kills + ["broker kill"] * broker_kills + ["unload"] * unloads
        rng.shuffle(names)
        try:
            async with asyncio.timeout(_LONGEST_S + broker_kills * _BROKER_KILL_S):
                for name in names:
                    await faults.make(name)
                await filling
                await reading
        except TimeoutError:
            reading.cancel()
        took = time.monotonic() - began
        for stage in stages:
            await stage.end()
        await seen.read_rest()
        if len(seen.found) != messages:
            _print_logs(folder)
    return _outcome(seen.found, messages, order, dict(faults.made), took)


class _Outputs:
    """The visible outputs, as (key, number)."""

    def __init__(self, reader: encore.Reader) -> None:
        self._reader = reader
        self.found: list[tuple[str, int]] = []
        self._more = asyncio.Event()

    async def read(self, messages: int) -> None:
        """Read until each input has an output."""
        seen: set[int] = set()
        while len(seen) < messages:
            message = await self._reader.read_next()
            self._add(message)
            seen.add(int(message.data()))
            self._more.set()

    async def read_rest(self) -> None:
        """Read the outputs that were committed last."""
        with contextlib.suppress(TimeoutError):
            while True:
                self._add(await self._reader.read_next(timeout=3))

    async def next_commit(self, seconds: float) -> None:
        """Wait until the next output is visible, or for some seconds."""
        self._more.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._more.wait(), seconds)

    def _add(self, message: encore.Message) -> None:
        self.found.append((message.partition_key(), int(message.data())))


class _Faults:
    """Kills and unloads."""

    def __init__(
        self,
        broker: Broker,
        stages: Sequence[_Stage],
        outputs: _Outputs,
        rng: random.Random,
        topics: Sequence[str],
    ) -> None:
        self._broker = broker
        self._stages = stages
        self._outputs = outputs
        self._rng = rng
        self._unloaded = [*topics, _COORDINATOR]
        self.made: Counter[str] = Counter()

    async def make(self, name: str) -> None:
        rng = self._rng
        await asyncio.sleep(rng.uniform(0.2, 1.5))
        match name:
            case "kill":
                stage = rng.choice(self._stages)
                await stage.kill_one(rng)
                await asyncio.sleep(rng.uniform(0, 0.5))
                await stage.start()
            case "broker kill":
                await self._outputs.next_commit(3)
                await asyncio.to_thread(self._broker.kill)
                await asyncio.to_thread(self._broker.start)
                await self._outputs.next_commit(_BROKER_KILL_S / 2)  # else nobody gets on
            case "unload":
                await self._unload(rng.choice(self._unloaded))
        self.made[name] += 1

    async def _unload(self, topic: str) -> None:
        admin = Admin(self._broker.admin_url)
        async with asyncio.timeout(30):
            while True:
                try:
                    return await asyncio.to_thread(admin.unload, topic)
                except AdminError as e:  # the broker unloads a coordinator only between requests
                    if "doing other operations" not in str(e):
                        raise
                    await asyncio.sleep(0.01)


def _print_logs(folder: Path) -> None:
    for log in sorted(folder.glob("*.log")):
        print(f"== {log.name}\n{log.read_text()[-3000:]}")


_KINDS: Final = {
    "none": encore.ConsumerType.Shared,
    "key": encore.ConsumerType.KeyShared,
    "partition": encore.ConsumerType.Failover,
}


@contextlib.asynccontextmanager
async def _stage(setup: dict[str, Any], processes: int, folder: Path) -> AsyncIterator[_Stage]:
    stage = _Stage(setup, processes, folder)
    try:
        await stage.start()
        yield stage
    finally:
        for process in stage.running.values():
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _fill(client: encore.Client, topic: str, messages: int, rng: random.Random) -> None:
    async with client.create_producer(topic, batching_enabled=False) as producer:
        for number in range(messages):
            await producer.send(b"%d" % number, partition_key=f"k{number % KEYS}")
            if number % 50 == 0:
                await asyncio.sleep(rng.uniform(0, 0.2))


def _outcome(
    found: list[tuple[str, int]], messages: int, order: str, faults: dict[str, int], took: float
) -> ChainOutcome:
    counts = Counter(number for _, number in found)
    by_key: dict[str, list[int]] = defaultdict(list)
    for key, number in found:
        by_key[key].append(number)
    return ChainOutcome(
        lost=[each for each in range(messages) if not counts[each]],
        doubled=[each for each, count in counts.items() if count > 1],
        crossed=[
            key for key, numbers in by_key.items() if order != "none" and numbers != sorted(numbers)
        ],
        faults=faults,
        took=took,
    )


async def _work(setup: dict[str, Any]) -> None:
    """The child: one worker until it is ended."""
    rng = random.Random()

    async def convert(value: bytes, message: encore.Message) -> encore.Out:
        await asyncio.sleep(rng.uniform(0, 0.01))
        return encore.Out(value, key=message.partition_key())

    async with encore.Client(setup["url"], transport="native") as client:
        worker: encore.Worker[Any] = encore.Worker(
            client,
            setup["source"],
            "s",
            convert,
            order=setup["order"],
            publish=setup["target"],
            transactional=encore.Transactional(max_messages=100, timeout=10),
            state=encore.RocksState(setup["state"]),
            drain=8,
        )
        await encore.run(worker)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child")
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--broker-kills", type=int, default=0)
    parser.add_argument("--unloads", type=int, default=0)
    parser.add_argument("--messages", type=int, default=600)
    parser.add_argument("--order", choices=list(_KINDS), default="key")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.child:
        asyncio.run(_work(json.loads(given.child)))
        return
    with own_broker("standalone", transactionCoordinatorEnabled="true") as broker:
        outcome = asyncio.run(
            play(
                broker,
                order=given.order,
                kills=given.kills,
                broker_kills=given.broker_kills,
                unloads=given.unloads,
                messages=given.messages,
                seed=given.seed,
            )
        )
    print(outcome)
    sys.exit(0 if outcome.is_clean else 1)


if __name__ == "__main__":
    main()
