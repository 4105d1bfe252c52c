"""Log lines about losses: a few for each consumer or producer, however many topics it has."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest
from native_kit import TOPIC, Collector, Rig, run

from pulsar_encore.devbroker.rules.faults import Fault, FaultPlan
from pulsar_encore.exceptions import AuthorizationError, TopicNotFound
from pulsar_encore.options import ProducerOptions
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.connection.retry_log import RetryLog

NAME = f"consumer of subscription 's' on {TOPIC}"
PRODUCER = f"producer on {TOPIC}"


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= level]


async def both(rig: Rig, **fields: Any) -> tuple[Any, Collector, Any]:
    transport_consumer, listener = await rig.subscribe(**fields)
    producer = await rig.transport.create_producer(ProducerOptions(topic=TOPIC))
    return transport_consumer, listener, producer


# The class alone


def refused(log: RetryLog, topic: str, now_s: float) -> None:
    log.refused(topic, now_s, ValueError("no"), attempts=3, elapsed_s=now_s, next_s=16.4)


def test_a_line_has_the_number_of_lost_topics_and_the_time_of_the_next_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = RetryLog("consumer of subscription 's' on t")
    for number in range(3):
        log.lost(f"t-partition-{number}", 0.0)
    refused(log, "t-partition-1", 14.2)
    assert lines(caplog) == [
        "consumer of subscription 's' on t: 3 of its topics are not attached; attempt 3 on "
        "t-partition-1 failed, 14.2 s after the loss; retried in about 16 s: no"
    ]


def test_a_single_topic_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    log = RetryLog("producer on t")
    refused(log, "t", 2.0)
    assert lines(caplog) == [
        "producer on t: not attached; attempt 3 failed, 2.0 s after the loss; retried in about "
        "16 s: no"
    ]


def test_refusals_are_reported_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    log = RetryLog("producer on t")
    for tenth in range(1_000):
        refused(log, f"t-partition-{tenth % 100}", tenth / 10)
    assert 5 <= len(lines(caplog)) <= 9


def test_one_line_reports_that_the_last_topic_is_attached_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    log = RetryLog("producer on t")
    log.lost("a", 0.0)
    log.lost("b", 0.0)
    refused(log, "a", 1.0)
    caplog.clear()
    log.attached("a", 2.0)
    log.attached("a", 2.0)
    assert not lines(caplog, logging.INFO)
    log.attached("b", 3.0)
    assert lines(caplog) == ["producer on t: attached again after 3.0 s (2 topics)"]
    log.attached("b", 4.0)
    assert len(lines(caplog, logging.INFO)) == 1


def test_a_topic_that_is_no_longer_waited_for_is_not_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = RetryLog("producer on t")
    log.lost("a", 0.0)
    refused(log, "b", 1.0)
    log.forget("b")
    log.attached("a", 2.0)
    assert lines(caplog)[-1] == "producer on t: attached again after 2.0 s (1 topic)"
    refused(log, "b", 3.0)
    log.forget("b")
    log.attached("b", 4.0)
    assert "not attached" in lines(caplog)[-1]


# In a whole client


def test_an_outage_of_30_s_of_100_partitions_is_a_few_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An earlier version logged 851 lines."""

    async def main() -> None:
        rig = Rig()
        rig.service.catalogue.create_partitioned(TOPIC, 100)
        transport_consumer, _, producer = await both(rig)
        rig.dialer.reachable = False
        rig.dialer.drop()
        await asyncio.sleep(30)
        rig.dialer.reachable = True
        async with asyncio.timeout(120):
            while not (transport_consumer.is_connected() and producer.is_connected()):
                await asyncio.sleep(1)

    run(main())
    logged = lines(caplog)
    for name in (NAME, PRODUCER):
        own = [each for each in logged if each.startswith(f"{name}: ")]
        assert 3 <= len(own) <= 10, own
        assert "100 of its topics are not attached; attempt 1 on " in own[0]
        assert re.search(r"attached again after \d+\.\d s \(100 topics\)$", own[-1])
        assert all("retried in about" in each for each in own[:-1])
    assert len(logged) <= 22, logged


def test_a_short_loss_is_logged_at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        rig = Rig()
        await both(rig)
        caplog.clear()
        rig.dialer.drop()
        await asyncio.sleep(5)

    run(main())
    for name in (NAME, PRODUCER):
        (record,) = [each for each in caplog.records if each.getMessage().startswith(f"{name}: ")]
        assert record.levelno == logging.INFO
        assert re.search(r"attached again after \d+\.\d s \(1 topic\)$", record.getMessage())


def test_the_error_of_reattach_timeout_names_the_option_and_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The text `ended for good: TopicNotFound` did not say that a new consumer was needed."""

    async def main() -> None:
        rig = Rig(settings=ClientSettings(reattach_timeout_s=20.0))
        _, listener, producer = await both(rig)
        rig.service.faults = FaultPlan(
            [
                Fault(kind="refuse", command=each, error="AuthorizationError", times=999)
                for each in ("SUBSCRIBE", "PRODUCER")
            ]
        )
        rig.dialer.drop()
        await asyncio.sleep(22)
        for error in (listener.calls[-1][1], producer.parts[0].error):
            assert isinstance(error, AuthorizationError)
            assert isinstance(error.__cause__, AuthorizationError)
            assert str(error.__cause__) in str(error)
            assert "within 20 s (reattach_timeout)" in str(error)
            assert "make a new one" in str(error)

    run(main())
    ended = [each for each in lines(caplog, logging.ERROR) if "ended for good" in each]
    assert len(ended) == 2 and all("(reattach_timeout)" in each for each in ended)


@pytest.mark.parametrize("partitions", [0, 3])
def test_the_log_reports_the_deletion_and_the_recreation_of_a_topic(
    partitions: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        rig = Rig(settings=ClientSettings(recreate_after_s=60.0))
        if partitions:
            rig.service.catalogue.create_partitioned(TOPIC, partitions)
        transport_consumer, _, producer = await both(rig)
        rig.service.delete(TOPIC)
        await asyncio.sleep(150)
        assert transport_consumer.is_connected() and producer.is_connected()

    run(main())
    logged = lines(caplog)
    for name in (NAME, PRODUCER):
        own = [each for each in logged if each.startswith(f"{name}: ")]
        (deletion,) = (each for each in own if f"the topic {TOPIC} does not exist any more" in each)
        assert deletion == (
            f"{name}: the topic {TOPIC} does not exist any more. This client waits for it, and "
            "creates it after 60 s (recreate_after) if it is still missing then"
        )
        # Either the consumer or the producer creates the topic, and the other finds it.
        assert [each for each in own if f"the topic {TOPIC} is created again after 6" in each] or [
            each for each in own if f"the topic {TOPIC} exists again after 6" in each
        ]
    assert any("is created again after 6" in each for each in logged)
    assert len(logged) <= 30


def test_the_last_line_about_a_deleted_topic_of_a_pattern_reports_its_deletion(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        rig = Rig()
        for each in (TOPIC, f"{TOPIC}2"):
            rig.service.catalogue.topic(each, create=True)
        await rig.subscribe(topics=(), pattern=f"{TOPIC}.*")
        rig.service.delete(f"{TOPIC}2")
        await asyncio.sleep(30)

    run(main())
    about = [each for each in lines(caplog, logging.INFO) if f"{TOPIC}2" in each]
    assert about[-1].endswith(f": deleted, and not waited for: 1 of its topics ({TOPIC}2)")
    assert f"on the pattern {TOPIC}.*" in about[-1]


def test_a_retry_keeps_the_class_of_a_topic_not_found_error() -> None:
    error = TopicNotFound("gone")
    assert type(error)(str(error)).result == error.result
