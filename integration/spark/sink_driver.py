"""A query into the sink in a process of its own, kills of it and of its workers, and its topic."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

import psutil

import pulsar_encore as encore

from .numbered_topics import KILLS
from .spark_kit import ROOT, worker_environment

BATCHES: Final = 6
ROWS: Final = 1000  # in each batch
TOTAL: Final = BATCHES * ROWS


def read(url: str, topic: str) -> list[encore.Message]:
    """Return all messages of a topic, in order."""

    async def all_of_it() -> list[encore.Message]:
        async with (
            encore.Client(url) as client,
            await client.create_reader(topic, encore.MessageId.earliest) as reader,
        ):
            found = []
            while await reader.has_message_available():
                found.append(await reader.read_next(10_000))
            return found

    return asyncio.run(all_of_it())


class Driver:
    """A query in a process of its own.

    Args:
        checkpoint: Checkpoint folder of the query.
        options: Options of the sink.
        batches: Micro-batches of `ROWS` rows.
        attempts: At each task, before the query ends.
        restarts: Of a query that ended with an error.
    """

    def __init__(
        self,
        checkpoint: Path,
        options: dict[str, str],
        batches: int = BATCHES,
        attempts: int = 8,
        restarts: int = 0,
    ) -> None:
        worker_environment()
        parameters = {
            "checkpoint": str(checkpoint),
            "batches": batches,
            "rows": ROWS,
            "attempts": attempts,
            "restarts": restarts,
            "options": {"pauseMs": "25", **options},
        }
        command = [sys.executable, "-m", "integration.spark.sink_process", json.dumps(parameters)]
        self._output = TemporaryFile("w+")  # a full pipe would block the process
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=self._output
        )

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def problems(self) -> str:
        """Return the error output of a failed process; "" if it ended normally."""
        if not self._process.returncode:
            return ""
        self._output.seek(0)
        return self._output.read()[-3000:]

    def _children(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def kill_worker(self) -> bool:
        """Kill one of Spark's Python workers. Return False if there is none."""
        for each in self._children():
            with suppress(psutil.NoSuchProcess):
                parent = each.parent()
                if parent is not None and "pyspark.daemon" in parent.cmdline():
                    each.send_signal(signal.SIGKILL)
                    return True
        return False

    def kill(self) -> None:
        """Kill the driver, its JVM and all of its workers."""
        children = self._children()
        self._process.kill()
        for each in children:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self._process.wait()
        self._output.close()
        psutil.wait_procs(children, timeout=10)


def run_with_kills(
    checkpoint: Path,
    options: dict[str, str],
    stored: Callable[[], int],
    *,
    batches: int = BATCHES,
    is_due: Callable[[int], bool] | None = None,
    timeout_s: float = 600,
) -> int:
    """Kill a worker or everything, in turn, after each further share of the rows is stored.

    Args:
        stored: Returns the number of stored messages.
        is_due: Returns whether another kill is due after so many kills.

    Returns:
        The number of kills.
    """
    is_due = is_due or (lambda kills: stored() > TOTAL * (2 * kills + 1) // (2 * KILLS + 2))
    driver = Driver(checkpoint, options, batches)
    kills = failures = 0
    deadline = time.monotonic() + timeout_s
    try:
        while not (driver.ended and not (problems := driver.problems())):
            assert time.monotonic() < deadline, f"{stored()} rows after {kills} kills"
            if driver.ended:
                # One of the workers belongs to the query and commits. When it is killed, Spark ends
                # the query. The test starts it again, as an operator would.
                assert "Python worker exited" in problems and failures < kills, problems
                failures += 1
                driver = Driver(checkpoint, options, batches)
            elif kills == KILLS or not is_due(kills):
                time.sleep(0.02)
            elif kills % 2:
                driver.kill()
                kills += 1
                driver = Driver(checkpoint, options, batches)
            elif driver.kill_worker():
                kills += 1
    finally:
        driver.kill()
    return kills
