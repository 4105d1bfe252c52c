"""The calls of a topic consumer to the consumer that it belongs to. Contracts; no code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...interface import Deliveries, Delivery, RetryNotice, SkippedEntry
from ..connection.retry_log import RetryLog


class TopicListener(Protocol):
    """Receives the events of all topics of one consumer, each with the number of the topic.

    Called on the event loop. No method may raise or suspend.

    Attributes:
        retry_log: Logs losses and failed attempts to attach, for all topics together.
    """

    retry_log: RetryLog

    def on_deliveries(self, deliveries: Deliveries) -> None:
        """Messages arrived."""

    def on_connected(self, topic_number: int) -> None:
        """The topic is attached. Unconfirmed acks are sent within this call, before permits."""

    def on_disconnected(self, topic_number: int) -> None:
        """The broker does not hold the consumer any more. Unacked messages are redelivered."""

    def on_seek(self, topic_number: int) -> None:
        """A seek succeeded. Later deliveries begin at the new position."""

    def on_retrying(self, topic_number: int, notice: RetryNotice) -> None:
        """An attempt to attach again failed and is retried."""

    def on_missing(self, topic_number: int) -> None:
        """The broker does not know the topic, or the topic has other partitions now."""

    def on_failed(self, topic_number: int, error: Exception) -> None:
        """The consumer of the topic has ended for good."""

    def on_end_of_topic(self, topic_number: int) -> None:
        """The topic was terminated, and the subscription has acked all of it."""

    def on_active_changed(self, topic_number: int, active: bool) -> None:
        """Failover: this consumer receives the topic's messages from now on, or no longer."""

    def on_skipped(self, topic_number: int, entries: Sequence[SkippedEntry]) -> None:
        """A reader skipped entries. Everything before them has been delivered."""

    def on_all_requested(self, topic_number: int, unseen: Sequence[Delivery]) -> None:
        """All unacked messages were requested again; `unseen` had arrived and was dropped."""
