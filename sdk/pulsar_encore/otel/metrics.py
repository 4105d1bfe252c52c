"""Metrics for OpenTelemetry, by its API."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter

from ..observability import instruments as of
from ..observability.error_types import OTHER
from ..observability.histogram import Histogram, HistogramValue
from ..observability.instruments import INSTRUMENTS, Instrument
from ..observability.metrics_observer import MetricsObserver
from ..observability.object_registry import ObjectRegistry
from ..observability.samples import Labels, Points
from ..version import VERSION
from . import attribute_names as names

#: Attributes by label. The others are labels of PIP-195.
_ATTRIBUTES: Final = {
    of.TOPIC: names.DESTINATION,
    of.SUBSCRIPTION: names.SUBSCRIPTION,
    of.WORKER: names.WORKER,
    of.ERROR_TYPE: names.ERROR_TYPE,
}
_STATE: Final = "pulsar_encore.state"


class Metrics(MetricsObserver):
    """Metrics of a client's consumers, producers and workers for OpenTelemetry.

    The counts are read when a metric reader collects, so a received or acked message costs nothing.
    Only durations are recorded at each handler call and each send, because OpenTelemetry has no
    histogram that can be read later.

    Args:
        meter_provider: The provider of the meter; None for the global one.
        topic_label: "topic" to name each topic of a pattern, or of a list of more than 20 topics.
            None to leave out the attribute `messaging.destination.name` for those.

    Raises:
        ConfigurationError: if `topic_label` is wrong.

    Example:
        ```python
        client = encore.Client("pulsar://localhost:6650", observers=[otel.Metrics()])
        ```
    """

    def __init__(
        self,
        meter_provider: MeterProvider | None = None,
        *,
        topic_label: Literal["topic"] | None = None,
    ) -> None:
        objects = ObjectRegistry(self._new_otel_histogram)
        super().__init__(objects, topic_label)
        meter = get_meter("pulsar_encore", VERSION, meter_provider)
        self._histograms: dict[Instrument, Any] = {}
        collection = _Collection(objects.collect)
        for each in INSTRUMENTS:
            if each.kind == "histogram":
                self._histograms[each] = meter.create_histogram(
                    each.name,
                    each.unit,
                    each.help,
                    explicit_bucket_boundaries_advisory=list(of.DURATION_BOUNDS),
                )
                continue
            callbacks = [collection.callback_of(each)]
            if each.kind == "counter":
                meter.create_observable_counter(each.name, callbacks, each.unit, each.help)
            elif each.is_sum:
                meter.create_observable_up_down_counter(each.name, callbacks, each.unit, each.help)
            else:
                meter.create_observable_gauge(each.name, callbacks, each.unit, each.help)

    def _new_otel_histogram(self, instrument: Instrument, labels: Labels) -> Histogram:
        return _RecordedHistogram(
            self._histograms[instrument].record, attributes_of(instrument, labels)
        )


class _RecordedHistogram(Histogram):
    """Also records each value in OpenTelemetry's histogram. It raises no error of the provider."""

    __slots__ = ("_attributes", "_has_failed", "_record")

    def __init__(self, record: Callable[..., None], attributes: dict[str, str]) -> None:
        super().__init__(of.DURATION_BOUNDS)
        self._record = record
        self._attributes = attributes
        self._has_failed = False

    def add(self, value: float) -> None:
        super().add(value)
        try:
            self._record(value, self._attributes)
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                logging.getLogger(__name__).exception(
                    "the meter provider cannot record a duration; further errors are not logged"
                )


class _Collection:
    """Shares one collection between the callbacks of all instruments.

    A metric reader calls each callback once in each of its collections. So the second call of a
    callback begins the next collection.
    """

    def __init__(self, collect: Callable[[], Points]) -> None:
        self._collect = collect
        self._lock = threading.Lock()
        self._left: Points = {}

    def callback_of(
        self, instrument: Instrument
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterator[Observation]:
            with self._lock:
                if instrument not in self._left:
                    self._left = self._collect()
                points = self._left.pop(instrument)
            for labels, value in points:
                if not isinstance(value, HistogramValue):
                    yield Observation(value, attributes_of(instrument, labels))

        return observe


def attributes_of(instrument: Instrument, labels: Labels) -> dict[str, str]:
    """Return the attributes of a series.

    A series without a topic has no `messaging.destination.name`. One without an error has no
    `error.type`.
    """
    found = {names.SYSTEM: "pulsar"}
    if instrument.operation:
        found[names.OPERATION_NAME] = instrument.operation
    for label, value in zip(instrument.labels, labels, strict=True):
        if label == of.TOPIC and "://" not in value and value != OTHER:
            continue
        if label == of.ERROR_TYPE and not value:
            continue
        if instrument is of.IN_STATE and label == of.STATE:
            label = _STATE
        found[_ATTRIBUTES.get(label, label)] = value
    return found
