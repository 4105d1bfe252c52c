"""Collects messages into batches by count and size, of all messages or of one key each.

Sequence ids rise within a batch and from one batch to the next, because the caller sends all other
messages singly. A broker that deduplicates compares the bounds of a batch, and would drop ids that
are out of order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from ....values.outgoing_message import OutgoingMessage, key_bytes
from ....wire.checksum import Data
from .send_encoder import PlainHeads, described_head, is_plain
from .unconfirmed_frames import Waiter


@dataclass(slots=True, eq=False)
class SendBatch:
    """Messages that become one entry. `message` is the first one, and is sent alone if no other
    joins it."""

    message: OutgoingMessage
    first: int
    last: int
    parts: list[Data] = field(default_factory=list)
    waiters: list[Waiter] = field(default_factory=list)
    size: int = 0


class SendBatches:
    """Collects messages into batches.

    Args:
        max_messages: Most messages that are returned together.
        max_bytes: Most bytes of these, before compression; a single message may have more.
        by_key: One batch for each key, so that Key_Shared can give each to its consumer.
    """

    __slots__ = ("_batches", "_by_key", "_heads", "_max_messages", "count", "max_bytes", "size")

    def __init__(self, *, max_messages: int, max_bytes: int, by_key: bool = False) -> None:
        self._max_messages = max_messages
        self.max_bytes: int = max_bytes
        self._by_key = by_key
        self._heads = PlainHeads()
        self._batches: dict[bytes, SendBatch] = {}
        self.count: int = 0
        self.size: int = 0

    def add(
        self, message: OutgoingMessage, sequence_id: int, waiter: Waiter
    ) -> Sequence[SendBatch]:
        """Add a message with a higher sequence id than all before; return the batches to send now.

        A batch is returned before a message that would make it too large, and with the message that
        makes it full. A message that cannot be encoded raises `ConfigurationError` and is not
        added.
        """
        payload = message.payload
        if payload is not None and is_plain(message):
            head = self._heads.head(len(payload), sequence_id)
            size = len(head) + len(payload)
        else:
            payload = payload or b""
            head = described_head(message, sequence_id)
            size = len(head) + len(payload)
        full: Sequence[SendBatch] = ()
        if self.size + size > self.max_bytes and self.count:
            full = self.take()
        key = _key_of(message) if self._by_key else b""
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = SendBatch(message, sequence_id, sequence_id)
        batch.parts += (head, payload)
        batch.waiters.append(waiter)
        batch.last = sequence_id
        batch.size += size
        self.count += 1
        self.size += size
        if self.count >= self._max_messages or self.size >= self.max_bytes:
            return (*full, *self.take())
        return full

    def take(self) -> list[SendBatch]:
        batches = sorted(self._batches.values(), key=attrgetter("last"))
        self._batches.clear()
        self.count = self.size = 0
        return batches


def _key_of(message: OutgoingMessage) -> bytes:
    """Return the key by which Key_Shared chooses a consumer."""
    key = message.partition_key if message.ordering_key is None else message.ordering_key
    return b"" if key is None else key_bytes(key)
