"""The open, failed or closed state of one consumer, shared by its parts."""

from __future__ import annotations

from collections.abc import Callable


class ConsumerStatus:
    """The status of one consumer.

    Attributes:
        refusal: The error that every call raises; None while the consumer can be used.
        closing: True during `close`, when failures are no longer reported.
        dead: True if the transport has failed for good and cannot send any more.
    """

    __slots__ = ("_callbacks", "closing", "dead", "refusal")

    def __init__(self) -> None:
        self.refusal: Exception | None = None
        self.closing: bool = False
        self.dead: bool = False
        self._callbacks: list[Callable[[Exception], None]] = []

    def on_failure(self, callback: Callable[[Exception], None]) -> None:
        self._callbacks.append(callback)

    def failed(self, error: Exception) -> None:
        if error is not self.refusal:  # else this is `close`, and the transport can still send
            self.dead = True
        if self.closing:
            return
        self.refusal = error
        for callback in self._callbacks:
            callback(error)

    def check(self) -> None:
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
