"""One Spark session for all tests: starting a session takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .spark_kit import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with two cores, in which a task may fail three times."""
    # Hours must not depend on the time zone. This zone is off by half an hour.
    with spark_session("local[2,4]", spark__sql__session__timeZone="Asia/Kolkata") as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder for the output of a query."""
    return tmp_path
