"""A message that is copied: what a letter takes of it, and what no letter can take.

Owns `Original`, the least that a letter needs to be written; `pulsar_encore.Message` is one. What
cannot be read of it, or not told apart, is refused by name: a copy would mangle it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol

from ..errors import NotSupportedError
from ..ids import MessageId

# Base64 as an encoder writes it, with padding: unused bits are 0.
_PADDED: Final = re.compile(
    r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)"
)


class EncryptionKey(Protocol):
    """One of the keys that a message was encrypted with."""

    @property
    def key(self) -> str:
        """Its name."""


class Encryption(Protocol):
    """How a message was encrypted."""

    def keys(self) -> Sequence[EncryptionKey]: ...
    def is_decryption_failed(self) -> bool: ...


class Original(Protocol):
    """A message as it was received; absent are "", 0, and -1 or less for the schema version.

    `partition_key`, `ordering_key` and `properties` may raise `UnicodeDecodeError` where they are
    no text.
    """

    def data(self) -> bytes: ...
    def has_null_value(self) -> bool: ...
    def partition_key(self) -> str: ...
    def ordering_key(self) -> str: ...
    def event_timestamp(self) -> int:
        """In ms since the epoch."""

    def properties(self) -> dict[str, str]: ...
    def message_id(self) -> MessageId: ...
    def topic_name(self) -> str:
        """Full name of the topic it was read from, of the partition if it has any."""

    def int_schema_version(self) -> int: ...
    def encryption_context(self) -> Encryption | None:
        """None for clear text."""


def properties_of(original: Original) -> dict[str, str]:
    """Its properties.

    Raises:
        NotSupportedError: They are no text.
    """
    try:
        return original.properties()
    except UnicodeDecodeError as error:
        raise _unreadable(original) from error


def keys_of(original: Original, *, refuse_byte_keys: bool) -> tuple[str, str]:
    """Its partition key and its ordering key, "" where absent.

    Args:
        original: The message.
        refuse_byte_keys: The transport cannot tell keys of bytes from text, and nobody said which
            they are.

    Raises:
        NotSupportedError: They are no text, or cannot be told from bytes.
    """
    try:
        key, ordering_key = original.partition_key(), original.ordering_key()
    except UnicodeDecodeError as error:
        raise _unreadable(original) from error
    if refuse_byte_keys and reads_as_bytes(key):
        raise NotSupportedError(
            f"the key {key[:100]!r} of {original.message_id()!r} reads as one of bytes (base64, as "
            "Java's keyBytes are sent), and the transport cannot copy those: the copy's key would "
            "be another. If the topic's keys are text, say so with text_keys=True (--text-keys)"
        )
    return key, ordering_key


def reads_as_bytes(key: str) -> bool:
    """Whether a key is padded base64, which is what bytes look like without a flag that says so.

    Without padding (bytes in threes) it cannot be told from any word of four letters.
    """
    return key.endswith("=") and _PADDED.fullmatch(key) is not None


def _unreadable(original: Original) -> NotSupportedError:
    return NotSupportedError(
        f"{original.message_id()!r} has a key or property of raw bytes, which this transport "
        "cannot read; a copy would mangle it. Settle it another way, or use text keys"
    )
