"""Options of retry and dead letters.

Owns `DeadLetterPolicy`, and stock's classes for the same: `ConsumerDeadLetterPolicy`, whoever's it
is, is read as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from .. import stock
from ..errors import ConfigurationError
from ..values.topic_names import full_name
from .checks import boolean, integer, optional_text, text, topic_name

DEFAULT_MAX_RECONSUME: Final = 16  # Java's MAX_RECONSUMETIMES
_MAX_INT: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class DeadLetterPolicy:
    """When a message is given up, and where it goes.

    Args:
        max_redeliver_count: M, at least 1. The application sees a message M + 1 times. On several
            consumers, a message of a batch is dead-lettered when it fails after M failed attempts
            at this consumer and redeliveries of the batch by others, taken together.
        dead_letter_topic: None for Java's name, `<topic>-<subscription>-DLQ`.
        retry_letter_topic: None for Java's name, `<topic>-<subscription>-RETRY`.
        initial_subscription_name: A subscription to create on the dead-letter topic before the
            first dead letter, so that nothing there is trimmed unread.
        text_keys: The topics' keys are text, also where they read as base64 of bytes. Without it a
            message with such a key is not copied where the transport cannot tell the two apart.

    Raises:
        ConfigurationError: A value is wrong; the text names it.
    """

    max_redeliver_count: int
    dead_letter_topic: str | None = None
    retry_letter_topic: str | None = None
    initial_subscription_name: str | None = None
    text_keys: bool = False

    def __post_init__(self) -> None:
        integer(self.max_redeliver_count, "max_redeliver_count", low=1, high=_MAX_INT)
        for name in ("dead_letter_topic", "retry_letter_topic"):
            if getattr(self, name) is not None:
                topic_name(getattr(self, name), name)
        optional_text(self.initial_subscription_name, "initial_subscription_name")
        boolean(self.text_keys, "text_keys")
        dead, retry = self.dead_letter_topic, self.retry_letter_topic
        if dead is not None and retry is not None and full_name(dead) == full_name(retry):
            raise ConfigurationError("dead_letter_topic and retry_letter_topic must differ")


class ConsumerDeadLetterPolicy:
    """Stock's form of a `DeadLetterPolicy`.

    Args:
        max_redeliver_count: At least 1.
        dead_letter_topic: None for Java's name, `<topic>-<subscription>-DLQ`.
        initial_subscription_name: A subscription to create on it, or None.

    Raises:
        ConfigurationError: A value is wrong; the text names it.
    """

    def __init__(
        self,
        max_redeliver_count: int,
        dead_letter_topic: str | None = None,
        initial_subscription_name: str | None = None,
    ) -> None:
        self._policy = DeadLetterPolicy(
            max_redeliver_count,
            dead_letter_topic or None,
            initial_subscription_name=initial_subscription_name or None,
        )

    @property
    def dead_letter_topic(self) -> str:
        """ "" when none was named."""
        return self._policy.dead_letter_topic or ""

    @property
    def max_redeliver_count(self) -> int:
        return self._policy.max_redeliver_count

    @property
    def initial_subscription_name(self) -> str:
        """ "" when none was named."""
        return self._policy.initial_subscription_name or ""

    def policy(self) -> Any:
        """The C++ library's object, as stock's own code takes it."""
        builder = stock.library().DeadLetterPolicyBuilder()
        builder.maxRedeliverCount(self.max_redeliver_count)
        builder.deadLetterTopic(self.dead_letter_topic)
        builder.initialSubscriptionName(self.initial_subscription_name)
        return builder.build()

    def __repr__(self) -> str:
        return (
            f"ConsumerDeadLetterPolicy({self.max_redeliver_count}, {self.dead_letter_topic!r}, "
            f"{self.initial_subscription_name!r})"
        )


class BuiltDeadLetterPolicy:
    """What a `DeadLetterPolicyBuilder` was told; made by it."""

    def __init__(self, topic: str, count: int, subscription: str) -> None:
        self._topic = topic
        self._count = count
        self._subscription = subscription

    def getDeadLetterTopic(self) -> str:
        return self._topic

    def getMaxRedeliverCount(self) -> int:
        return self._count

    def getInitialSubscriptionName(self) -> str:
        return self._subscription


class DeadLetterPolicyBuilder:
    """As stock's, which its `ConsumerDeadLetterPolicy` is made by; each setter returns it."""

    def __init__(self) -> None:
        self._topic = ""
        self._count = _MAX_INT
        self._subscription = ""

    def deadLetterTopic(self, topic: str) -> DeadLetterPolicyBuilder:
        self._topic = topic_name(topic, "deadLetterTopic")
        return self

    def maxRedeliverCount(self, count: int) -> DeadLetterPolicyBuilder:
        self._count = integer(count, "maxRedeliverCount", low=1, high=_MAX_INT)
        return self

    def initialSubscriptionName(self, name: str) -> DeadLetterPolicyBuilder:
        self._subscription = text(name, "initialSubscriptionName")
        return self

    def build(self) -> BuiltDeadLetterPolicy:
        return BuiltDeadLetterPolicy(self._topic, self._count, self._subscription)


def policy_of(value: Any) -> DeadLetterPolicy | None:
    """A `DeadLetterPolicy`, stock's `ConsumerDeadLetterPolicy` translated, or None.

    Raises:
        ConfigurationError: It is none of these.
    """
    if value is None or isinstance(value, DeadLetterPolicy):
        return value
    try:
        return DeadLetterPolicy(
            max_redeliver_count=value.max_redeliver_count,
            dead_letter_topic=value.dead_letter_topic or None,
            initial_subscription_name=value.initial_subscription_name or None,
        )
    except AttributeError as error:
        raise ConfigurationError(
            "dead_letter_policy must be a DeadLetterPolicy or stock's ConsumerDeadLetterPolicy"
        ) from error
