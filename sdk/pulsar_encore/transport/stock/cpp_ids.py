"""Message ids across the border to the C++ library.

Owns both directions. Ids go over as bytes, which keeps the batch size and the first chunk.
"""

from __future__ import annotations

from typing import Any

from ...values.message_id import MessageId


def to_native(message_id: MessageId) -> Any:
    """The `_pulsar.MessageId` of an id, for seeking and for a reader's start.

    Never hand the result to an ack: it lacks the batch's shared state, and the library would ack
    the whole entry: `docs/notes/cpp-client.md#acks`.
    """
    return message_id._msg_id


def from_native(native: Any, topic: str = "") -> MessageId:
    """The `MessageId` of a `_pulsar.MessageId`, known to be of `topic`."""
    return MessageId.deserialize(native.serialize(), topic)
