"""The value of a message for a handler. A payload that never decodes rejects the message."""

from __future__ import annotations

from typing import Any

from ..codecs.bound_codec import bind
from ..errors import SchemaVersionError
from ..letters.evidence import text_of
from ..message import Message, fetch_schema, has_schema, raw_of
from .retry_policy import NoSchema, Reject


class Undecodable(Reject):
    """The rejection of a payload that does not decode. Its cause is the evidence."""


def decoded(message: Message[Any]) -> Any:
    """Return the value of a message.

    Raises:
        SchemaVersionError: if the broker could not be asked for the schema. Then await
            `decoded_after_fetch`.
        Undecodable: if the payload does not decode.
    """
    try:
        return message.value()
    except MemoryError:  # the payload is not to blame
        raise
    except Exception as error:
        if isinstance(error, SchemaVersionError) and error.retryable:
            raise
        raise Undecodable(f"the payload does not decode: {text_of(error)}") from error


async def decoded_after_fetch(message: Message[Any]) -> Any:
    """Return the value of a message after another fetch of its schema version.

    A message that waits in the worker is not redelivered, so nothing else would fetch it.

    Raises:
        NoSchema: if the fetch failed again.
        Undecodable: if the payload does not decode.
    """
    await fetch_schema(message)
    try:
        return decoded(message)
    except SchemaVersionError as error:
        raise NoSchema from error


def decoded_with(message: Message[Any], schema: Any) -> Any:
    """Do the same with the schema of a worker, if the message was made from its payload alone."""
    if schema is None or has_schema(message):
        return decoded(message)
    raw = raw_of(message)
    received = Message.of_reader(raw, bind(schema, reads=True), message.message_id())
    return decoded(received)
