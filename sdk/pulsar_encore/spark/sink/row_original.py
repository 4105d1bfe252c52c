"""A row that was read from Pulsar, as the original of a letter.

`RowOriginal` has the methods of an `OriginalMessage` and of the message that
`letters.letter_reader` reads. The row is clear text, so it has no encryption context. Its publish
time is never used.
"""

from __future__ import annotations

from base64 import b64encode

from ...values.message_id import MessageId


class RowOriginal:
    """One row.

    Args:
        topic, message_id: Full name of the topic that it was read from, and its id there.
        value: Its payload; None for a tombstone.
        properties: All properties.
        key, ordering_key: As given to the producer, or None.
        event_ms: Event time in ms since the epoch, or 0.
        schema_version: The version as the broker wrote it, or None.
    """

    __slots__ = (
        "_event_ms",
        "_key",
        "_message_id",
        "_ordering_key",
        "_properties",
        "_schema_version",
        "_topic",
        "_value",
    )

    def __init__(
        self,
        topic: str,
        message_id: MessageId,
        value: bytes | None,
        properties: dict[str, str],
        key: str | bytes | None,
        ordering_key: str | bytes | None,
        event_ms: int,
        schema_version: bytes | None,
    ) -> None:
        self._topic = topic
        self._message_id = message_id
        self._value = value
        self._properties = properties
        self._key = key
        self._ordering_key = ordering_key
        self._event_ms = event_ms
        self._schema_version = schema_version

    def data(self) -> bytes:
        return self._value or b""

    def has_null_value(self) -> bool:
        return self._value is None

    def partition_key(self) -> str:
        key = self._key
        return b64encode(key).decode() if isinstance(key, bytes) else key or ""

    def partition_key_bytes(self) -> bytes | None:
        return _bytes(self._key)

    def ordering_key_bytes(self) -> bytes | None:
        return _bytes(self._ordering_key)

    def event_timestamp(self) -> int:
        return self._event_ms

    def publish_timestamp(self) -> int:
        return 0

    def properties(self) -> dict[str, str]:
        return dict(self._properties)

    def message_id(self) -> MessageId:
        return self._message_id

    def topic_name(self) -> str:
        return self._topic

    def int_schema_version(self) -> int:
        return int.from_bytes(self._schema_version, "big") if self._schema_version else -1

    def encryption_context(self) -> None:
        return None


def _bytes(key: str | bytes | None) -> bytes | None:
    return key.encode() if isinstance(key, str) else key
