"""The text of a lease's handle: its topic, its message id, and which lease of that message it is.

Pure. Refuses what it did not write; whether the lease is still out is for `Leases` to say.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

from ...errors import ConfigurationError
from ...ids import MessageId


class Handle(NamedTuple):
    """What a handle says.

    Attributes:
        topic: Of the message.
        message_id: Its serialized id.
        granter: Names the consumer that granted the lease.
        number: Of the lease, there: of two leases of one message each has its own.
    """

    topic: str
    message_id: bytes
    granter: str
    number: int


def write(message_id: MessageId, granter: str, number: int) -> str:
    """A handle: letters, digits, `-`, `_` and three dots."""
    topic, place = _pack(message_id.topic.encode()), _pack(message_id.serialize())
    return f"{topic}.{place}.{granter}.{number:x}"


def read(text: str) -> Handle:
    """What a handle says.

    Raises:
        ConfigurationError: It is no handle.
    """
    if not isinstance(text, str):
        raise ConfigurationError(
            f"a lease's handle is text, got {type(text).__name__}: pass lease.handle as it was"
        )
    try:
        topic, message_id, granter, number = text.split(".")
        return Handle(_unpack(topic).decode(), _unpack(message_id), granter, int(number, 16))
    except ValueError as error:
        raise ConfigurationError(
            f"not a lease's handle: {text[:80]!r}; pass lease.handle as it was"
        ) from error


def _pack(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _unpack(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
