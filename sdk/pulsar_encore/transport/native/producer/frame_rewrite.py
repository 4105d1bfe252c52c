"""Rewrites frames for another topic, after theirs was deleted and created with other partitions.

The payload is the same, encrypted or batched. Sequence ids change only if the other topic has
already used them.
"""

from __future__ import annotations

from ....values.outgoing_message import OutgoingMessage
from ....wire.entries import decode_body, encode_body, metadata_of
from ....wire.frames import Frame, FrameDecoder, encode_with_body
from .unconfirmed_frames import SendFrame


def key_of(frame: SendFrame) -> OutgoingMessage:
    body = _decoded(frame).body
    assert body is not None, "SEND has a body"
    metadata = metadata_of(body)
    key = metadata.partition_key if metadata.HasField("partition_key") else None
    return OutgoingMessage(payload=b"", partition_key=key)


def rewrite(
    frame: SendFrame,
    highest_id: int,
    *,
    producer_id: int,
    producer_name: str,
    schema_version: bytes,
) -> int:
    """Change a frame in place into a frame of another producer; return its new highest sequence id.

    A broker that deduplicates drops every id up to `highest_id`.
    """
    decoded = _decoded(frame)
    assert decoded.body is not None, "SEND has a body"
    entry = decode_body(decoded.body, verify=False)
    send, metadata = decoded.command.send, entry.metadata
    first = frame.first_chunk
    if first is not None:
        frame.sequence_id = frame.last = first.sequence_id
    elif frame.sequence_id <= highest_id:
        frame.last += highest_id + 1 - frame.sequence_id
        frame.sequence_id = highest_id + 1
    send.producer_id = producer_id
    send.sequence_id = metadata.sequence_id = frame.sequence_id
    if send.HasField("highest_sequence_id"):
        send.highest_sequence_id = metadata.highest_sequence_id = frame.last
    metadata.producer_name = producer_name
    if schema_version:
        metadata.schema_version = schema_version
    frame.data = encode_with_body(decoded.command, encode_body(metadata, entry.payload))
    return max(highest_id, frame.last)


def _decoded(frame: SendFrame) -> Frame:
    [decoded] = FrameDecoder(len(frame.data)).feed(frame.data)
    return decoded
