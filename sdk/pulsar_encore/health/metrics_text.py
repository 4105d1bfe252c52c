"""The text of `/metrics`, by prometheus_client."""

from __future__ import annotations

import sys
from typing import Any, Final

from .probe_answers import Answer, text_answer

_ADVICE: Final = (
    'There are no metrics: install "pulsar-encore[prometheus]", and give the client '
    "observers=[pulsar_encore.prometheus.Metrics()]."
)


def metrics_answer(metrics: Any, accept: str) -> Answer:
    """Return the metrics of a registry in the format that a client accepts.

    Args:
        metrics: A registry, an object with a `registry`, or None for the default registry once
            the program has imported `pulsar_encore.prometheus`.
    """
    registry = getattr(metrics, "registry", metrics)
    if registry is None:
        if "pulsar_encore.prometheus" not in sys.modules:
            return text_answer(404, _ADVICE)
        from prometheus_client import REGISTRY as registry
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(accept)
    return Answer(200, encode(registry), content_type)
