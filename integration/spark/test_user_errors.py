"""User errors as Spark reports them: the first lines say what to change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.harness.pulsar_server import Server

from .numbered_topics import publish, with_options

SOON = {"pulsar__client__operationTimeoutMs": 2000}
DEAD = {**SOON, "service__url": "pulsar://127.0.0.1:1"}


@pytest.fixture
def batch(spark: SparkSession, pulsar: Server, topic: str) -> Callable[..., Any]:
    return lambda **options: with_options(spark.read, pulsar, topic, **options).load().collect()


@pytest.fixture
def stream(spark: SparkSession, pulsar: Server, topic: str, folder: Path) -> Callable[..., Any]:
    def run(**options: Any) -> None:
        frame = with_options(spark.readStream, pulsar, topic, **options).load()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(folder)).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    return run


@pytest.fixture
def sink(spark: SparkSession, pulsar: Server, topic: str) -> Callable[..., Any]:
    rows = spark.range(1).selectExpr("CAST(id AS STRING) AS value").coalesce(1)
    return lambda **options: (
        with_options(rows.write, pulsar, topic, **options).mode("append").save()
    )


@pytest.mark.parametrize(
    ("fixture_name", "options", "expected"),
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
            "admin.url: internal stats of persistent://",
        ),
        ("stream", {"subscription": "none", "subscriptionCreate": "false"}, "has no subscription"),
    ],
)
def test_the_first_lines_of_an_error_say_what_to_change(
    request: pytest.FixtureRequest,
    pulsar: Server,
    topic: str,
    fixture_name: str,
    options: dict[str, Any],
    expected: str,
) -> None:
    if options:  # without options the topic is missing
        publish(pulsar, topic, range(2))
    with pytest.raises(PySparkException) as error:
        request.getfixturevalue(fixture_name)(**options)
    text = str(error.value)
    lines = text.splitlines()
    assert expected in "".join(lines[:2])
    assert "Traceback" not in text
    assert text.count(expected) == 1
