"""A scrape of a registry, read back by prometheus_client's own parser."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

ORDERS = "persistent://public/default/orders"
OF_CONSUMER = {"topic": ORDERS, "subscription": "billing"}


class Scrape:
    """The values of one scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.text = generate_latest(registry).decode()
        self.families = {each.name: each for each in text_string_to_metric_families(self.text)}
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in self.families.values():
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in self.samples, f"{key} is there twice"
                self.samples[key] = sample.value

    def value(self, name: str, **labels: str) -> float:
        """Return the value of one series. Short names are those of pulsar.client.encore."""
        key = frozenset(labels.items())
        return self.samples[name, key]

    def labels(self, name: str, label: str) -> set[str]:
        """Return all values of a label of a metric."""
        return {dict(labels)[label] for each, labels in self.samples if each == name}
