"""A row that was read from Pulsar, as the original of a letter.

`RowOriginal` has the methods of an `OriginalMessage` and of the message that
`letters.letter_reader` reads. Its publish time is never used.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass

from ...values.message_id import MessageId


@dataclass(slots=True, eq=False)
class RowOriginal:
    """One row.

    `topic` is the full name of the topic that it was read from, and `id` its id there. `value` is
    None for a tombstone. `event_ms` is in ms since the epoch, or 0.
    """

    topic: str
    id: MessageId
    value: bytes | None
    all_properties: dict[str, str]
    key: str | bytes | None
    ordering_key: str | bytes | None
    event_ms: int
    schema_version: bytes | None

    def data(self) -> bytes:
        return self.value or b""

    def has_null_value(self) -> bool:
        return self.value is None

    def partition_key(self) -> str:
        key = self.key
        return b64encode(key).decode() if isinstance(key, bytes) else key or ""

    def partition_key_bytes(self) -> bytes | None:
        return _bytes(self.key)

    def ordering_key_bytes(self) -> bytes | None:
        return _bytes(self.ordering_key)

    def event_timestamp(self) -> int:
        return self.event_ms

    def publish_timestamp(self) -> int:
        return 0

    def properties(self) -> dict[str, str]:
        return dict(self.all_properties)

    def message_id(self) -> MessageId:
        return self.id

    def topic_name(self) -> str:
        return self.topic

    def int_schema_version(self) -> int:
        return int.from_bytes(self.schema_version, "big") if self.schema_version else -1

    def encryption_context(self) -> None:
        return None


def _bytes(key: str | bytes | None) -> bytes | None:
    return key.encode() if isinstance(key, str) else key
