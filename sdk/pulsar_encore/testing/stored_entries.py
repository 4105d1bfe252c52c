"""Entries as a producer would have written them, for what a test puts into a topic itself.

Owns `entry_body` and `chunk_bodies`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..values.outgoing_message import key_text
from ..wire import pulsar_pb2 as pb
from ..wire.entries import encode_batch, encode_body


def entry_body(
    payloads: Sequence[bytes | None],
    *,
    batched: bool,
    sequence_id: int,
    publish_ms: int,
    key: str | bytes,
    properties: Mapping[str, str],
    event_ms: int,
    deliver_at_ms: int,
) -> bytes:
    """One entry: a message, or a batch of some that differ in their payloads alone.

    Args:
        payloads: None is a tombstone.
        batched: Whether it is a batch; else there is one payload.
        sequence_id: The first message's.
        publish_ms: Ms since the epoch.
        key: "" for none.
        properties: Of each message.
        event_ms: Ms since the epoch; 0 for none.
        deliver_at_ms: Ms since the epoch; 0 for none.
    """
    metadata = _metadata(sequence_id, publish_ms)
    if deliver_at_ms:
        metadata.deliver_at_time = deliver_at_ms
    if not batched:
        (payload,) = payloads
        _describe(metadata, payload, key, properties, event_ms)
        return encode_body(metadata, payload or b"")
    metadata.num_messages_in_batch = len(payloads)
    if key:  # by the entry's key a broker chooses who gets it
        _describe_key(metadata, key)
    messages = []
    for payload in payloads:
        single = pb.SingleMessageMetadata()
        _describe(single, payload, key, properties, event_ms)
        messages.append((single, payload or b""))
    return encode_body(metadata, encode_batch(messages))


def chunk_bodies(
    payload: bytes, chunks: int, *, sequence_id: int, publish_ms: int
) -> Iterator[bytes]:
    """The entries of a message that was cut; the last ones are empty where it has fewer bytes."""
    size = -(-len(payload) // chunks)
    for number in range(chunks):
        metadata = _metadata(sequence_id, publish_ms)
        metadata.uuid = f"memory-{sequence_id}"
        metadata.num_chunks_from_msg = chunks
        metadata.total_chunk_msg_size = len(payload)
        metadata.chunk_id = number
        yield encode_body(metadata, payload[number * size : (number + 1) * size])


def _metadata(sequence_id: int, publish_ms: int) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="", sequence_id=sequence_id, publish_time=publish_ms)


def _describe(
    metadata: Any,
    payload: bytes | None,
    key: str | bytes,
    properties: Mapping[str, str],
    event_ms: int,
) -> None:
    """What a message says of itself, alone or in a batch."""
    if key:
        _describe_key(metadata, key)
    for name, value in properties.items():
        metadata.properties.add(key=name, value=value)
    if event_ms:
        metadata.event_time = event_ms
    if payload is None:
        metadata.null_value = True


def _describe_key(metadata: Any, key: str | bytes) -> None:
    metadata.partition_key = key_text(key)
    if isinstance(key, bytes):
        metadata.partition_key_b64_encoded = True
