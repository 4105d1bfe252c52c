"""Metrics of streaming queries as text for Prometheus, by prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from ..observability.instruments import Instrument, Kind
from ..observability.prometheus_families import (
    Collector,
    CollectorRegistry,
    Metric,
    filled_family,
    generate_latest,
)

MetricValues: TypeAlias = dict[Instrument, Sequence[tuple[tuple[str, ...], float | None]]]
"""Values by labels. None for an unknown value, which the text leaves out."""


def _metric(name: str, kind: Kind, text: str, *labels: str, unit: str = "") -> Instrument:
    return Instrument(
        name=f"pulsar_encore.spark.{name}",
        kind=kind,
        unit=unit,
        help=text,
        labels=("query", *labels),
    )


#: Metrics of a query, by the attribute of `QueryMetrics`.
BY_QUERY: Final[Mapping[str, Instrument]] = {
    "batch": _metric("batch", "gauge", "Number of the last batch."),
    "lag_s": _metric(
        "lag", "gauge", "Age of the newest message of the last batch when that began.", unit="s"
    ),
    "longest_lag_s": _metric(
        "longest_lag",
        "gauge",
        "Age of the oldest message of the last batch when that began.",
        unit="s",
    ),
    "rows": _metric("rows", "counter", "Messages read."),
    "bytes": _metric("bytes", "counter", "Bytes of their values."),
    "redelivered": _metric("redelivered", "counter", "Messages that had been delivered before."),
    "dead_letters": _metric("dead_letters", "counter", "Messages of dead-letter topics."),
    "commit_errors": _metric(
        "commit_errors", "counter", "Times that a subscription was behind the checkpoint."
    ),
    "ask_errors": _metric(
        "ask_errors", "counter", "Times that the web service could not be asked."
    ),
}
#: Metrics of a topic, by the attribute of `TopicBacklog`.
BY_TOPIC: Final[Mapping[str, Instrument]] = {
    "entries": _metric("backlog.entries", "gauge", "Entries stored and not read.", "topic"),
    "bytes": _metric("backlog", "gauge", "Bytes stored and not read.", "topic", unit="By"),
}


class _Values(Collector):
    def __init__(self, values: MetricValues) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        for instrument, points in self._values.items():
            known = [(labels, value) for labels, value in points if value is not None]
            if known:
                yield filled_family(instrument, known)


def text_of(values: MetricValues) -> str:
    """Return the values in Prometheus's exposition format 0.0.4."""
    registry = CollectorRegistry()
    registry.register(_Values(values))
    return generate_latest(registry).decode()
