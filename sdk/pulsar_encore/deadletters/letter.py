"""One dead letter: what it says of its end, and the copy that a replay sends.

Owns `Letter`, a view of a message of a dead-letter topic. Pure. Every property may be missing or
forged: letters of other clients carry Java's names only, and nothing here trusts a value.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any, Final

from .. import letters
from ..consumer.letter_form import content, unreadable
from ..core.forwarding import id_text
from ..errors import ConfigurationError
from ..ids import MessageId
from ..message import Message
from ..outgoing import Outgoing
from ..topic_names import base_name, full_name

_ID: Final = re.compile(
    r"(?:(?P<l0>\d{1,19}):(?P<e0>\d{1,19}):(?:-1|\d{1,9});)?"
    r"(?P<l>\d{1,19}):(?P<e>\d{1,19})(?::(?P<p>-1|\d{1,9})(?::(?P<i>\d{1,9}))?)?",
    re.ASCII,
)
_TOPIC: Final = re.compile(r"(?:non-)?persistent://[^/\s]+/[^/\s]+/[^\s]+")


class Letter:
    """A message of a dead-letter topic.

    Attributes:
        message: As read; the payload, keys and times are there.
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

    def __init__(self, message: Message) -> None:
        self.message: Message = message
        self.id: str = id_text(message.message_id())
        try:
            self.properties: dict[str, str] = message.properties()
            self._readable = True
        except UnicodeDecodeError:
            self.properties = {}
            self._readable = False
        said = self.properties.get
        topic = said(letters.REAL_TOPIC, "").strip()
        self.real_topic: str = base_name(full_name(topic)) if topic else ""
        self.fingerprint: str = said(letters.FINGERPRINT, "")
        self.error_class: str = said(letters.ERROR_CLASS, "")
        self.error_message: str = said(letters.ERROR_MESSAGE, "") or said(letters.REASON, "")
        self.replay_id: str = said(letters.REPLAY_ID, "")
        self.written_ms: int = message.publish_timestamp()

    def evidence(self) -> dict[str, str]:
        """What it says of its way here and its end, by property name, in a fixed order."""
        return {name: self.properties[name] for name in _TOLD if name in self.properties}

    def user_properties(self) -> dict[str, str]:
        """The application's own."""
        return {
            name: value for name, value in self.properties.items() if name not in letters.RESERVED
        }

    @property
    def marked(self) -> bool:
        """Whether its properties are a letter's; also where they cannot be read."""
        return not self.properties.keys().isdisjoint(_MARKS) or not self._readable

    def named_by(self, dead_topic: str) -> bool:
        """Whether a dead-letter topic is named after the topic and subscription, as Java does it.

        `<topic>-<subscription>-DLQ`, also of a partition. Any other name is somebody's choice.
        """
        stem = base_name(dead_topic).removesuffix("-DLQ")
        if stem == base_name(dead_topic) or not self.real_topic:
            return False
        said = self.properties.get(letters.REAL_SUBSCRIPTION)
        if said is None:  # another client's letter
            return stem.startswith(f"{self.real_topic}-")
        return stem.endswith(f"-{said}") and (
            base_name(stem.removesuffix(f"-{said}")) == self.real_topic
        )

    def target(self, dead_topic: str, target: str | None, allowed: Container[str]) -> str:
        """Where a replay sends it.

        Args:
            dead_topic: Full name of the topic it was read from.
            target: Full name of another topic, or None for its own.
            allowed: Topics it may go to that the dead-letter topic is not named after.

        Raises:
            ConfigurationError: It does not say, what it says is no place for it, or nobody chose
                that place.
        """
        topic = target or self.real_topic
        if not topic:
            raise ConfigurationError(
                f"the letter has no {letters.REAL_TOPIC}: name a target topic for it"
            )
        if not _TOPIC.fullmatch(topic) or not topic.isprintable():
            raise ConfigurationError(
                f"its {letters.REAL_TOPIC} {topic[:100]!r} is not the name of a topic: name a "
                "target topic for it"
            )
        if topic == base_name(dead_topic):
            raise ConfigurationError(
                f"its {letters.REAL_TOPIC} is the dead-letter topic itself: name a target topic"
            )
        if target is None and topic not in allowed and not self.named_by(dead_topic):
            raise ConfigurationError(
                f"its {letters.REAL_TOPIC} {topic[:200]!r} is not the topic that {dead_topic} is "
                "named after, and whoever published the message may have written it: choose the "
                "topic by its name to send letters there (real_topics, --real-topic), or name a "
                "target topic"
            )
        return topic

    def copy(self, replay_id: str, *, keep_counters: bool, refuse_bytes: bool = False) -> Outgoing:
        """The message to send: the original's content, and where it comes from.

        Raises:
            NotSupportedError: The transport cannot read, or cannot tell, all of it.
        """
        dropped: frozenset[str] = frozenset() if keep_counters else _RESET
        try:
            given = self.message.properties()
        except UnicodeDecodeError as error:
            raise unreadable(self.message) from error
        fields = content(self.message, refuse_bytes=refuse_bytes)
        properties = {name: value for name, value in given.items() if name not in dropped}
        properties[letters.REPLAY_ID] = replay_id
        properties[letters.REPLAYED_FROM] = self.id
        return Outgoing(properties=properties, **fields)


_MARKS: Final = frozenset({letters.REAL_TOPIC, letters.ORIGIN_MESSAGE_ID})
_RESET: Final = letters.COUNTERS | letters.EVIDENCE
_TOLD: Final = (
    letters.REAL_TOPIC,
    letters.REAL_SUBSCRIPTION,
    letters.ORIGIN_MESSAGE_ID,
    letters.REASON,
    letters.ERROR_CLASS,
    letters.ERROR_MESSAGE,
    letters.ERROR_STACK,
    letters.FINGERPRINT,
    letters.ATTEMPTS,
    letters.RECONSUME_TIMES,
    letters.DELAY_TIME,
    letters.PARKED_LOOKS,
    letters.FIRST_TIME,
    letters.LAST_TIME,
    letters.CONSUMER,
    letters.VERSION,
    letters.REPLAY_ID,
    letters.REPLAYED_FROM,
)


def parse_id(text: str) -> MessageId:
    """The id that `id_text` wrote; a chunked one has its first chunk.

    Raises:
        ConfigurationError: It is not written like one.
    """
    match = _ID.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"{text[:100]!r} is not the id of a letter: write ledger:entry:partition, with :index "
            "behind it in a batch, as the listing shows"
        )
    parts: Mapping[str, Any] = match.groupdict()
    partition = int(parts["p"] or -1)
    first = None
    if parts["l0"] is not None:
        first = MessageId(partition, int(parts["l0"]), int(parts["e0"]))
    index = -1 if parts["i"] is None else int(parts["i"])
    return MessageId(partition, int(parts["l"]), int(parts["e"]), index, first_chunk=first)
