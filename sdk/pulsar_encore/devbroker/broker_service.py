"""State that all sessions of one broker share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from ..wire import NO_REQUEST, pb
from ..wire.checksum import topics_hash
from .attached import AttachedConsumer, AttachedProducer, Peer
from .broker_settings import BrokerSettings, accepted_credentials
from .clock import Clock
from .recorder import RecordedCommands, Recorder
from .rules.attached_consumers import Delivery, Notice, NoticeKind, SubscribedConsumer
from .rules.catalogue import BrokerTopic, Catalogue
from .rules.credentials import Credentials
from .rules.faults import FaultPlan
from .rules.refusal import Refusal
from .rules.subscriptions import Subscription
from .rules.topic_log import LogEntry
from .rules.transactions import TransactionCoordinator, TransactionId
from .scheduler import DispatchScheduler


class BrokerService:
    """Topics, deliveries, recorded commands and faults of one broker.

    Args:
        clock: The broker's only source of time.
        start_outage: Called with seconds when a fault starts an outage.

    Attributes:
        looked_up: Topics that a client looked up since they were last unloaded.
        records: Receives every command; by default the recorder.
        on_created: Called with the full name of each new topic or partition.
    """

    def __init__(
        self, settings: BrokerSettings, clock: Clock, start_outage: Callable[[float], None]
    ) -> None:
        self.settings: BrokerSettings = settings
        self.clock: Clock = clock
        self.start_outage: Callable[[float], None] = start_outage
        self.catalogue: Catalogue = Catalogue(
            settings,
            itertools.count(settings.first_ledger).__next__,
            self._created,
        )
        self.credentials: Credentials = Credentials(accepted_credentials(settings))
        self._started_ms = clock.now_ms()
        self.scheduler: DispatchScheduler = DispatchScheduler(clock, self._deliver)
        self.recorder: Recorder | None = (
            Recorder(settings.record_limit) if settings.record else None
        )
        self.records: RecordedCommands | None = self.recorder
        self.faults: FaultPlan | None = None
        self.sessions: set[Peer] = set()
        self.coordinator: TransactionCoordinator = TransactionCoordinator()
        self._overdue: list[TransactionId] = []
        self.looked_up: set[str] = set()
        self.on_created: Callable[[str], None] | None = None
        self.producer_names: itertools.count[int] = itertools.count()
        self.connection_ids: itertools.count[int] = itertools.count(1)

    def check_serves(self, state: BrokerTopic) -> None:
        """Refuse a topic of another broker, or one that was not looked up (ServiceNotReady)."""
        if self.settings.redirect_to is not None:
            raise Refusal("ServiceNotReady", f"{state.name} is served by another broker")
        if self.settings.require_lookup and state.name not in self.looked_up:
            raise Refusal("ServiceNotReady", f"{state.name} was not looked up")

    def age_ms(self) -> float:
        """Return ms since the broker's start."""
        return self.clock.now_ms() - self._started_ms

    def begin_transaction(self, timeout_ms: int) -> TransactionId:
        """Begin a transaction that is aborted after `timeout_ms`."""
        txn = self.coordinator.begin()
        self.clock.call_later(timeout_ms / 1000, lambda: self._time_out(txn))
        return txn

    def _time_out(self, txn: TransactionId) -> None:
        if not self.coordinator.loaded:
            self._overdue.append(txn)
        elif self.coordinator.is_open(txn):
            self.end_transaction(txn, commit=False)

    def end_overdue_transactions(self) -> None:
        """Abort the transactions that have timed out while the coordinator was not loaded.

        As on Pulsar 4.2.4, the connection of a client has this effect.
        """
        overdue, self._overdue = self._overdue, []
        for txn in overdue:
            self._time_out(txn)

    def end_transaction(self, txn: TransactionId, *, commit: bool) -> None:
        """End a transaction in the topics and subscriptions that it has registered."""
        ended = self.coordinator.end(txn)
        low_water = self.coordinator.low_water
        for topic in sorted(ended.topics):
            state = self.catalogue.topics.get(topic)
            if state is not None:
                state.log.end_transaction(txn, commit, low_water)
                self.scheduler.wake_all(state)
        for topic, name in sorted(ended.subscriptions):
            state = self.catalogue.topics.get(topic)
            subscription = state.subscriptions.get(name) if state is not None else None
            if state is not None and subscription is not None:
                subscription.end_transaction(txn, commit, low_water)
                self.acked(state, subscription)

    def acked(self, state: BrokerTopic, subscription: Subscription) -> None:
        """Notify, trim and deliver after acks."""
        if state.log.terminated:
            self.notify(subscription.end_of_topic())
        settings = self.settings
        if (
            subscription.cursor.mark - state.log.base > settings.entries_per_ledger
            and not settings.keep_acked
        ):
            state.trim()
        self.scheduler.wake(state, subscription)

    def publish(
        self, state: BrokerTopic, entry: LogEntry, txn: TransactionId | None = None
    ) -> LogEntry:
        """Store an entry, and wake the subscriptions of the topic."""
        state.log.append(entry, txn)
        state.body_bytes += len(entry.body)
        self.scheduler.wake_all(state)
        return entry

    def _created(self, topic: str) -> None:
        self._notify_watchers(new=topic)
        if self.on_created is not None:
            self.on_created(topic)

    def _notify_watchers(self, *, new: str | None = None, deleted: str | None = None) -> None:
        topic = new or deleted or ""
        for session in sorted(self.sessions, key=lambda session: session.id):
            for watcher in session.watchers.values():
                if watcher.concerns(topic):
                    listed = watcher.pattern.filter(self.catalogue.in_namespace(watcher.namespace))
                    update = pb.CommandWatchTopicUpdate(
                        watcher_id=watcher.id,
                        new_topics=[new] if new else [],
                        deleted_topics=[deleted] if deleted else [],
                        topics_hash=topics_hash(listed),
                    )
                    session.send(update)

    def _deliver(self, delivery: Delivery) -> None:
        consumer, entry, count, mask = delivery
        attached: AttachedConsumer = consumer.owner
        command = attached.encoder.encode(entry, count, mask, consumer.epoch)
        attached.session.send_raw("MESSAGE", command, entry.body)
        if not attached.state.log.persistent:
            attached.subscription.ack(entry.ledger, entry.entry)

    def notify(self, notices: Iterable[Notice]) -> None:
        for consumer, kind in notices:
            attached: AttachedConsumer = consumer.owner
            send = attached.session.send
            if kind is NoticeKind.END_OF_TOPIC:
                send(pb.CommandReachedEndOfTopic(consumer_id=attached.id))
            else:
                active = kind is NoticeKind.ACTIVE
                send(pb.CommandActiveConsumerChange(consumer_id=attached.id, is_active=active))

    def detach(self, attached: AttachedConsumer) -> None:
        """Remove a consumer. A reader's cursor is deleted with it."""
        attached.session.consumers.pop(attached.id, None)
        state, subscription = attached.state, attached.subscription
        self.notify(subscription.remove_consumer(attached.consumer, self.clock.wall_ms()))
        if not subscription.durable and not subscription.consumers:
            self.delete_subscription(state, subscription)
        else:
            self.scheduler.wake(state, subscription)

    def delete_subscription(self, state: BrokerTopic, subscription: Subscription) -> None:
        if state.subscriptions.get(subscription.name) is subscription:
            del state.subscriptions[subscription.name]

    def close_consumers(self, consumers: Iterable[SubscribedConsumer]) -> None:
        """Close consumers that were already removed from their subscription."""
        for consumer in consumers:
            attached: AttachedConsumer = consumer.owner
            attached.session.consumers.pop(attached.id, None)
            attached.session.send(
                pb.CommandCloseConsumer(consumer_id=attached.id, request_id=NO_REQUEST)
            )

    def detach_producer(self, attached: AttachedProducer) -> None:
        attached.session.producers.pop(attached.id, None)
        successor = attached.state.producers.remove(attached.publisher)
        if successor is not None:
            self.producer_ready(successor.owner)

    def producer_ready(self, attached: AttachedProducer) -> None:
        """Answer PRODUCER. A waiting producer gets two answers with the same request id."""
        publisher, state = attached.publisher, attached.state
        attached.session.send(
            pb.CommandProducerSuccess(
                request_id=publisher.request_id,
                producer_name=publisher.name,
                schema_version=publisher.schema_version,
                topic_epoch=state.producers.topic_epoch,
                producer_ready=publisher.ready,
                last_sequence_id=-1,
            )
        )

    def close_producers(self, state: BrokerTopic) -> None:
        for publisher in [*state.producers.ready.values(), *state.producers.waiting]:
            attached: AttachedProducer = publisher.owner
            session = attached.session
            session.producers.pop(attached.id, None)
            session.closed_producers.add(attached.id)
            session.send(pb.CommandCloseProducer(producer_id=attached.id, request_id=NO_REQUEST))
        state.producers.ready.clear()
        state.producers.waiting.clear()

    def unload(self, state: BrokerTopic) -> None:
        """Close all users of a topic. Counts, partial acks and readers' cursors are lost."""
        self.looked_up.discard(state.name)
        for subscription in list(state.subscriptions.values()):
            self.close_consumers(subscription.unload())
            if not subscription.durable:
                self.delete_subscription(state, subscription)
        self.close_producers(state)
        state.log.roll_ledger()

    def delete(self, topic: str) -> None:
        """Delete a topic with its partitions and subscriptions, and close its users."""
        for state in self.catalogue.delete(topic):
            self.unload(state)
            state.subscriptions.clear()
            self._notify_watchers(deleted=state.name)

    def terminate(self, state: BrokerTopic) -> None:
        self.close_producers(state)
        self.notify(state.terminate())
