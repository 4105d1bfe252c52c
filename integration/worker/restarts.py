"""A handler that takes longer than its process lives: each drain gives its message back, uncounted.

python -m integration.worker.restarts [--restarts 10] [--url URL]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
from dataclasses import dataclass

import pulsar_encore as encore
from tests.harness.pulsar_server import running_server

from .fleet import QUIET, Event, Exit, done, fleet, letters_of, publish

LONG_S = 4.0
"""The time of the handler. A process lives about a second, and drains for two."""
DRAIN_S = 3.5
TEXT = "k:1-fail2"
"""The message. Its first two attempts fail, if they are not cancelled."""


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
    url: str,
    *,
    restarts: int,
    order: str,
    with_state: bool = False,
    processes: int = 1,
    transport: str = "native",
) -> LongOutcome:
    """Restart the process of a long handler again and again, and let the last process end it.

    Args:
        with_state: Give each process the same folder for a `RocksState`; needs `processes=1`.
        processes: Processes that live at the same time. With more than one, another one gets the
            message when its process ends.
    """
    async with contextlib.AsyncExitStack() as stack:
        state = None
        if with_state:  # before the fleet, because its processes write there until they are killed
            state = stack.enter_context(tempfile.TemporaryDirectory(prefix="state-"))
        workers = await stack.enter_async_context(
            fleet(
                url,
                order=order,
                drain=DRAIN_S,
                long_every=1,
                long_s=LONG_S,
                retry={"attempts": 3, "backoff": [1]},
                transport=transport,
            )
        )
        client = await stack.enter_async_context(encore.Client(url, logger=QUIET))
        await publish(client, workers.topic, [TEXT], keyed=True)
        running = {}
        exits = []
        for _ in range(processes - 1):
            process = await workers.start()
            running[process.name] = process
        for at in range(restarts):
            process = await workers.start(state=state)
            running[process.name] = process
            events = await workers.until(lambda events, least=at: _starts(events) > least)
            exits.append(await running.pop(events[-1].process).end())
        # The last process has short handlers: both failures and the success need all attempts.
        for process in running.values():
            process.kill()
        await workers.start(state=state, handler="failing")
        with contextlib.suppress(AssertionError):
            await workers.until_done([TEXT], 15)
        events = workers.events()
        return LongOutcome(
            exits=exits,
            attempts=[each.attempt for each in events if each.what == "start"],
            processed=len(done(events)),
            letters=len(await letters_of(client, workers.topic)),
        )


def _starts(events: list[Event]) -> int:
    return sum(each.what == "start" for each in events)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--url")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = arguments.url or stack.enter_context(running_server()).service_url
        for order in ("none", "key", "partition"):
            for processes, with_state in ((1, False), (1, True), (2, False)):
                outcome = await outlive(
                    url,
                    restarts=arguments.restarts,
                    order=order,
                    with_state=with_state,
                    processes=processes,
                )
                state = "with" if with_state else "without"
                print(f"order {order}, {processes} processes, {state} state: {outcome}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
