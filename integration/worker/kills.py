"""Kill worker processes while they process messages, and check that no message is lost.

A killed process acks nothing after its last event. Its messages come to another process again.
Messages that no killed process held are processed once.

    python -m integration.worker.kills [--url URL] [--transport native] [--kills 6] [--seed 1]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections import Counter, defaultdict
from dataclasses import dataclass
from random import Random

import pulsar_encore as encore
from tests.harness.pulsar_server import running_server

from .fleet import QUIET, Event, Fleet, WorkerProcess, done, fleet, letters_of, publish

ATTEMPTS = 3
KINDS = ("ok", "ok", "ok", "ok", "ok", "fail1", "fail2", "reject", "poison")


@dataclass(frozen=True, kw_only=True)
class KillOutcome:
    """The result of one run.

    Attributes:
        lost: Messages that were neither processed nor dead-lettered.
        both: Messages that were processed and dead-lettered, though no killed process held them.
        again: Messages that were processed twice, though no killed process held them.
        early: Dead letters with fewer failed attempts than the policy allows.
        crossed: Starts in a process while an earlier message of the key ran there.
        touched: Number of messages that killed processes held.
    """

    lost: list[str]
    both: list[str]
    again: list[str]
    early: list[str]
    crossed: list[str]
    touched: int

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.both or self.again or self.early or self.crossed)


async def play(
    url: str,
    *,
    order: str = "none",
    transport: str = "native",
    kills: int = 5,
    messages: int = 200,
    batch: int = 1,
    seed: int = 1,
) -> KillOutcome:
    """Run three processes, kill one after the other, and wait until all messages are settled."""
    rng = Random(seed)
    texts = [f"k{rng.randrange(20)}:{n}-{rng.choice(KINDS)}" for n in range(messages)]
    async with contextlib.AsyncExitStack() as stack:
        workers = await stack.enter_async_context(
            fleet(
                url,
                handler="failing",
                short_s=0.05,
                order=order,
                concurrency=8,
                drain=5,
                reject_limit=None,
                retry={"attempts": ATTEMPTS, "backoff": [0.3]},
                transport=transport,
            )
        )
        client = await stack.enter_async_context(encore.Client(url, logger=QUIET))
        running = [await workers.start() for _ in range(3)]
        publishing = asyncio.create_task(_publish_slowly(client, workers, texts, batch, rng))
        killed = set[str]()
        for _ in range(kills):
            process = await _busy(workers, running, rng)
            await asyncio.sleep(rng.uniform(0, 0.5))
            process.kill()
            running.remove(process)
            killed.add(process.name)
            running.append(await workers.start())
        await publishing
        dead = await _until_settled(client, workers, texts)
        for process in running:
            await process.end()
        return _outcome(workers.events(), texts, dead, killed, order)


async def _busy(workers: Fleet, running: list[WorkerProcess], rng: Random) -> WorkerProcess:
    """Return a running process that calls its handler now."""
    seen = len(workers.events())
    events = await workers.until(lambda events: len(events) > seen + 10)
    names = {each.process for each in events[seen:]}
    return rng.choice([each for each in running if each.name in names] or running)


async def _publish_slowly(
    client: encore.Client, workers: Fleet, texts: list[str], batch: int, rng: Random
) -> None:
    for at in range(0, len(texts), 20):
        await publish(client, workers.topic, texts[at : at + 20], batch=batch, keyed=True)
        await asyncio.sleep(rng.uniform(0, 1))


async def _until_settled(client: encore.Client, workers: Fleet, texts: list[str]) -> list[str]:
    dead: list[str] = []
    loop = asyncio.get_running_loop()
    ends = loop.time() + 120
    while loop.time() < ends:
        with contextlib.suppress(encore.EncoreError):
            dead = await letters_of(client, workers.topic)
        if set(texts) <= {*done(workers.events()), *dead}:
            break
        await asyncio.sleep(1)
    await asyncio.sleep(3)  # for messages that come again
    return await letters_of(client, workers.topic)


def _outcome(
    events: list[Event], texts: list[str], dead: list[str], killed: set[str], order: str
) -> KillOutcome:
    running: defaultdict[tuple[str, str], str] = defaultdict(str)
    touched, crossed = set[str](), list[str]()
    failed = Counter[str]()
    for each in events:
        if each.process in killed:
            touched.add(each.text)  # it may have waited there for its next attempt, or its ack
        key = each.process, each.partition if order == "partition" else each.text.partition(":")[0]
        if each.what == "start":
            if order != "none" and running[key]:
                crossed.append(f"{each.text} beside {running[key]} in {each.process}")
            running[key] = each.text
        else:
            running[key] = ""
            failed[each.text] += each.what == "failed"
    processed, letters = Counter(done(events)), Counter(dead)
    spared = [each for each in texts if each not in touched]
    return KillOutcome(
        lost=[each for each in texts if not processed[each] and not letters[each]],
        both=[each for each in spared if processed[each] and letters[each]],
        again=[each for each in spared if processed[each] + letters[each] > 1],
        early=[
            each
            for each in spared
            if letters[each] and not each.endswith("reject") and failed[each] < ATTEMPTS
        ],
        crossed=crossed,
        touched=len(touched),
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--transport", default="native")
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = arguments.url or stack.enter_context(running_server()).service_url
        for order in ("none", "key", "partition"):
            for batch in (1, 5):
                outcome = await play(
                    url,
                    order=order,
                    transport=arguments.transport,
                    kills=arguments.kills,
                    batch=batch,
                    seed=arguments.seed,
                )
                print(f"order {order}, batches of {batch}: {outcome}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
