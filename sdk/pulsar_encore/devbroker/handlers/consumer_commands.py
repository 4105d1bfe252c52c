"""Commands of consumers, from SUBSCRIBE to CLOSE_CONSUMER.

As on Pulsar, FLOW, ACK and REDELIVER for an unknown consumer are ignored, and SUBSCRIBE with an id
in use answers SUCCESS and does nothing (wire-protocol.md 0).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from ...errors import ProtocolError
from ...wire import message_id, pb
from ...wire.ack_set_words import from_words
from ...wire.frames import Frame
from ..attached import AttachedConsumer, Peer
from ..broker_service import BrokerService
from ..frame_encoders import MessageEncoder
from ..rules.attached_consumers import SubscribedConsumer, SubscriptionType
from ..rules.catalogue import BrokerTopic
from ..rules.key_ranges import Range, overlap
from ..rules.pending_acks import AckedId, UnansweredAck
from ..rules.refusal import Refusal
from ..rules.subscriptions import Subscription
from ..rules.topic_log import LATEST


def on_subscribe(
    service: BrokerService, session: Peer, frame: Frame, probed: Peer | None = None
) -> None:
    """Connect a consumer. Another consumer with an exclusive claim is pinged first."""
    request = frame.command.subscribe
    if request.consumer_id in session.consumers:
        session.send(pb.CommandSuccess(request_id=request.request_id))
        return
    if not request.subscription.strip():
        raise Refusal("ProducerBusy", "the subscription needs a name")
    kind = SubscriptionType(request.subType)
    if request.read_compacted and kind.shares:
        raise Refusal("NotAllowedError", "read_compacted is for Exclusive and Failover")
    state = service.catalogue.topic(request.topic, create=request.force_topic_creation)
    service.check_serves(state)
    subscription = state.subscriptions.get(request.subscription)
    holder = _holder(subscription, kind, request.keySharedMeta)
    if holder is not None and holder.session not in (session, probed):
        handle_again = partial(on_subscribe, service, session, frame, probed=holder.session)
        holder.session.probe(lambda: session.retry(frame, handle_again))
        return
    if request.HasField("schema"):
        state.schemas.register(request.schema)
    created = subscription is None
    subscription = _subscription(service, state, request)
    meta = request.keySharedMeta
    consumer = SubscribedConsumer(
        name=request.consumer_name,
        priority=request.priority_level,
        epoch=request.consumer_epoch
        if request.HasField("consumer_epoch") and not kind.shares
        else None,
        ranges=_ranges(meta),
        writable=session.writable,
    )
    encoder = MessageEncoder(request.consumer_id, state.log.partition, state.log.persistent)
    now_ms = service.clock.wall_ms()
    attached = AttachedConsumer(
        request.consumer_id, session, state, subscription, consumer, encoder, now_ms
    )
    consumer.owner = attached
    try:
        notices = subscription.add_consumer(
            consumer,
            kind,
            now_ms,
            sticky=kind is SubscriptionType.KEY_SHARED and meta.keySharedMode == pb.STICKY,
            out_of_order=meta.allowOutOfOrderDelivery,
        )
    except Refusal:
        if created:
            service.delete_subscription(state, subscription)
        raise
    session.consumers[request.consumer_id] = attached
    session.send(pb.CommandSuccess(request_id=request.request_id))
    service.notify(notices)


def _holder(
    subscription: Subscription | None, kind: SubscriptionType, meta: pb.KeySharedMeta
) -> AttachedConsumer | None:
    """Return the owner of an Exclusive subscription or of the requested STICKY ranges."""
    if subscription is None or subscription.type is not kind:
        return None
    found = None
    if kind is SubscriptionType.EXCLUSIVE:
        found = subscription.active
    elif kind is SubscriptionType.KEY_SHARED and meta.keySharedMode == pb.STICKY:
        wanted = _ranges(meta)
        found = next((c for c in subscription.consumers if overlap(wanted, c.ranges)), None)
    return None if found is None else found.owner


def _ranges(meta: pb.KeySharedMeta) -> list[Range]:
    return [(span.start, span.end) for span in meta.hashRanges]


def _subscription(
    service: BrokerService, state: BrokerTopic, request: pb.CommandSubscribe
) -> Subscription:
    found = state.subscriptions.get(request.subscription)
    if found is not None:
        if found.durable is not request.durable:
            kinds = "durable" if found.durable else "non-durable"
            raise Refusal("NotAllowedError", f"subscription {found.name!r} exists and is {kinds}")
        return found
    if request.durable and not service.settings.auto_create_subscriptions:
        raise Refusal("SubscriptionNotFound", f"no subscription {request.subscription!r}")
    log = state.log
    start = log.base if request.initialPosition == pb.CommandSubscribe.Earliest else log.end
    if not request.durable and request.HasField("start_message_id"):
        start_id = (request.start_message_id.ledgerId, request.start_message_id.entryId)
        # With "latest" the initial position decides.
        if start_id != LATEST:
            start = log.locate_from(*start_id)
    if request.start_message_rollback_duration_sec:
        ago_ms = request.start_message_rollback_duration_sec * 1000
        start = log.locate_time(service.clock.wall_ms() - ago_ms)
    return service.catalogue.subscription(
        state, request.subscription, start=start, durable=request.durable
    )


def on_flow(service: BrokerService, session: Peer, frame: Frame) -> None:
    request = frame.command.flow
    if not request.messagePermits:
        raise ProtocolError("FLOW with 0 permits")
    attached = session.consumers.get(request.consumer_id)
    if attached is not None:
        attached.subscription.flow(attached.consumer, request.messagePermits)
        service.scheduler.wake(attached.state, attached.subscription)


def on_ack(service: BrokerService, session: Peer, frame: Frame) -> None:
    """Ack many ids. Only a request id gets an answer."""
    request = frame.command.ack
    attached = session.consumers.get(request.consumer_id)
    if attached is None:
        return
    # As on Pulsar, an ack with one half of a transaction id is a plain one.
    if request.HasField("txnid_most_bits") and request.HasField("txnid_least_bits"):
        _ack_in_transaction(service, attached, request)
        return
    subscription, state = attached.subscription, attached.state
    ids = request.message_id
    if request.ack_type == pb.CommandAck.Individual:
        ack = subscription.ack
        for mid in ids:
            words = mid.ack_set
            ack(mid.ledgerId, mid.entryId, from_words(words) if words else None)
    elif len(ids) == 1:
        words = ids[0].ack_set
        mask = from_words(words) if words else None
        subscription.ack_cumulative(ids[0].ledgerId, ids[0].entryId, mask)
    if request.HasField("request_id"):
        session.send(
            pb.CommandAckResponse(consumer_id=request.consumer_id, request_id=request.request_id)
        )
    service.acked(state, subscription)


def _ack_in_transaction(
    service: BrokerService, attached: AttachedConsumer, request: pb.CommandAck
) -> None:
    """Keep acks pending until the end of a transaction. The answer does not name it."""
    answer = pb.CommandAckResponse(consumer_id=attached.id, request_id=request.request_id)
    try:
        _add_pending(service, attached, request)
    except UnansweredAck:
        return
    except Refusal as refusal:
        answer.error = pb.ServerError.Value(refusal.code)
        answer.message = refusal.message
    if request.HasField("request_id"):
        attached.session.send(answer)
    service.scheduler.wake(attached.state, attached.subscription)


def _add_pending(
    service: BrokerService, attached: AttachedConsumer, request: pb.CommandAck
) -> None:
    subscription = attached.subscription
    txn = (request.txnid_most_bits, request.txnid_least_bits)
    is_cumulative = request.ack_type == pb.CommandAck.Cumulative
    if is_cumulative and (
        len(request.message_id) != 1 or (subscription.type is not None and subscription.type.shares)
    ):
        return  # Pulsar ignores it
    if not (service.settings.transactions and attached.state.log.persistent):
        raise Refusal(
            "NotAllowedError",
            "org.apache.pulsar.broker.service.BrokerServiceException$NotAllowedException: "
            "Server don't support transaction ack!",
        )
    ids = [
        AckedId(
            mid.ledgerId,
            mid.entryId,
            from_words(mid.ack_set) if mid.ack_set else None,
            mid.batch_size,
        )
        for mid in request.message_id
    ]
    if is_cumulative:
        subscription.ack_cumulative_in_transaction(txn, ids[0])
    else:
        subscription.ack_in_transaction(txn, ids)


def on_redeliver(service: BrokerService, session: Peer, frame: Frame) -> None:
    request = frame.command.redeliverUnacknowledgedMessages
    attached = session.consumers.get(request.consumer_id)
    if attached is None:
        return
    epoch = request.consumer_epoch if request.HasField("consumer_epoch") else None
    ids = [(mid.ledgerId, mid.entryId) for mid in request.message_ids]
    attached.subscription.redeliver(attached.consumer, ids, epoch)
    service.scheduler.wake(attached.state, attached.subscription)


def on_close_consumer(service: BrokerService, session: Peer, frame: Frame) -> None:
    request = frame.command.close_consumer
    attached = session.consumers.get(request.consumer_id)
    if attached is not None:
        service.detach(attached)
    session.send(pb.CommandSuccess(request_id=request.request_id))


def on_unsubscribe(service: BrokerService, session: Peer, frame: Frame) -> None:
    request = frame.command.unsubscribe
    attached = _known(session, request.consumer_id)
    subscription, state = attached.subscription, attached.state
    others = [c for c in subscription.consumers if c is not attached.consumer]
    if others and not request.force:
        raise Refusal("MetadataError", f"subscription {subscription.name!r} has other consumers")
    session.consumers.pop(attached.id, None)
    subscription.unload()
    service.close_consumers(others)
    service.delete_subscription(state, subscription)
    session.send(pb.CommandSuccess(request_id=request.request_id))


def on_seek(service: BrokerService, session: Peer, frame: Frame) -> None:
    request = frame.command.seek
    attached = _known(session, request.consumer_id)
    log = attached.state.log
    mask = None
    if request.HasField("message_id"):
        seq = log.locate_from(request.message_id.ledgerId, request.message_id.entryId)
        words = request.message_id.ack_set
        exact = log.locate(request.message_id.ledgerId, request.message_id.entryId) is not None
        mask = from_words(words) if words and exact else None
    elif request.HasField("message_publish_time"):
        seq = log.locate_time(request.message_publish_time)
    else:
        raise Refusal("MetadataError", "SEEK needs a message id or a time")
    subscription = attached.subscription
    closed, notices = subscription.seek(seq, service.clock.wall_ms(), mask)
    service.close_consumers(closed)
    service.notify(notices)
    session.send(pb.CommandSuccess(request_id=request.request_id))
    service.scheduler.wake(attached.state, subscription)


def on_last_message_id(service: BrokerService, session: Peer, frame: Frame) -> None:
    request = frame.command.getLastMessageId
    attached = _known(session, request.consumer_id)
    log = attached.state.log
    if not log.persistent:
        raise Refusal("UnknownError", f"{log.name} keeps no messages, and has no last one")
    last = log.last_readable()
    if last is not None:
        last_id, index = (last.ledger, last.entry), last.batch - 1
    else:
        last_id, index = (-1, -1), -1
    marked = message_id(*log.id_before(attached.subscription.cursor.mark), partition=None)
    session.send(
        pb.CommandGetLastMessageIdResponse(
            request_id=request.request_id,
            last_message_id=message_id(*last_id, partition=log.partition, batch_index=index),
            consumer_mark_delete_position=marked,
        )
    )


def on_consumer_stats(service: BrokerService, session: Peer, frame: Frame) -> None:
    request = frame.command.consumerStats
    attached = session.consumers.get(request.consumer_id)
    if attached is None:
        raise ProtocolError(f"CONSUMER_STATS for unknown consumer {request.consumer_id}")
    consumer, subscription = attached.consumer, attached.subscription
    since = datetime.fromtimestamp(attached.since_ms / 1000, UTC)
    session.send(
        pb.CommandConsumerStatsResponse(
            request_id=request.request_id,
            msgRateOut=0.0,
            msgThroughputOut=0.0,
            msgRateRedeliver=0.0,
            consumerName=consumer.name,
            # Permits can be negative, and the field is unsigned.
            availablePermits=consumer.permits & 0xFFFF_FFFF_FFFF_FFFF,
            unackedMessages=consumer.unacked,
            blockedConsumerOnUnackedMsgs=consumer.blocked,
            address=session.address,
            connectedSince=f"{since:%Y-%m-%dT%H:%M:%SZ}",
            type=subscription.type.name.title() if subscription.type else None,
            msgRateExpired=0.0,
            msgBacklog=subscription.backlog,
        )
    )


def _known(session: Peer, consumer_id: int) -> AttachedConsumer:
    attached = session.consumers.get(consumer_id)
    if attached is None:
        raise Refusal("MetadataError", "Consumer not found")
    return attached


HANDLERS: dict[str, Callable[[BrokerService, Peer, Frame], None]] = {
    "SUBSCRIBE": on_subscribe,
    "FLOW": on_flow,
    "ACK": on_ack,
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": on_redeliver,
    "CLOSE_CONSUMER": on_close_consumer,
    "UNSUBSCRIBE": on_unsubscribe,
    "SEEK": on_seek,
    "GET_LAST_MESSAGE_ID": on_last_message_id,
    "CONSUMER_STATS": on_consumer_stats,
}
