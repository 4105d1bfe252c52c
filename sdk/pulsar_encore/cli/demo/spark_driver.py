"""Spark's driver, to be killed: a stream of a topic into Parquet.

    python -m pulsar_encore.cli.demo.spark_driver

Its first line of stdin is a JSON object, the arguments of `stream`; a login's secrets are in it,
and so on no command line. It answers with a JSON object on one line, which is empty or has an
`error`. When stdin ends, whoever started it is gone, and it ends at once, together with its JVM.
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

from ..spark import said_by

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.authenticate.socketTimeout": "120s",  # 15 s were seen to pass on busy cores
}


def stream(folder: str, options: dict[str, str], *, all_stored: bool) -> None:
    """Go on with the stream where its checkpoint is.

    Args:
        folder: Of the rows and the checkpoint, and of what Spark leaves lying about.
        options: Of the source.
        all_stored: End when all that is stored now is written; else go on until killed.

    Raises:
        pyspark.errors.PySparkException: The query failed.
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
    """Spark on two cores of this machine, with all that it writes in that folder."""
    builder: Any = SparkSession.builder
    builder = builder.master("local[2]").appName("pulsar-encore demo")
    for name, value in {
        **_SETTINGS,
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # A JVM that is killed leaves its performance data in /tmp. For most of its time it is
        # starting: with one compiler it took 17 s of CPU time where it took 26.
        "spark.driver.extraJavaOptions": (
            f"-Djava.io.tmpdir={folder} -XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        ),
    }.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    return spark


def _end_with_parent() -> None:
    """Wait for the end of stdin, then end this process and the JVM, which are one group."""
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """The program; it is killed, and never ends by itself."""
    arguments = json.loads(sys.stdin.readline())
    parent = threading.Thread(target=_end_with_parent, daemon=True)
    parent.start()
    answer = {}
    try:
        stream(**arguments)
    except Exception as error:
        answer["error"] = said_by(error)
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()
    parent.join()


if __name__ == "__main__":
    main()
