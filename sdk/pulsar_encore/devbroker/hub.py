"""What all connections of one broker share: topics, the pump, the record, the faults.

Owns the links between a subscription's consumers and their connections, so that whatever ends a
consumer (close, disconnect, seek, unload) takes the same way out.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..wire import answers, commands
from .catalogue import Catalogue, TopicState
from .consumers import Consumer, Delivery, Notice, NoticeKind
from .encoding import MessageEncoder, ReceiptEncoder
from .faults import FaultPlan
from .producers import Publisher
from .pump import Pump, wall_ms
from .recorder import Recorder
from .settings import BrokerSettings
from .subscriptions import Subscription

if TYPE_CHECKING:
    from .connection import Connection


@dataclass(slots=True, eq=False)
class Attached:
    """A consumer and the connection it is on."""

    id: int
    connection: Connection
    state: TopicState
    subscription: Subscription
    consumer: Consumer
    encoder: MessageEncoder
    since: float = field(default_factory=time.time)


@dataclass(slots=True, eq=False)
class Publishing:
    """A producer and the connection it is on."""

    id: int
    connection: Connection
    state: TopicState
    publisher: Publisher
    encoder: ReceiptEncoder


class Hub:
    """Shared by the connections of one broker.

    Args:
        start_outage: Called with seconds when a fault asks for an outage.
    """

    def __init__(self, settings: BrokerSettings, start_outage: Callable[[float], None]) -> None:
        self.settings = settings
        self.catalogue: Catalogue = Catalogue(settings, itertools.count(1).__next__)
        self.pump: Pump = Pump(self._deliver)
        self.recorder: Recorder | None = (
            Recorder(settings.record_limit) if settings.record else None
        )
        self.faults: FaultPlan | None = None
        self.connections: set[Connection] = set()
        self.sockets: set[Connection] = set()  # also those that are still closing
        self.looked_up: set[str] = set()
        self.start_outage = start_outage
        self.producer_names: itertools.count[int] = itertools.count()
        self.connection_ids: itertools.count[int] = itertools.count(1)

    def _deliver(self, delivery: Delivery) -> None:
        consumer, entry, count, mask = delivery
        attached: Attached = consumer.owner
        command = attached.encoder.encode(entry, count, mask, consumer.epoch)
        attached.connection.send_raw("MESSAGE", command, entry.body)

    def tell(self, notices: Iterable[Notice]) -> None:
        """Send notices to the consumers they are for."""
        for consumer, kind in notices:
            attached: Attached = consumer.owner
            if kind is NoticeKind.END_OF_TOPIC:
                command = answers.reached_end_of_topic(attached.id)
            else:
                active = kind is NoticeKind.ACTIVE
                command = answers.active_consumer_change(attached.id, is_active=active)
            attached.connection.send(command)

    def detach(self, attached: Attached) -> None:
        """A consumer is gone from its connection; a reader's cursor goes with it."""
        attached.connection.consumers.pop(attached.id, None)
        state, subscription = attached.state, attached.subscription
        self.tell(subscription.remove_consumer(attached.consumer, wall_ms()))
        self._after_leaving(state, subscription)

    def _after_leaving(self, state: TopicState, subscription: Subscription) -> None:
        if not subscription.durable and not subscription.consumers:
            self.forget(state, subscription)
        else:
            self.pump.wake(state, subscription)

    def forget(self, state: TopicState, subscription: Subscription) -> None:
        """Delete a subscription."""
        if state.subscriptions.get(subscription.name) is subscription:
            del state.subscriptions[subscription.name]

    def close_consumers(self, consumers: Iterable[Consumer]) -> None:
        """Tell consumers that a subscription has already let go of that they are closed."""
        for consumer in consumers:
            attached: Attached = consumer.owner
            attached.connection.consumers.pop(attached.id, None)
            attached.connection.send(commands.close_consumer(attached.id))

    def withdraw(self, publishing: Publishing) -> None:
        """A producer is gone from its connection; a waiting one may take over."""
        publishing.connection.producers.pop(publishing.id, None)
        following = publishing.state.producers.remove(publishing.publisher)
        if following is not None:
            self.producer_ready(following.owner)

    def producer_ready(self, publishing: Publishing) -> None:
        """Answer PRODUCER, now or later with the same request id."""
        publisher, state = publishing.publisher, publishing.state
        publishing.connection.send(
            answers.producer_success(
                publisher.request_id,
                producer_name=publisher.name,
                schema_version=publisher.schema_version,
                topic_epoch=state.producers.topic_epoch,
                producer_ready=publisher.ready,
            )
        )

    def close_producers(self, state: TopicState) -> None:
        """Close every producer of a topic from this side."""
        for publisher in [*state.producers.ready.values(), *state.producers.waiting]:
            publishing: Publishing = publisher.owner
            connection = publishing.connection
            connection.producers.pop(publishing.id, None)
            connection.closed_producers.add(publishing.id)
            connection.send(commands.close_producer(publishing.id))
        state.producers.ready.clear()
        state.producers.waiting.clear()

    def unload(self, state: TopicState) -> None:
        """Close all that use a topic; counts, partial acks and readers' cursors are lost."""
        self.looked_up.discard(state.name)
        for subscription in list(state.subscriptions.values()):
            self.close_consumers(subscription.unload())
            if not subscription.durable:
                self.forget(state, subscription)
        self.close_producers(state)
        state.log.roll_ledger()

    def terminate(self, state: TopicState) -> None:
        """No more messages for a topic; consumers are told once they have acked all."""
        state.log.terminated = True
        self.close_producers(state)
        for subscription in state.subscriptions.values():
            self.tell(subscription.end_of_topic())
