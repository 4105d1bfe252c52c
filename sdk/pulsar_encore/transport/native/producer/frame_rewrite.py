"""Rewrites frames for another topic, because theirs was deleted and created with other partitions.

A frame moves as it is, encrypted or not, a batch as one entry. Only its producer id, producer name
and schema version are replaced, and sequence ids that the other topic has already used.
"""

from __future__ import annotations

from ....values.outgoing_message import OutgoingMessage
from ....wire.entries import decode_body, encode_body, metadata_of
from ....wire.frames import Frame, FrameDecoder, encode_with_body
from .pending_sends import PendingSend
from .send_results import Waiter


def key_of(sending: PendingSend[Waiter]) -> OutgoingMessage:
    """Return an empty message with the partition key of an entry, to choose a partition."""
    body = _decoded(sending).body
    assert body is not None, "SEND has a body"
    metadata = metadata_of(body)
    key = metadata.partition_key if metadata.HasField("partition_key") else None
    return OutgoingMessage(payload=b"", partition_key=key)


def rewrite(
    sending: PendingSend[Waiter],
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
    frame = _decoded(sending)
    assert frame.body is not None, "SEND has a body"
    entry = decode_body(frame.body, verify=False)
    send, metadata = frame.command.send, entry.metadata
    first = sending.first_chunk
    if first is not None:
        sending.sequence_id = sending.last = first.sequence_id
    elif sending.sequence_id <= highest_id:
        sending.last += highest_id + 1 - sending.sequence_id
        sending.sequence_id = highest_id + 1
    send.producer_id = producer_id
    send.sequence_id = metadata.sequence_id = sending.sequence_id
    if send.HasField("highest_sequence_id"):
        send.highest_sequence_id = metadata.highest_sequence_id = sending.last
    metadata.producer_name = producer_name
    if schema_version:
        metadata.schema_version = schema_version
    sending.frame = encode_with_body(frame.command, encode_body(metadata, entry.payload))
    return max(highest_id, sending.last)


def _decoded(sending: PendingSend[Waiter]) -> Frame:
    [frame] = FrameDecoder(len(sending.frame)).feed(sending.frame)
    return frame
