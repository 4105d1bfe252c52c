"""Reading the facts of a letter from its properties.

Every property may be missing or forged. Letters of other clients carry Java's names only.
"""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar

from ..errors import UnreadableError
from ..values.message_id import MessageId
from ..values.topic_names import base_name, full_name
from .id_text import id_text
from .properties import (
    ATTEMPTS,
    CONSUMER,
    DELAY_TIME,
    ERROR_CLASS,
    ERROR_MESSAGE,
    ERROR_STACK,
    FINGERPRINT,
    FIRST_TIME,
    LAST_TIME,
    ORIGIN_MESSAGE_ID,
    PARKED_LOOKS,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    REASON,
    RECONSUME_TIMES,
    REPLAY_ID,
    REPLAYED_FROM,
    RESERVED,
    VERSION,
)

_MARKS: Final = frozenset({REAL_TOPIC, ORIGIN_MESSAGE_ID})
_EVIDENCE_ORDER: Final = (
    REAL_TOPIC,
    REAL_SUBSCRIPTION,
    ORIGIN_MESSAGE_ID,
    REASON,
    ERROR_CLASS,
    ERROR_MESSAGE,
    ERROR_STACK,
    FINGERPRINT,
    ATTEMPTS,
    RECONSUME_TIMES,
    DELAY_TIME,
    PARKED_LOOKS,
    FIRST_TIME,
    LAST_TIME,
    CONSUMER,
    VERSION,
    REPLAY_ID,
    REPLAYED_FROM,
)


class LetterMessage(Protocol):
    def properties(self) -> dict[str, str]: ...
    def message_id(self) -> MessageId: ...
    def publish_timestamp(self) -> int:
        """Return the publish time in ms since the epoch."""


M = TypeVar("M", bound=LetterMessage)


class LetterFacts(Generic[M]):
    """A message of a dead letter topic, with the facts from its properties, "" where absent.

    Attributes:
        id: Id of the letter as text: `ledger:entry:partition`, and `:index` in a batch.
        properties: All properties; empty if they cannot be read as text.
        real_topic: Full name of the topic where the message failed, without partition.
        replay_id: Id of the last replay of this message.
        written_ms: Publish time on the dead letter topic, ms since the epoch.
    """

    __slots__ = (
        "_readable",
        "error_class",
        "error_message",
        "fingerprint",
        "id",
        "message",
        "properties",
        "real_topic",
        "replay_id",
        "written_ms",
    )

    def __init__(self, message: M) -> None:
        self.message: M = message
        self.id: str = id_text(message.message_id())
        try:
            self.properties: dict[str, str] = message.properties()
            self._readable = True
        except UnreadableError:
            self.properties = {}
            self._readable = False
        get = self.properties.get
        topic = get(REAL_TOPIC, "").strip()
        self.real_topic: str = base_name(full_name(topic)) if topic else ""
        self.fingerprint: str = get(FINGERPRINT, "")
        self.error_class: str = get(ERROR_CLASS, "")
        self.error_message: str = get(ERROR_MESSAGE, "") or get(REASON, "")
        self.replay_id: str = get(REPLAY_ID, "")
        self.written_ms: int = message.publish_timestamp()

    def evidence(self) -> dict[str, str]:
        """Return the origin and the failure of the message, by property name, in a fixed order."""
        return {name: self.properties[name] for name in _EVIDENCE_ORDER if name in self.properties}

    def user_properties(self) -> dict[str, str]:
        return {name: value for name, value in self.properties.items() if name not in RESERVED}

    @property
    def marked(self) -> bool:
        """True if the properties are those of a letter, or cannot be read."""
        return not self.properties.keys().isdisjoint(_MARKS) or not self._readable
