"""One Spark session for all tests here: starting it takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .spark_kit import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores; a task may fail three times."""
    # Hours must not depend on the zone, and this one is off by half an hour.
    with spark_session("local[2,4]", spark__sql__session__timeZone="Asia/Kolkata") as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """For what a query writes."""
    return tmp_path
