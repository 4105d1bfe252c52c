"""One Spark session for all tests here: starting it takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .sessions import environment, session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        started = session(tmp_path_factory.mktemp("warehouse"))
        yield started
        started.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """For what a query writes."""
    return tmp_path
