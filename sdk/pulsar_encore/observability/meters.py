"""Measurements of handler calls and sends without an event object for each.

An observer of this package may have a method `call_meter(worker, subscription)` or
`send_meter(topic)` that returns such a meter. The event objects of `handler_ended`, or of `sending`
and `sent`, take five times as long as a meter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class CallMeter(Protocol):
    """Measures the handler calls of one worker."""

    def succeeded(self, topic: str, duration_s: float) -> None:
        """Measure a call that has not failed."""

    def failed(self, topic: str, duration_s: float, error: BaseException | None) -> None:
        """Measure a call that has failed; `error` is None if the handler nacked the message."""


class SendMeter(Protocol):
    """Measures the sends of one producer on the event loop that made it. It raises no error."""

    def begin(self) -> float:
        """Note that a send begins, and return the time."""

    def stored(self, begun_s: float, size: int) -> None:
        """Measure a send of `size` bytes that the broker has stored."""

    def failed(self, begun_s: float, error: BaseException) -> None:
        """Measure a send that has failed or was cancelled."""


class SendMeters:
    """Several meters as one."""

    def __init__(self, meters: Sequence[SendMeter]) -> None:
        self._meters = meters

    def begin(self) -> float:
        return max(each.begin() for each in self._meters)

    def stored(self, begun_s: float, size: int) -> None:
        for each in self._meters:
            each.stored(begun_s, size)

    def failed(self, begun_s: float, error: BaseException) -> None:
        for each in self._meters:
            each.failed(begun_s, error)
