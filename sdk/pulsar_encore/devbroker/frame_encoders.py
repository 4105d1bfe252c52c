"""Encode MESSAGE and SEND_RECEIPT without protobuf.

These two are four fifths of the commands that a broker writes. With protobuf they cost more than
the rest of a delivery.
"""

from __future__ import annotations

from ..wire.ack_set_words import to_words
from ..wire.varints import SMALL_VARINTS, varint
from .rules.topic_log import LogEntry


class IdEncoder:
    """Encodes ids of one topic: 0:0 if it is non-persistent."""

    __slots__ = ("_head", "_ledger", "_persistent", "_tail")

    def __init__(self, partition: int, persistent: bool = True) -> None:
        self._persistent = persistent
        self._ledger = -1
        self._head = b""
        self._tail = b"\x18" + varint(partition)

    def encode(self, entry: LogEntry) -> bytes:
        """Return `MessageIdData` with its length prefix."""
        if not self._persistent:
            body = b"\x08\x00\x10\x00" + self._tail
            return SMALL_VARINTS[len(body)] + body
        if entry.ledger != self._ledger:
            self._ledger = entry.ledger
            self._head = b"\x08" + varint(entry.ledger) + b"\x10"
        at = entry.entry
        body = self._head + (SMALL_VARINTS[at] if at < 16_384 else varint(at)) + self._tail
        return SMALL_VARINTS[len(body)] + body


class MessageEncoder:
    """Encodes MESSAGE for one consumer."""

    __slots__ = ("_head", "_ids")

    def __init__(self, consumer_id: int, partition: int, persistent: bool = True) -> None:
        self._head = b"\x08" + varint(consumer_id) + b"\x12"
        self._ids = IdEncoder(partition, persistent)

    def encode(self, entry: LogEntry, count: int, mask: int | None, epoch: int | None) -> bytes:
        """Return the command without sizes."""
        body = self._head + self._ids.encode(entry)
        if count:
            body += b"\x18" + varint(count)
        if mask is not None:
            for word in to_words(mask, entry.messages):
                body += b"\x20" + varint(word)
        if epoch is not None:
            body += b"\x28" + varint(epoch)
        return b"\x08\x09\x4a" + varint(len(body)) + body


class ReceiptEncoder:
    """Encodes SEND_RECEIPT for one producer."""

    __slots__ = ("_head", "_ids")

    def __init__(self, producer_id: int, partition: int, persistent: bool = True) -> None:
        self._head = b"\x08" + varint(producer_id) + b"\x10"
        self._ids = IdEncoder(partition, persistent)

    def encode(self, sequence_id: int, highest: int | None, entry: LogEntry) -> bytes:
        """Return the command without sizes."""
        body = self._head + varint(sequence_id) + b"\x1a" + self._ids.encode(entry)
        if highest is not None:
            body += b"\x20" + varint(highest)
        return b"\x08\x07\x3a" + varint(len(body)) + body
