"""Convert message ids to and from the C++ client's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pulsar

from ...values.message_id import MessageId

if TYPE_CHECKING:
    _CppMessageId = object  # pulsar-client has no types
else:
    _CppMessageId = pulsar.MessageId


class StockMessageId(MessageId, _CppMessageId):
    """The id of a message that the stock transport received or sent: a `pulsar.MessageId`, too.

    Pickles and copies are plain `MessageId`s, which need no C++ client.
    """

    __slots__ = ()


def to_native(message_id: MessageId) -> Any:
    """Return the `_pulsar.MessageId` of an id, for a seek or the start of a reader.

    An ack with it would ack the whole entry (`docs/notes/cpp-client.md#acks`).
    """
    return message_id._msg_id


def from_native(native: Any, topic: str = "") -> MessageId:
    # As bytes, because the getters show neither the batch size nor the first chunk.
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
