"""Sessions of Spark on this machine, for tests and for the programs that tests kill."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import pulsar_encore


def environment() -> dict[str, str]:
    """What Spark's Python processes need: this interpreter, and the package that is tested."""
    sdk = str(Path(pulsar_encore.__file__).parents[1])
    paths = [sdk, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(paths)}


def session(warehouse: Path, master: str = "local[2,4]") -> SparkSession:
    """A session; a task that fails is tried three times more."""
    started = (
        SparkSession.builder.master(master)
        .appName("pulsar-encore")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(warehouse))
        # Hours must not depend on it, and this one is off by half an hour.
        .config("spark.sql.session.timeZone", "Asia/Kolkata")
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={warehouse}")
        .getOrCreate()
    )
    started.sparkContext.setLogLevel("OFF")
    return started
