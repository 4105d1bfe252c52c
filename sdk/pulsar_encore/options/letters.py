"""Options of retry and dead letters.

Owns `DeadLetterPolicy` and the reading of stock's `ConsumerDeadLetterPolicy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ..errors import ConfigurationError
from ..topic_names import full_name
from .checks import boolean, integer, optional_text, topic_name

DEFAULT_MAX_RECONSUME: Final = 16  # Java's MAX_RECONSUMETIMES


@dataclass(frozen=True, slots=True)
class DeadLetterPolicy:
    """When a message is given up, and where it goes.

    Args:
        max_redeliver_count: M, at least 1. The application sees a message M + 1 times.
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
        integer(self.max_redeliver_count, "max_redeliver_count", low=1, high=2**31 - 1)
        for name in ("dead_letter_topic", "retry_letter_topic"):
            if getattr(self, name) is not None:
                topic_name(getattr(self, name), name)
        optional_text(self.initial_subscription_name, "initial_subscription_name")
        boolean(self.text_keys, "text_keys")
        dead, retry = self.dead_letter_topic, self.retry_letter_topic
        if dead is not None and retry is not None and full_name(dead) == full_name(retry):
            raise ConfigurationError("dead_letter_topic and retry_letter_topic must differ")


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
