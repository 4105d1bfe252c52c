"""SIGTERM while handlers run: no message is lost or processed again, and processes end in time.

    python -m integration.worker.sigterm [--rounds 20] [--url URL] [--transport native]

prints one line for each form of a handler and for each way to publish. Without `--url` it starts a
broker.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pulsar_encore as encore
from tests.harness.contract.relay import Relay
from tests.harness.histories.proxy import Proxy
from tests.harness.pulsar_server import own_broker, running_server

from .fleet import QUIET, Event, Exit, Fleet, WorkerProcess, done, fleet, processed_again, publish

GRACE_S = 2.0
"""How much longer than its drain a process may live."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of several processes that were ended one after the other.

    Attributes:
        exits: The ends of the processes, without the last one.
        again: Messages that were processed again after a handler had processed them.
        lost: Published messages that no handler processed.
        calls: Number of handler calls.
    """

    exits: list[Exit]
    again: dict[str, list[Event]]
    lost: set[str]
    calls: int

    @property
    def codes(self) -> set[int]:
        return {each.code for each in self.exits}

    @property
    def longest(self) -> float:
        return max(each.took for each in self.exits)

    def __str__(self) -> str:
        return (
            f"{len(self.exits)} signals, {self.calls} calls, {len(self.again)} again, "
            f"{len(self.lost)} lost, exit codes {sorted(self.codes)}, longest end "
            f"{self.longest:.2f} s"
        )


@dataclass(frozen=True, kw_only=True)
class Break:
    """A broker that can be away: its URL, and the functions that begin and end the outage."""

    url: str
    begin: Callable[[], object]
    end: Callable[[], object]


async def end_again_and_again(
    url: str,
    *,
    rounds: int,
    batch: int,
    messages: int = 200,
    calls: int = 40,
    spread: int = 20,
    **options: Any,
) -> Outcome:
    """End one process after the other by SIGTERM, after some calls each.

    Args:
        rounds: Number of processes that are ended.
        batch: Messages of a batch; 1 publishes single messages.
        messages: Messages that are published for each round.
        calls: Calls of each process before its signal, at least.
        spread: Up to so many further calls, at random.
        options: Of the fleet and its workers.
    """
    rng = random.Random()
    texts = [f"{number}" for number in range(rounds * messages)]
    async with fleet(url, **options) as workers, encore.Client(url, logger=QUIET) as client:
        await publish(client, workers.topic, texts[:messages], batch=batch)
        exits = []
        for at in range(1, rounds + 1):
            process = await workers.start()
            # Publishing goes on while the process drains.
            publishing = asyncio.ensure_future(
                publish(
                    client,
                    workers.topic,
                    texts[at * messages : (at + 1) * messages],
                    batch=batch,
                )
            )
            least = calls + rng.randrange(spread)
            await _until_calls(workers, process, least)
            exits.append(await process.end())
            await publishing
        last = await workers.start(handler="plain", long_every=0)
        with contextlib.suppress(AssertionError):
            await workers.until_done(texts)
        await asyncio.sleep(1)  # messages that are redelivered to the last process
        await last.end()
        return _outcome(workers.events(), texts, exits)


def _outcome(events: list[Event], texts: list[str], exits: list[Exit]) -> Outcome:
    return Outcome(
        exits=exits,
        again=processed_again(events),
        lost=set(texts) - set(done(events)),
        calls=sum(each.what == "start" for each in events),
    )


async def _until_calls(workers: Fleet, process: WorkerProcess, least: int) -> None:
    await workers.until(
        lambda events: sum(e.process == process.name and e.what == "start" for e in events) >= least
    )


@contextlib.asynccontextmanager
async def cut_connections(url: str) -> AsyncIterator[Break]:
    """Yield a broker's address behind a proxy that ends connections and refuses new ones."""
    proxy = Proxy(url)
    await proxy.start()
    try:
        yield Break(url=proxy.url, begin=proxy.cut, end=proxy.heal)
    finally:
        await proxy.close()


@contextlib.asynccontextmanager
async def silent_connections(url: str) -> AsyncIterator[Break]:
    """Yield a broker's address behind a proxy that drops what clients send, as a full disk does."""
    async with Relay(url) as relay:
        yield Break(url=relay.url, begin=relay.drop_client_bytes, end=relay.cut)


@contextlib.asynccontextmanager
async def killed_broker(url: str) -> AsyncIterator[Break]:
    """Yield a broker of its own, which is killed and started again."""
    broker = own_broker("standalone", brokerDeleteInactiveTopicsEnabled="false")
    await asyncio.to_thread(broker.start)
    try:
        yield Break(url=broker.service_url, begin=broker.kill, end=broker.start)
    finally:
        await asyncio.to_thread(broker.close)


BREAKS = {
    "cut connections": cut_connections,
    "silent connections": silent_connections,
    "killed broker": killed_broker,
}


async def end_without_broker(url: str, way: str, *, messages: int = 300, **options: Any) -> Outcome:
    """End a process by SIGTERM while the broker is away, and finish when it is back.

    Args:
        way: One of `BREAKS`.
    """
    texts = [f"{number}" for number in range(messages)]
    async with contextlib.AsyncExitStack() as stack:
        broker = await stack.enter_async_context(BREAKS[way](url))
        workers = await stack.enter_async_context(fleet(broker.url, **options))
        async with encore.Client(broker.url, logger=QUIET) as client:
            await publish(client, workers.topic, texts, batch=20)
        process = await workers.start()
        await _until_calls(workers, process, 40)
        broker.begin()
        await asyncio.sleep(0.5)
        exits = [await process.end()]
        broker.end()
        last = await workers.start(handler="plain", long_every=0)
        with contextlib.suppress(AssertionError):
            await workers.until_done(texts)
        await last.end()
        return _outcome(workers.events(), texts, exits)


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "long handlers": {"long_every": 30},
    "ignored cancellation": {"handler": "stubborn", "long_every": 30},
    "threads": {"handler": "thread", "long_every": 30},
    "blocked loop": {"handler": "blocking", "long_every": 10, "calls": 12, "spread": 1},
}
"""Arguments of `end_again_and_again`. A worker that blocks its loop starts few handlers."""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--url")
    parser.add_argument("--transport", default="native")
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--breaks", default=",".join(BREAKS))
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = arguments.url or stack.enter_context(running_server()).service_url
        for form in filter(None, arguments.forms.split(",")):
            for batch in (1, 50):
                outcome = await end_again_and_again(
                    url,
                    rounds=arguments.rounds,
                    batch=batch,
                    transport=arguments.transport,
                    **FORMS[form],
                )
                print(f"{form}, batches of {batch}: {outcome}", flush=True)
        for way in filter(None, arguments.breaks.split(",")):
            outcome = await end_without_broker(url, way, transport=arguments.transport)
            print(f"{way}: {outcome}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
