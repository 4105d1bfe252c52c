"""The spans of attempts whose messages may become letters."""

from __future__ import annotations

import threading
from typing import Final

from opentelemetry.trace import SpanContext

from ..values.message_id import MessageId

# A letter is usually written within a second of its attempt.
_LIMIT: Final = 10_000


class RecentAttempts:
    """Finds the span of the last attempt at a message. The oldest attempts are forgotten.

    A letter is written after its attempt, often when the span has ended. Messages cannot be
    referenced weakly, so their ids are the keys. Clients in several threads can share one object.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._spans: dict[tuple[str, MessageId], SpanContext] = {}

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, subscription: str, message_id: MessageId, span: SpanContext) -> None:
        key = (subscription, message_id)
        with self._lock:
            self._spans.pop(key, None)  # so that the attempt becomes the newest
            self._spans[key] = span
            if len(self._spans) > self._limit:
                del self._spans[next(iter(self._spans))]

    def pop(self, subscription: str, message_id: MessageId) -> SpanContext | None:
        return self._spans.pop((subscription, message_id), None)
