"""What a copy must be written with so that it reads as its original: schema version and secrets.

Owns `Form`, which a letter and its producer share: a producer writes one schema version and
encrypts with one set of keys, so there is one for each form. What the engine underneath cannot copy
is refused by name, before anything is sent or acked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from ..core.forwarding import reads_as_bytes
from ..errors import ConfigurationError, NotSupportedError
from ..message import Message
from ..options import ProducerOptions
from ..topic_names import base_name

SchemaOf = Callable[[str, int], Awaitable[Any]]
"""`Transport.schema_of`."""


class Form(NamedTuple):
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


PLAIN = Form()


def form_of(message: Message) -> Form:
    """The form of a message's copies.

    Raises:
        NotSupportedError: It could not be decrypted: a copy would be unreadable for ever.
    """
    version = message.int_schema_version()
    encrypted = message.encryption_context()
    if version < 0 and encrypted is None:
        return PLAIN
    topic = base_name(message.topic_name()) if version >= 0 else ""
    keyed = version >= 0 and bool(message.partition_key())
    return Form(topic, max(version, -1), keyed, () if encrypted is None else _secrets(encrypted))


def _secrets(encrypted: Any) -> tuple[str, ...]:
    if encrypted.is_decryption_failed():
        raise NotSupportedError(
            "the message is encrypted and was not decrypted here: a copy would lack what decrypts "
            "it; give a crypto_key_reader that has its key"
        )
    return tuple(sorted(key.key for key in encrypted.keys()))


def content(message: Message, *, refuse_bytes: bool) -> dict[str, Any]:
    """The fields of an `Outgoing` that are the original's, its properties aside.

    Args:
        message: The original.
        refuse_bytes: The transport cannot tell keys of bytes from text, and nobody said which
            they are.

    Raises:
        NotSupportedError: The transport cannot read, or cannot tell, all of it.
    """
    try:
        key, event_time = message.partition_key(), message.event_timestamp()
        fields = {
            "payload": None if message.has_null_value() else message.data(),
            "partition_key": key or None,
            "ordering_key": message.ordering_key() or None,
            "event_timestamp": event_time if event_time > 0 else None,
        }
    except UnicodeDecodeError as error:
        raise unreadable(message) from error
    if refuse_bytes and reads_as_bytes(key):
        raise NotSupportedError(
            f"the key {key[:100]!r} of {message.message_id()!r} reads as one of bytes (base64, as "
            "Java's keyBytes are sent), and the engine cannot copy those: the copy's key would be "
            "another. If the topic's keys are text, say so with text_keys=True (--text-keys)"
        )
    return fields


def unreadable(message: Message) -> NotSupportedError:
    """The error for text that is none."""
    return NotSupportedError(
        f"{message.message_id()!r} has a key or property of raw bytes, which this transport cannot "
        "read; a copy would mangle it. Settle it another way, or use text keys"
    )


async def producer_options(
    form: Form, schema_of: SchemaOf, crypto_key_reader: Any, schema: Any = None, **options: Any
) -> ProducerOptions:
    """Options of a producer that writes copies of a form: unbatched, chunked where they are large.

    Args:
        form: What it writes.
        schema_of: Finds the schema of a version.
        crypto_key_reader: Has the keys to encrypt with, or None.
        schema: For messages that were written without one.
        options: Further `ProducerOptions`.

    Raises:
        NotSupportedError: Nothing can write such copies.
        TransportError: The schema cannot be had.
    """
    if form.version >= 0:
        schema = await schema_of(form.topic, form.version)
    if form.keyed and getattr(schema, "key_value", False):
        raise NotSupportedError(
            f"messages of {form.topic} are key-value pairs whose keys are bytes, and the engine "
            "cannot copy those: the copies' keys would be others"
        )
    if form.secrets and crypto_key_reader is None:
        raise ConfigurationError(
            f"copies must be encrypted with {', '.join(form.secrets)}: give a crypto_key_reader"
        )
    return ProducerOptions(
        schema=schema,
        batching_enabled=False,
        chunking_enabled=True,
        encryption_key=form.secrets or None,
        crypto_key_reader=crypto_key_reader if form.secrets else None,
        **options,
    )
