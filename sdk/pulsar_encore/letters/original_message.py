"""A message that is copied: what a letter takes of it, and what no letter can take.

Owns `OriginalMessage`, the least that a letter needs to be written; `pulsar_encore.Message` is one.
What cannot be read of it, or not told apart, is refused by name: a copy would mangle it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol

from ..errors import NotSupportedError, UnreadableError
from ..values.message_id import MessageId

# Base64 as an encoder writes it, with padding: unused bits are 0.
_PADDED: Final = re.compile(
    r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)"
)


class OriginalEncryptionKey(Protocol):
    """One of the keys that a message was encrypted with."""

    @property
    def key(self) -> str:
        """Its name."""


class Encryption(Protocol):
    """How a message was encrypted."""

    def keys(self) -> Sequence[OriginalEncryptionKey]: ...
    def is_decryption_failed(self) -> bool: ...


class OriginalMessage(Protocol):
    """A message as it was received; absent are "", 0, and -1 or less for the schema version.

    The keys and `properties` raise `UnreadableError` where the transport cannot read them.
    `partition_key` is the base64 of a key that was sent as bytes.
    """

    def data(self) -> bytes: ...
    def has_null_value(self) -> bool: ...
    def partition_key(self) -> str: ...
    def partition_key_bytes(self) -> bytes | None: ...
    def ordering_key_bytes(self) -> bytes | None: ...
    def event_timestamp(self) -> int:
        """In ms since the epoch."""

    def properties(self) -> dict[str, str]: ...
    def message_id(self) -> MessageId: ...
    def topic_name(self) -> str:
        """Full name of the topic it was read from, of the partition if it has any."""

    def int_schema_version(self) -> int: ...
    def encryption_context(self) -> Encryption | None:
        """None for clear text."""


def keys_of(
    original: OriginalMessage, *, refuse_byte_keys: bool
) -> tuple[str | bytes | None, str | bytes | None]:
    """Its partition key and its ordering key, as a copy has to be given them; None where absent.

    Args:
        original: The message.
        refuse_byte_keys: The transport cannot tell keys of bytes from text, and nobody said which
            they are.

    Raises:
        UnreadableError: They cannot be read.
        NotSupportedError: They cannot be told from bytes.
    """
    text = original.partition_key()
    if refuse_byte_keys and reads_as_bytes(text):
        raise NotSupportedError(
            f"the key {text[:100]!r} of {original.message_id()!r} reads as one of bytes (base64, "
            "as Java's keyBytes are sent), and the transport cannot copy those: the copy's key "
            "would be another. If the topic's keys are text, say so with text_keys=True "
            "(--text-keys)"
        )
    return _as_sent(original, text), _text_if_any(original.ordering_key_bytes())


def _as_sent(original: OriginalMessage, text: str) -> str | bytes | None:
    """A partition key as it was given to its producer: bytes, or text."""
    try:
        key = original.partition_key_bytes()
    except UnreadableError:  # and it is no key of bytes, or somebody said that none are
        return text or None
    return text if key is not None and key == text.encode() else key


def _text_if_any(key: bytes | None) -> str | bytes | None:
    """An ordering key: on the wire text and bytes are the same, and every transport takes text."""
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return key


def reads_as_bytes(key: str) -> bool:
    """Whether a key is padded base64, which is what bytes look like without a flag that says so.

    Without padding (bytes in threes) it cannot be told from any word of four letters.
    """
    return key.endswith("=") and _PADDED.fullmatch(key) is not None
