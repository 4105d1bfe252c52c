"""A triage tells a dead letter topic that is missing from one that is empty."""

from __future__ import annotations

from pulsar_encore.devbroker import BrokerSettings, BrokerThread
from pulsar_encore.spark.triage import TriageReport, empty_text, report_text
from pulsar_encore.spark.triage.job import missing_topics

HOME = "persistent://public/default/"


def names(*topics: str) -> tuple[str, ...]:
    return tuple(HOME + each for each in topics)


def test_topics_that_do_not_exist_are_told_from_empty_ones() -> None:
    with BrokerThread(BrokerSettings()) as broker:
        broker.create_partitioned_topic("parted", 3)
        broker.call(lambda each: each.service.catalogue.topic(HOME + "empty", create=True))
        asked = names("empty", "misspelt", "parted", "parted-partition-1", "parted-partition-7")
        options = {"service.url": broker.url}
        assert missing_topics(asked, options) == names("misspelt", "parted-partition-7")
        assert missing_topics((), options) == ()
        # A triage with a checkpoint has the options of a stream.
        stream = {"maxEntriesPerTrigger": "40", "startingOffsets": "subscription"}
        assert missing_topics(asked[:1], options | stream) == ()


def test_brokers_that_cannot_be_asked_leave_it_open() -> None:
    gone = {"service.url": "pulsar://127.0.0.1:1", "pulsar.client.operationTimeoutMs": "500"}
    assert missing_topics(names("orders-DLQ"), gone) is None


def test_the_report_says_which_it_is() -> None:
    def report(missing: tuple[str, ...] | None) -> TriageReport:
        return TriageReport(topics=names("a-DLQ", "b-DLQ"), missing=missing)

    some = report(names("b-DLQ"))
    assert "there is no topic b-DLQ" in report_text(some).splitlines()
    assert "there is no topic b-DLQ; check the name" in empty_text(some)
    assert empty_text(report(())) == "there are no letters: the topics exist and are empty"
    assert empty_text(report(None)) == "there are no letters: check the names of the topics"
