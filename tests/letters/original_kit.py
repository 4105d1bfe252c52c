"""A table row to copy as a letter. It has the fields of an `Original` but is no `Message`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pulsar_encore import UnreadableError
from pulsar_encore.values.message_id import MessageId
from pulsar_encore.values.outgoing_message import OutgoingMessage, key_bytes, key_text

TOPIC = "persistent://a/b/c"
HERE = MessageId(-1, 5, 6)

T = TypeVar("T")


@dataclass(frozen=True)
class Key:
    key: str


@dataclass(frozen=True)
class Encrypted:
    names: tuple[str, ...]
    failed: bool

    def keys(self) -> list[Key]:
        return [Key(name) for name in self.names]

    def is_decryption_failed(self) -> bool:
        return self.failed


@dataclass(frozen=True, kw_only=True)
class Row:
    """None marks a field that cannot be read, but a payload of None is a tombstone.

    Without `tells_bytes` it is of an engine that cannot tell keys of bytes from text.
    """

    payload: bytes | None = b"payload"
    key: str | bytes | None = ""
    ordering: str | bytes | None = ""
    tells_bytes: bool = True
    event_ms: int = 0
    attributes: Mapping[str, str] | None = field(default_factory=dict)
    id: MessageId = HERE
    topic: str = TOPIC
    schema_version: int = -1
    encrypted_with: tuple[str, ...] = ()
    decrypted: bool = True
    publish_ms: int = 0

    def data(self) -> bytes:
        return self.payload or b""

    def has_null_value(self) -> bool:
        return self.payload is None

    def partition_key(self) -> str:
        return key_text(_readable(self.key))

    def partition_key_bytes(self) -> bytes | None:
        return key_bytes(_readable(self.key if self.tells_bytes else None)) or None

    def ordering_key_bytes(self) -> bytes | None:
        return key_bytes(_readable(self.ordering)) or None

    def event_timestamp(self) -> int:
        return self.event_ms

    def properties(self) -> dict[str, str]:
        return dict(_readable(self.attributes))

    def message_id(self) -> MessageId:
        return self.id

    def topic_name(self) -> str:
        return self.topic

    def int_schema_version(self) -> int:
        return self.schema_version

    def encryption_context(self) -> Encrypted | None:
        if not self.encrypted_with:
            return None
        return Encrypted(self.encrypted_with, not self.decrypted)

    def publish_timestamp(self) -> int:
        return self.publish_ms

    def read_back(self, letter: OutgoingMessage, topic: str, entry: int = 0) -> Row:
        """Return this row's letter, read from the topic that it was published to."""
        return replace(
            self,
            payload=letter.payload,
            key=letter.partition_key or "",
            ordering=letter.ordering_key or "",
            event_ms=letter.event_timestamp or 0,
            attributes=letter.properties,
            id=MessageId(0, 90, entry),
            topic=topic,
        )


def _readable(value: T | None) -> T:
    if value is None:
        raise UnreadableError("a key of raw bytes")
    return value
