"""Convert message ids to and from the C++ client's, as bytes, which keep batch size and first
chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pulsar

from ...values.message_id import MessageId

if TYPE_CHECKING:
    _CppMessageId = object  # pulsar-client has no types
else:
    _CppMessageId = pulsar.MessageId


class StockMessageId(MessageId, _CppMessageId):
    """The id of a message that the stock transport received or sent.

    It is also a `pulsar.MessageId`, for code written for that class. It compares and hashes like
    every `MessageId`. Pickles and copies are plain `MessageId`s, which need no C++ client.
    """

    __slots__ = ()


def to_native(message_id: MessageId) -> Any:
    """Return the `_pulsar.MessageId` of an id, for a seek or the start of a reader.

    Never ack with it: without the shared state of the batch, the C++ client acks the whole entry
    (`docs/notes/cpp-client.md#acks`).
    """
    return message_id._msg_id


def from_native(native: Any, topic: str = "") -> MessageId:
    """Return the id of a `_pulsar.MessageId` that belongs to `topic`."""
    read = MessageId.deserialize(native.serialize())
    return StockMessageId(
        read.partition(),
        read.ledger_id(),
        read.entry_id(),
        read.batch_index(),
        batch_size=read.batch_size,
        topic=topic,
        first_chunk=read.first_chunk,
    )
