"""Which messages share an entry: batches by count and size, of all messages or of one key.

Owns `SendBatch` and `SendBatches`; pure, and when the time of a batch has come is the caller's
business. A batch is taken before a message that would make it too large, and with the one that
makes it full; batches by key are taken together. Sequence ids only rise within a batch and from one
to the next (the caller sends the others alone): a broker that deduplicates looks at the bounds of a
batch, and what is out of order inside them would be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from ....values.outgoing_message import OutgoingMessage, key_bytes
from ....wire.checksum import Data
from .send_encoder import PlainHeads, described_head, is_plain

W = TypeVar("W")


class SendBatch(Generic[W]):
    """Messages that become one entry.

    Attributes:
        message: The first one, which is sent as it is when it stays the only one.
        first, last: Lowest and highest sequence id.
        parts: Head and payload of each message.
        waiters: Who is told of each message.
        size: Bytes of `parts`.
    """

    __slots__ = ("first", "last", "message", "parts", "size", "waiters")

    def __init__(self, message: OutgoingMessage, sequence_id: int) -> None:
        self.message: OutgoingMessage = message
        self.first: int = sequence_id
        self.last: int = sequence_id
        self.parts: list[Data] = []
        self.waiters: list[W] = []
        self.size: int = 0


class SendBatches(Generic[W]):
    """Collects messages into batches.

    Args:
        max_messages: Most messages in what is taken at once.
        max_bytes: Most bytes in it, heads included and before compression; one message alone may
            have more. May be assigned.
        by_key: One batch for each key, so that Key_Shared can hand each to its consumer.
    """

    __slots__ = ("_batches", "_by_key", "_heads", "_max_messages", "count", "max_bytes", "size")

    def __init__(self, *, max_messages: int, max_bytes: int, by_key: bool = False) -> None:
        self._max_messages = max_messages
        self.max_bytes: int = max_bytes
        self._by_key = by_key
        self._heads = PlainHeads()
        self._batches: dict[bytes, SendBatch[W]] = {}
        self.count: int = 0
        self.size: int = 0

    def add(self, message: OutgoingMessage, sequence_id: int, waiter: W) -> Sequence[SendBatch[W]]:
        """Take a message in, and give out the batches that have to be sent now, in order.

        Args:
            message: What to send.
            sequence_id: Above those of all messages before it.
            waiter: Comes back in `SendBatch.waiters`.

        Raises:
            ConfigurationError: It cannot be written; nothing was taken in.
        """
        payload = message.payload
        if payload is not None and is_plain(message):
            head = self._heads.head(len(payload), sequence_id)
            size = len(head) + len(payload)
        else:
            payload = payload or b""
            head = described_head(message, sequence_id)
            size = len(head) + len(payload)
        full: Sequence[SendBatch[W]] = ()
        if self.size + size > self.max_bytes and self.count:
            full = self.take()
        key = _key_of(message) if self._by_key else b""
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = SendBatch(message, sequence_id)
        batch.parts += (head, payload)
        batch.waiters.append(waiter)
        batch.last = sequence_id
        batch.size += size
        self.count += 1
        self.size += size
        if self.count >= self._max_messages or self.size >= self.max_bytes:
            return (*full, *self.take())
        return full

    def take(self) -> list[SendBatch[W]]:
        """Everything there is, ordered by the last sequence ids."""
        batches = list(self._batches.values())
        self._batches.clear()
        self.count = self.size = 0
        if len(batches) > 1:
            batches.sort(key=_last)
        return batches


def _last(batch: SendBatch[W]) -> int:
    return batch.last


def _key_of(message: OutgoingMessage) -> bytes:
    """What Key_Shared chooses a consumer by, as far as the message says it."""
    key = message.partition_key if message.ordering_key is None else message.ordering_key
    return b"" if key is None else key_bytes(key)
