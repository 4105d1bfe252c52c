"""Each test of the reader has its own connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_encore.spark.runtime import end_runtime


@pytest.fixture(autouse=True)
def own_runtime() -> Iterator[None]:
    """End the connections of a test. They would reconnect, and log, during later tests."""
    yield
    end_runtime()
