"""A row of a table, copied as a letter: it has what an `Original` has, and is no `Message`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pulsar_encore.ids import MessageId
from pulsar_encore.outgoing import Outgoing

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
    """None stands for what is no text; a payload of None is a tombstone."""

    payload: bytes | None = b"payload"
    key: str | None = ""
    ordering: str | None = ""
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
        return _text(self.key)

    def ordering_key(self) -> str:
        return _text(self.ordering)

    def event_timestamp(self) -> int:
        return self.event_ms

    def properties(self) -> dict[str, str]:
        return dict(_text(self.attributes))

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

    def read_back(self, letter: Outgoing, topic: str, entry: int = 0) -> Row:
        """This row's letter, as it is read from where it was published."""
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


def _text(value: T | None) -> T:
    if value is None:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    return value
