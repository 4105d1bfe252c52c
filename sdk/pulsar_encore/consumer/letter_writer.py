"""What a letter says: the copy of its original, where it came from, and why it failed.

Owns `LetterWriter`. Names of properties are `letters`', rules of Java's are `core.forwarding`'s.
What the transport cannot read is refused by name, never mangled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import letters
from ..core.attempts import Attempt
from ..core.forwarding import is_letter, letter_properties
from ..errors import ConfigurationError
from ..evidence import Evidence, evidence_of
from ..message import Message
from .letter_form import content, unreadable


class LetterWriter:
    """Writes the letters of one consumer.

    Args:
        subscription: Its name, for REAL_SUBSCRIPTION.
        consumer_name: For the evidence.
        version: Of this package, for the evidence.
        refuse_bytes: Keys that read as bytes are not copied (`letter_form.content`).
        reads_letters: Whether a topic is the consumer's retry-letter topic.
    """

    def __init__(
        self,
        subscription: str,
        consumer_name: str,
        version: str,
        *,
        refuse_bytes: bool,
        reads_letters: Callable[[str], bool],
    ) -> None:
        self._subscription = subscription
        self._refuse_bytes = refuse_bytes
        self._reads_letters = reads_letters
        self._consumer_name = consumer_name
        self._version = version

    def copy(self, message: Message, real_topic: str) -> dict[str, Any]:
        """The fields of an `Outgoing`: everything of the original that a letter keeps.

        Raises:
            NotSupportedError: The transport cannot read all of it.
        """
        fields = content(message, refuse_bytes=self._refuse_bytes)
        try:
            own = message.properties()
        except UnicodeDecodeError as error:
            raise unreadable(message) from error
        topic = message.topic_name()
        fields["properties"] = letter_properties(
            own,
            message.message_id(),
            real_topic=real_topic,
            subscription=self._subscription,
            letter=self._reads_letters(topic) or is_letter(own, topic, self._subscription),
        )
        return fields

    def witness(
        self,
        properties: dict[str, str],
        evidence: Evidence | None,
        reason: str,
        attempts: int,
        wall_now: int,
    ) -> None:
        """What a dead letter says of its end; without new evidence, what it brought along."""
        if evidence is not None or letters.FINGERPRINT not in properties:
            tell(properties, evidence or evidence_of(None, reason))
        properties.setdefault(letters.FIRST_TIME, str(wall_now))
        properties[letters.LAST_TIME] = str(wall_now)
        properties[letters.ATTEMPTS] = str(attempts)
        properties[letters.CONSUMER] = self._consumer_name
        properties[letters.VERSION] = self._version


def tell(properties: dict[str, str], evidence: Evidence) -> None:
    """All of one failure, and nothing of the one before."""
    for name in letters.FAILURE:
        properties.pop(name, None)
    properties.update(evidence.properties())


def first_failed(properties: dict[str, str], attempt: Attempt | None) -> None:
    """When the first look failed, unless the message brought that along."""
    if attempt is not None:
        properties.setdefault(letters.FIRST_TIME, str(attempt.first_ms))


def checked_properties(properties: Mapping[str, str] | None) -> dict[str, str]:
    """Custom properties of a letter: strings, and none of the names that letters use.

    Raises:
        ConfigurationError: Anything else.
    """
    if properties is None:
        return {}
    if not isinstance(properties, Mapping):
        raise ConfigurationError("properties must be a dict of strings")
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name:
            raise ConfigurationError(f"properties[{name!r}] and its name must be strings")
        if name in letters.RESERVED:
            raise ConfigurationError(f"the property name {name} is reserved for letters")
        try:
            f"{name}{value}".encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"properties[{name!r}] cannot be written as UTF-8") from error
    return dict(properties)
