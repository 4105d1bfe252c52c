"""The kinds of entries, as `EntryReader` returns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ....options import ConsumerCryptoFailureAction
from ....wire import pulsar_pb2 as pb
from .message_views import BatchMessage, PlainMessage, SealedMessage


class BatchEntry(NamedTuple):
    """The messages of a batch.

    Attributes:
        batch_size: Messages in the entry, compacted ones included.
        indexes: The batch indexes of `messages`; None for all.
    """

    batch_size: int
    messages: Sequence[BatchMessage]
    indexes: list[int] | None = None


class Marker(NamedTuple):
    """An entry that brokers wrote for themselves."""

    kind: int


class ChunkEntry(NamedTuple):
    """A chunk of a message.

    Attributes:
        body: ``md_size metadata payload``.
        payload: The chunk's part of the compressed payload, decrypted.
        sealed: The chunk could not be decrypted; `payload` is still encrypted.
    """

    metadata: pb.MessageMetadata
    body: bytes
    payload: bytes
    sealed: bool = False


class UndecryptableEntry(NamedTuple):
    """An entry that cannot be decrypted here and is not delivered.

    Attributes:
        messages: Number of messages in the entry.
        action: FAIL leaves the entry unacked, DISCARD acks it.
    """

    messages: int
    action: ConsumerCryptoFailureAction
    error: Exception


class CompressedEntry(NamedTuple):
    """An entry, or a complete chunked message, that is decompressed later.

    Attributes:
        metadata: The metadata of the entry, or of the last chunk.
        size: Bytes of the payload after decompression, as its metadata says.
    """

    metadata: pb.MessageMetadata
    payload: bytes
    size: int

    @property
    def messages(self) -> int:
        """Number of messages in the entry, as its metadata says."""
        return max(1, self.metadata.num_messages_in_batch)


EntryContent = (
    PlainMessage | BatchEntry | Marker | ChunkEntry | UndecryptableEntry | CompressedEntry
)


def messages_charged(opened: EntryContent, ack_set: int) -> int:
    """Return the permits that the broker took for an entry: its messages without the acked ones."""
    if isinstance(opened, BatchEntry):
        count = opened.batch_size
    elif isinstance(opened, UndecryptableEntry | CompressedEntry | SealedMessage):
        count = opened.messages
    else:
        return 1
    if ack_set == -1:
        return count
    if count < ack_set.bit_length():
        ack_set &= (1 << count) - 1
    return ack_set.bit_count()
