"""Options for retry letters and dead letters: ours and the classes of `pulsar-client`."""

from __future__ import annotations

from collections.abc import Callable
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
    """When a message is dead-lettered, and the names of the letter topics.

    Args:
        max_redeliver_count: The number M of redeliveries, at least 1. The application gets a
            failing message M + 1 times. With several consumers, M counts the failed attempts of a
            batch message at this consumer plus the redeliveries of its batch to others.
        dead_letter_topic: None for Java's name, `<topic>-<subscription>-DLQ`. Without
            `retry_enable` it has a topic for each partition. A function gets the full name of a
            message's topic, without partition, and returns the name; it is called once for each
            topic.
        retry_letter_topic: None for Java's name, `<topic>-<subscription>-RETRY`.
        initial_subscription_name: Subscription that is created on the dead letter topic before the
            first dead letter, so that dead letters are kept until they are read.
        text_keys: All keys are text, even if they look like the base64 of bytes. Without it, a
            message with such a key is not copied if the transport cannot tell text from bytes.
        transactional: A letter and the ack of its message are one transaction, so that each message
            has one letter also after a crash. Native transport only, without ordered leases and
            non-persistent topics. See `docs/transactions.md`.

    Raises:
        ConfigurationError: if a value is wrong.

    Example:
        ```python
        policy = pulsar_encore.DeadLetterPolicy(3, initial_subscription_name="inspect")
        consumer = await client.subscribe(
            "orders", "billing", pulsar_encore.ConsumerType.Shared, dead_letter_policy=policy
        )
        ```
    """

    max_redeliver_count: int
    dead_letter_topic: str | Callable[[str], str] | None = None
    retry_letter_topic: str | None = None
    initial_subscription_name: str | None = None
    text_keys: bool = False
    transactional: bool = False

    def __post_init__(self) -> None:
        integer(self.max_redeliver_count, "max_redeliver_count", low=1, high=_MAX_INT)
        for name in ("dead_letter_topic", "retry_letter_topic"):
            if getattr(self, name) is not None and not self._is_function(name):
                topic_name(getattr(self, name), name)
        optional_text(self.initial_subscription_name, "initial_subscription_name")
        boolean(self.text_keys, "text_keys")
        boolean(self.transactional, "transactional")
        dead, retry = self.dead_letter_topic, self.retry_letter_topic
        if isinstance(dead, str) and retry is not None and full_name(dead) == full_name(retry):
            raise ConfigurationError("dead_letter_topic and retry_letter_topic must differ")

    def _is_function(self, name: str) -> bool:
        return name == "dead_letter_topic" and callable(self.dead_letter_topic)


class ConsumerDeadLetterPolicy:
    """A `DeadLetterPolicy` in the form of `pulsar-client`.

    Args:
        max_redeliver_count: At least 1.
        dead_letter_topic: None for Java's name, `<topic>-<subscription>-DLQ`.
        initial_subscription_name: Subscription to create on the dead letter topic, or None.

    Raises:
        ConfigurationError: if a value is wrong.
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
        """The name, or "" if none was given."""
        topic = self._policy.dead_letter_topic
        return topic if isinstance(topic, str) else ""

    @property
    def max_redeliver_count(self) -> int:
        return self._policy.max_redeliver_count

    @property
    def initial_subscription_name(self) -> str:
        """The name, or "" if none was given."""
        return self._policy.initial_subscription_name or ""

    def policy(self) -> Any:
        """Return the policy as an object of the C++ client."""
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
    """The result of `DeadLetterPolicyBuilder.build`."""

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
    """The builder class of `pulsar-client`. Each setter returns the builder."""

    __module__ = "pulsar_encore"

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
            "dead_letter_policy must be a DeadLetterPolicy or a ConsumerDeadLetterPolicy"
        ) from error
