"""An observer that records each call, and sets a context variable for handlers."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import pulsar_encore as encore

TRACE: ContextVar[str] = ContextVar("trace", default="")


class Recording(encore.Observer):
    """Attributes: `calls` has (method, arguments) in order; `traces` the trace of each send."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.traces: list[str] = []

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for each, arguments in self.calls if each == name]

    def ends(self) -> list[tuple[str, str]]:
        """Return (result, settlement) of each handler call that ended."""
        return [(end.result, end.settlement) for _, end in self.of("handler_ended")]

    def _add(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, arguments))

    def consumer_opened(self, consumer: encore.Consumer[Any]) -> None:
        self._add("consumer_opened", consumer)

    def consumer_closed(self, consumer: encore.Consumer[Any]) -> None:
        self._add("consumer_closed", consumer)

    def producer_opened(self, producer: encore.Producer[Any]) -> None:
        self._add("producer_opened", producer)

    def producer_closed(self, producer: encore.Producer[Any]) -> None:
        self._add("producer_closed", producer)

    def worker_started(self, worker: encore.Worker[Any]) -> None:
        self._add("worker_started", worker)

    def worker_ended(self, worker: encore.Worker[Any], error: BaseException | None) -> None:
        self._add("worker_ended", worker, error)

    def sending(self, sending: encore.Sending) -> None:
        self._add("sending", sending)
        self.traces.append(TRACE.get())
        sending.properties["trace"] = "t1"

    def sent(self, sending: encore.Sending, error: BaseException | None) -> None:
        self._add("sent", sending, error)

    def handler_started(self, call: encore.HandlerCall) -> None:
        self._add("handler_started", call)
        TRACE.set(f"attempt {len(self.of('handler_started'))}")

    def handler_ended(self, call: encore.HandlerCall, end: encore.HandlerEnd) -> None:
        self._add("handler_ended", call, end)

    def letter_written(self, letter: encore.LetterWritten) -> None:
        self._add("letter_written", letter)

    def consumer_event(self, consumer: encore.Consumer[Any], event: encore.ConsumerEvent) -> None:
        self._add("consumer_event", consumer, event)

    def producer_event(self, producer: encore.Producer[Any], event: encore.ProducerEvent) -> None:
        self._add("producer_event", producer, event)

    def window_filling(self, filling: encore.WindowFilling) -> None:
        self._add("window_filling", filling)

    def breaker_changed(self, change: encore.BreakerChange) -> None:
        self._add("breaker_changed", change)

    def drain_began(self, worker: encore.Worker[Any]) -> None:
        self._add("drain_began", worker)

    def drain_ended(self, worker: encore.Worker[Any]) -> None:
        self._add("drain_ended", worker)
