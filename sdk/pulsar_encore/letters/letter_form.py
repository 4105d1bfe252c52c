"""The schema version and encryption keys that a letter needs to read like its original.

A producer has one schema version and one set of keys, so there is one producer for each form.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import NotSupportedError
from ..values.topic_names import base_name
from .original_message import Encryption, OriginalMessage


class LetterForm(NamedTuple):
    """The properties that all letters of one producer share.

    Attributes:
        topic: Topic that has the schema, without partition; "" without a schema version.
        version: Schema version on that topic, -1 for none.
        keyed: True if the message has a schema and a partition key. Some schemas store a part of
            the value in the key.
        secrets: Names of the encryption keys, sorted; empty for clear text.
    """

    topic: str = ""
    version: int = -1
    keyed: bool = False
    secrets: tuple[str, ...] = ()


PLAIN = LetterForm()


def form_of(original: OriginalMessage) -> LetterForm:
    """Return the form of a message's letters.

    Raises NotSupportedError if the message could not be decrypted: nobody could read a copy.
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
            "the message is encrypted and was not decrypted here, so a copy of it could not be "
            "decrypted; give a crypto_key_reader that has its key"
        )
    return tuple(sorted(each.key for each in encryption.keys()))
