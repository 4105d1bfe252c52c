"""Commands of producers: PRODUCER, SEND, CLOSE_PRODUCER.

An entry is stored byte for byte; of its metadata only what delivery needs is read, and a batch is
never opened. The checksum is verified, as Pulsar does.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import ProtocolError
from ..wire import answers
from ..wire import pulsar_pb2 as pb
from ..wire.entries import ChecksumError, decode_body
from .encoding import ReceiptEncoder
from .hub import Publishing
from .producers import Access, Publisher
from .refusal import Refusal
from .settings import MAX_BATCH
from .topics import Entry

if TYPE_CHECKING:
    from ..wire.frames import Frame
    from .connection import Connection


def on_producer(conn: Connection, frame: Frame, probed: bool = False) -> None:
    """Create a producer; a silent holder of its name is given time to show that it lives."""
    ask = frame.command.producer
    hub = conn.hub
    known = conn.producers.get(ask.producer_id)
    if known is not None and ask.epoch <= known.publisher.epoch:
        conn.send(answers.producer_success(ask.request_id, producer_name=known.publisher.name))
        return
    state = hub.catalogue.topic(ask.topic)
    if hub.settings.require_lookup and state.name not in hub.looked_up:
        raise Refusal("ServiceNotReady", f"{state.name} was not looked up")
    if state.log.terminated:
        raise Refusal("TopicTerminatedError", f"{state.name} was terminated")
    name = ask.producer_name
    publisher = Publisher(
        key=(conn.id, ask.producer_id),
        name=name or f"encore-{conn.id}-{next(hub.producer_names)}",
        access=Access(ask.producer_access_mode),
        epoch=ask.epoch,
        generated=not (name and ask.user_provided_producer_name),
        request_id=ask.request_id,
    )
    holder = state.producers.holder(publisher)
    if holder is not None and not probed and holder.owner.connection is not conn:
        holder.owner.connection.probe(lambda: conn.retry(on_producer, frame))
        return
    if ask.HasField("schema"):
        publisher.schema_version = state.schemas.register(ask.schema)
    state.producers.add(publisher, ask.topic_epoch if ask.HasField("topic_epoch") else None)
    encoder = ReceiptEncoder(ask.producer_id, state.log.partition)
    publishing = Publishing(ask.producer_id, conn, state, publisher, encoder)
    publisher.owner = publishing
    conn.producers[ask.producer_id] = publishing
    conn.closed_producers.discard(ask.producer_id)
    first = ask.initial_subscription_name
    if first and first not in state.subscriptions:
        hub.catalogue.subscription(state, first, start=state.log.base)
    hub.producer_ready(publishing)


def on_send(conn: Connection, frame: Frame) -> None:
    """Store an entry and answer with its id."""
    send = frame.command.send
    publishing = conn.producers.get(send.producer_id)
    if publishing is None:
        if send.producer_id in conn.closed_producers:
            return  # in flight when this side closed the producer; it sends again after PRODUCER
        raise ProtocolError(f"SEND for unknown producer {send.producer_id}")
    publisher = publishing.publisher
    if publisher.fenced or not publisher.ready:
        raise ProtocolError(f"SEND of producer {publisher.name!r}, which is fenced or not ready")
    state = publishing.state
    entry = state.log.append(read_entry(frame.body or b""))
    state.body_bytes += len(entry.body)
    highest = send.highest_sequence_id if send.HasField("highest_sequence_id") else None
    conn.send_raw("SEND_RECEIPT", publishing.encoder.encode(send.sequence_id, highest, entry))
    conn.hub.pump.wake_all(state)


def read_entry(body: bytes) -> Entry:
    """What delivery needs to know of a stored body.

    Raises:
        Refusal: ChecksumError, or NotAllowedError for an impossible batch.
        EntryError: Metadata that cannot be read; the connection's end.
    """
    try:
        metadata = decode_body(body).metadata
    except ChecksumError as error:
        raise Refusal("ChecksumError", str(error)) from error
    batch = metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 0
    if not 0 <= batch <= MAX_BATCH:
        raise Refusal("NotAllowedError", f"a batch of {batch} messages; 1 to {MAX_BATCH} can be")
    return Entry(
        body,
        batch,
        metadata.publish_time,
        max(metadata.deliver_at_time, 0),
        _key(metadata),
    )


def _key(metadata: pb.MessageMetadata) -> bytes:
    """What Key_Shared hashes: ordering key, else key, else something unique to the entry."""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if metadata.HasField("partition_key"):
        key = metadata.partition_key
        if metadata.partition_key_b64_encoded:
            try:
                return base64.b64decode(key)
            except (binascii.Error, ValueError):
                return key.encode()
        return key.encode()
    return f"{metadata.producer_name}-{metadata.sequence_id}".encode()


def on_close_producer(conn: Connection, frame: Frame) -> None:
    """Close a producer; unknown ids are fine."""
    ask = frame.command.close_producer
    publishing = conn.producers.get(ask.producer_id)
    if publishing is not None:
        conn.hub.withdraw(publishing)
    conn.send(answers.success(ask.request_id))


HANDLERS: dict[str, Callable[[Connection, Frame], None]] = {
    "PRODUCER": on_producer,
    "SEND": on_send,
    "CLOSE_PRODUCER": on_close_producer,
}
