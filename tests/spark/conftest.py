"""One Spark session for all tests here: starting it takes longer than the tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pulsar_encore


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    sdk = str(Path(pulsar_encore.__file__).parents[1])
    paths = [sdk, *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)  # else workers are PATH's python3
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        session = (
            SparkSession.builder.master("local[2]")
            .appName("tests")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            # Hours must not depend on it, and this one is off by half an hour.
            .config("spark.sql.session.timeZone", "Asia/Kolkata")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()
