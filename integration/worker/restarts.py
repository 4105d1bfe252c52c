"""A handler that takes longer than its process lives: each drain gives its message back, uncounted.

python -m integration.worker.restarts [--restarts 10] [--url URL]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
from dataclasses import dataclass
from typing import Any

import pulsar_encore as encore
from tests.harness.pulsar_server import running_server

from .fleet import QUIET, Exit, done, letters_of, publish
from .sigterm import fleet

LONG_S = 4.0
"""The time of the handler. A process lives about a second, and drains for two."""
DRAIN_S = 3.5


@dataclass(frozen=True, kw_only=True)
class LongOutcome:
    """The result of a message that outlives several processes.

    Attributes:
        exits: The ends of the processes.
        attempts: The attempt of each handler call, in order.
        processed: How often the message was processed.
        letters: Number of dead letters.
    """

    exits: list[Exit]
    attempts: list[int]
    processed: int
    letters: int

    def __str__(self) -> str:
        return (
            f"attempts {self.attempts}, processed {self.processed} times, {self.letters} dead "
            f"letters, exit codes {[each.code for each in self.exits]}"
        )


async def outlive(
    url: str, *, restarts: int, order: str, with_state: bool, others: int = 0, **options: Any
) -> LongOutcome:
    """Restart the process of a long handler again and again, and let the last process end it.

    Args:
        others: Further processes of the same subscription, which live until the end. The broker
            then counts redeliveries.
    """
    async with contextlib.AsyncExitStack() as stack:
        workers = await stack.enter_async_context(
            fleet(
                url,
                order=order,
                drain=DRAIN_S,
                long_every=1,
                long_s=LONG_S,
                retry={"attempts": 3, "backoff": [1]},
                **options,
            )
        )
        state = None
        if with_state:
            state = stack.enter_context(tempfile.TemporaryDirectory(prefix="state-"))
        client = await stack.enter_async_context(encore.Client(url, logger=QUIET))
        await publish(client, workers.topic, ["k:1"], keyed=True)
        exits = []
        for _ in range(others):
            await workers.start(long_s=LONG_S)
        for at in range(restarts):
            process = await workers.start(state=state)
            await workers.until(
                lambda events, least=at: sum(each.what == "start" for each in events) > least
            )
            exits.append(await process.end())
        process = await workers.start(state=state, long_s=0.1)
        with contextlib.suppress(AssertionError):
            await workers.until_done(["k:1"], 15)
        await asyncio.sleep(0.5)
        await process.end()
        events = workers.events()
        return LongOutcome(
            exits=exits,
            attempts=[each.attempt for each in events if each.what == "start"],
            processed=done(events).count("k:1"),
            letters=len(await letters_of(client, workers.topic)),
        )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--url")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = arguments.url or stack.enter_context(running_server()).service_url
        for order in ("none", "key", "partition"):
            for with_state in (False, True):
                outcome = await outlive(
                    url, restarts=arguments.restarts, order=order, with_state=with_state
                )
                state = "with" if with_state else "without"
                print(f"order {order}, {state} state: {outcome}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
