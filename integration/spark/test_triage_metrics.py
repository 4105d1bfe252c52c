"""Metrics of a query: observed by Spark, counted in ledgers, formatted for Prometheus."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pyspark.sql import Observation, Row, SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from pulsar_encore.errors import ConfigurationError
from pulsar_encore.spark.metrics import (
    PulsarProgressListener,
    QueryMetrics,
    TopicBacklog,
    prometheus_text,
    with_metrics,
)

from .triage_kit import DEAD, HOME, NOON_MS, frame, letter

#: The two cores may be shared with other programs, and the first test starts the session.
pytestmark = pytest.mark.timeout(240)

ID = "11111111-2222-3333-4444-555555555555"


# Observed


def test_row_metrics_are_observed(spark: SparkSession) -> None:
    rows = [
        letter(1, value=b"12345", redeliveryCount=2),
        letter(2, value=None, topic=DEAD + "-partition-3"),
        letter(3, value=b"1", topic=HOME),
    ]
    observation = Observation("observation")
    assert with_metrics(frame(spark, rows), observation).count() == 3
    assert observation.get == {
        "rows": 3,
        "bytes": 6,
        "first_published_ms": NOON_MS + 60_000,
        "last_published_ms": NOON_MS + 180_000,
        "redelivered": 1,
        "dead_letters": 2,
    }


def test_metrics_of_missing_columns_are_none(spark: SparkSession) -> None:
    fewer = frame(spark, [letter(1)]).select("__publishTime", "__topic")
    observation = Observation("fewer")
    assert with_metrics(fewer, observation).count() == 1
    assert (observation.get["rows"], observation.get["bytes"], observation.get["redelivered"]) == (
        1,
        None,
        None,
    )
    with pytest.raises(ConfigurationError, match="__publishTime"):
        with_metrics(fewer.drop("__publishTime"))
    observation = Observation("none")
    assert with_metrics(frame(spark, []), observation).count() == 0
    assert (
        observation.get["rows"],
        observation.get["bytes"],
        observation.get["last_published_ms"],
    ) == (0, 0, None)


# The listener


def progress(
    batch: int, end: dict[str, str] | str, start: dict[str, str] | None = None, **observed: Any
) -> QueryProgressEvent:
    """Return Spark's event for a batch that began 10 s after noon."""
    source: dict[str, Any] = {
        "description": "Python",
        "startOffset": "None" if start is None else json.dumps({"p": start, "v": 1}),
        "endOffset": end if isinstance(end, str) else json.dumps({"p": end, "v": 1}),
        "latestOffset": None,
        "numInputRows": 1,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
        "metrics": {},
    }
    progress_value = StreamingQueryProgress.fromJson(
        {
            "id": ID,
            "runId": ID,
            "name": "orders",
            "timestamp": "2026-03-01T12:00:10.000Z",
            "batchId": batch,
            "batchDuration": 5,
            "durationMs": {},
            "eventTime": {},
            "stateOperators": [],
            "sources": [source],
            "sink": {"description": "s", "numOutputRows": 1, "metrics": {}},
            "numInputRows": 1,
            "inputRowsPerSecond": 1.0,
            "processedRowsPerSecond": 1.0,
            "observedMetrics": {},
        }
    )
    if observed:
        progress_value.observedMetrics["pulsar"] = Row(**observed)
    return QueryProgressEvent(progress_value)


def observation(rows: int, newest: float | None, oldest: float | None = None) -> dict[str, Any]:
    """An observation; times in s after noon."""
    return {
        "rows": rows,
        "bytes": rows * 10,
        "first_published_ms": None if newest is None else NOON_MS + 1000 * (oldest or newest),
        "last_published_ms": None if newest is None else NOON_MS + 1000 * newest,
        "redelivered": None,
        "dead_letters": 1,
    }


def test_metrics_sum_over_batches_and_the_lag_is_the_last() -> None:
    reported: list[QueryMetrics] = []
    listener = PulsarProgressListener(reported.append)
    listener.onQueryProgress(progress(4, {HOME: "5:1:-1"}, **observation(3, 7.5, 2)))
    listener.onQueryProgress(progress(5, {HOME: "5:2:-1"}, **observation(2, 12)))
    listener.onQueryProgress(progress(6, {HOME: "5:2:-1"}, **observation(0, None)))
    listener.onQueryProgress(progress(7, {HOME: "5:2:-1"}))
    assert [(each.batch, each.rows, each.lag_s, each.longest_lag_s) for each in reported] == [
        (4, 3, 2.5, 8.0),
        (5, 5, 0.0, 0.0),  # a producer's clock that is ahead causes no negative lag
        (6, 5, 0.0, 0.0),
        (7, 5, 0.0, 0.0),
    ]
    assert (reported[-1].bytes, reported[-1].dead_letters, reported[-1].redelivered) == (
        50,
        3,
        None,
    )
    assert (reported[-1].backlog_entries, reported[-1].commit_errors) == (None, None)
    assert listener.queries == {ID: reported[-1]}
    listener.onQueryTerminated(QueryTerminatedEvent(ID, ID, None, None))  # type: ignore[arg-type]
    assert listener.queries == {}


def test_a_listener_ignores_other_sources() -> None:
    reported: list[QueryMetrics] = []
    listener = PulsarProgressListener(reported.append)
    for offset in ('{"logOffset": 3}', "7", "null", '{"p": {"t": "x"}, "v": 1}'):
        listener.onQueryProgress(progress(1, offset, **observation(3, 7.5)))
    assert reported == []


def test_a_failing_callback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(metrics: QueryMetrics) -> None:
        raise KeyError(metrics.query)

    with caplog.at_level(logging.ERROR, "pulsar_encore.spark"):
        PulsarProgressListener(fail).onQueryProgress(progress(1, {HOME: "5:1:-1"}))
    assert "KeyError: 'orders'" in caplog.text


# Figures from the admin API


class Brokers:
    """An admin API with the ledgers of topics."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.stats: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.unavailable = False

    def options(self, **more: str) -> dict[str, str]:
        return {
            "service.url": "pulsar://127.0.0.1:1",
            "admin.url": self.url,
            "topic": HOME,
            **more,
        }

    def store(self, name: str, ledgers: list[tuple[int, int, int]], last: str, **at: str) -> None:
        """Set the ledgers as (id, entries, bytes), the last one open, and the positions of
        subscriptions.
        """
        self.stats[name] = {
            "ledgers": [
                {"ledgerId": number, "entries": entries, "size": size}
                for number, entries, size in [*ledgers[:-1], (ledgers[-1][0], 0, 0)]
            ],
            "currentLedgerEntries": ledgers[-1][1],
            "currentLedgerSize": ledgers[-1][2],
            "lastConfirmedEntry": last,
            "cursors": {each: {"markDeletePosition": position} for each, position in at.items()},
        }


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fake_service.requests.append(self.path)
            name = self.path.split("/")[-2]
            found = fake_service.stats.get(name)
            body = json.dumps(found or {"reason": "not there"}).encode()
            self.send_response(503 if fake_service.unavailable else 200 if found else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake_service = Brokers(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield fake_service
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_backlog_is_counted_in_ledgers(brokers: Brokers) -> None:
    brokers.store("orders", [(5, 10, 1000), (7, 4, 80)], "7:3")
    brokers.store("bills", [(6, 3, 30)], "6:2")
    bills = "persistent://public/default/bills"
    listener = PulsarProgressListener(options=brokers.options())
    listener.onQueryProgress(progress(1, {HOME: "5:6:-1", bills: "6:2:-1"}))
    [found] = listener.queries.values()
    # The entries 7, 8 and 9 of ledger 5 with 100 bytes each, and all four entries of ledger 7 with
    # 20.
    assert found.backlog == {
        HOME: TopicBacklog(entries=7, bytes=380),
        bills: TopicBacklog(entries=0, bytes=0),
    }
    assert (found.backlog_entries, found.backlog_bytes, found.ask_errors) == (7, 380, 0)
    listener.onQueryProgress(progress(2, {HOME: "-1:-1:-1", bills: "6:0:1"}))
    [found] = listener.queries.values()
    assert {each: (of.entries, of.bytes) for each, of in found.backlog.items()} == {
        HOME: (14, 1080),
        bills: (3, 30),  # a partly read batch counts in full
    }


def test_missing_acks_are_counted(brokers: Brokers) -> None:
    listener = PulsarProgressListener(options=brokers.options(subscription="job"))

    def errors(cursor: str, start: str) -> int | None:
        brokers.store("orders", [(5, 10, 1000)], "5:9", job=cursor)
        listener.onQueryProgress(progress(1, {HOME: "5:9:-1"}, {HOME: start}))
        [found] = listener.queries.values()
        return found.commit_errors

    assert errors("5:-1", "-1:-1:-1") == 0, "nothing was read before"
    assert errors("5:4", "5:4:-1") == 0
    assert errors("5:3", "5:4:2") == 0, "of an entry in part the one before is acked"
    assert errors("5:3", "5:4:-1") == 1
    assert errors("5:2", "5:4:2") == 2
    assert errors("6:-1", "5:4:-1") == 2
    assert len(set(brokers.requests)) == 1


def test_commit_errors_are_none_without_a_subscription(brokers: Brokers) -> None:
    brokers.store("orders", [(5, 10, 1000)], "5:9")
    for more in ({}, {"subscription": "job", "cursorCommit": "none"}):
        listener = PulsarProgressListener(options=brokers.options(**more))
        listener.onQueryProgress(progress(1, {HOME: "5:9:-1"}, {HOME: "5:3:-1"}))
        [found] = listener.queries.values()
        assert (found.commit_errors, found.backlog_entries) == (None, 0)
    with pytest.raises(ConfigurationError, match="there is no option"):
        PulsarProgressListener(options=brokers.options(subscribtion="job"))


def test_failed_admin_requests_are_counted_and_logged(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[QueryMetrics] = []
    brokers.unavailable = True
    listener = PulsarProgressListener(reported.append, brokers.options())
    with caplog.at_level(logging.WARNING, "pulsar_encore.spark"):
        listener.onQueryProgress(progress(1, {HOME: "5:9:-1"}, **observation(3, 7.5)))
    assert (reported[0].ask_errors, reported[0].backlog_entries, reported[0].rows) == (1, None, 3)
    assert "the backlog is not known" in caplog.text
    brokers.unavailable = False
    brokers.store("orders", [(5, 10, 1000)], "5:9")
    listener.onQueryProgress(progress(2, {HOME: "5:8:-1"}))
    assert (reported[1].ask_errors, reported[1].backlog_entries) == (1, 1)


def test_a_deleted_topic_has_no_backlog(brokers: Brokers) -> None:
    brokers.store("orders", [(5, 10, 1000)], "5:9")
    listener = PulsarProgressListener(options=brokers.options(subscription="job"))
    ends = {HOME: "5:7:-1", "persistent://public/default/deleted": "4:2:-1"}
    listener.onQueryProgress(progress(1, ends, ends))
    [found] = listener.queries.values()
    assert (list(found.backlog), found.backlog_entries, found.ask_errors) == ([HOME], 2, 0)


def test_an_unknown_ledger_leaves_the_backlog_unknown(brokers: Brokers) -> None:
    brokers.store("orders", [(9, 3, 30)], "9:2")
    listener = PulsarProgressListener(options=brokers.options())
    listener.onQueryProgress(progress(1, {HOME: "5:9:-1"}))
    [found] = listener.queries.values()
    assert (found.backlog, found.backlog_entries, found.backlog_bytes) == ({}, None, None)


# Prometheus


def test_metrics_are_formatted_for_prometheus() -> None:
    one = QueryMetrics(
        query='a"b\\c\nd',
        batch=7,
        rows=5,
        lag_s=2.5,
        backlog={HOME: TopicBacklog(entries=7, bytes=380)},
        commit_errors=0,
    )
    lines = prometheus_text([one, QueryMetrics(query="z", rows=6)]).splitlines()
    query = 'query="a\\"b\\\\c\\nd"'
    assert lines[:4] == [
        "# HELP pulsar_encore_spark_batch Number of the last batch.",
        "# TYPE pulsar_encore_spark_batch gauge",
        f"pulsar_encore_spark_batch{{{query}}} 7.0",
        'pulsar_encore_spark_batch{query="z"} -1.0',
    ]
    assert f"pulsar_encore_spark_lag_seconds{{{query}}} 2.5" in lines
    assert f"pulsar_encore_spark_rows_total{{{query}}} 5.0" in lines
    assert 'pulsar_encore_spark_rows_total{query="z"} 6.0' in lines
    assert f"pulsar_encore_spark_commit_errors_total{{{query}}} 0.0" in lines
    assert f'pulsar_encore_spark_backlog_bytes{{{query},topic="{HOME}"}} 380.0' in lines
    assert "# TYPE pulsar_encore_spark_rows_total counter" in lines
    assert not [line for line in lines if "None" in line or "redelivered" in line]
    assert prometheus_text([]) == ""
