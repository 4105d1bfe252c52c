"""A batch's bytes as messages, for who has an entry from elsewhere, under stock's name.

Owns `MessageBatch`. It knows what is in the batch: of what the entry's metadata say (producer,
publish time, schema version) the messages have nothing.
"""

from __future__ import annotations

from typing import Any, Final, Self

from .errors import ConfigurationError
from .message import Message
from .options.checks import integer
from .transport.native.consumer.message_views import Batch, BatchMessage
from .values.message_id import MessageId
from .wire import pulsar_pb2 as pb
from .wire.entries import decode_batch

_SIZE_BYTES: Final = 4  # bytes of a size, before each message's metadata


class MessageBatch:
    """Reads the payload of a batch, not compressed."""

    def __init__(self) -> None:
        self._id = MessageId()

    def with_message_id(self, msg_id: Any) -> Self:
        """Say which entry it is; each message gets the id of its place there.

        Args:
            msg_id: A `MessageId`, stock's or ours.

        Raises:
            ConfigurationError: It is none.
        """
        self._id = MessageId.wrap(msg_id)
        return self

    def parse_from(self, data: bytes, size: int) -> list[Message]:
        """The messages.

        Args:
            data: The payload.
            size: How many they are.

        Raises:
            ConfigurationError: An argument is of another kind.
            EntryError: The bytes are no batch of so many.
        """
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise ConfigurationError(f"data must be bytes, got {type(data).__name__}")
        integer(size, "size", low=1)
        buffer, entry = bytes(data), self._id
        batch = Batch(_UnknownOrigin(), b"", buffer, pb.MessageMetadata())
        messages: list[Message] = []
        at = 0
        for index, (_, payload) in enumerate(decode_batch(buffer, size)):
            message_id = MessageId(
                entry.partition(), entry.ledger_id(), entry.entry_id(), index, batch_size=size
            )
            messages.append(Message.of_reader(BatchMessage(batch, at), None, message_id))
            metadata_size = int.from_bytes(buffer[at : at + _SIZE_BYTES], "big")
            at += _SIZE_BYTES + metadata_size + len(payload)
        return messages


class _UnknownOrigin:
    """Where the bytes came from, as far as they say (`Origin`)."""

    topic = ""
