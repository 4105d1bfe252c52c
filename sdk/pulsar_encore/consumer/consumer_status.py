"""Whether a consumer can still be used.

Owns `ConsumerStatus`, which its parts share: what every call gets once it is closed, or its link is
dead.
"""

from __future__ import annotations

from collections.abc import Callable


class ConsumerStatus:
    """The end of one consumer, when it has come.

    Attributes:
        refusal: What every call raises from then on; None before.
        closing: It is being closed: what fails now is no news.
        dead: Its link has ended for good: nothing can be sent to the broker any more.
    """

    __slots__ = ("_callbacks", "closing", "dead", "refusal")

    def __init__(self) -> None:
        self.refusal: Exception | None = None
        self.closing: bool = False
        self.dead: bool = False
        self._callbacks: list[Callable[[Exception], None]] = []

    def on_failure(self, callback: Callable[[Exception], None]) -> None:
        """`tell` is called with the error when the link is dead for good."""
        self._callbacks.append(callback)

    def failed(self, error: Exception) -> None:
        """The link is dead for good, or closed."""
        if error is not self.refusal:  # otherwise the consumer is closing, and the link still works
            self.dead = True
        if self.closing:
            return
        self.refusal = error
        for callback in self._callbacks:
            callback(error)

    def check(self) -> None:
        """
        Raises:
            ClosedError: It was closed; or what killed the link.
        """
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
