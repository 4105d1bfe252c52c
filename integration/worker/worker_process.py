"""A process with one worker that records every handler call in a file.

Each line of the file has the time (`time.monotonic`, which all processes of a machine share), an
event, the message's text, its attempt, and the end of its topic's name. The events are "start",
"done" (just before the handler returns, so the message is acked), "failed" and "cancelled". The
file is opened with O_APPEND and written without a buffer, so a killed process loses no line.

    python -m integration.worker.worker_process '{"url": ..., "topic": ..., "record": ...}'
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pulsar_encore as encore

log = logging.getLogger("worker_process")

Handler = Literal["plain", "stubborn", "thread", "blocking", "failing"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What one worker process does.

    Attributes:
        url: Service URL of the broker.
        topic: The topic that the worker reads.
        record: File for the events of handlers.
        handler: "plain" awaits. "stubborn" is "plain", but ignores its cancellation. "thread" is a
            plain function. "blocking" awaits, and blocks the event loop for `long_s` with each
            `long_every`-th message. "failing" fails by the text of the message: "fail2" fails in
            the first two attempts, "reject" is rejected, "poison" always fails.
        short_s: Longest run of most handlers; a random time up to it.
        long_s: Run of each `long_every`-th handler.
        long_every: 0 if no handler takes `long_s`.
        options: Further options of the worker.
        retry: Options of its `RetryPolicy`.
        state: Folder of a `RocksState`, or None.
        transport: "native" or "stock".
    """

    url: str
    topic: str
    record: str
    subscription: str = "s"
    handler: Handler = "plain"
    short_s: float = 0.02
    long_s: float = 60.0
    long_every: int = 0
    options: dict[str, Any]
    retry: dict[str, Any]
    state: str | None = None
    transport: str = "native"

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Record:
    """The file of events of one process."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)

    def write(self, event: str, message: encore.Message) -> None:
        text = message.data().decode()
        partition = message.topic_name().rpartition("-")[2]
        line = f"{time.monotonic():.6f} {event} {text} {message.attempt} {partition}\n"
        os.write(self._file, line.encode())


def handler_of(setup: Setup, record: Record) -> Callable[..., Any]:
    """Return the handler, which records its calls."""
    calls = 0
    rng = random.Random()

    def is_long() -> bool:
        nonlocal calls
        calls += 1
        return setup.long_every > 0 and calls % setup.long_every == 0

    async def plain(_: bytes, message: encore.Message) -> None:
        record.write("start", message)
        try:
            await asyncio.sleep(setup.long_s if is_long() else rng.uniform(0, setup.short_s))
        except asyncio.CancelledError:
            record.write("cancelled", message)
            raise
        record.write("done", message)

    async def stubborn(_: bytes, message: encore.Message) -> None:
        record.write("start", message)
        ends = time.monotonic() + (setup.long_s if is_long() else rng.uniform(0, setup.short_s))
        while (left := ends - time.monotonic()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                record.write("cancelled", message)
        record.write("done", message)

    def thread(_: bytes, message: encore.Message) -> None:
        record.write("start", message)
        time.sleep(setup.long_s if is_long() else rng.uniform(0, setup.short_s))
        record.write("done", message)

    async def blocking(_: bytes, message: encore.Message) -> None:
        record.write("start", message)
        await asyncio.sleep(rng.uniform(0, setup.short_s))
        if is_long():
            time.sleep(setup.long_s)  # noqa: ASYNC251 - as a bad handler does
        record.write("done", message)

    async def failing(_: bytes, message: encore.Message) -> None:
        record.write("start", message)
        await asyncio.sleep(rng.uniform(0, setup.short_s))
        kind = message.data().decode().rpartition("-")[2]
        if kind == "reject":
            record.write("failed", message)
            raise encore.Reject("rejected by its text")
        if kind == "poison" or (kind[:4] == "fail" and message.attempt <= int(kind[4:])):
            record.write("failed", message)
            raise ValueError(f"attempt {message.attempt} fails")
        record.write("done", message)

    return {
        "plain": plain,
        "stubborn": stubborn,
        "thread": thread,
        "blocking": blocking,
        "failing": failing,
    }[setup.handler]


def log_event(event: encore.ConsumerEvent) -> None:
    log.info("%.6f %s", time.monotonic(), event)


async def main(setup: Setup) -> None:
    """Run the worker until a signal, and print its report."""
    state = None
    if setup.state is not None:
        state = encore.RocksState(setup.state)
    async with encore.Client(setup.url, transport=setup.transport) as client:
        worker = encore.Worker(
            client,
            setup.topic,
            setup.subscription,
            handler_of(setup, Record(setup.record)),
            initial_position=encore.InitialPosition.Earliest,
            retry=encore.RetryPolicy(**setup.retry),
            state=state,
            options=encore.SubscribeOptions(event_listener=log_event),
            **setup.options,
        )
        report = await encore.run(worker)
    print(report, flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(main(Setup(**json.loads(sys.argv[1]))))
