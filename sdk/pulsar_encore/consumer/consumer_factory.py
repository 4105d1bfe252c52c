"""Creation of a consumer: its subscriptions and its parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, TypeAlias

from ..core.due_index import DueIndex, TimeBucketIndex
from ..core.entry import Entry
from ..core.nack_verdicts import Verdicts, WindowOverflow
from ..errors import NotSupportedError
from ..eventloop.alarm import Alarm
from ..eventloop.disposal import Disposal
from ..eventloop.fair_yield import FairYield
from ..options import BatchReceivePolicy, ConsumerOptions, ConsumerType, Subscription
from ..options.dead_letter_policy import DeadLetterPolicy
from ..transport.interface import Transport, TransportConsumer, TransportTransaction
from ..transport.merged_consumer import MergedConsumer
from ..values.backoff import backoff_of, to_ms
from ..values.topic_names import full_name
from ..version import VERSION
from .consumer import Consumer, ConsumerParts
from .consumer_status import ConsumerStatus
from .delivery.batch_receiver import BatchReceiver
from .delivery.receive_queue import ReceiveQueue
from .delivery_handler import DeliveryHandler
from .event_publisher import EventPublisher
from .events import ConsumerEvent
from .forwarding.arrival_filter import ArrivalFilter
from .forwarding.forwarder import Forwarder
from .forwarding.last_attempts import LastAttempts
from .forwarding.letter_groups import TIMEOUT_S as LETTERS_TIMEOUT_S
from .forwarding.letter_groups import LetterGroups
from .forwarding.letter_topics import LetterTopics
from .forwarding.nack_handler import NackHandler
from .held_messages import HeldMessages
from .leases.key_queues import KeyQueues
from .leases.lease_table import LeaseTable
from .leases.lease_writer import LeaseWriter
from .leases.pop_queue import PopQueue
from .leases.restored_leases import RestoredLeases
from .settlement.ack_sender import AckSender
from .settlement.ack_timeouts import AckTimeouts
from .settlement.ownership import Ownership
from .settlement.redelivery import Redelivery
from .settlement.rewinds import Rewinds
from .settlement.settlement import Settlement
from .settlement.transaction_acks import TransactionAcks
from .topic_states import TopicStates
from .unacked_window_monitor import UnackedWindowMonitor

if TYPE_CHECKING:  # most consumers import none of these modules
    from ..admin import WebService
    from ..observability.observer_list import ObserverList
    from .nack_disk_index import NackSpilling
    from .state_writer import StateWriter

_OnDelivery: TypeAlias = Callable[[Entry, Sequence[int]], None]

# Options that are passed to the transport unchanged.
_SHARED_FIELDS: Final = {each.name for each in fields(Subscription)} & {
    each.name for each in fields(ConsumerOptions)
}


async def open_transport_consumer(
    transport: Transport, options: ConsumerOptions
) -> TransportConsumer:
    """Subscribe to the topics and, if there is one, to the retry letter topic."""
    policy = options.dead_letter_policy
    if policy is not None and policy.transactional and not transport.capabilities.transactions:
        raise NotSupportedError(
            f"the {transport.capabilities.name} transport has no transactions: use "
            "transport='native', or leave transactional out of the DeadLetterPolicy"
        )
    if options.ack_receipt_enabled and not transport.capabilities.receipts:
        raise NotSupportedError(
            f"ack_receipt_enabled needs receipts, and the {transport.capabilities.name} transport "
            "gets none: leave it out, or choose another transport"
        )
    topic = options.retry_letter_topic
    name = options.consumer_name
    has_several = options.pattern is not None or len(options.topics) > 1
    if name is None and (topic is not None or has_several):
        # Java gives one name to a consumer and all its subscriptions. The stock client gives none.
        name = transport.new_consumer_name()
    subscription = Subscription(
        **{each: getattr(options, each) for each in _SHARED_FIELDS}
        | {
            "consumer_name": name,
            "read_compacted": options.is_read_compacted,
            "excluded_topics": options.excluded_topics,
        }
    )
    main = await transport.subscribe(subscription)
    if topic is None:
        return main
    try:
        # Always Shared: the broker delays letters on Shared and Key_Shared only. With another type,
        # Java's consumers of the same subscription would receive a ConsumerBusy:
        # `docs/notes/consumer-semantics.md#letter-topics`.
        letters = await transport.subscribe(
            replace(
                subscription,
                topics=(topic,),
                pattern=None,
                consumer_type=ConsumerType.Shared,
                key_shared_policy=None,
                read_compacted=False,
            )
        )
    except BaseException:
        await main.close()
        raise
    return MergedConsumer(main, letters)


def make_consumer(
    transport: Transport,
    transport_consumer: TransportConsumer,
    options: ConsumerOptions,
    on_closed: Callable[[Consumer], None],
    state_writer: StateWriter | None = None,
    spilling: NackSpilling | None = None,
    logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    observers: ObserverList | None = None,
    new_web_service: Callable[[], WebService] | None = None,
) -> Consumer:
    topics = None
    if options.dead_letter_policy is not None:
        topics = LetterTopics(
            options,
            options.dead_letter_policy,
            transport_consumer.consumer_name,
            transport,
            logger_of,
        )
    parts = assemble(
        transport_consumer,
        options,
        topics,
        state_writer=state_writer,
        spilling=spilling,
        logger_of=logger_of,
        observers=observers,
        begin_transaction=transport.begin_transaction,
    )
    parts = replace(parts, new_web_service=new_web_service)
    return Consumer(parts, on_closed=on_closed)


def assemble(
    transport_consumer: TransportConsumer,
    options: ConsumerOptions,
    topics: LetterTopics | None = None,
    new_index: Callable[[], DueIndex] = TimeBucketIndex,
    state_writer: StateWriter | None = None,
    spilling: NackSpilling | None = None,
    logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    observers: ObserverList | None = None,
    begin_transaction: Callable[[float], Awaitable[TransportTransaction]] | None = None,
) -> ConsumerParts:
    """Make the parts of a consumer and connect them.

    Args:
        begin_transaction: `Transport.begin_transaction`, for a transactional policy.
    """
    loop = asyncio.get_running_loop()
    rng = Random()
    status, fair_yield, alarm = ConsumerStatus(), FairYield(loop), Alarm(loop)
    begin_hooks: list[_OnDelivery] = []
    one_write: Callable[[], AbstractContextManager[object]] = nullcontext
    timeouts: AckTimeouts | None = None
    if state_writer is not None and state_writer.writes_before_delivery:
        begin_hooks.append(state_writer.on_delivery_before)
        one_write = state_writer.one_write
    elif state_writer is not None:
        begin_hooks.append(state_writer.on_delivery_lazy)
    if options.unacked_messages_timeout_ms is not None:
        timeouts = AckTimeouts(options.unacked_messages_timeout_ms, loop, alarm)
        begin_hooks.append(timeouts.begin)
    wanted = None if options.receiver_queue_size else transport_consumer.request_messages
    disposal = Disposal(loop)
    queue = ReceiveQueue(
        options.schema,
        transport_consumer.consumed,
        fair_yield,
        status.failed,
        _all_of(begin_hooks),
        wanted,
        one_write,
        disposal.add,
    )
    queue.queue_per_topic = transport_consumer.capabilities.queue_per_topic
    topic_states = TopicStates(
        transport_consumer,
        options,
        loop,
        new_index,
        None if state_writer is None else state_writer.open_topic,
        disposal.add,
        None if spilling is None else spilling.new,
    )
    if state_writer is not None:
        state_writer.start(topic_states)
        for topic in state_writer.topics():
            # Acks of another consumer of the directory concern this one before its first message.
            topic_states.expect(topic)
    acks = AckSender(transport_consumer, topic_states, options, loop, queue)
    rewinds = Rewinds(
        transport_consumer, topic_states, loop, acks, queue, options.receiver_queue_size, logger_of
    )
    redelivery = Redelivery(
        transport_consumer, topic_states, options, loop, alarm, acks, rewinds, rng, logger_of
    )
    window = UnackedWindowMonitor(
        transport_consumer,
        topic_states,
        options.max_unacked_messages,
        logger_of,
        None if observers is None else observers.window_filling,
    )
    ownership = Ownership(topic_states, transport_consumer)
    settlement = Settlement(ownership, transport_consumer, acks, redelivery)
    transaction_acks = TransactionAcks(
        ownership,
        transport_consumer,
        acks,
        rewinds,
        settlement,
        logger_of,
        ordered_leases=options.ordered_leases,
        letters_in_transactions=topics is not None and topics.policy.transactional,
    )
    verdicts = _verdicts(options, rng)
    forwarder = arrivals = last = None
    if topics is not None:
        groups = None
        if topics.policy.transactional:
            assert begin_transaction is not None
            groups = LetterGroups(
                partial(begin_transaction, LETTERS_TIMEOUT_S), transaction_acks, logger_of
            )
        forwarder = Forwarder(
            topics,
            settlement,
            transaction_acks,
            transport_consumer.consumer_name,
            VERSION,
            logger_of,
            None if observers is None else observers.letter_written,
            groups,
        )
        last = LastAttempts(verdicts, forwarder, options.schema)
        redelivery.last = last
        arrivals = ArrivalFilter(options, verdicts, forwarder, queue, redelivery, loop, last)
    nack_handler = NackHandler(ownership, verdicts, redelivery, topic_states, loop, forwarder, last)
    receipts = acks.receipts if options.ack_receipt_enabled else None
    writer = restored_leases = None
    if state_writer is not None:
        state_writer.rearm = redelivery.rearm
        state_writer.revive_delay_of = verdicts.revive_delay_of
        state_writer.ack_by_id = settlement.ack
        writer = LeaseWriter(state_writer, loop)
        restored_leases = RestoredLeases(
            ownership, settlement, verdicts, receipts, options.negative_ack_precision_bit_cnt, loop
        )
    leases = LeaseTable(
        settlement, nack_handler, receipts, loop, options.max_leases, writer, logger_of
    )
    key_queues = None
    if options.ordered_leases:
        # Spent messages are dead-lettered when they are the next of their key.
        dead_letter_if_spent = spent = None
        if arrivals is not None:
            dead_letter_if_spent, spent = arrivals.dead_letter_if_spent, arrivals.spent
        key_queues = KeyQueues(
            queue, loop, options.max_leases, dead_letter_if_spent, spent, logger_of
        )
        settlement.forwarding_ended = key_queues.forwarding_ended
        redelivery.all_due = key_queues.check_all
    status.on_failure(leases.close)
    if options.pattern is not None:
        named: tuple[str, ...] = (options.pattern,)
    else:
        named = tuple(full_name(each) for each in options.topics)
    listener = options.event_listener
    if observers is not None and observers.consumer_event is not None:
        listener = _observed(observers.consumer_event, listener, topic_states)
    event_publisher = EventPublisher(
        transport_consumer, listener, loop, named=named, logger_of=logger_of
    )
    if topics is not None:
        topics.new_publisher = event_publisher.new_letter_publisher
    delivery_handler = DeliveryHandler(
        transport_consumer,
        topic_states,
        queue,
        acks,
        window,
        redelivery,
        rewinds,
        event_publisher,
        loop,
        None if options.ordered_leases else arrivals,
        state_writer,
        logger_of,
    )
    if state_writer is not None:
        state_writer.on_foreign_state = delivery_handler.note_foreign_state
    policy = options.batch_receive_policy or BatchReceivePolicy()
    held_messages = HeldMessages(
        options,
        ownership,
        queue,
        leases,
        status,
        loop,
        timeouts=timeouts,
        last=last,
        begin=None if state_writer is None else state_writer.on_delivery_before,
    )
    batches = BatchReceiver(queue, policy, max(1, options.receiver_queue_size), fair_yield)
    return ConsumerParts(
        transport_consumer=transport_consumer,
        options=options,
        status=status,
        fair_yield=fair_yield,
        topic_states=topic_states,
        queue=queue,
        batches=batches,
        acks=acks,
        redelivery=redelivery,
        rewinds=rewinds,
        settlement=settlement,
        transaction_acks=transaction_acks,
        nack_handler=nack_handler,
        forwarder=forwarder,
        letter_topics=topics,
        arrivals=arrivals,
        window=window,
        event_publisher=event_publisher,
        delivery_handler=delivery_handler,
        leases=leases,
        restored_leases=restored_leases,
        held_messages=held_messages,
        popping=PopQueue(queue, leases, fair_yield, loop, key_queues),
        state_writer=state_writer,
        spilling=spilling,
        logger_of=logger_of,
    )


def _all_of(begin_hooks: list[_OnDelivery]) -> _OnDelivery | None:
    if len(begin_hooks) < 2:
        return begin_hooks[0] if begin_hooks else None

    def begin(entry: Entry, indexes: Sequence[int]) -> None:
        for each in begin_hooks:
            each(entry, indexes)

    return begin


def _observed(
    observe: Callable[..., None],
    listener: Callable[[ConsumerEvent], object] | None,
    topic_states: TopicStates,
) -> Callable[[ConsumerEvent], object]:
    """Return a listener that also tells the observers."""

    def tell(event: ConsumerEvent) -> None:
        observe(topic_states.consumer, event)
        if listener is not None:
            listener(event)

    return tell


def _verdicts(options: ConsumerOptions, rng: Random) -> Verdicts:
    name, fixed_ms = "negative_ack_redelivery_backoff", options.negative_ack_redelivery_delay_ms
    backoff = backoff_of(options.negative_ack_redelivery_backoff, name)

    def delay_of(failed: int) -> int:
        return fixed_ms if backoff is None else backoff.delay_ms(failed, rng)

    policy: DeadLetterPolicy | None = options.dead_letter_policy
    overflow = None
    if options.nack_overflow is not None:
        overflow = WindowOverflow(
            longest_ms=to_ms(options.nack_overflow_delay, "nack_overflow_delay"),
            most_nacked=options.nack_overflow_share * options.max_unacked_messages,
        )
    most = None if policy is None else policy.max_redeliver_count
    return Verdicts(delay_of, most, overflow, None if backoff is None else delay_of)
