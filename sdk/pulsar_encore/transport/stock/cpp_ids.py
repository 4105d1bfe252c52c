"""Convert message ids to and from the C++ client's.

An id is passed as bytes, which keep the batch size and the first chunk.
"""

from __future__ import annotations

from typing import Any

import pulsar

from ...values.message_id import MessageId


class StockMessageId(MessageId, pulsar.MessageId):  # type: ignore[misc]
    """The id of a message that the stock transport received or sent.

    It is also a `pulsar.MessageId`, so that code written for that class accepts it. It compares and
    hashes like every `MessageId`. Pickles and copies are plain `MessageId`s, so that a stored id
    needs neither the C++ client nor this module.
    """

    __slots__ = ()


def to_native(message_id: MessageId) -> Any:
    """Return the `_pulsar.MessageId` of an id, for a seek or the start of a reader.

    Never pass it to an ack. It lacks the shared state of the batch, so the C++ client would ack the
    whole entry: `docs/notes/cpp-client.md#acks`.
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
