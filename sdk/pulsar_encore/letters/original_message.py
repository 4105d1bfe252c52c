"""The message that a letter copies.

`pulsar_encore.Message` implements `OriginalMessage`. If a key or property cannot be read, or bytes
cannot be told from text, a copy would change it silently. So writing the letter fails instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol

from ..errors import NotSupportedError, UnreadableError
from ..values.message_id import MessageId

# Base64 with padding, as an encoder writes it: the unused bits are 0.
_PADDED: Final = re.compile(
    r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)"
)


class OriginalEncryptionKey(Protocol):
    @property
    def key(self) -> str:
        """The name of the key."""


class Encryption(Protocol):
    def keys(self) -> Sequence[OriginalEncryptionKey]: ...
    def is_decryption_failed(self) -> bool: ...


class OriginalMessage(Protocol):
    """A message as it was received.

    Absent values are "" or 0, and -1 or less for the schema version. The keys and `properties`
    raise `UnreadableError` if the transport cannot read them. `partition_key` is the base64 of a
    key that was sent as bytes.
    """

    def data(self) -> bytes: ...
    def has_null_value(self) -> bool: ...
    def partition_key(self) -> str: ...
    def partition_key_bytes(self) -> bytes | None: ...
    def ordering_key_bytes(self) -> bytes | None: ...
    def event_timestamp(self) -> int:
        """Return the event time in ms since the epoch."""

    def properties(self) -> dict[str, str]: ...
    def message_id(self) -> MessageId: ...
    def topic_name(self) -> str:
        """Return the full name of the topic or partition that the message was read from."""

    def int_schema_version(self) -> int: ...
    def encryption_context(self) -> Encryption | None:
        """Return the encryption, None for clear text."""


def keys_of(
    original: OriginalMessage, *, refuse_byte_keys: bool
) -> tuple[str | bytes | None, str | bytes | None]:
    """Return the partition key and the ordering key for a copy; None where absent.

    `refuse_byte_keys` is True if the transport cannot tell byte keys from text keys, and the user
    has not said that all keys are text. A text key that could be a byte key then raises
    NotSupportedError.
    """
    text = original.partition_key()
    if refuse_byte_keys and reads_as_bytes(text):
        raise NotSupportedError(
            f"the key {text[:100]!r} of {original.message_id()!r} looks like a byte key (base64, "
            "as Java's keyBytes are sent), and this transport cannot copy byte keys: the copy "
            "would have another key. If the topic's keys are text, say so with text_keys=True "
            "(--text-keys)"
        )
    return _as_sent(original, text), _text_if_any(original.ordering_key_bytes())


def _as_sent(original: OriginalMessage, text: str) -> str | bytes | None:
    try:
        key = original.partition_key_bytes()
    except UnreadableError:  # the key is text: `keys_of` has refused keys that look like bytes
        return text or None
    return text if key is not None and key == text.encode() else key


def _text_if_any(key: bytes | None) -> str | bytes | None:
    """Return an ordering key, as text if it can be: on the wire, text and bytes are the same."""
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return key


def reads_as_bytes(key: str) -> bool:
    """Return True if a key is padded base64, the form of a byte key without its flag.

    Unpadded base64 (a multiple of three bytes) looks like any word of four letters, so it counts as
    text.
    """
    return key.endswith("=") and _PADDED.fullmatch(key) is not None
