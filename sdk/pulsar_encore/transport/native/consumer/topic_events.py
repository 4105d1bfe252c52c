"""Passes the events of all topics of a consumer to its `DeliveryListener`.

Events may come before the listener is set, and before the listener knows a topic. Notices are kept
until then. Entries cannot come, because no permits are given before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...interface import Deliveries, Delivery, DeliveryListener, RetryNotice, SkippedEntry
from ..connection.retry_log import RetryLog


class TopicEvents:
    """Receives the events of all topics of one consumer, each with the number of the topic.

    Called on the event loop. No `on_...` method may raise or suspend.

    Args:
        on_missing: Called with a topic that its broker does not know, or that has other partitions
            now.
        ended: Called with the first topic that has ended for good, and the error.

    Attributes:
        listener: None until `start`.
        known: The listener knows the topics with smaller numbers.
    """

    def __init__(
        self,
        retry_log: RetryLog,
        on_missing: Callable[[int], None],
        ended: Callable[[int, Exception], None],
    ) -> None:
        self.retry_log: RetryLog = retry_log
        self.listener: DeliveryListener | None = None
        self.known: int = 0
        self.on_missing: Callable[[int], None] = on_missing
        self._ended = ended
        self._early: list[tuple[int, bool | None]] = []
        self._failure: tuple[Exception, int] | None = None  # and the topic that caused it

    def start(self, listener: DeliveryListener, topics: int) -> bool:
        """Pass events to a listener, which knows the first `topics` topics.

        Returns:
            False if the consumer has failed already; the listener gets the error.
        """
        self.listener = listener
        if self._failure is not None:
            listener.on_failed(*self._failure)
            return False
        self.announce(topics)
        return True

    def announce(self, topics: int) -> None:
        """Note how many topics the listener knows, and pass on the notices about them."""
        self.known = topics
        early, self._early = self._early, []
        for topic_number, active in early:
            self._notice(topic_number, active)

    def on_deliveries(self, deliveries: Deliveries) -> None:
        if self.listener is not None:
            self.listener.on_deliveries(deliveries)

    def on_connected(self, topic_number: int) -> None:
        if self.listener is not None:
            self.listener.on_connected((topic_number,))

    def on_disconnected(self, topic_number: int) -> None:
        if self.listener is not None:
            self.listener.on_disconnected((topic_number,))

    def on_seek(self, topic_number: int) -> None:
        if self.listener is not None:
            self.listener.on_seek((topic_number,))

    def on_retrying(self, topic_number: int, notice: RetryNotice) -> None:
        if self.listener is not None and topic_number < self.known:
            self.listener.on_retrying(topic_number, notice)

    def on_failed(self, topic_number: int, error: Exception) -> None:
        if self._failure is not None:
            return
        self._failure = (error, topic_number)
        self._ended(topic_number, error)
        if self.listener is not None:
            self.listener.on_failed(error, topic_number)

    def on_skipped(self, topic_number: int, entries: Sequence[SkippedEntry]) -> None:
        if self.listener is not None:
            self.listener.on_skipped(topic_number, entries)

    def on_all_requested(self, topic_number: int, unseen: Sequence[Delivery]) -> None:
        if self.listener is not None:
            self.listener.on_all_requested(unseen, (topic_number,))

    def on_end_of_topic(self, topic_number: int) -> None:
        self._notice(topic_number, None)

    def on_active_changed(self, topic_number: int, active: bool) -> None:
        self._notice(topic_number, active)

    def _notice(self, topic_number: int, active: bool | None) -> None:
        """Pass on an active change, or the end of a topic (None), once the topic is known."""
        if self.listener is None or topic_number >= self.known:
            self._early.append((topic_number, active))
        elif active is None:
            self.listener.on_end_of_topic(topic_number)
        else:
            self.listener.on_active_changed(topic_number, active)
