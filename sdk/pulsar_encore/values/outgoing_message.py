"""A message to publish, as the producer gives it to a transport.

A key of bytes differs from the same bytes given as text, and each is sent in its own form.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from typing import Protocol

from .transaction_id import TxnId


class MessageTransaction(Protocol):
    """The transaction that a message belongs to."""

    @property
    def id(self) -> TxnId: ...
    @property
    def may_send(self) -> bool:
        """False as soon as no message of it may leave any more."""


# Not frozen: the nine guarded assignments would be most of its cost for each message.
@dataclass(kw_only=True, slots=True)
class OutgoingMessage:
    """A message to publish. None means absent; `payload` None is a tombstone."""

    payload: bytes | None
    properties: dict[str, str] | None = None
    partition_key: str | bytes | None = None
    ordering_key: str | bytes | None = None
    sequence_id: int | None = None
    replication_clusters: list[str] | None = None
    disable_replication: bool = False
    event_timestamp: int | None = None
    deliver_at: int | None = None
    txn: MessageTransaction | None = None


def key_bytes(key: str | bytes) -> bytes:
    """Return the bytes of a key, which are hashed and which a reader gets."""
    return key if isinstance(key, bytes) else key.encode()


def key_text(key: str | bytes) -> str:
    """Return a partition key in wire form: bytes as base64, which the metadata flags."""
    return b64encode(key).decode() if isinstance(key, bytes) else key


def ordering_key_text(key: bytes) -> str:
    """Return an ordering key, which is bytes on the wire, as text; base64 if it is not UTF-8."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key_text(key)
