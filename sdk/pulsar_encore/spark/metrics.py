"""Metrics of streaming queries: rows read, lag, backlog, and whether acks arrive.

No figure is an estimate: an unknown figure is None.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.types import BinaryType, StringType

from ..errors import ConfigurationError, EncoreError, TopicNotFound
from .admin import Admin, TopicLedgers
from .batch_plan import TopicRange
from .offsets import Position, read_offset
from .runtime import runtime
from .source_columns import VALUE
from .source_options import ReadOptions, read_options

if TYPE_CHECKING:
    from .metric_text import MetricValues

log: Final = logging.getLogger("pulsar_encore.spark")

NAME: Final = "pulsar"
"""Default name of the observation in a query's progress."""

_REQUEST_TIMEOUT_S: Final = 5.0  # the listener's next event waits this long at most
_DEAD: Final = r"-DLQ(-partition-[0-9]+)?$"


def with_metrics(
    rows: DataFrame, name: str | Observation = NAME, *, prefix: str = "__"
) -> DataFrame:
    """Return the rows with an observation of their metrics, per action or micro-batch.

    The observation has `rows`, `bytes` of the values (null if they are neither binary nor text),
    `first_published_ms` and `last_published_ms` (ms since the epoch), `redelivered` rows (null
    without the column redeliveryCount), and `dead_letters`, rows of topics named like dead letter
    topics. It is in `observedMetrics` of a query's progress, where `PulsarProgressListener` finds
    it.

    Args:
        rows: Rows of the source, before anything that adds or drops rows.
        name: Name of the observation; each stream of a query needs its own. For a batch, an
            `Observation`, which has the figures after the first action.
        prefix: `metadataPrefix` of the read.

    Raises:
        ConfigurationError: if the column publishTime or topic is missing.
    """
    for key in ("publishTime", "topic"):
        if prefix + key not in rows.columns:
            raise ConfigurationError(
                f"metrics need the column {prefix}{key}: leave includeMetadata at standard, or "
                "name it there"
            )
    published = f.unix_millis(f.col(f"{prefix}publishTime"))
    dead = f.col(f"{prefix}topic").rlike(_DEAD)
    return rows.observe(
        name,
        f.count(f.lit(1)).alias("rows"),
        _bytes(rows).alias("bytes"),
        f.min(published).alias("first_published_ms"),
        f.max(published).alias("last_published_ms"),
        _redelivered(rows, f"{prefix}redeliveryCount").alias("redelivered"),
        f.count_if(dead).alias("dead_letters"),
    )


def _bytes(rows: DataFrame) -> Column:
    kinds = {each.name: each.dataType for each in rows.schema}
    if isinstance(kinds.get(VALUE), (BinaryType, StringType)):
        return f.coalesce(f.sum(f.octet_length(f.col(VALUE)).cast("long")), f.lit(0))
    return f.max(f.lit(None).cast("long"))


def _redelivered(rows: DataFrame, name: str) -> Column:
    if name in rows.columns:
        return f.count_if(f.col(name) > 0)
    return f.max(f.lit(None).cast("long"))


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicBacklog:
    """The unread entries of a topic or partition after a batch.

    Attributes:
        entries: Stored entries that are not read.
        bytes: Their stored size, by the mean entry size of each ledger.
    """

    entries: int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryMetrics:
    """The state of a query after a batch.

    Attributes:
        query: Its name, or its id if it has no name.
        batch: The number of the last batch.
        rows, bytes, redelivered, dead_letters: Sums over all batches since the listener was added,
            from `with_metrics`; None without an observation.
        lag_s: From the publishing of the newest message in the last batch to the start of the
            batch, in s. 0 for a batch without messages, None without observation. Compares the
            clocks of producers and of the driver.
        longest_lag_s: The same for the oldest message of the batch.
        backlog: By topic or partition. Empty without `admin.url`; topics that were deleted or
            cannot be counted are missing.
        backlog_entries, backlog_bytes: Of all topics; None if one could not be counted.
        commit_errors: How often, since the listener was added, the subscription of a topic was
            behind the checkpoint before the batch. None without a subscription or `admin.url`.
        ask_errors: How often the web service could not be reached, or told no position of the
            subscription.
    """

    query: str
    batch: int = -1
    rows: int | None = None
    bytes: int | None = None
    redelivered: int | None = None
    dead_letters: int | None = None
    lag_s: float | None = None
    longest_lag_s: float | None = None
    backlog: Mapping[str, TopicBacklog] = field(default_factory=dict)
    backlog_entries: int | None = None
    backlog_bytes: int | None = None
    commit_errors: int | None = None
    ask_errors: int = 0


_SUMMED_FIELDS: Final = ("rows", "bytes", "redelivered", "dead_letters")


class PulsarProgressListener(StreamingQueryListener):
    """Follows the streaming queries of a session that read from this source.

    Spark calls it on a thread of its own, one event at a time. It never raises into Spark: errors
    are logged and counted.

    Args:
        callback: Called with the `QueryMetrics` of a query after each batch, or None.
        options: Options of the read. With `admin.url` the backlog is counted; with `subscription`
            too, late acks are counted. This costs one request per topic and batch.
        name: Name of the observation (`with_metrics`).

    Raises:
        ConfigurationError: if an option is wrong.

    Example:
        ::

            listener = PulsarProgressListener(print, options)
            spark.streams.addListener(listener)
    """

    def __init__(
        self,
        callback: Callable[[QueryMetrics], object] | None = None,
        options: Mapping[str, str] | None = None,
        *,
        name: str = NAME,
    ) -> None:
        self._callback = callback
        self._name = name
        self._read_options: ReadOptions | None = None
        if options is not None:
            self._read_options = read_options(options, streaming=None)
        self._admin: Admin | None = None
        self._queries: dict[str, QueryMetrics] = {}
        self._lock = threading.Lock()

    @property
    def queries(self) -> dict[str, QueryMetrics]:
        """The running queries by id, after their last batch. Any thread may read this."""
        with self._lock:
            return dict(self._queries)

    def prometheus(self) -> str:
        """Return the same as text for Prometheus (exposition format 0.0.4)."""
        return prometheus_text(self.queries.values())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: there are no figures yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the last figures still hold."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._lock:
            self._queries.pop(str(event.id), None)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Add the figures of a batch, request the backlog, and call the callback."""
        try:
            progress = event.progress
            ends = [each for each in map(_positions, progress.sources) if each is not None]
            if not ends:
                return
            key = str(progress.id)
            with self._lock:
                previous = self._queries.get(key)
            metrics = previous or QueryMetrics(query=progress.name or key)
            metrics = replace(metrics, batch=progress.batchId)
            observed = progress.observedMetrics.get(self._name)
            if observed is not None:
                metrics = _with_observation(metrics, observed.asDict(), _ms_of(progress.timestamp))
            metrics = self._with_backlog(metrics, ends)
            with self._lock:
                self._queries[key] = metrics
            if self._callback is not None:
                self._callback(metrics)
        except Exception:
            # An error raised into Spark would only become a line in its log.
            log.exception("the metrics of a query could not be updated")

    def _with_backlog(
        self, metrics: QueryMetrics, ends: Iterable[tuple[dict[str, Position], dict[str, Position]]]
    ) -> QueryMetrics:
        read = self._read_options
        if read is None or read.connection.admin_url is None:
            return metrics
        subscription = None if read.cursor.commit == "none" else read.cursor.subscription
        previous: dict[str, Position] = {}
        after: dict[str, Position] = {}
        for start, end in ends:
            previous |= start
            after |= end
        try:
            answers = runtime().call(
                self._request_ledgers(after), "ask for the backlog", _REQUEST_TIMEOUT_S
            )
        except EncoreError as error:
            log.warning("the backlog is not known: %s", error)
            return replace(
                metrics,
                backlog={},
                backlog_entries=None,
                backlog_bytes=None,
                ask_errors=metrics.ask_errors + 1,
            )
        metrics = replace(metrics, **_backlog(after, answers))
        if subscription is not None:
            late_acks = sum(
                _is_late(start, stored.subscriptions.get(subscription))
                for topic, start in previous.items()
                if (stored := answers[topic]) is not None
            )
            metrics = replace(metrics, commit_errors=(metrics.commit_errors or 0) + late_acks)
            unread = [
                topic
                for topic, stored in answers.items()
                if stored is not None
                and subscription in stored.subscriptions
                and stored.subscriptions[subscription] is None
            ]
            if unread:
                log.warning(
                    "late acks are not known, %s has no readable position in: %s",
                    subscription,
                    ", ".join(unread),
                )
                metrics = replace(metrics, ask_errors=metrics.ask_errors + 1)
        return metrics

    async def _request_ledgers(self, topics: Iterable[str]) -> dict[str, TopicLedgers | None]:
        """Return the ledgers by topic; None for a topic that does not exist."""
        assert self._read_options is not None
        if self._admin is None:  # created on the event loop that it belongs to
            self._admin = Admin(self._read_options.connection)
        admin = self._admin

        async def request(topic: str) -> TopicLedgers | None:
            try:
                return await admin.ledgers(topic)
            except TopicNotFound:
                return None

        answers = await asyncio.gather(*map(request, topics))
        return dict(zip(topics, answers, strict=True))


def _positions(source: Any) -> tuple[dict[str, Position], dict[str, Position]] | None:
    """Return start and end of a batch; None for a batch of another source."""
    try:
        # PySpark passes `str` of null for the first batch of a query.
        first = source.startOffset in (None, "None", "null")
        start = {} if first else read_offset(source.startOffset)
        return start, read_offset(source.endOffset)
    except ConfigurationError:
        return None


def _with_observation(
    metrics: QueryMetrics, row: Mapping[str, Any], began_ms: float
) -> QueryMetrics:
    sums: dict[str, Any] = {
        each: row[each] if row[each] is None else (getattr(metrics, each) or 0) + row[each]
        for each in _SUMMED_FIELDS
    }
    newest, oldest = row["last_published_ms"], row["first_published_ms"]
    return replace(
        metrics,
        **sums,
        lag_s=0.0 if newest is None else max(0.0, (began_ms - newest) / 1000),
        longest_lag_s=0.0 if oldest is None else max(0.0, (began_ms - oldest) / 1000),
    )


def _ms_of(timestamp: str) -> float:
    moment = datetime.fromisoformat(timestamp)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000


def _backlog(
    ends: Mapping[str, Position], answers: Mapping[str, TopicLedgers | None]
) -> dict[str, Any]:
    backlog: dict[str, TopicBacklog] = {}
    deleted = 0
    for topic, end in ends.items():
        stored = answers[topic]
        if stored is None:
            deleted += 1
            continue
        ranges = TopicRange(end, stored.last, stored.ledgers).ledger_ranges()
        if ranges is not None:
            backlog[topic] = TopicBacklog(
                entries=sum(each.entries for each in ranges),
                bytes=round(sum(each.entries * each.size for each in ranges)),
            )
    known = len(backlog) + deleted == len(ends)
    return {
        "backlog": backlog,
        "backlog_entries": sum(each.entries for each in backlog.values()) if known else None,
        "backlog_bytes": sum(each.bytes for each in backlog.values()) if known else None,
    }


def _is_late(start: Position, cursor: Position | None) -> bool:
    acked = start.ackable_entry
    return min(acked) >= 0 and cursor is not None and cursor.entry_key < acked


def prometheus_text(queries: Iterable[QueryMetrics]) -> str:
    """Return metrics of queries in Prometheus's exposition format, without those that are None.

    Raises:
        ConfigurationError: if prometheus-client is missing.
    """
    from .metric_text import BY_QUERY, BY_TOPIC, text_of  # lazy: only here is the library needed

    listed = sorted(queries, key=lambda each: each.query)
    values: MetricValues = {}
    for name, instrument in BY_QUERY.items():
        values[instrument] = [((each.query,), getattr(each, name)) for each in listed]
    for name, instrument in BY_TOPIC.items():
        values[instrument] = [
            ((each.query, topic), getattr(each.backlog[topic], name))
            for each in listed
            for topic in sorted(each.backlog)
        ]
    return text_of(values)
