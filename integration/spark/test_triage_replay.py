"""End to end: letters of a consumer are triaged, and chosen letters are replayed once each."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.devbroker import BrokerSettings, run_in_thread
from pulsar_encore.spark.triage import GroupSelection, TriageReport, triage

#: The two cores may be shared with other programs, and the first test starts the session.
pytestmark = pytest.mark.timeout(240)

ORDERS = 12
QUIET = encore.ConsoleLogger(encore.LoggerLevel.Error)
DEAD = "persistent://public/default/orders-billing-DLQ"


async def dead_letter_orders(url: str) -> None:
    """Dead-letter orders with a consumer, a third of them for a timeout, and add a forged
    letter.
    """
    async with encore.Client(url, transport="stock", logger=QUIET) as client:
        policy = encore.DeadLetterPolicy(max_redeliver_count=1, initial_subscription_name="keep")
        consumer = await client.subscribe(
            "orders",
            "billing",
            consumer_type=encore.ConsumerType.Shared,
            dead_letter_policy=policy,
        )
        producer = await client.create_producer("orders")
        for order in range(ORDERS):
            await producer.send(
                None if order == 1 else f"{order}".encode(),
                partition_key=f"k{order}",
                properties={"order": f"{order}"},
                event_timestamp=1000 + order,
            )
        for _ in range(2 * ORDERS):
            message = await consumer.receive(timeout=10)
            error = KeyError if int(message.properties()["order"]) % 3 else TimeoutError
            await consumer.negative_acknowledge(message, delay=0.02, error=error("prices"))
        reader = await client.create_reader(DEAD, encore.MessageId.earliest)
        properties = {}
        for _ in range(ORDERS):
            properties = (await reader.read_next(timeout=10)).properties()
        forger = await client.create_producer(DEAD)
        forged = {letters.REAL_TOPIC: "payroll", letters.ORIGIN_MESSAGE_ID: "9:9:-1"}
        await forger.send(b"forged", properties=properties | forged)


async def replayed_messages(url: str, topic: str = "orders") -> list[encore.Message]:
    """Return the replayed messages on a topic."""
    found = []
    async with encore.Client(url, transport="stock", logger=QUIET) as client:
        reader = await client.create_reader(topic, encore.MessageId.earliest)
        while await reader.has_message_available():
            found.append(await reader.read_next(timeout=10))
    return [each for each in found if letters.REPLAY_ID in each.properties()]


def test_chosen_letters_are_replayed_once(spark: SparkSession, tmp_path: Path) -> None:
    with run_in_thread(BrokerSettings()) as broker:
        url = broker.url
        asyncio.run(dead_letter_orders(url))
        options = {"service.url": url}

        def run(selection: GroupSelection, *, dry_run: bool = False) -> TriageReport:
            return triage(
                spark,
                ["orders"],
                options,
                subscription="billing",
                out=str(tmp_path / "out"),
                checkpoint=str(tmp_path / "done"),
                replay=selection,
                replay_id="after-the-fix",
                dry_run=dry_run,
            )

        chosen = GroupSelection(error_classes=["KeyError"])
        dry = run(chosen, dry_run=True)
        assert asyncio.run(replayed_messages(url)) == []
        real = run(chosen)
        for report in (dry, real):
            assert (report.letters, report.selected, report.refused) == (ORDERS + 1, 8, 1)
            assert report.kept == ORDERS + 1 - 8 - 1
        assert (dry.replayed, real.replayed) == (0, 8)

        by_order = {
            each.properties()["order"]: each for each in asyncio.run(replayed_messages(url))
        }
        assert sorted(map(int, by_order)) == [each for each in range(ORDERS) if each % 3]
        for order, message in by_order.items():
            assert message.partition_key() == f"k{order}"
            assert message.event_timestamp() == 1000 + int(order)
            assert message.has_null_value() == (order == "1")
            properties = message.properties()
            assert properties[letters.REPLAY_ID] == "after-the-fix"
            assert letters.FINGERPRINT not in properties
        assert broker.call(lambda running: "payroll" in str(running.service.catalogue)) is False

        again = run(chosen)
        assert (again.letters, again.replayed, len(asyncio.run(replayed_messages(url)))) == (
            0,
            0,
            8,
        )

    rows = spark.read.parquet(f"{tmp_path}/out/letters").groupBy("route").count().collect()
    assert {row["route"]: row["count"] for row in rows} == {"replay": 8, "kept": 4, "refused": 1}
