"""The text of a lease handle."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

from ...errors import ConfigurationError
from ...values.message_id import MessageId


class LeaseHandle(NamedTuple):
    """The content of a handle.

    Attributes:
        message_id: Serialized id of the message.
        granter: Names the consumer that granted the lease.
        number: Number of the lease at that consumer.
        first_ms: First delivery of the entry that is known on disk, in ms since the epoch; 0
            without a state. It changes when the attempts are counted from 1 again.
    """

    topic: str
    message_id: bytes
    granter: str
    number: int
    attempt: int
    first_ms: int


def write(message_id: MessageId, granter: str, number: int, attempt: int, first_ms: int) -> str:
    topic, place = _pack(message_id.topic.encode()), _pack(message_id.serialize())
    return f"{topic}.{place}.{granter}.{number:x}.{attempt:x}.{first_ms:x}"


def read(text: str) -> LeaseHandle:
    if not isinstance(text, str):
        raise ConfigurationError(
            f"a lease's handle is text, got {type(text).__name__}: pass lease.handle as it was"
        )
    try:
        topic, message_id, granter, *numbers = text.split(".")
        number, attempt, first_ms = (int(each, 16) for each in numbers)
        place = _unpack(message_id)
        return LeaseHandle(_unpack(topic).decode(), place, granter, number, attempt, first_ms)
    except ValueError as error:
        raise _no_handle(text) from error


def message_id_of(handle: LeaseHandle) -> MessageId:
    try:
        return MessageId.deserialize(handle.message_id, handle.topic)
    except ConfigurationError as error:
        raise _no_handle(handle.topic) from error


def _no_handle(text: str) -> ConfigurationError:
    return ConfigurationError(f"not a lease's handle: {text[:80]!r}; pass lease.handle as it was")


def _pack(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _unpack(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
