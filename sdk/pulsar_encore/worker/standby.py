"""Messages of a Failover topic that arrive before the broker has made this consumer active.

When a consumer joins or leaves, the broker chooses the active consumer of a topic at once, but
rewinds the topic and tells the consumers after `activeConsumerFailoverDelayTimeMillis` (1 s). In
that second it may already send the new consumer the end of the topic, while the former one still
processes earlier messages. All of them are redelivered in order after the rewind.

Pure: it awaits nothing and reads no clock.
"""

from __future__ import annotations

from typing import Generic, TypeVar

M = TypeVar("M")


class Standby(Generic[M]):
    """The topics that this consumer is active for, and the messages that came too early."""

    def __init__(self) -> None:
        self._active: dict[str, bool] = {}
        self._early: dict[str, list[M]] = {}

    def is_known(self, topic: str) -> bool:
        """Return True if the broker has said which consumer is active, since the last connect."""
        return topic in self._active

    def keeps(self, topic: str, message: M) -> bool:
        """Keep a message that came too early; return False if it may be processed."""
        if self._active.get(topic):
            return False
        self._early.setdefault(topic, []).append(message)
        return True

    def became_active(self, topic: str) -> list[M]:
        """Return the messages that came too early. The broker redelivers them."""
        self._active[topic] = True
        return self._early.pop(topic, [])

    def became_inactive(self, topic: str) -> None:
        self._active[topic] = False
        self._early.pop(topic, None)

    def disconnected(self, topic: str) -> None:
        """Forget which consumer is active: the broker chooses again at the reconnect."""
        self._active.pop(topic, None)
