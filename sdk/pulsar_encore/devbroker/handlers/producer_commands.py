"""Commands of producers: PRODUCER, SEND, CLOSE_PRODUCER.

An entry is stored byte for byte. Only the metadata that delivery needs is read. The checksum is
verified, as on Pulsar.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from functools import partial

from ...errors import ProtocolError
from ...wire import pulsar_pb2 as pb
from ...wire.entries import ChecksumError, decode_body, text
from ...wire.frames import Frame
from ..attached import AttachedProducer, Peer
from ..broker_service import BrokerService
from ..frame_encoders import ReceiptEncoder
from ..rules.refusal import Refusal
from ..rules.topic_log import LogEntry
from ..rules.topic_producers import AccessMode, Publisher

MAX_BATCH = 1_000_000  # messages in one entry; its ack set takes 125 kB


def on_producer(service: BrokerService, session: Peer, frame: Frame, probed: bool = False) -> None:
    """Create a producer. The owner of the same name is pinged first."""
    request = frame.command.producer
    known = session.producers.get(request.producer_id)
    if known is not None and request.epoch <= known.publisher.epoch:
        session.send(
            pb.CommandProducerSuccess(
                request_id=request.request_id,
                producer_name=known.publisher.name,
                last_sequence_id=-1,
                producer_ready=True,
            )
        )
        return
    state = service.catalogue.topic(request.topic)
    service.check_serves(state)
    state.log.check_open()
    publisher = Publisher(
        key=(session.id, request.producer_id),
        name=request.producer_name or f"encore-{session.id}-{next(service.producer_names)}",
        access=AccessMode(request.producer_access_mode),
        epoch=request.epoch,
        request_id=request.request_id,
    )
    holder = state.producers.holder(publisher)
    if holder is not None and not probed and holder.owner.session is not session:
        handle_again = partial(on_producer, service, session, frame, probed=True)
        holder.owner.session.probe(lambda: session.retry(frame, handle_again))
        return
    if request.HasField("schema"):
        publisher.schema_version = state.schemas.register(request.schema)
    state.producers.add(publisher, request.topic_epoch if request.HasField("topic_epoch") else None)
    encoder = ReceiptEncoder(request.producer_id, state.log.partition, state.log.persistent)
    attached = AttachedProducer(request.producer_id, session, state, publisher, encoder)
    publisher.owner = attached
    session.producers[request.producer_id] = attached
    session.closed_producers.discard(request.producer_id)
    first = request.initial_subscription_name
    if first and first not in state.subscriptions:
        service.catalogue.subscription(state, first, start=state.log.base)
    service.producer_ready(attached)


def on_send(service: BrokerService, session: Peer, frame: Frame) -> None:
    send = frame.command.send
    attached = session.producers.get(send.producer_id)
    if attached is None:
        if send.producer_id in session.closed_producers:
            # before the client saw CLOSE_PRODUCER; it sends again after PRODUCER
            return
        raise ProtocolError(f"SEND for unknown producer {send.producer_id}")
    publisher = attached.publisher
    if publisher.fenced or not publisher.ready:
        raise ProtocolError(f"SEND of producer {publisher.name!r}, which is fenced or not ready")
    state = attached.state
    # Both fields, or the message is a plain one.
    in_transaction = send.HasField("txnid_most_bits") and send.HasField("txnid_least_bits")
    txn = (send.txnid_most_bits, send.txnid_least_bits) if in_transaction else None
    if txn is not None and not state.log.persistent:
        raise ProtocolError(f"SEND in transaction {txn} to {state.name}, which is not persistent")
    entry = service.publish(state, read_entry(frame.body or b""), txn)
    highest = send.highest_sequence_id if send.HasField("highest_sequence_id") else None
    session.send_raw("SEND_RECEIPT", attached.encoder.encode(send.sequence_id, highest, entry))


def read_entry(body: bytes) -> LogEntry:
    """Read the metadata that delivery needs from a stored body.

    Raises:
        Refusal: ChecksumError; NotAllowedError for an invalid batch size.
        EntryError: if the metadata cannot be read.
    """
    try:
        metadata = decode_body(body).metadata
    except ChecksumError as error:
        raise Refusal("ChecksumError", str(error)) from error
    batch = metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 0
    if not 0 <= batch <= MAX_BATCH:
        raise Refusal("NotAllowedError", f"a batch of {batch} messages; 1 to {MAX_BATCH} can be")
    return LogEntry(
        body,
        batch,
        metadata.publish_time,
        max(metadata.deliver_at_time, 0),
        _key(metadata),
        text(metadata.uuid) if metadata.num_chunks_from_msg > 1 else "",
        txn=(metadata.txnid_most_bits, metadata.txnid_least_bits)
        if metadata.HasField("txnid_most_bits")
        else None,
    )


def _key(metadata: pb.MessageMetadata) -> bytes:
    """Return the key that Key_Shared hashes: ordering key, else key, else a unique value."""
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


def on_close_producer(service: BrokerService, session: Peer, frame: Frame) -> None:
    request = frame.command.close_producer
    attached = session.producers.get(request.producer_id)
    if attached is not None:
        service.detach_producer(attached)
    session.send(pb.CommandSuccess(request_id=request.request_id))


HANDLERS: dict[str, Callable[[BrokerService, Peer, Frame], None]] = {
    "PRODUCER": on_producer,
    "SEND": on_send,
    "CLOSE_PRODUCER": on_close_producer,
}
