"""Reading the facts of a letter from its properties.

Every property may be missing or forged. Letters of other clients carry Java's names only.
"""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar

from ..errors import UnreadableError
from ..values.message_id import MessageId
from ..values.topic_names import base_name, full_name
from . import property_names as names
from .id_text import id_text

_MARKS: Final = frozenset({names.REAL_TOPIC, names.ORIGIN_MESSAGE_ID})
_EVIDENCE_ORDER: Final = (
    names.REAL_TOPIC,
    names.REAL_SUBSCRIPTION,
    names.ORIGIN_MESSAGE_ID,
    names.REASON,
    names.ERROR_CLASS,
    names.ERROR_MESSAGE,
    names.ERROR_STACK,
    names.FINGERPRINT,
    names.ATTEMPTS,
    names.RECONSUME_TIMES,
    names.DELAY_TIME,
    names.PARKED_LOOKS,
    names.FIRST_TIME,
    names.LAST_TIME,
    names.CONSUMER,
    names.VERSION,
    names.REPLAY_ID,
    names.REPLAYED_FROM,
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
        topic = get(names.REAL_TOPIC, "").strip()
        self.real_topic: str = base_name(full_name(topic)) if topic else ""
        self.fingerprint: str = get(names.FINGERPRINT, "")
        self.error_class: str = get(names.ERROR_CLASS, "")
        self.error_message: str = get(names.ERROR_MESSAGE, "") or get(names.REASON, "")
        self.replay_id: str = get(names.REPLAY_ID, "")
        self.written_ms: int = message.publish_timestamp()

    def evidence(self) -> dict[str, str]:
        """Return the origin and the failure of the message, by property name, in a fixed order."""
        return {name: self.properties[name] for name in _EVIDENCE_ORDER if name in self.properties}

    def user_properties(self) -> dict[str, str]:
        return {
            name: value for name, value in self.properties.items() if name not in names.RESERVED
        }

    @property
    def marked(self) -> bool:
        """True if the properties are those of a letter, or cannot be read."""
        return not self.properties.keys().isdisjoint(_MARKS) or not self._readable
