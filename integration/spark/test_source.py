"""The source in Spark, on a real Pulsar: batches, streams, SQL, and errors of a query."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pulsar_encore import MessageId
from pulsar_encore.spark.compat import HAS_LIMITS
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server

from .numbered_topics import body, publish, values, with_options

WAIT_S = 200.0


def wait_until(holds: Callable[[], bool], description: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"not in {WAIT_S:g} s: {description}"
        time.sleep(0.1)


def acked(admin: Admin, topic: str, subscription: str) -> str:
    stats: dict[str, Any] = admin.internal_stats(topic)
    return str(stats["cursors"][subscription]["markDeletePosition"])


def end_of(sent: list[MessageId]) -> str:
    return f"{sent[-1].ledger_id()}:{sent[-1].entry_id()}"


@pytest.mark.parametrize("batch", [0, 100])
def test_a_batch_with_several_partitions_reads_each_message_once(
    spark: SparkSession, pulsar: Server, topic: str, batch: int
) -> None:
    publish(pulsar, topic, range(5000), batch=batch)
    frame = with_options(spark.read, pulsar, topic, minPartitions=3).load()
    assert frame.rdd.getNumPartitions() == 3
    assert values(frame) == [body(each) for each in range(5000)]


def test_sql_views_and_tables_can_be_queried(
    spark: SparkSession, pulsar: Server, topic: str
) -> None:
    """Spark passes the options of a table to its schema and not to a reader. Options of a query
    reach both.
    """
    publish(pulsar, topic, range(10))
    options = f"(`service.url` '{pulsar.service_url}', topic '{topic}', valueFormat 'string')"
    query = "SELECT count(*) AS n, max(value) AS last FROM"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders_view USING pulsar OPTIONS {options}")
    assert spark.sql(f"{query} orders_view").collect() == [(10, "00000009")]
    spark.sql("DROP TABLE IF EXISTS orders")
    spark.sql(f"CREATE TABLE orders USING pulsar OPTIONS {options}")
    try:
        given = (
            options.replace("' ", "' = ").replace("` ", "` = ").replace(", topic ", ", topic = ")
        )
        given = given.replace("valueFormat ", "valueFormat = ")
        assert spark.sql(f"{query} orders WITH {given}").collect() == [(10, "00000009")]
        with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
            spark.sql(f"{query} orders").collect()
    finally:
        spark.sql("DROP TABLE orders")


def test_an_available_now_stream_reads_everything_in_limited_batches(
    spark: SparkSession, pulsar: Server, admin: Admin, topic: str, folder: Path
) -> None:
    sent = publish(pulsar, topic, range(1000), batch=10)
    options = {"startingOffsets": "earliest", "subscription": "s", "maxEntriesPerTrigger": 30}
    if not HAS_LIMITS:
        options.pop("maxEntriesPerTrigger")
    for _ in range(2):
        query = (
            with_options(spark.readStream, pulsar, topic, **options)
            .load()
            .writeStream.format("parquet")
            .option("path", str(folder / "rows"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)
        rows = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
        assert sum(rows) == 1000
        if HAS_LIMITS:
            assert max(rows) == 300
            assert acked(admin, topic, "s") == end_of(sent), "the last batch is acked too"
        sent = publish(pulsar, topic, range(1000, 2000), batch=10)
    found = values(spark.read.parquet(str(folder / "rows")))
    assert sorted(found) == [body(each) for each in range(2000)]


def test_a_stream_reads_new_messages_and_closes_its_subscription_when_stopped(
    spark: SparkSession, pulsar: Server, admin: Admin, topic: str, folder: Path
) -> None:
    publish(pulsar, topic, [0])
    query = (
        with_options(spark.readStream, pulsar, topic, startingOffsets="earliest", subscription="s")
        .load()
        .writeStream.format("memory")
        .queryName("arrived")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    try:
        for number in range(1, 4):
            wait_until(
                lambda last=number: spark.table("arrived").count() == last,  # type: ignore[misc]
                f"{number} messages",
            )
            sent = publish(pulsar, topic, [number])
        wait_until(lambda: spark.table("arrived").count() == 4, "4 messages")
        wait_until(
            lambda: acked(admin, topic, "s") == end_of(sent), "the last one acked, while idle"
        )
    finally:
        query.stop()
    wait_until(
        lambda: not admin.stats(topic)["subscriptions"]["s"]["consumers"],
        "the subscription given back",
    )
    progress = json.loads(query.lastProgress.json)
    assert progress["sources"][0]["endOffset"]["v"] == 1


def test_a_query_can_have_all_metadata_columns_or_a_given_schema(
    spark: SparkSession, pulsar: Server, topic: str
) -> None:
    [sent] = publish(pulsar, topic, [7])
    [row] = with_options(spark.read, pulsar, topic, includeMetadata="full").load().collect()
    assert (row["__ledgerId"], row["__entryId"]) == (sent.ledger_id(), sent.entry_id())
    frame = with_options(spark.read, pulsar, topic).schema("__topic string, value binary").load()
    assert frame.collect() == [(topic, bytearray(body(7)))]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOfsets": "earliest"}, "did you mean 'startingOffsets'"),
        ({"startingOffsets": '{"x": "y"}'}, "startingOffsets of x must be"),
        ({"topic": "not-there"}, "there is no topic persistent://public/default/not-there"),
        ({"valueFormat": "json"}, "needs valueSchema"),
        (
            {
                "service.url": "pulsar://127.0.0.1:1",
                "pulsar.client.operationTimeoutMs": "1000",
                "fetchOffset.numRetries": "0",
            },
            "127.0.0.1:1",
        ),
    ],
)
def test_wrong_source_options_raise_when_the_query_is_planned(
    spark: SparkSession, pulsar: Server, topic: str, options: dict[str, str], expected: str
) -> None:
    reader = with_options(spark.read, pulsar, topic)
    for name, value in options.items():
        reader = reader.option(name, value)
    with pytest.raises(PySparkException) as error:
        reader.load().rdd.getNumPartitions()
    assert expected in str(error.value)


def test_ledgers_trimmed_before_reading_raise_data_loss(
    spark: SparkSession, pulsar: Server, admin: Admin, topic: str, folder: Path
) -> None:
    """The query has no subscription, so unread messages are not retained."""

    def run(**options: str) -> Any:
        query = (
            with_options(spark.readStream, pulsar, topic, startingOffsets="earliest", **options)
            .load()
            .writeStream.format("parquet")
            .option("path", str(folder / "rows"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(WAIT_S)
        return query

    publish(pulsar, topic, range(10))
    run()
    publish(pulsar, topic, range(10, 20))
    admin.unload(topic)  # this closes the ledger
    publish(pulsar, topic, range(20, 30))
    admin.trim(topic)
    wait_until(lambda: len(admin.internal_stats(topic)["ledgers"]) == 1, "the first ledger trimmed")
    with pytest.raises(PySparkException, match=r"messages after .* are gone"):
        run()
    run(failOnDataLoss="false")
    found = values(spark.read.parquet(str(folder / "rows")))
    assert sorted(found) == [body(each) for each in [*range(10), *range(20, 30)]]
