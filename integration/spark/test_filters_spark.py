"""Filters of a query, handed to the source: the same rows, and a real Pulsar sends less."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pulsar_encore as encore
from harness.admin import Admin
from harness.pulsar_server import Server

from .numbered_topics import body, publish, reading

ENABLED = "spark.sql.python.filterPushdown.enabled"
PART = 100  # messages of a ledger


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[Callable[[bool], None]]:
    def push(on: bool) -> None:
        spark.conf.set(ENABLED, str(on).lower())

    yield push
    spark.conf.unset(ENABLED)


def keep(server: Server, topic: str) -> None:
    """A subscription that has read nothing: closed ledgers stay."""

    async def subscribe() -> None:
        async with encore.Client(server.service_url) as client:
            first = encore.InitialPosition.Earliest
            await client.subscribe(topic, "keep", initial_position=first)

    asyncio.run(subscribe())


def sent(admin: Admin, topic: str) -> int:
    """Messages that the broker sent to whoever read the topic so far."""
    return int(admin.stats(topic)["msgOutCounter"])


def test_ledgers_that_are_not_asked_for_are_not_fetched(
    spark: SparkSession,
    pulsar: Server,
    admin: Admin,
    topic: str,
    pushing: Callable[[bool], None],
) -> None:
    keep(pulsar, topic)
    ids = []
    for part in range(4):
        ids += publish(pulsar, topic, range(part * PART, (part + 1) * PART), batch=10 * (part % 2))
        if part < 3:
            admin.unload(topic)  # closes the ledger
            publish(pulsar, f"{topic}-other-{part}", [part])  # whose ledger has the next number
    ledgers = [each.ledger_id() for each in ids[::PART]]
    assert len(set(ledgers)) == 4
    assert ledgers[2] - 1 not in ledgers
    one = ids[2 * PART + 5]
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

    # What is asked for, and which messages those are.
    asked = [
        (ledger == ledgers[1], range(PART, 2 * PART)),
        (ledger > ledgers[2], range(3 * PART, 4 * PART)),
        # Of other topics are these numbers, and a read begins with the next there is.
        (ledger == ledgers[2] - 1, range(0)),
        (ledger >= ledgers[2] - 1, range(2 * PART, 4 * PART)),
        (ledger.isin(ledgers[1], ledgers[2]), range(PART, 3 * PART)),
        (
            (ledger == one.ledger_id()) & (entry == one.entry_id()),
            range(2 * PART + 5, 2 * PART + 6),
        ),
        (ledger <= ledgers[0] - 1, range(0)),
        (ledger > ledgers[3], range(0)),
        # These are not understood, or not certain, and cost what they cost without.
        (
            (ledger == ledgers[0]) | (ledger == ledgers[3]),
            [*range(PART), *range(3 * PART, 4 * PART)],
        ),
        (F.col("__publishTime") > datetime(2020, 1, 1, tzinfo=UTC), range(4 * PART)),
        (F.col("__topic") == topic, range(4 * PART)),
        (F.col("__topic") != topic, range(0)),
        (F.col("__partition") == 0, range(0)),
    ]
    for condition, expected in asked:
        # Without the web service, nobody knows how many entries a closed ledger has.
        for options in ({}, {"minPartitions": "3", "admin.url": pulsar.admin_url}):
            pushing(False)
            plain = sorted(frame(**options).where(condition).collect())
            pushing(True)
            narrowed = sorted(frame(**options).where(condition).collect())
            assert narrowed == plain, str(condition)
            found = [bytes(each["value"]) for each in plain]
            assert found == [body(each) for each in expected], str(condition)

    def cost(condition: Any, on: bool) -> int:
        pushing(on)
        before = sent(admin, topic)
        frame().where(condition).collect()
        return sent(admin, topic) - before

    everything = cost(ledger == ledgers[1], on=False)
    assert everything >= 4 * PART
    assert cost(ledger == ledgers[1], on=True) < 2 * PART
    assert cost(ledger > ledgers[3], on=True) == 0
    single = (ledger == one.ledger_id()) & (entry == one.entry_id())
    assert cost(single, on=True) < PART


def test_partitions_that_are_not_asked_for_are_no_tasks(
    spark: SparkSession,
    pulsar: Server,
    admin: Admin,
    topic: str,
    pushing: Callable[[bool], None],
) -> None:
    admin.create_partitioned_topic(topic, 3)
    publish(pulsar, topic, range(300))

    def frame() -> DataFrame:
        loaded: DataFrame = reading(spark.read, pulsar, topic, includeMetadata="full").load()
        return loaded

    for condition, partitions in (
        (F.col("__partition") == 1, 1),
        (F.col("__topic") == f"{topic}-partition-2", 1),
        (F.col("__topic").endswith("-partition-2") | (F.col("__partition") == 0), 3),
        (F.col("__partition") >= 1, 2),
        (F.col("__partition").isin(0, 2), 2),
    ):
        pushing(False)
        plain = frame().where(condition)
        assert plain.rdd.getNumPartitions() == 3
        pushing(True)
        narrowed = frame().where(condition)
        assert narrowed.rdd.getNumPartitions() == partitions, str(condition)
        assert narrowed.count() == plain.count() > 0
    pushing(True)
    assert frame().count() == 300  # without filters
    stream = reading(spark.readStream, pulsar, topic, startingOffsets="earliest").load()
    query = stream.where("__topic is not null").writeStream.format("memory").queryName("pushed")
    query.trigger(availableNow=True).start().awaitTermination()
    assert spark.table("pushed").count() == 300
