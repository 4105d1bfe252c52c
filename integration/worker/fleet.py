"""Start worker processes, publish for them, end them, and check their records."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pulsar_encore as encore

from .worker_process import Handler, Setup

DRAIN_S = 4.0
"""The drain of a worker whose test gives none."""
ROOT = Path(__file__).resolve().parents[2]
QUIET = encore.ConsoleLogger(encore.LoggerLevel.Error)


class Event(NamedTuple):
    """One line of a record, and the name of its process. `at` is a time in s."""

    at: float
    what: str
    text: str
    attempt: int
    process: str
    partition: str


@dataclass(frozen=True, kw_only=True)
class Exit:
    """The end of a process: its exit code, and the seconds since the signal."""

    code: int
    took: float
    output: str


class _ReadEvents:
    """The part of a record that was read."""

    def __init__(self) -> None:
        self.offset = 0
        self.found: list[Event] = []


class WorkerProcess:
    """A running worker process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    async def end(self, number: int = signal.SIGTERM, timeout: float = 60) -> Exit:
        """Send a signal, and wait for the end. The process is killed if it takes longer."""
        began = time.monotonic()
        self._process.send_signal(number)
        try:
            async with asyncio.timeout(timeout):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        took = time.monotonic() - began
        assert self._process.returncode is not None
        return Exit(code=self._process.returncode, took=took, output=self.log.read_text())

    def kill(self) -> None:
        if self.is_running:
            self._process.kill()

    async def wait(self) -> None:
        await self._process.wait()


class Fleet:
    """Worker processes of one subscription, one after the other or at the same time.

    An async context manager; at the end it kills the processes that still run.
    """

    def __init__(
        self,
        url: str,
        topic: str,
        folder: Path,
        *,
        handler: Handler = "plain",
        short_s: float = 0.02,
        long_s: float = 60.0,
        long_every: int = 0,
        retry: dict[str, Any] | None = None,
        transport: str = "native",
        **options: Any,
    ) -> None:
        self._setup = Setup(
            url=url,
            topic=topic,
            record="",
            handler=handler,
            short_s=short_s,
            long_s=long_s,
            long_every=long_every,
            options=options,
            retry=retry or {},
            transport=transport,
        )
        self.topic = topic
        self.folder = folder
        self._numbers = itertools.count(1)
        self._processes: list[WorkerProcess] = []
        self._read: dict[Path, _ReadEvents] = {}

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            await process.wait()

    async def start(self, **changes: Any) -> WorkerProcess:
        """Start a process, with changes of its `Setup`."""
        name = f"p{next(self._numbers)}"
        setup = replace(self._setup, record=str(self.folder / f"{name}.events"), **changes)
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "integration.worker.worker_process",
                setup.to_json(),
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": f"{ROOT / 'sdk'}{os.pathsep}{ROOT}"},
                stdout=output,
                stderr=output,
            )
        worker = WorkerProcess(name, process, log)
        self._processes.append(worker)
        return worker

    def events(self) -> list[Event]:
        """Return the events of all processes, in the order of their times."""
        for path in self.folder.glob("*.events"):
            events = self._read.setdefault(path, _ReadEvents())
            with path.open() as file:
                file.seek(events.offset)
                for line in iter(file.readline, ""):
                    at, what, text, attempt, partition = line.split()
                    events.found.append(
                        Event(float(at), what, text, int(attempt), path.stem, partition)
                    )
                events.offset = file.tell()
        return sorted(itertools.chain.from_iterable(each.found for each in self._read.values()))

    def events_of(self, process: WorkerProcess) -> list[Event]:
        return [each for each in self.events() if each.process == process.name]

    async def until(
        self, condition: Callable[[list[Event]], bool], timeout: float = 60
    ) -> list[Event]:
        """Wait until the events satisfy a condition, and return them."""
        ends = time.monotonic() + timeout
        while True:
            events = self.events()
            if condition(events):
                return events
            if time.monotonic() > ends:
                logs = "\n".join(f"{each.name}: {_tail(each.log)}" for each in self._processes[-3:])
                raise AssertionError(
                    f"not reached in {timeout:g} s, after {len(events)} events\n{logs}"
                )
            await asyncio.sleep(0.1)

    async def until_done(self, texts: Iterable[str], timeout: float = 60) -> list[Event]:
        wanted = set(texts)
        return await self.until(lambda events: wanted <= set(done(events)), timeout)


@contextlib.asynccontextmanager
async def fleet(url: str, **options: Any) -> AsyncIterator[Fleet]:
    """Yield a fleet with a new topic and a temporary folder."""
    options.setdefault("drain", DRAIN_S)
    with tempfile.TemporaryDirectory(prefix="workers-") as folder:
        topic = f"persistent://public/default/workers-{uuid.uuid4().hex[:8]}"
        async with Fleet(url, topic, Path(folder), **options) as found:
            yield found


def _tail(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-15:])


def done(events: Iterable[Event]) -> list[str]:
    """Return the texts of processed messages, in the order of their ends."""
    return [each.text for each in events if each.what == "done"]


def processed_again(events: Iterable[Event]) -> dict[str, list[Event]]:
    """Return the messages that a handler got after one had processed them, with their events."""
    of_text: defaultdict[str, list[Event]] = defaultdict(list)
    for each in events:
        of_text[each.text].append(each)
    return {
        text: found
        for text, found in of_text.items()
        if any(b.what == "start" for b in found[_first_done(found) + 1 :])
    }


def _first_done(events: list[Event]) -> int:
    return next((at for at, each in enumerate(events) if each.what == "done"), len(events))


async def publish(
    client: encore.Client,
    topic: str,
    texts: Iterable[str],
    *,
    batch: int = 1,
    keyed: bool = False,
) -> None:
    """Publish messages, each alone or in batches of `batch`.

    Args:
        keyed: Take the part of a text before ":" as the key.
    """
    batches = {
        "batching_enabled": batch > 1,
        "batching_max_messages": max(2, batch),
        "batching_max_publish_delay_ms": 100,
        "batching_type": encore.BatchingType.KeyBased if keyed else encore.BatchingType.Default,
    }
    async with await client.create_producer(topic, block_if_queue_full=True, **batches) as producer:
        await asyncio.gather(
            *(
                producer.send(
                    each.encode(), partition_key=each.partition(":")[0] if keyed else None
                )
                for each in texts
            )
        )


async def letters_of(client: encore.Client, topic: str, subscription: str = "s") -> list[str]:
    """Return the texts on the dead letter topic of a subscription."""
    found = []
    name = f"{topic}-{subscription}-DLQ"
    async with await client.create_reader(name, encore.MessageId.earliest) as reader:
        while await reader.has_message_available():
            found.append((await reader.read_next()).data().decode())
    return found
