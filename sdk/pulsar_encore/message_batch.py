"""The public `MessageBatch`, named as in `pulsar-client`."""

from __future__ import annotations

from typing import Any, Final, Self

from .errors import ConfigurationError
from .message import Message
from .options.checks import integer
from .transport.native.consumer.message_views import Batch, BatchMessage
from .values.message_id import MessageId
from .wire import pulsar_pb2 as pb
from .wire.entries import decode_batch

_SIZE_BYTES: Final = 4  # bytes of the metadata size before each message


class MessageBatch:
    """Parser for the uncompressed payload of a batch that the application got elsewhere.

    The messages have no producer name, publish time or schema version: these are in the metadata of
    the entry, not in its payload.

    Example:
        ```python
        messages = MessageBatch().with_message_id(entry_id).parse_from(payload, 10)
        ```
    """

    __module__ = "pulsar_encore"

    def __init__(self) -> None:
        self._id = MessageId()

    def with_message_id(self, msg_id: Any) -> Self:
        """Set the id of the entry. Each message gets this id with its batch index.

        Args:
            msg_id: A `MessageId` of this package or of `pulsar-client`.

        Raises:
            ConfigurationError: if `msg_id` is not a message id.
        """
        self._id = MessageId.wrap(msg_id)
        return self

    def parse_from(self, data: bytes, size: int) -> list[Message]:
        """Return the messages of a batch.

        Args:
            data: The payload, uncompressed.
            size: Number of messages.

        Raises:
            ConfigurationError: if an argument has the wrong type, or `size` is below 1.
            ProtocolError: if the bytes are not a batch of `size` messages.
        """
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise ConfigurationError(f"data must be bytes, got {type(data).__name__}")
        integer(size, "size", low=1)
        buffer, entry = bytes(data), self._id
        batch = Batch("", b"", buffer, pb.MessageMetadata())
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
