"""Commands of consumers, from SUBSCRIBE to CLOSE_CONSUMER.

FLOW, ACK and REDELIVER for a consumer that is not there are dropped in silence, SUBSCRIBE with an
id in use answers SUCCESS and does nothing: so does Pulsar (wire-protocol.md 0).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from ...errors import ProtocolError
from ...wire import message_id, pb
from ...wire.ack_sets import from_words
from ...wire.frames import Frame
from ..attached import AttachedConsumer, Peer
from ..broker_service import BrokerService
from ..frame_encoders import MessageEncoder
from ..rules.attached_consumers import SubscribedConsumer, SubscriptionType
from ..rules.catalogue import BrokerTopic
from ..rules.key_ranges import Range, overlap
from ..rules.refusal import Refusal
from ..rules.subscriptions import Subscription
from ..rules.topic_log import LATEST


def on_subscribe(
    service: BrokerService, session: Peer, frame: Frame, probed: Peer | None = None
) -> None:
    """Connect a consumer; a silent holder of what it wants alone is given time."""
    ask = frame.command.subscribe
    if ask.consumer_id in session.consumers:
        session.send(pb.CommandSuccess(request_id=ask.request_id))
        return
    if not ask.subscription.strip():
        raise Refusal("ProducerBusy", "the subscription needs a name")
    kind = SubscriptionType(ask.subType)
    if ask.read_compacted and kind.shares:
        raise Refusal("NotAllowedError", "read_compacted is for Exclusive and Failover")
    state = service.catalogue.topic(ask.topic, create=ask.force_topic_creation)
    service.check_serves(state)
    subscription = state.subscriptions.get(ask.subscription)
    holder = _holder(subscription, kind, ask.keySharedMeta)
    if holder is not None and holder.session not in (session, probed):
        again = partial(on_subscribe, service, session, frame, probed=holder.session)
        holder.session.probe(lambda: session.retry(frame, again))
        return
    if ask.HasField("schema"):
        state.schemas.register(ask.schema)
    created = subscription is None
    subscription = _subscription(service, state, ask)
    meta = ask.keySharedMeta
    consumer = SubscribedConsumer(
        name=ask.consumer_name,
        priority=ask.priority_level,
        epoch=ask.consumer_epoch if ask.HasField("consumer_epoch") and not kind.shares else None,
        ranges=_ranges(meta),
        writable=session.writable,
    )
    encoder = MessageEncoder(ask.consumer_id, state.log.partition, state.log.persistent)
    now_ms = service.clock.wall_ms()
    attached = AttachedConsumer(
        ask.consumer_id, session, state, subscription, consumer, encoder, now_ms
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
            service.forget(state, subscription)
        raise
    session.consumers[ask.consumer_id] = attached
    session.send(pb.CommandSuccess(request_id=ask.request_id))
    service.tell(notices)


def _holder(
    subscription: Subscription | None, kind: SubscriptionType, meta: pb.KeySharedMeta
) -> AttachedConsumer | None:
    """Who has what a consumer wants for itself: all of an Exclusive subscription, STICKY ranges."""
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
    service: BrokerService, state: BrokerTopic, ask: pb.CommandSubscribe
) -> Subscription:
    """Find or create the subscription that is asked for."""
    found = state.subscriptions.get(ask.subscription)
    if found is not None:
        if found.durable is not ask.durable:
            kinds = "durable" if found.durable else "non-durable"
            raise Refusal("NotAllowedError", f"subscription {found.name!r} exists and is {kinds}")
        return found
    if ask.durable and not service.settings.auto_create_subscriptions:
        raise Refusal("SubscriptionNotFound", f"no subscription {ask.subscription!r}")
    log = state.log
    start = log.base if ask.initialPosition == pb.CommandSubscribe.Earliest else log.end
    if not ask.durable and ask.HasField("start_message_id"):
        place = (ask.start_message_id.ledgerId, ask.start_message_id.entryId)
        # "Latest" leaves the word to the initial position.
        if place != LATEST:
            start = log.locate_from(*place)
    if ask.start_message_rollback_duration_sec:
        ago_ms = ask.start_message_rollback_duration_sec * 1000
        start = log.locate_time(service.clock.wall_ms() - ago_ms)
    return service.catalogue.subscription(state, ask.subscription, start=start, durable=ask.durable)


def on_flow(service: BrokerService, session: Peer, frame: Frame) -> None:
    """More permits."""
    ask = frame.command.flow
    if not ask.messagePermits:
        raise ProtocolError("FLOW with 0 permits")
    attached = session.consumers.get(ask.consumer_id)
    if attached is not None:
        attached.subscription.flow(attached.consumer, ask.messagePermits)
        service.scheduler.wake(attached.state, attached.subscription)


def on_ack(service: BrokerService, session: Peer, frame: Frame) -> None:
    """Acks, one command for many ids; answered only if a request id asks for it."""
    ask = frame.command.ack
    attached = session.consumers.get(ask.consumer_id)
    if attached is None:
        return
    subscription, state = attached.subscription, attached.state
    ids = ask.message_id
    if ask.ack_type == pb.CommandAck.Individual:
        ack = subscription.ack
        for mid in ids:
            words = mid.ack_set
            ack(mid.ledgerId, mid.entryId, from_words(words) if words else None)
    elif len(ids) == 1:
        words = ids[0].ack_set
        mask = from_words(words) if words else None
        subscription.ack_cumulative(ids[0].ledgerId, ids[0].entryId, mask)
    if ask.HasField("request_id"):
        session.send(pb.CommandAckResponse(consumer_id=ask.consumer_id, request_id=ask.request_id))
    if state.log.terminated:
        service.tell(subscription.end_of_topic())
    settings = service.settings
    if (
        subscription.cursor.mark - state.log.base > settings.entries_per_ledger
        and not settings.keep_acked
    ):
        state.trim()
    service.scheduler.wake(state, subscription)


def on_redeliver(service: BrokerService, session: Peer, frame: Frame) -> None:
    """Give entries back; no ids means all that is held."""
    ask = frame.command.redeliverUnacknowledgedMessages
    attached = session.consumers.get(ask.consumer_id)
    if attached is None:
        return
    epoch = ask.consumer_epoch if ask.HasField("consumer_epoch") else None
    ids = [(mid.ledgerId, mid.entryId) for mid in ask.message_ids]
    attached.subscription.redeliver(attached.consumer, ids, epoch)
    service.scheduler.wake(attached.state, attached.subscription)


def on_close_consumer(service: BrokerService, session: Peer, frame: Frame) -> None:
    """Close a consumer; unknown ids are fine."""
    ask = frame.command.close_consumer
    attached = session.consumers.get(ask.consumer_id)
    if attached is not None:
        service.detach(attached)
    session.send(pb.CommandSuccess(request_id=ask.request_id))


def on_unsubscribe(service: BrokerService, session: Peer, frame: Frame) -> None:
    """Delete the subscription, if nobody else uses it or by force."""
    ask = frame.command.unsubscribe
    attached = _known(session, ask.consumer_id)
    subscription, state = attached.subscription, attached.state
    others = [c for c in subscription.consumers if c is not attached.consumer]
    if others and not ask.force:
        raise Refusal("MetadataError", f"subscription {subscription.name!r} has other consumers")
    session.consumers.pop(attached.id, None)
    subscription.unload()
    service.close_consumers(others)
    service.forget(state, subscription)
    session.send(pb.CommandSuccess(request_id=ask.request_id))


def on_seek(service: BrokerService, session: Peer, frame: Frame) -> None:
    """Move the cursor; consumers are closed first and subscribe again."""
    ask = frame.command.seek
    attached = _known(session, ask.consumer_id)
    log = attached.state.log
    mask = None
    if ask.HasField("message_id"):
        seq = log.locate_from(ask.message_id.ledgerId, ask.message_id.entryId)
        words = ask.message_id.ack_set
        exact = log.locate(ask.message_id.ledgerId, ask.message_id.entryId) is not None
        mask = from_words(words) if words and exact else None
    elif ask.HasField("message_publish_time"):
        seq = log.locate_time(ask.message_publish_time)
    else:
        raise Refusal("MetadataError", "SEEK needs a message id or a time")
    subscription = attached.subscription
    closed, notices = subscription.seek(seq, service.clock.wall_ms(), mask)
    service.close_consumers(closed)
    service.tell(notices)
    session.send(pb.CommandSuccess(request_id=ask.request_id))
    service.scheduler.wake(attached.state, subscription)


def on_last_message_id(service: BrokerService, session: Peer, frame: Frame) -> None:
    """The last id of the topic and how far the subscription has acked."""
    ask = frame.command.getLastMessageId
    attached = _known(session, ask.consumer_id)
    log = attached.state.log
    if not log.persistent:
        raise Refusal("UnknownError", f"{log.name} keeps no messages, and has no last one")
    if log.end > log.base:
        last = log.at(log.end - 1)
        where, index = (last.ledger, last.entry), last.batch - 1
    else:
        where, index = (-1, -1), -1
    marked = message_id(*log.id_before(attached.subscription.cursor.mark), partition=None)
    session.send(
        pb.CommandGetLastMessageIdResponse(
            request_id=ask.request_id,
            last_message_id=message_id(*where, partition=log.partition, batch_index=index),
            consumer_mark_delete_position=marked,
        )
    )


def on_consumer_stats(service: BrokerService, session: Peer, frame: Frame) -> None:
    """Permits, unacked messages and backlog."""
    ask = frame.command.consumerStats
    attached = session.consumers.get(ask.consumer_id)
    if attached is None:
        raise ProtocolError(f"CONSUMER_STATS for unknown consumer {ask.consumer_id}")
    consumer, subscription = attached.consumer, attached.subscription
    since = datetime.fromtimestamp(attached.since_ms / 1000, UTC)
    session.send(
        pb.CommandConsumerStatsResponse(
            request_id=ask.request_id,
            msgRateOut=0.0,
            msgThroughputOut=0.0,
            msgRateRedeliver=0.0,
            consumerName=consumer.name,
            # Permits can be below zero, and the field is unsigned.
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
