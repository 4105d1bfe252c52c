"""Metrics for Prometheus, by prometheus_client. They need the extra ``prometheus``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final, Literal
from weakref import WeakKeyDictionary

from .errors import ConfigurationError
from .observability.instruments import INSTRUMENTS
from .observability.metrics_observer import MetricsObserver
from .observability.object_registry import ObjectRegistry
from .observability.prometheus_families import (
    REGISTRY,
    Collector,
    CollectorRegistry,
    Metric,
    filled_family,
    new_family,
)


class Metrics(MetricsObserver):
    """Metrics of a client's consumers, producers and workers for Prometheus.

    The counts are read when Prometheus scrapes, so a message costs next to nothing. All `Metrics`
    of one registry add up their values, so several clients can share it.

    Args:
        registry: The `CollectorRegistry` to export to; None for the default one of
            prometheus_client.
        topic_label: "topic" to label each topic of a pattern, or of a list of more than 20 topics.
            None to label those with the name of the subscription instead.

    Attributes:
        registry: The registry.

    Raises:
        ConfigurationError: if an argument is wrong, or if another collector of the registry has a
            metric of the same name.

    Example:
        ```python
        prometheus_client.start_http_server(9000)
        client = encore.Client("pulsar://localhost:6650", observers=[prometheus.Metrics()])
        ```
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        topic_label: Literal["topic"] | None = None,
    ) -> None:
        self.registry: CollectorRegistry = REGISTRY if registry is None else registry
        if not isinstance(self.registry, CollectorRegistry):
            raise ConfigurationError(
                "registry must be a prometheus_client.CollectorRegistry or None, got "
                f"{type(registry).__name__}"
            )
        super().__init__(_collector_of(self.registry).objects, topic_label)


class _Collector(Collector):
    def __init__(self) -> None:
        self.objects = ObjectRegistry()

    def describe(self) -> Iterator[Metric]:
        return (new_family(each) for each in INSTRUMENTS)

    def collect(self) -> Iterator[Metric]:
        for instrument, points in self.objects.collect().items():
            if points:
                yield filled_family(instrument, points)


_COLLECTORS: Final[WeakKeyDictionary[CollectorRegistry, _Collector]] = WeakKeyDictionary()


# Clients in several threads may make their `Metrics` at the same time, and a registry refuses a
# second collector of the same names.
_lock: Final = threading.Lock()


def _collector_of(registry: CollectorRegistry) -> _Collector:
    with _lock:
        found = _COLLECTORS.get(registry)
        if found is None:
            found = _COLLECTORS[registry] = _registered(registry)
        return found


def _registered(registry: CollectorRegistry) -> _Collector:
    collector = _Collector()
    try:
        registry.register(collector)
    except ValueError as error:
        raise ConfigurationError(
            f"the registry has a metric of the same name already: {error}. Give Metrics a "
            "CollectorRegistry of its own"
        ) from error
    return collector


__all__ = ["Metrics"]
