"""Errors of a user, as Spark reports them: a sentence that says what to change comes first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from harness.pulsar_server import Server

from .numbered_topics import publish, reading

SOON = {"pulsar__client__operationTimeoutMs": 2000}
DEAD = {**SOON, "service__url": "pulsar://127.0.0.1:1"}


@pytest.fixture
def batch(spark: SparkSession, pulsar: Server, topic: str) -> Callable[..., Any]:
    return lambda **options: reading(spark.read, pulsar, topic, **options).load().collect()


@pytest.fixture
def stream(spark: SparkSession, pulsar: Server, topic: str, folder: Path) -> Callable[..., Any]:
    def run(**options: Any) -> None:
        frame = reading(spark.readStream, pulsar, topic, **options).load()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(folder)).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    return run


@pytest.fixture
def sink(spark: SparkSession, pulsar: Server, topic: str) -> Callable[..., Any]:
    rows = spark.range(1).selectExpr("CAST(id AS STRING) AS value").coalesce(1)
    return lambda **options: reading(rows.write, pulsar, topic, **options).mode("append").save()


@pytest.mark.parametrize(
    ("way", "options", "said"),
    [
        ("batch", DEAD, "no connection to pulsar://127.0.0.1:1"),
        ("stream", DEAD, "no connection to pulsar://127.0.0.1:1"),
        ("sink", DEAD, "no connection to pulsar://127.0.0.1:1"),
        ("batch", {}, "there is no topic persistent://public/default/"),
        ("stream", {}, "there is no topic persistent://public/default/"),
        ("batch", {"valueFormat": "schema", **DEAD}, "no connection to pulsar://127.0.0.1:1"),
        ("batch", {"startingOffset": "x"}, "did you mean 'startingOffsets'?"),
        (
            "batch",
            {"startingOffsets": "subscription", "subscription": "s"},
            "startingOffsets=subscription is for spark.readStream only",
        ),
        (
            "batch",
            {**SOON, "admin__url": "http://127.0.0.1:1"},
            "admin.url: ledgers of persistent://",
        ),
        ("stream", {"subscription": "none", "subscriptionCreate": "false"}, "has no subscription"),
    ],
)
def test_the_first_line_says_it(
    request: pytest.FixtureRequest,
    pulsar: Server,
    topic: str,
    way: str,
    options: dict[str, Any],
    said: str,
) -> None:
    if options:  # else the topic is missing
        publish(pulsar, topic, range(2))
    with pytest.raises(PySparkException) as told:
        request.getfixturevalue(way)(**options)
    text = str(told.value)
    lines = text.splitlines()
    assert said in "".join(lines[:2])
    assert "Traceback" not in text
    assert text.count(said) == 1
