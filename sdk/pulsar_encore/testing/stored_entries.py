"""Encode entries as a producer would write them."""

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
    """Encode one entry: a message, or a batch of messages that differ only in their payloads.

    Args:
        payloads: One unless `batched`; None is a tombstone.
        sequence_id: Sequence id of the first message.
        publish_ms: Publish time, in ms since the epoch.
        key: Partition key; "" for none.
        event_ms: Event time, in ms since the epoch; 0 for none.
        deliver_at_ms: Earliest delivery, in ms since the epoch; 0 for none.
    """
    metadata = _metadata(sequence_id, publish_ms)
    if deliver_at_ms:
        metadata.deliver_at_time = deliver_at_ms
    if not batched:
        (payload,) = payloads
        _describe(metadata, payload, key, properties, event_ms)
        return encode_body(metadata, payload or b"")
    metadata.num_messages_in_batch = len(payloads)
    if key:  # the broker dispatches a batch by the key of the entry
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
    """Encode the chunks of a message. The last chunks are empty if it has too few bytes."""
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
