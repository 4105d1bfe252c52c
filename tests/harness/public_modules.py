"""The names of the public modules."""

from __future__ import annotations

from typing import Final

#: Public modules, and the modules with the names of pulsar-client for the same objects.
MODULES: Final = (
    "pulsar_encore",
    "pulsar_encore.asyncio",
    "pulsar_encore.deadletters",
    "pulsar_encore.evacuation",
    "pulsar_encore.exceptions",
    "pulsar_encore.health",
    "pulsar_encore.otel",
    "pulsar_encore.prometheus",
    "pulsar_encore.spark",
    "pulsar_encore.spark.triage",
    "pulsar_encore.state",
    "pulsar_encore.testing",
)
