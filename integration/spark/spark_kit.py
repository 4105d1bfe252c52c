"""Spark on this machine, for tests and benchmarks.

`spark_session` starts a session in which workers run this interpreter on this checkout.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

ROOT: Final = Path(__file__).resolve().parents[2]
_SOCKET_S: Final = 120


def worker_environment() -> None:
    """Set the environment by which workers of later sessions find this checkout."""
    paths = [str(ROOT / "sdk"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    known = dict.fromkeys(each for path in paths for each in path.split(os.pathsep) if each)
    os.environ["PYTHONPATH"] = os.pathsep.join(known)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["SPARK_AUTH_SOCKET_TIMEOUT"] = str(_SOCKET_S)


@contextmanager
def spark_session(master: str = "local[2]", **settings: str) -> Iterator[SparkSession]:
    """Start Spark, and stop it with its JVM's threads at the end.

    Args:
        master: The number of cores, and after a comma how often a task may fail.
        settings: More settings of Spark, with ``__`` for each dot.
    """
    worker_environment()
    with tempfile.TemporaryDirectory(prefix="encore-spark-") as folder:
        builder = (
            SparkSession.builder.master(master)
            .appName("pulsar-encore")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", folder)
            .config("spark.driver.extraJavaOptions", "-Dlog4j2.level=OFF")
            # Two cores may be shared with other programs. Spark's default of 15 s has been
            # exceeded.
            .config("spark.python.authenticate.socketTimeout", f"{_SOCKET_S}s")
        )
        for name, value in settings.items():
            builder = builder.config(name.replace("__", "."), value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        try:
            yield session
        finally:
            session.stop()
