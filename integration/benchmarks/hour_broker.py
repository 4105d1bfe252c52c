"""The broker of `hour`: a development broker that fails in every way, in compressed time.

It prints its addresses as a line of JSON: of itself, and of a proxy that damages frames. After the
given minutes the faults end, and it prints how many there were. It serves until its stdin ends.

    python -m integration.benchmarks.hour_broker MINUTES SPEED SINCE_S
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final, get_args

from pulsar_encore.devbroker import BrokerSettings, Fault, FaultPlan
from pulsar_encore.devbroker.server import Broker
from tests.harness.faults.mischief import WITH_PAYLOAD, Direction, Kind, Mischief, WireFault
from tests.harness.faults.networks import MOST_BYTES, FaultProxy

from .fast_clock import run_fast

#: Mean time between two faults of a kind, in s.
EVERY_S: Final = {"disconnect": 60, "unload": 40, "outage": 150, "restart": 300, "commands": 20}
_COMMANDS: Final = (
    *("CONNECT", "LOOKUP", "PARTITIONED_METADATA", "SUBSCRIBE", "PRODUCER", "FLOW", "ACK", "SEEK"),
    *("REDELIVER_UNACKNOWLEDGED_MESSAGES", "SEND", "CLOSE_CONSUMER", "CLOSE_PRODUCER"),
    *("CONNECTED", "LOOKUP_RESPONSE", "SUCCESS", "PRODUCER_SUCCESS", "MESSAGE", "SEND_RECEIPT"),
    *("ACK_RESPONSE", "PONG"),
)
_REFUSED: Final = ("PRODUCER", "SUBSCRIBE", "LOOKUP", "CONNECT", "SEND", "SEEK")
_KINDS: Final = ("drop", "delay", "duplicate", "close_before", "close_after", "refuse", "outage")
#: Share of the commands through the proxy that are hit.
_WIRE_SHARE: Final = 1 / 500


class RandomMischief(Mischief):
    """Faults at random commands, until `ended`."""

    def __init__(self, rng: Random) -> None:
        super().__init__((), rng)
        self.counts: Counter[str] = Counter()
        self.ended = False

    def step(self, direction: Direction, command: str) -> WireFault | None:
        if self.ended or self.rng.random() >= _WIRE_SHARE:
            return None
        kind: Kind = self.rng.choice(
            [each for each in get_args(Kind) if each != "payload" or command in WITH_PAYLOAD]
        )
        self.counts[f"wire: {kind}"] += 1
        seconds = self.rng.uniform(0.1, 3.0) if kind == "delay" else 0.0
        return WireFault(kind=kind, direction=direction, command=command, seconds=seconds)


class Faults:
    """The controls of the broker, pulled at random."""

    def __init__(self, broker: Broker, rng: Random) -> None:
        self.counts: Counter[str] = Counter()
        self._broker = broker
        self._rng = rng

    async def run(self, seconds: float) -> None:
        """Inject faults for so long, then leave a healthy broker."""
        kinds: dict[str, Callable[[], None]] = {
            "disconnect": self._disconnect,
            "unload": self._unload,
            "outage": self._outage,
            "restart": self._restart,
            "commands": self._fail_commands,
        }
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(self._repeat(kinds[name], name) for name in EVERY_S))
        self._note_fired()
        self._broker.faults = None
        await self._broker.resume()

    async def _repeat(self, inject: Callable[[], None], name: str) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / EVERY_S[name]))
            inject()
            self.counts[name] += 1

    def _disconnect(self) -> None:
        self._broker.drop_connections()

    def _unload(self) -> None:
        if topics := self._broker.topics():
            self._broker.unload(self._rng.choice(topics))

    def _outage(self) -> None:
        self._broker.outage(self._rng.uniform(1, 20))

    def _restart(self) -> None:
        """Do as an orderly stop: it loses redelivery counts, partial acks and open ledgers."""
        for topic in self._broker.topics():
            self._broker.unload(topic)
        self._broker.outage(self._rng.uniform(5, 30))

    def _fail_commands(self) -> None:
        self._note_fired()
        self._broker.faults = FaultPlan([self._fault() for _ in range(3)])

    def _fault(self) -> Fault:
        kind = self._rng.choice(_KINDS)
        return Fault(
            kind=kind,
            command=self._rng.choice(_REFUSED if kind == "refuse" else _COMMANDS),
            nth=self._rng.randrange(1, 10),
            times=self._rng.choice((1, 1, 3)),
            delay_ms=self._rng.randrange(10, 3000),
            outage_s=self._rng.uniform(0.5, 5),
        )

    def _note_fired(self) -> None:
        if self._broker.faults is not None:
            self.counts.update(f"command: {each.fault.kind}" for each in self._broker.faults.fired)


async def serve(minutes: float) -> None:
    """Run the broker until stdin ends."""
    settings = BrokerSettings(
        max_message_size=MOST_BYTES,
        entries_per_ledger=2000,
        failover_delay_ms=50,
        rewind_overtaken=0.5,
        record=False,
    )
    rng = Random(33)
    async with Broker(settings) as broker:
        mischief = RandomMischief(rng)
        proxy = FaultProxy(broker.url, mischief)
        await proxy.start()
        broker.create_partitioned_topic("persistent://public/default/partitioned", 3)
        _print({"url": broker.url, "faulty_url": proxy.url})
        gc.freeze()
        faults = Faults(broker, rng)
        await faults.run(minutes * 60)
        mischief.ended = True
        _print({**faults.counts, **mischief.counts})
        await asyncio.to_thread(sys.stdin.read)
        await proxy.close()


def _print(document: object) -> None:
    print(json.dumps(document), flush=True)


if __name__ == "__main__":
    length, speed, since_s = map(float, sys.argv[1:])
    run_fast(serve(length), speed=speed, since_s=since_s)
