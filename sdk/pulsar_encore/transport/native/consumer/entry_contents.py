"""The kinds of content that an entry can have, as `EntryReader` returns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ....wire import pulsar_pb2 as pb
from .decryption import Undecrypted
from .messages import BatchMessage, PlainMessage


class Opened(NamedTuple):
    """The messages of a batch.

    Attributes:
        batch_size: Messages in the entry.
        messages: One for each index, or for those in `indexes`.
        indexes: None for all.
    """

    batch_size: int
    messages: Sequence[BatchMessage]
    indexes: list[int] | None = None


class Marker(NamedTuple):
    """An entry that is the brokers' own and no message: it is acked, and nobody sees it."""

    kind: int


class Chunk(NamedTuple):
    """A piece of a message.

    Attributes:
        metadata: Of the piece; uuid, number and total are in it.
        body: ``md_size metadata payload``.
        payload: The piece, in clear if it was encrypted, compressed as the whole.
        sealed: It could not be decrypted, and is as it came.
    """

    metadata: pb.MessageMetadata
    body: bytes
    payload: bytes
    sealed: bool = False


class Withheld(NamedTuple):
    """An entry that cannot be decrypted here, and is not delivered.

    Attributes:
        messages: In it.
        action: What becomes of it.
        error: Why it cannot be read.
    """

    messages: int
    action: Undecrypted
    error: Exception


class Packed(NamedTuple):
    """An entry, or a complete chunked message, whose payload is to be decompressed later.

    Attributes:
        metadata: Of the entry, or of the last chunk.
        payload: Decrypted, compressed.
        size: Bytes of the payload after decompression, as its metadata says.
    """

    metadata: pb.MessageMetadata
    payload: bytes
    size: int

    @property
    def messages(self) -> int:
        """Messages in the entry, as its metadata says."""
        return max(1, self.metadata.num_messages_in_batch)


Read = PlainMessage | Opened | Marker | Chunk | Withheld | Packed


def messages_charged(opened: Read, ack_set: int) -> int:
    """Return the permits that the broker took for an entry: its messages without the acked ones."""
    if isinstance(opened, Opened):
        count = opened.batch_size
    elif isinstance(opened, Withheld | Packed):
        count = opened.messages
    else:
        return 1
    if ack_set == -1:
        return count
    if count < ack_set.bit_length():
        ack_set &= (1 << count) - 1
    return ack_set.bit_count()
