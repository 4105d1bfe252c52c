"""The value of a message for a handler. A payload that never decodes rejects the message."""

from __future__ import annotations

from typing import Any

from ..codecs.bound_codec import bind
from ..errors import SchemaVersionError
from ..message import Message, has_schema, raw_of
from .retry_policy import Reject


class Undecodable(Reject):
    """The rejection of a payload that does not decode. Its cause is the evidence."""


def decoded(message: Message[Any]) -> Any:
    """Return the value of a message.

    Raises:
        SchemaVersionError: if the broker could not be asked for the schema. The next attempt may
            succeed.
        Undecodable: if the payload does not decode.
    """
    try:
        return message.value()
    except SchemaVersionError:
        raise
    except Exception as error:
        raise Undecodable(f"the payload does not decode: {error}") from error


def decoded_with(message: Message[Any], schema: Any) -> Any:
    """Do the same with the schema of a worker, if the message was made from its payload alone."""
    if schema is None or has_schema(message):
        return decoded(message)
    raw = raw_of(message)
    received = Message.of_reader(raw, bind(schema, reads=True), message.message_id())
    return decoded(received)
