"""Values of instruments, computed from snapshots of consumers, producers and workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from . import instruments as of
from .histogram import HistogramValue
from .instruments import Instrument
from .topic_labels import TopicRule

if TYPE_CHECKING:
    from ..consumer.counters import Counters
    from ..consumer.statistics import Statistics
    from ..consumer.topic_counts import TopicCounts
    from ..state.spilling.spilling_metrics import MetricSample
    from ..worker.health import Health, Report

Labels: TypeAlias = tuple[str, ...]
"""Values of an instrument's labels, in their order."""
Values: TypeAlias = dict[tuple[Instrument, Labels], float]
Points: TypeAlias = dict[Instrument, list[tuple[Labels, float | HistogramValue]]]
"""All values of each instrument, sorted by labels."""


@dataclass(slots=True)
class Snapshot:
    """The values of one consumer, producer or worker.

    Attributes:
        counters: Values that never fall while the object is open.
        gauges: Values of this moment.
    """

    counters: Values = field(default_factory=dict)
    gauges: Values = field(default_factory=dict)


def add(values: Values, instrument: Instrument, labels: Labels, amount: float) -> None:
    key = instrument, labels
    values[key] = values.get(key, 0) + amount


def add_all(values: Values, more: Values) -> None:
    for key, amount in more.items():
        values[key] = values.get(key, 0) + amount


def consumer_snapshot(
    rule: TopicRule,
    subscription: str,
    counters: Counters,
    statistics: Statistics,
    by_topic: Sequence[TopicCounts] = (),
    samples: Iterable[MetricSample] = (),
) -> Snapshot:
    """Return the values of a consumer.

    Args:
        by_topic: Counts by topic, if the topics have different labels (`TopicRule.is_split`).
        samples: Metrics of PIP-195, from `Consumer.metrics`.
    """
    common = rule.common, subscription
    found = Snapshot()
    for instrument, count in (
        (of.CONSUMED, counters.received),
        (of.NACKED, counters.nacked),
        (of.DEAD_LETTERS, counters.dead_letters),
        (of.RETRY_LETTERS, counters.retry_letters),
        (of.REJECTED, counters.rejected),
        (of.LEASES_LOST, counters.leases_lost),
        (of.RECONNECTS, counters.reconnects),
    ):
        add(found.counters, instrument, common, count)
    for instrument, value in (
        (of.WINDOW, statistics.unacked_window),
        (of.LEASES, statistics.leased),
        (of.CONSUMERS_OPEN, 1),
        (of.CONSUMERS_CONNECTED, statistics.connected),
        (of.STATES_FAILED, statistics.state_failure is not None),
    ):
        add(found.gauges, instrument, common, value)
    if rule.is_split:
        for each in by_topic:
            labels = rule.label_of(each.topic), subscription
            _add_counts(found, labels, each.acked, each.redelivered, each)
    else:
        _add_counts(found, common, counters.acked, counters.redelivered, statistics)
    for sample in samples:
        instrument = of.PIP_195[sample.name]
        given = {**sample.labels, of.TOPIC: rule.label_of(sample.labels[of.TOPIC])}
        values = found.counters if instrument.kind == "counter" else found.gauges
        add(values, instrument, tuple(given[name] for name in instrument.labels), sample.value)
    return found


def _add_counts(
    found: Snapshot,
    labels: Labels,
    acked: int,
    redelivered: int,
    held: Statistics | TopicCounts,
) -> None:
    add(found.counters, of.ACKED, labels, acked)
    add(found.counters, of.REDELIVERED, labels, redelivered)
    add(found.gauges, of.QUEUED, labels, held.queued)
    add(found.gauges, of.IN_FLIGHT, labels, held.in_flight)
    add(found.gauges, of.WAITING_NACKS, labels, held.nacked)
    add(found.gauges, of.UNACKED, labels, held.unacked)
    add(found.gauges, of.UNSENT_ACKS, labels, held.unsent_acks)


def producer_snapshot(topic: str, *, is_connected: bool) -> Snapshot:
    found = Snapshot()
    add(found.gauges, of.PRODUCERS_CONNECTED, (topic,), is_connected)
    return found


def worker_snapshot(name: str, report: Report, health: Health) -> Snapshot:
    labels = (name,)
    found = Snapshot()
    for attribute, instrument in of.REPORT.items():
        add(found.counters, instrument, labels, getattr(report, attribute))
    for attribute, instrument in of.HEALTH.items():
        add(found.gauges, instrument, labels, getattr(health, attribute))
    add(found.gauges, of.LONG_HANDLERS, labels, len(health.long_handlers))
    add(found.gauges, of.READY, labels, health.ready)
    for state in of.WORKER_STATES:
        add(found.gauges, of.IN_STATE, (name, state), health.state == state)
    return found


def points_of(
    values: Values, histograms: dict[tuple[Instrument, Labels], HistogramValue]
) -> Points:
    """Return all values by instrument, in the order of the table.

    The number of sent messages is that of the histogram of their durations.
    """
    found: Points = {each: [] for each in of.INSTRUMENTS}
    for (instrument, labels), value in values.items():
        found[instrument].append((labels, value))
    for (instrument, labels), histogram in histograms.items():
        found[instrument].append((labels, histogram))
        if instrument is of.SEND_DURATION:
            found[of.SENT].append((labels, histogram.count))
    for points in found.values():
        points.sort(key=_labels_of)
    return found


def _labels_of(point: tuple[Labels, object]) -> Labels:
    return point[0]
