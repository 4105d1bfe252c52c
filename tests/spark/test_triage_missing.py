"""A triage distinguishes a missing dead letter topic from an empty one."""

from __future__ import annotations

from pulsar_encore.devbroker import BrokerSettings, BrokerThread
from pulsar_encore.spark.triage import TriageReport, empty_text, report_text
from pulsar_encore.spark.triage.job import missing_topics

HOME = "persistent://public/default/"


def names(*topics: str) -> tuple[str, ...]:
    return tuple(HOME + each for each in topics)


def test_missing_topics_are_distinguished_from_empty_ones() -> None:
    with BrokerThread(BrokerSettings()) as broker:
        broker.create_partitioned_topic("parted", 3)
        broker.call(lambda each: each.service.catalogue.topic(HOME + "empty", create=True))
        asked = names("empty", "misspelt", "parted", "parted-partition-1", "parted-partition-7")
        options = {"service.url": broker.url}
        assert missing_topics(asked, options) == names("misspelt", "parted-partition-7")
        assert missing_topics((), options) == ()
        # A triage with a checkpoint uses the options of a stream.
        stream = {"maxEntriesPerTrigger": "40", "startingOffsets": "subscription"}
        assert missing_topics(asked[:1], options | stream) == ()


def test_an_unreachable_broker_leaves_the_question_open() -> None:
    gone = {"service.url": "pulsar://127.0.0.1:1", "pulsar.client.operationTimeoutMs": "500"}
    assert missing_topics(names("orders-DLQ"), gone) is None


def test_the_report_says_whether_a_topic_is_missing_or_empty() -> None:
    def report(missing: tuple[str, ...] | None) -> TriageReport:
        return TriageReport(topics=names("a-DLQ", "b-DLQ"), missing=missing)

    some = report(names("b-DLQ"))
    assert "there is no topic b-DLQ" in report_text(some).splitlines()
    assert "there is no topic b-DLQ; check the name" in empty_text(some)
    assert empty_text(report(())) == "there are no letters: the topics exist and are empty"
    assert empty_text(report(None)) == "there are no letters: check the names of the topics"
