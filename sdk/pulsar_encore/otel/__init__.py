"""Observers for OpenTelemetry: `Tracing` and `Metrics`. They need the extra ``otel``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from .metrics import Metrics
    from .tracing import Tracing

_LAZY_NAMES: Final = {"Metrics": "metrics", "Tracing": "tracing"}

if not TYPE_CHECKING:  # type checkers would take every misspelled name for an Any

    def __getattr__(name: str) -> Any:
        if name not in _LAZY_NAMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            found = getattr(import_module(f".{_LAZY_NAMES[name]}", __name__), name)
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "opentelemetry":
                raise
            raise ConfigurationError(
                f"{name} needs opentelemetry-api: install pulsar-encore with the extra otel"
            ) from error
        globals()[name] = found
        return found


__all__ = ["Metrics", "Tracing"]
