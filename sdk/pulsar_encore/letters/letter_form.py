"""What a copy must be written with so that it reads as its original: schema version and secrets.

Owns `LetterForm`, which a letter and its producer share: a producer writes one schema version and
encrypts with one set of keys, so there is one for each form.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import NotSupportedError
from ..values.topic_names import base_name
from .original_message import Encryption, OriginalMessage


class LetterForm(NamedTuple):
    """What all letters of one producer have in common.

    Attributes:
        topic: That has the schema, without partition; "" for messages without a schema version.
        version: The schema version there, -1 for none.
        keyed: It has a schema and a partition key, which some schemas give a meaning.
        secrets: Names of the keys it was encrypted with, in order; empty for clear text.
    """

    topic: str = ""
    version: int = -1
    keyed: bool = False
    secrets: tuple[str, ...] = ()


PLAIN = LetterForm()


def form_of(original: OriginalMessage) -> LetterForm:
    """The form of a message's copies.

    Raises:
        NotSupportedError: It could not be decrypted: a copy would be unreadable for ever.
        UnreadableError: Its key cannot be read.
    """
    version = original.int_schema_version()
    encryption = original.encryption_context()
    if version < 0 and encryption is None:
        return PLAIN
    topic = base_name(original.topic_name()) if version >= 0 else ""
    keyed = version >= 0 and bool(original.partition_key())
    return LetterForm(
        topic, max(version, -1), keyed, () if encryption is None else _secrets(encryption)
    )


def _secrets(encryption: Encryption) -> tuple[str, ...]:
    if encryption.is_decryption_failed():
        raise NotSupportedError(
            "the message is encrypted and was not decrypted here: a copy would lack what decrypts "
            "it; give a crypto_key_reader that has its key"
        )
    return tuple(sorted(each.key for each in encryption.keys()))
