"""The trace context in the properties of a message."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator

_log: Final = logging.getLogger("pulsar_encore.otel")

NO_CONTEXT: Final = Context()


class TraceContextProperties:
    """Reads and writes trace contexts with a propagator; None for the global one.

    Properties come from other programs, and propagators from libraries. Neither may fail a message,
    so an error is logged once, and the message has no trace context then.
    """

    def __init__(self, propagator: TextMapPropagator | None) -> None:
        self._given = propagator
        self._fields_of: TextMapPropagator | None = None
        self._fields: frozenset[str] = frozenset()
        self._failed: set[str] = set()

    def read(self, properties: Mapping[str, str], base: Context = NO_CONTEXT) -> Context:
        """Return `base` with the trace context and the baggage of a message."""
        if not properties:
            return base
        try:
            propagator = self._propagator()
            # A look at the names is cheaper than `extract`, which parses a list of propagators.
            if self._fields and self._fields.isdisjoint(properties):
                return base
            found: Any = propagator.extract(properties, base)
        except Exception as error:
            self._note("read", error)
            return base
        return found if isinstance(found, Context) else base

    def write(self, properties: dict[str, str], context: Context) -> None:
        """Add a trace context to the properties of a message. Present properties stay."""
        carrier: dict[str, str] = {}
        try:
            self._propagator().inject(carrier, context)
        except Exception as error:
            self._note("write", error)
            return
        for name, value in carrier.items():
            if isinstance(name, str) and isinstance(value, str):
                properties.setdefault(name, value)

    def _propagator(self) -> TextMapPropagator:
        # The global propagator may be set after `Tracing` was made.
        propagator = self._given or propagate.get_global_textmap()
        if propagator is not self._fields_of:
            self._fields = frozenset(propagator.fields)
            self._fields_of = propagator
        return propagator

    def _note(self, action: str, error: Exception) -> None:
        if action not in self._failed:
            self._failed.add(action)
            _log.warning(
                "the propagator failed to %s the trace context of a message; messages continue "
                "without it, and this is logged once",
                action,
                exc_info=error,
            )


def publisher_of(context: Context, base: Context = NO_CONTEXT) -> trace.SpanContext:
    """Return the span that `TraceContextProperties.read` found; an invalid one if it found none."""
    found = trace.get_current_span(context)
    if found is trace.get_current_span(base):
        return trace.INVALID_SPAN_CONTEXT
    return found.get_span_context()
