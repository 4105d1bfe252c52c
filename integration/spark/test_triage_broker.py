"""End to end: a consumer of this SDK, a development broker, the source, and the triage."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pulsar_encore as encore
from pulsar_encore import cli
from pulsar_encore.deadletters import DeadLetters, LetterGroup
from pulsar_encore.devbroker import BrokerSettings, BrokerThread, run_in_thread
from pulsar_encore.errors import ConfigurationError
from pulsar_encore.spark.metrics import PulsarProgressListener, QueryMetrics, with_metrics
from pulsar_encore.spark.triage import HourGroup, triage
from pulsar_encore.spark.triage.summary import sum_over_hours

#: The two cores may be shared with other programs, and the first test starts the session.
pytestmark = pytest.mark.timeout(240)

ORDERS = 12
QUIET = encore.ConsoleLogger(encore.LoggerLevel.Error)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with run_in_thread(BrokerSettings()) as running:
        yield running


def dead_letter_orders(url: str, topic: str, first: int = 0) -> list[LetterGroup]:
    """Dead-letter orders with a consumer. Return the groups of the single-process triage."""

    async def work() -> list[LetterGroup]:
        async with encore.Client(url, transport="stock", logger=QUIET) as client:
            consumer = await client.subscribe(
                topic,
                "billing",
                consumer_type=encore.ConsumerType.Shared,
                dead_letter_policy=encore.DeadLetterPolicy(max_redeliver_count=1),
            )
            producer = await client.create_producer(topic)
            for order in range(first, first + ORDERS):
                await producer.send(f"{order}".encode(), partition_key="k")
            for _ in range(2 * ORDERS):
                message = await consumer.receive(timeout=10)
                error = KeyError if int(message.data()) % 3 else TimeoutError
                await consumer.negative_acknowledge(message, delay=0.02, error=error("prices"))
            dead = DeadLetters(client, f"{topic}-billing-DLQ")
            while sum(each.count for each in await dead.list()) < first + ORDERS:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            return await dead.list()

    return asyncio.run(work())


def summary(groups: list[HourGroup]) -> list[tuple[object, ...]]:
    return [
        (each.fingerprint, each.real_topic, each.count, each.error_class, each.sample_id)
        for each in sum_over_hours(groups)
    ]


def test_a_triage_without_output_agrees_with_the_single_process_triage(
    spark: SparkSession, broker: BrokerThread, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    groups = dead_letter_orders(broker.url, "looked-at")
    report = triage(spark, ["looked-at"], {"service.url": broker.url}, subscription="billing")
    assert summary(report.groups) == [
        (each.fingerprint, each.real_topic, each.count, each.error_class, each.sample_id)
        for each in groups
    ]
    assert (report.letters, report.duplicates) == (ORDERS, 0)
    now = time.time() * 1000
    assert all(now - 2 * 3_600_000 < (each.hour_ms or 0) <= now for each in report.groups)

    arguments = ["--topic", "looked-at-billing-DLQ", "--url", broker.url, "--json"]
    chart = tmp_path / "chart.png"
    assert cli.main(["spark", "triage", *arguments, "--chart", str(chart)]) == 0
    assert json.loads(capsys.readouterr().out)["letters"] == ORDERS
    assert chart.stat().st_size > 1000


def test_each_run_takes_the_letters_since_the_last_run(
    spark: SparkSession, broker: BrokerThread, tmp_path: Path
) -> None:
    def run() -> tuple[int, int]:
        found = triage(
            spark,
            ["taken-billing-DLQ"],
            {"service.url": broker.url},
            out=str(tmp_path / "out"),
            checkpoint=str(tmp_path / "done"),
        )
        return found.letters, found.batches

    assert run()[0] == 0  # no message is dead-lettered yet, so the topic does not exist
    dead_letter_orders(broker.url, "taken")
    assert run() == (ORDERS, 1)
    assert run() == (0, 0)
    dead_letter_orders(broker.url, "taken", ORDERS)
    assert run() == (ORDERS, 1)
    rows = spark.read.parquet(f"{tmp_path}/out/letters").select("value", "route").collect()
    assert sorted(int(row["value"]) for row in rows) == list(range(2 * ORDERS))
    assert {row["route"] for row in rows} == {"kept"}


def test_a_missing_topic_is_reported_in_one_line(
    spark: SparkSession, broker: BrokerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--topic", "nowhere-billing-DLQ", "--url", broker.url]
    assert cli.main(["spark", "triage", *arguments]) == 3
    output = capsys.readouterr()
    assert "0 letters on nowhere-billing-DLQ" in output.out
    assert "there is no topic nowhere-billing-DLQ; check the name" in output.err
    assert (output.err.count("\n"), "Traceback" in output.err + output.out) == (1, False)


def test_a_progress_listener_follows_a_query(
    spark: SparkSession, broker: BrokerThread, tmp_path: Path
) -> None:
    dead_letter_orders(broker.url, "followed")
    options = {
        "service.url": broker.url,
        "topics": "followed,followed-billing-DLQ",
        "startingOffsets": "earliest",
        "includeMetadata": "full",
    }
    metrics: list[QueryMetrics] = []
    with pytest.raises(ConfigurationError):
        PulsarProgressListener(options={"service.url": broker.url})
    listener = PulsarProgressListener(metrics.append, options)
    spark.streams.addListener(listener)
    try:
        rows = with_metrics(spark.readStream.format("pulsar").options(**options).load())
        query = (
            rows.writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "done"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        until = time.monotonic() + 10
        while not metrics and time.monotonic() < until:
            time.sleep(0.02)  # events arrive on a thread of Spark
    finally:
        spark.streams.removeListener(listener)
    assert (metrics[-1].query, metrics[-1].rows, metrics[-1].dead_letters) == (
        str(query.id),
        2 * ORDERS,
        ORDERS,
    )
    assert 0 <= (metrics[-1].lag_s or 0) <= (metrics[-1].longest_lag_s or 0) < 60
    assert (metrics[-1].backlog_entries, metrics[-1].commit_errors) == (None, None)
