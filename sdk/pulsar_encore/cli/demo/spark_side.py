"""Measure the Spark source: a stream into Parquet, killed in the middle and started again.

Spark's driver, which is killed, has a process of its own. Committed rows are read from the log of
Spark's Parquet sink. Files that are not in the log belong to batches in progress.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pyarrow
import pyarrow.parquet
from pyarrow import compute

from ... import Client, InitialPosition
from .measurement import MeasurementError
from .workload import LOGIN, LOGIN_OPTIONS, NUMBER_DIGITS, PAYLOAD, Figures, Stopwatch

_MODULE: Final = "pulsar_encore.cli.demo.spark_driver"
_BATCH: Final = 1000
_MAX_PENDING: Final = 10 * _BATCH
_POLL_S: Final = 0.05
#: Variables that would send the job to another Spark or cluster than PySpark's own.
_SPARK_ENVIRONMENT: Final = (
    "HADOOP_CONF_DIR",
    "PYSPARK_DRIVER_PYTHON",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
    "SPARK_HOME",
    "SPARK_LOCAL_DIRS",
    "SPARK_MASTER",
    "SPARK_REMOTE",
    "YARN_CONF_DIR",
)


async def killed_stream(url: str, topic: str, *, folder: str, count: int, batches: int) -> Figures:
    """Stream `count` messages into Parquet; kill the driver midway, and start it again.

    Messages are sent while the first driver starts. It is killed when a quarter of the rows is
    committed and the file of another batch is being written.

    Returns:
        `count`; `committed` rows at the kill; `first_s` from the second start to its first commit;
        `per_s` rows after that; and of all rows `rows`, `distinct` numbers, the `least` and the
        `greatest`.
    """
    folder_path = Path(folder)
    result = Result(folder_path / "rows")
    options = {
        **LOGIN_OPTIONS,
        "service.url": url,
        "topic": topic,
        "startingOffsets": "earliest",
        "subscription": "spark",
        "maxEntriesPerTrigger": str(max(1, count // _BATCH // batches)),
        "minPartitions": "2",  # one per core
    }
    async with Client(url, **LOGIN) as client:
        # Keeps acked messages, which a query that starts again reads again.
        keep = await client.subscribe(topic, "keep", initial_position=InitialPosition.Earliest)
        await keep.close()
        async with _driver(folder_path, options, all_stored=False) as driver_end:
            sending = asyncio.ensure_future(_send(client, topic, count))
            try:
                while not (result.has_uncommitted_files() and result.rows() * 4 >= count):
                    for each in (driver_end, sending):
                        if each.done():
                            each.result()
                    await asyncio.wait([driver_end], timeout=_POLL_S)
            except BaseException:
                sending.cancel()
                raise
        await sending
    committed = result.rows()
    if not 0 < committed < count:
        raise MeasurementError(f"killed when {committed:,} of {count:,} rows were committed")
    restarted = await _restart(folder_path, options, result, count)
    return {"count": count, "committed": committed, **restarted, **result.numbers()}


async def _restart(
    folder_path: Path, options: Mapping[str, str], result: Result, count: int
) -> Figures:
    committed = result.rows()
    clock = Stopwatch()
    async with _driver(folder_path, options, all_stored=True) as driver_end:
        while (first := result.rows()) == committed and not driver_end.done():
            await asyncio.wait([driver_end], timeout=_POLL_S)
        first_s = clock()
        while result.rows() < count and not driver_end.done():
            await asyncio.wait([driver_end], timeout=_POLL_S)
        rest_s = clock() - first_s
        await driver_end  # ends when all stored messages are written, which may be more
    return {"first_s": first_s, "per_s": (count - first) / rest_s if first < count else None}


class Result:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: dict[str, int] = {}

    def rows(self) -> int:
        for name in self._committed() - self._rows.keys():
            self._rows[name] = pyarrow.parquet.read_metadata(self._folder / name).num_rows
        return sum(self._rows.values())

    def has_uncommitted_files(self) -> bool:
        files = {each.name for each in self._folder.glob("*.parquet")}
        return bool(files - self._committed())

    def numbers(self) -> Figures:
        files = [self._folder / name for name in sorted(self._committed())]
        values = pyarrow.concat_tables(
            pyarrow.parquet.read_table(each, columns=["value"]) for each in files
        )["value"]
        digits = compute.binary_slice(values, 0, NUMBER_DIGITS)
        numbers = digits.cast(pyarrow.string()).cast(pyarrow.int64())
        ends = compute.min_max(numbers).as_py()
        return {
            "rows": len(numbers),
            "distinct": compute.count_distinct(numbers).as_py(),
            "least": ends["min"],
            "greatest": ends["max"],
        }

    def _committed(self) -> set[str]:
        logs = (self._folder / "_spark_metadata").glob("[0-9]*")
        lines = (line for each in logs for line in each.read_text().splitlines()[1:])
        return {json.loads(line)["path"].rpartition("/")[2] for line in lines}


@asynccontextmanager
async def _driver(
    folder_path: Path, options: Mapping[str, str], *, all_stored: bool
) -> AsyncIterator[asyncio.Future[None]]:
    """Start a driver and yield the end of its stream; at the end kill it with its JVM."""
    with (folder_path / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", _MODULE),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=_environment(folder_path),
            # a process group, so that all its processes can be killed together
            start_new_session=True,
        )
    assert process.stdin is not None
    arguments = {"folder": str(folder_path), "options": options, "all_stored": all_stored}
    process.stdin.write(f"{json.dumps(arguments)}\n".encode())
    driver_end = asyncio.ensure_future(_end(process))
    try:
        yield driver_end
    finally:
        driver_end.cancel()
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise MeasurementError("Spark's driver ended without an answer")
    if error := json.loads(line).get("error"):
        raise MeasurementError(error)


def _environment(folder_path: Path) -> dict[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if name not in _SPARK_ENVIRONMENT
    }
    package = Path(__file__).resolve().parents[3]
    paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **inherited,
        "PYSPARK_PYTHON": sys.executable,  # for the workers, as the next line
        "PYTHONPATH": os.pathsep.join(paths),
        "SPARK_AUTH_SOCKET_TIMEOUT": "120",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": str(folder_path),
    }


async def _send(client: Client, topic: str, count: int) -> None:
    padding = PAYLOAD[NUMBER_DIGITS:]
    async with client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=_BATCH,
        batching_max_allowed_size_in_bytes=1 << 20,
        batching_max_publish_delay_ms=1000,
        max_pending_messages=2 * _MAX_PENDING,
    ) as producer:
        for start in range(0, count, _MAX_PENDING):
            for number in range(start, min(count, start + _MAX_PENDING)):
                producer.send_async(b"%0*d" % (NUMBER_DIGITS, number) + padding, None)
            await producer.flush()
