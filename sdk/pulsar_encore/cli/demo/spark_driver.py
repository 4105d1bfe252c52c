"""Spark's driver, to be killed: stream a topic into Parquet.

The first line of stdin is a JSON object, the arguments of `stream`, because a login's secrets must
not be on a command line. The answer is a JSON object on one line, empty or with an `error`. When
stdin ends, the parent has ended, and the driver kills itself and its JVM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from ..spark import spark_error_text

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.authenticate.socketTimeout": "120s",  # 15 s were seen to pass on busy cores
}


def stream(folder: str, options: dict[str, str], *, all_stored: bool) -> None:
    """Continue the stream from its checkpoint.

    Args:
        folder: For the rows, the checkpoint and Spark's temporary files.
        all_stored: End when all messages that are stored now are written; else run until killed.
    """
    folder_path = Path(folder)
    reader: Any = _session(folder_path).readStream.format("pulsar").options(**options)
    writer: Any = reader.load().writeStream.format("parquet")
    if all_stored:
        writer = writer.trigger(availableNow=True)
    checkpoint = str(folder_path / "checkpoint")
    writer.option("checkpointLocation", checkpoint).start(
        str(folder_path / "rows")
    ).awaitTermination()


def _session(folder: Path) -> SparkSession:
    builder: Any = SparkSession.builder
    builder = builder.master("local[2]").appName("pulsar-encore demo")
    for name, value in {
        **_SETTINGS,
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # A killed JVM leaves its performance data in /tmp. Most of its time it is starting: with
        # one compiler it took 17 s of CPU time instead of 26.
        "spark.driver.extraJavaOptions": (
            f"-Djava.io.tmpdir={folder} -XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        ),
    }.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    return spark


def _end_with_parent() -> None:
    """Wait for the end of stdin, then kill this process and its JVM, which are one group."""
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    arguments = json.loads(sys.stdin.readline())
    parent = threading.Thread(target=_end_with_parent, daemon=True)
    parent.start()
    answer = {}
    try:
        stream(**arguments)
    except Exception as error:
        answer["error"] = spark_error_text(error)
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()
    parent.join()


if __name__ == "__main__":
    main()
