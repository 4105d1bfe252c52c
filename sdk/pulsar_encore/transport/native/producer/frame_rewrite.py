"""Rewrites frames for another topic, because theirs was deleted and created with other partitions.

A frame moves as it is, encrypted or not, a batch as one entry. Only its producer id, producer name
and schema version are replaced, and sequence ids that the other topic has already used.
"""

from __future__ import annotations

from ....values.outgoing_message import OutgoingMessage
from ....wire.entries import decode_body, encode_body, metadata_of
from ....wire.frames import Frame, FrameDecoder, encode_with_body
from .unconfirmed_frames import SendFrame


def key_of(frame: SendFrame) -> OutgoingMessage:
    """Return an empty message with the partition key of an entry, to choose a partition."""
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
    """Change a frame, in place, into a frame of another producer.

    Args:
        highest_id: Highest sequence id that the other producer has used. A broker that deduplicates
            drops every id up to it.

    Returns:
        The highest sequence id that the other producer has used with this frame.
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
