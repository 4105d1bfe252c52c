"""Reading letters: what a message of a dead-letter topic says of its way there and its end.

Owns `LetterFacts`. Every property may be missing or forged: letters of other clients carry Java's
names only, and nothing here trusts a value.
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
_TOLD: Final = (
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
    """A message of a topic, as far as reading it as a letter goes."""

    def properties(self) -> dict[str, str]: ...
    def message_id(self) -> MessageId: ...
    def publish_timestamp(self) -> int:
        """In ms since the epoch."""


M = TypeVar("M", bound=LetterMessage)


class LetterFacts(Generic[M]):
    """A message of a dead-letter topic.

    Attributes:
        message: As read.
        id: Its own id as text, `ledger:entry:partition`, in a batch `:index` behind it.
        properties: All of them; empty when they cannot be read as text.
        real_topic: Full name of the topic it died on, without partition; "" when it does not say.
        fingerprint: Of the failure; "" without evidence.
        error_class: Of the failure; "" without evidence.
        error_message: Of the failure; "" without evidence.
        replay_id: Of the replay it has been through before it died again; "" for none.
        written_ms: When it was written to the dead-letter topic, ms since the epoch.
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
        said = self.properties.get
        topic = said(REAL_TOPIC, "").strip()
        self.real_topic: str = base_name(full_name(topic)) if topic else ""
        self.fingerprint: str = said(FINGERPRINT, "")
        self.error_class: str = said(ERROR_CLASS, "")
        self.error_message: str = said(ERROR_MESSAGE, "") or said(REASON, "")
        self.replay_id: str = said(REPLAY_ID, "")
        self.written_ms: int = message.publish_timestamp()

    def evidence(self) -> dict[str, str]:
        """What it says of its way here and its end, by property name, in a fixed order."""
        return {name: self.properties[name] for name in _TOLD if name in self.properties}

    def user_properties(self) -> dict[str, str]:
        """The application's own."""
        return {name: value for name, value in self.properties.items() if name not in RESERVED}

    @property
    def marked(self) -> bool:
        """Whether its properties are a letter's; also where they cannot be read."""
        return not self.properties.keys().isdisjoint(_MARKS) or not self._readable
