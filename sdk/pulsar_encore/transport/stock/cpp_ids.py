"""Message ids across the border to the C++ library.

Owns both directions. Ids go over as bytes, which keeps the batch size and the first chunk.
"""

from __future__ import annotations

from typing import Any

import pulsar

from ...values.message_id import MessageId


class StockMessageId(MessageId, pulsar.MessageId):  # type: ignore[misc]
    """The id of a message that the stock transport received or sent.

    It is also a `pulsar.MessageId`, so that code written for that class accepts it. It compares
    and hashes as every `MessageId`. Pickles and copies of it are plain `MessageId`s: a stored id
    must not need the C++ library, or the place of this file.
    """

    __slots__ = ()


def to_native(message_id: MessageId) -> Any:
    """The `_pulsar.MessageId` of an id, for seeking and for a reader's start.

    Never hand the result to an ack: it lacks the batch's shared state, and the library would ack
    the whole entry: `docs/notes/cpp-client.md#acks`.
    """
    return message_id._msg_id


def from_native(native: Any, topic: str = "") -> MessageId:
    """The id of a `_pulsar.MessageId`, known to be of `topic`."""
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
