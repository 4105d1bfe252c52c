"""A message on its way out, whoever wrote it and whichever transport takes it. A value; no I/O.

Owns `OutgoingMessage`, and how keys of bytes and of text stand for each other: a key given as bytes
is another than the same bytes given as text, and each is sent as what it was given.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass


# Not frozen: there is one for each message, and nine guarded assignments are most of its price.
@dataclass(kw_only=True, slots=True)
class OutgoingMessage:
    """A message to publish; None means absent. `payload` None is a tombstone."""

    payload: bytes | None
    properties: dict[str, str] | None = None
    partition_key: str | bytes | None = None
    ordering_key: str | bytes | None = None
    sequence_id: int | None = None
    replication_clusters: list[str] | None = None
    disable_replication: bool = False
    event_timestamp: int | None = None
    deliver_at: int | None = None


def key_bytes(key: str | bytes) -> bytes:
    """What a key is hashed by, and a reader gets as bytes: text is its UTF-8."""
    return key if isinstance(key, bytes) else key.encode()


def key_text(key: str | bytes) -> str:
    """A partition key as it is on the wire: bytes are sent as base64, with a flag that says so."""
    return b64encode(key).decode() if isinstance(key, bytes) else key


def ordering_key_text(key: bytes) -> str:
    """An ordering key, which the wire has as bytes, to be read as text: base64 where it is none."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key_text(key)
