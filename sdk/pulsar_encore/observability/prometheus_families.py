"""Metric families of prometheus_client, made from instruments.

Other files import the names of prometheus_client from here, after the check that it is installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf, isinf

from ..errors import ConfigurationError
from .histogram import HistogramValue
from .instruments import Instrument

try:
    from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
        UntypedMetricFamily,
    )
    from prometheus_client.registry import Collector
except ImportError as _error:
    if (_error.name or "").partition(".")[0] != "prometheus_client":
        raise
    raise ConfigurationError(
        "metrics for Prometheus need prometheus-client: install pulsar-encore with the extra "
        "prometheus"
    ) from _error


def new_family(instrument: Instrument) -> Metric:
    """Return an empty metric family for an instrument."""
    name, text, labels = instrument.prometheus_name, instrument.help, instrument.labels
    if instrument.kind == "histogram":
        return HistogramMetricFamily(name, text, labels=labels)
    if instrument.kind == "gauge":
        return GaugeMetricFamily(name, text, labels=labels)
    if instrument.keeps_name:  # a counter without `_total` cannot have the type of a counter
        return UntypedMetricFamily(name, text, labels=labels)
    return CounterMetricFamily(name, text, labels=labels)


def filled_family(
    instrument: Instrument, points: Iterable[tuple[tuple[str, ...], float | HistogramValue]]
) -> Metric:
    """Return the metric family of an instrument with its values."""
    family = new_family(instrument)
    for labels, value in points:
        if isinstance(value, HistogramValue):
            assert isinstance(family, HistogramMetricFamily)
            family.add_metric(labels, list(_buckets(value)), value.total)
        else:
            assert isinstance(family, CounterMetricFamily | GaugeMetricFamily | UntypedMetricFamily)
            family.add_metric(labels, value)
    return family


def _buckets(value: HistogramValue) -> Iterator[tuple[str, float]]:
    """Yield (upper bound, number of values up to it)."""
    below = 0
    for bound, count in zip((*value.bounds, inf), value.counts, strict=True):
        below += count
        yield "+Inf" if isinf(bound) else str(bound), below


__all__ = [
    "REGISTRY",
    "Collector",
    "CollectorRegistry",
    "Metric",
    "filled_family",
    "generate_latest",
    "new_family",
]
