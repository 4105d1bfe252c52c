"""Filters of a query in the source: the same rows, and fewer messages from a real Pulsar."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pulsar_encore as encore
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server

from .numbered_topics import body, publish, with_options

ENABLED = "spark.sql.python.filterPushdown.enabled"
LEDGER_MESSAGES = 100  # messages in each ledger


@pytest.fixture
def set_pushdown(spark: SparkSession) -> Iterator[Callable[[bool], None]]:
    def set_enabled(on: bool) -> None:
        spark.conf.set(ENABLED, str(on).lower())

    yield set_enabled
    spark.conf.unset(ENABLED)


def create_idle_subscription(server: Server, topic: str) -> None:
    """Create a subscription that reads nothing, so that closed ledgers are kept."""

    async def subscribe() -> None:
        async with encore.Client(server.service_url) as client:
            first = encore.InitialPosition.Earliest
            await client.subscribe(topic, "keep", initial_position=first)

    asyncio.run(subscribe())


def messages_sent(admin: Admin, topic: str) -> int:
    """Return the number of messages that the broker has sent to readers of the topic."""
    return int(admin.stats(topic)["msgOutCounter"])


def test_ledgers_excluded_by_a_filter_are_not_fetched(
    spark: SparkSession,
    pulsar: Server,
    admin: Admin,
    topic: str,
    set_pushdown: Callable[[bool], None],
) -> None:
    create_idle_subscription(pulsar, topic)
    ids = []
    for part in range(4):
        ids += publish(
            pulsar,
            topic,
            range(part * LEDGER_MESSAGES, (part + 1) * LEDGER_MESSAGES),
            batch=10 * (part % 2),
        )
        if part < 3:
            admin.unload(topic)  # this closes the ledger
            publish(pulsar, f"{topic}-other-{part}", [part])  # its ledger gets the next number
    ledgers = [each.ledger_id() for each in ids[::LEDGER_MESSAGES]]
    assert len(set(ledgers)) == 4
    assert ledgers[2] - 1 not in ledgers
    single_id = ids[2 * LEDGER_MESSAGES + 5]
    ledger, entry = F.col("__ledgerId"), F.col("__entryId")
    shown = "__ledgerId, __entryId, __batchIndex, __partition, __publishTime, __topic, value"

    def frame(**options: str) -> DataFrame:
        reader = spark.read.format("pulsar").options(
            **{
                "service.url": pulsar.service_url,
                "topic": topic,
                "includeMetadata": "full",
                "pulsar.reader.receiverQueueSize": "10",
                **options,
            }
        )
        return reader.load().select(*shown.split(", "))

    # Filters, and the numbers of the messages that match.
    cases = [
        (ledger == ledgers[1], range(LEDGER_MESSAGES, 2 * LEDGER_MESSAGES)),
        (ledger > ledgers[2], range(3 * LEDGER_MESSAGES, 4 * LEDGER_MESSAGES)),
        # This ledger belongs to another topic, and a read begins with the next ledger of this one.
        (ledger == ledgers[2] - 1, range(0)),
        (ledger >= ledgers[2] - 1, range(2 * LEDGER_MESSAGES, 4 * LEDGER_MESSAGES)),
        (ledger.isin(ledgers[1], ledgers[2]), range(LEDGER_MESSAGES, 3 * LEDGER_MESSAGES)),
        (
            (ledger == single_id.ledger_id()) & (entry == single_id.entry_id()),
            range(2 * LEDGER_MESSAGES + 5, 2 * LEDGER_MESSAGES + 6),
        ),
        (ledger <= ledgers[0] - 1, range(0)),
        (ledger > ledgers[3], range(0)),
        # These filters are not supported or not certain, so they read as much as without a filter.
        (
            (ledger == ledgers[0]) | (ledger == ledgers[3]),
            [*range(LEDGER_MESSAGES), *range(3 * LEDGER_MESSAGES, 4 * LEDGER_MESSAGES)],
        ),
        (F.col("__publishTime") > datetime(2020, 1, 1, tzinfo=UTC), range(4 * LEDGER_MESSAGES)),
        (F.col("__topic") == topic, range(4 * LEDGER_MESSAGES)),
        (F.col("__topic") != topic, range(0)),
        (F.col("__partition") == 0, range(0)),
    ]
    for condition, expected in cases:
        # Without the admin API the number of entries of a closed ledger is unknown.
        for options in ({}, {"minPartitions": "3", "admin.url": pulsar.admin_url}):
            set_pushdown(False)
            plain = sorted(frame(**options).where(condition).collect())
            set_pushdown(True)
            narrowed = sorted(frame(**options).where(condition).collect())
            assert narrowed == plain, str(condition)
            found = [bytes(each["value"]) for each in plain]
            assert found == [body(each) for each in expected], str(condition)

    def cost(condition: Any, on: bool) -> int:
        set_pushdown(on)
        before = messages_sent(admin, topic)
        frame().where(condition).collect()
        return messages_sent(admin, topic) - before

    full_cost = cost(ledger == ledgers[1], on=False)
    assert full_cost >= 4 * LEDGER_MESSAGES
    assert cost(ledger == ledgers[1], on=True) < 2 * LEDGER_MESSAGES
    assert cost(ledger > ledgers[3], on=True) == 0
    single = (ledger == single_id.ledger_id()) & (entry == single_id.entry_id())
    assert cost(single, on=True) < LEDGER_MESSAGES


def test_partitions_excluded_by_a_filter_have_no_tasks(
    spark: SparkSession,
    pulsar: Server,
    admin: Admin,
    topic: str,
    set_pushdown: Callable[[bool], None],
) -> None:
    admin.create_partitioned_topic(topic, 3)
    publish(pulsar, topic, range(300))

    def frame() -> DataFrame:
        loaded: DataFrame = with_options(spark.read, pulsar, topic, includeMetadata="full").load()
        return loaded

    for condition, partitions in (
        (F.col("__partition") == 1, 1),
        (F.col("__topic") == f"{topic}-partition-2", 1),
        (F.col("__topic").endswith("-partition-2") | (F.col("__partition") == 0), 3),
        (F.col("__partition") >= 1, 2),
        (F.col("__partition").isin(0, 2), 2),
    ):
        set_pushdown(False)
        plain = frame().where(condition)
        assert plain.rdd.getNumPartitions() == 3
        set_pushdown(True)
        narrowed = frame().where(condition)
        assert narrowed.rdd.getNumPartitions() == partitions, str(condition)
        assert narrowed.count() == plain.count() > 0
    set_pushdown(True)
    assert frame().count() == 300  # without filters
    stream = with_options(spark.readStream, pulsar, topic, startingOffsets="earliest").load()
    query = stream.where("__topic is not null").writeStream.format("memory").queryName("pushed")
    query.trigger(availableNow=True).start().awaitTermination()
    assert spark.table("pushed").count() == 300
