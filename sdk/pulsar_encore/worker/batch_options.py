"""The checked parameters of a `BatchWorker`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from ..errors import ConfigurationError
from ..options.checks import integer, seconds
from .scheduler import Order
from .worker_options import WorkerOptions

DEFAULT_MAX_MESSAGES: Final = 100
DEFAULT_MAX_WAIT_S: Final = 1.0
DEFAULT_LISTS: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchOptions(WorkerOptions):
    """`BatchWorker` documents the fields and their units."""

    max_messages: int = DEFAULT_MAX_MESSAGES
    max_wait: float | timedelta = DEFAULT_MAX_WAIT_S

    def __post_init__(self) -> None:
        WorkerOptions.__post_init__(self)  # `super()` does not work in a dataclass with slots
        if self.order is Order.KEY:
            raise ConfigurationError(
                'order must be "none" or "partition" for a BatchWorker, got "key": use a Worker '
                'for order="key", or order="partition", which also keeps the order of each key'
            )
        integer(self.max_messages, "max_messages", low=1, high=100_000)
        object.__setattr__(self, "max_wait", seconds(self.max_wait, "max_wait", low=0.0))
        if self.prefetch is not None and self.prefetch < self.max_messages:
            raise ConfigurationError(
                f"prefetch must be at least max_messages, {self.max_messages}, got "
                f"{self.prefetch}: a list could never be full. Raise prefetch, or lower "
                "max_messages"
            )

    @property
    def max_wait_ms(self) -> int:
        return round(seconds(self.max_wait, "max_wait", low=0.0) * 1000)

    @property
    def prefetch_messages(self) -> int:
        return self.max_messages * self.concurrency if self.prefetch is None else self.prefetch
