"""One subscription of the transport in memory: permits, connections, and the seam's commands.

Owns `MemoryConsumer`, the `ConsumerLink`. Exact where the protocol is: entries are redelivered by
id at once, acks carry ack sets, connection events come when they happen, and what an old
connection, rewind or seek left under way is not delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from ..devbroker.rules.consumers import Consumer as Attached
from ..devbroker.rules.consumers import SubscriptionType
from ..devbroker.rules.refusal import Refusal
from ..devbroker.rules.subscriptions import Subscription
from ..devbroker.rules.topic_log import TopicLog
from ..errors import ClosedError, NotSupportedError
from ..exceptions import BrokerMetadataError, OperationNotSupported, named
from ..ids import MessageId
from ..options import ConsumerOptions, ConsumerType, InitialPosition
from ..transport.base import AckPlan, Capabilities, Delivery, Sink
from .cluster import MemoryCluster
from .commands import StoredEntry

PARTITIONS_S = 60.0  # how often clients look for new partitions

_EntryId = tuple[int, int]


class _Source:
    """One topic of a consumer, and who it is to the broker's rules."""

    def __init__(
        self, link: MemoryConsumer, number: int, topic: str, subscription: Subscription
    ) -> None:
        self.link = link
        self.number = number
        self.topic = topic
        self.volatile: bool = topic.startswith("non-persistent://")
        self.subscription = subscription
        self.attached: Attached | None = None
        self.credit = 0
        self.generation: int = 0  # raised by whatever voids what is still under way
        self.void: int = 0  # what is of an earlier one does not come again by `redeliver_all`
        self.chunks: dict[_EntryId, set[int]] = {}

    def deliver(self, entry: StoredEntry, count: int, mask: int | None) -> None:
        """Called with each entry that the subscription hands to this consumer."""
        if entry.chunks is not None and not self._complete(entry):
            self.link.consumed(self.number, 1)
            return
        delivery = self._delivery(entry, count, mask)
        generation = self.generation
        self.link.cluster.command(
            "MESSAGE",
            self.topic,
            self.subscription.name,
            delivery,
            lambda: self.link.arrived(self, generation, delivery),
            direction="out",
        )
        if self.volatile:
            self.subscription.ack(entry.ledger, entry.entry)

    def end(self) -> None:
        """The connection or the position is another: what is under way is lost."""
        self.generation += 1
        self.void = self.generation
        self.chunks.clear()

    def _delivery(self, entry: StoredEntry, count: int, mask: int | None) -> Delivery:
        first = None
        if entry.chunks is not None:
            first = (entry.ledger, entry.entry - entry.chunks[1] + 1)
        return Delivery(
            self.number,
            0 if self.volatile else entry.ledger,
            0 if self.volatile else entry.entry,
            entry.batch,
            count,
            range(len(entry.content)),
            entry.content,
            -1 if mask is None else mask,
            first,
        )

    def _complete(self, entry: StoredEntry) -> bool:
        """Whether this chunk is the last one and all before it came since the message last did."""
        assert entry.chunks is not None
        number, total = entry.chunks
        first = (entry.ledger, entry.entry - number)
        seen = self.chunks.setdefault(first, set())
        seen.add(number)
        if number < total - 1 or len(seen) < total:
            return False
        del self.chunks[first]
        return True


class MemoryConsumer:
    """A `ConsumerLink` over the broker's own rules; made by `MemoryTransport.subscribe`."""

    capabilities: Capabilities

    def __init__(
        self,
        cluster: MemoryCluster,
        options: ConsumerOptions,
        topics: Sequence[str],
        kind: SubscriptionType,
        name: str,
    ) -> None:
        self.cluster = cluster
        self.capabilities = cluster.capabilities
        self._options = options
        self._kind = kind
        self._name = name
        self._sink: Sink | None = None
        self._flow_stopped = False
        self._closed = False
        self._arrived: list[Delivery] = []
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._discovery: asyncio.TimerHandle | None = None
        self._sources = [
            _Source(self, number, topic, self._subscription(topic))
            for number, topic in enumerate(topics)
        ]

    def _subscription(self, topic: str) -> Subscription:
        state = self.cluster.state(topic)
        found = state.subscriptions.get(self._options.subscription_name)
        if found is not None:
            return found
        earliest = self._options.initial_position is InitialPosition.Earliest
        start = state.log.base if earliest else state.log.end
        return self.cluster.catalogue.subscription(
            state, self._options.subscription_name, start=start
        )

    @property
    def topic(self) -> str:
        return self._sources[0].topic if self._sources else self._options.pattern or ""

    @property
    def subscription_name(self) -> str:
        return self._options.subscription_name

    @property
    def consumer_name(self) -> str:
        return self._name

    def is_connected(self) -> bool:
        return self.cluster.connected and not self._closed

    def can_ack(self, source: int) -> bool:
        return self.is_connected() and self._sources[source].attached is not None

    def topic_of(self, source: int) -> tuple[str, int]:
        topic = self._sources[source].topic
        return topic, self._sources[source].subscription.log.partition

    def source_of(self, topic: str, partition: int, ledger: int = -1) -> int | None:
        found = [
            number
            for number, source in enumerate(self._sources)
            if topic in ("", source.topic, source.topic.rpartition("-partition-")[0])
            and (partition == -1 or self.topic_of(number)[1] in (-1, partition))
        ]
        return found[0] if len(found) == 1 else None

    # Connection

    def attach(self, wall_now_ms: int) -> None:
        """Join every subscription, without permits yet."""
        for source in self._sources:
            self._attach(source, wall_now_ms)

    def _attach(self, source: _Source, wall_now_ms: int) -> None:
        consumer = Attached(name=self._name, owner=source)
        source.subscription.add_consumer(
            consumer,
            self._kind,
            wall_now_ms,
            out_of_order=self._options.consumer_type is ConsumerType.KeyShared,
        )
        source.attached = consumer
        source.credit = 0

    def attach_again(self, wall_now_ms: int) -> None:
        """After a loss: subscribe, let the consumer send its acks, and only then take more."""
        try:
            self.attach(wall_now_ms)
        except Refusal as error:
            self.detach(wall_now_ms)
            self.fail(named(error.code, error.message))
            return
        if self._sink is not None:
            self._sink.on_connected()
            self._flow_all()

    def detach(self, wall_now_ms: int) -> None:
        """Leave; nothing that is under way arrives any more."""
        for source in self._sources:
            source.end()
            if source.attached is not None:
                source.subscription.remove_consumer(source.attached, wall_now_ms)
                source.attached = None
                self.cluster.wake(source.subscription)
        self._arrived.clear()

    def topics_changed(self) -> None:
        """A topic was made: at the next discovery it is looked at, and there is none without."""
        if self._discovery is None and self._new_topics():
            pattern = self._options.pattern is not None
            every = self._options.pattern_auto_discovery_period if pattern else PARTITIONS_S
            wait = every - (self._loop.time() - self._began) % every
            self._discovery = self._loop.call_later(wait, self._discover)

    def _new_topics(self) -> list[str]:
        known = {source.topic for source in self._sources}
        return [name for name in self.cluster.names_of(self._options) if name not in known]

    def _discover(self) -> None:
        self._discovery = None
        for topic in self._new_topics():
            source = _Source(self, len(self._sources), topic, self._subscription(topic))
            if self.cluster.connected:  # else with the others, after the reconnect
                try:
                    self._attach(source, self.cluster.wall_ms())
                except Refusal:
                    continue
            self._sources.append(source)
            if self._sink is not None:
                self._flow(source, max(1, self._options.receiver_queue_size))
        self.topics_changed()  # those refused

    def tell_disconnected(self) -> None:
        if self._sink is not None:
            self._sink.on_disconnected()

    def fail(self, error: Exception) -> None:
        if self._sink is not None:
            self._sink.on_failed(error)

    # Deliveries and permits

    def start(self, sink: Sink) -> None:
        self._sink = sink
        self._flow_all()

    def _flow_all(self) -> None:
        for source in self._sources:
            self._flow(source, max(1, self._options.receiver_queue_size))

    def _flow(self, source: _Source, permits: int) -> None:
        consumer = source.attached
        if consumer is None:
            return

        def carry_out() -> None:
            source.subscription.flow(consumer, permits)
            self.cluster.wake(source.subscription)

        self.cluster.command("FLOW", source.topic, self.subscription_name, permits, carry_out)

    def consumed(self, source: int, messages: int) -> None:
        where = self._sources[source]
        where.credit += messages
        self._give_credit(where)

    def _give_credit(self, source: _Source) -> None:
        half = max(1, self._options.receiver_queue_size // 2)
        if source.credit >= half and not self._flow_stopped and source.attached is not None:
            permits, source.credit = source.credit, 0
            self._flow(source, permits)

    def stop_flow(self) -> None:
        self._flow_stopped = True

    def arrived(self, source: _Source, generation: int, delivery: Delivery) -> None:
        """A delivery came through; it is handed over with the others of this turn."""
        if self._sink is None or generation < source.void:
            return
        if generation != source.generation:
            self._came_unseen([delivery])
            return
        self._arrived.append(delivery)
        self.cluster.hand_over_soon()

    def hand_over(self) -> None:
        arrived, self._arrived = self._arrived, []
        if arrived and self._sink is not None:
            self._sink.on_deliveries(arrived)

    # Commands

    def ack(self, plan: AckPlan) -> None:
        self.cluster.check_connected()
        source = self._sources[plan.source]
        self.cluster.command(
            "ACK", source.topic, self.subscription_name, plan, lambda: self._ack(source, plan)
        )

    def _ack(self, source: _Source, plan: AckPlan) -> None:
        subscription = source.subscription
        if plan.cumulative is not None:
            ledger, entry, _, ack_set = plan.cumulative
            subscription.ack_cumulative(ledger, entry, None if ack_set == -1 else ack_set)
        for ledger, entry in plan.entries:
            for each in _chunks(subscription, ledger, entry):
                subscription.ack(ledger, each)
        for ledger, entry, _, ack_set in plan.partial:
            subscription.ack(ledger, entry, ack_set)
        self.cluster.wake(subscription)

    def redeliver(self, source: int, groups: Sequence[tuple[int, Sequence[int]]]) -> None:
        if not self._kind.shares:
            raise NotSupportedError("only Shared and Key_Shared redeliver single entries")
        where = self._sources[source]
        ids = [
            (ledger, each)
            for ledger, entries in groups
            for entry in entries
            for each in _chunks(where.subscription, ledger, entry)
        ]
        if ids:  # a command without ids would ask for everything
            self._redeliver(where, ids)

    def redeliver_all(self, source: int | None = None) -> None:
        for each in self._sources if source is None else [self._sources[source]]:
            each.generation += 1
            unseen = [one for one in self._arrived if one.source == each.number]
            self._arrived = [one for one in self._arrived if one.source != each.number]
            self._redeliver(each, [])
            self._came_unseen(unseen)

    def _came_unseen(self, deliveries: list[Delivery]) -> None:
        """They came, and come again by `redeliver_all`."""
        if deliveries and self._sink is not None and self._kind.shares:
            self._sink.on_asked_all(deliveries)

    def _redeliver(self, source: _Source, ids: list[_EntryId]) -> None:
        consumer = source.attached
        if consumer is None:
            return  # the reconnect brings everything again

        def carry_out() -> None:
            source.subscription.redeliver(consumer, ids)
            self.cluster.wake(source.subscription)

        name = "REDELIVER_UNACKNOWLEDGED_MESSAGES"
        self.cluster.command(name, source.topic, self.subscription_name, ids, carry_out)

    async def seek(self, position: MessageId | int) -> None:
        self.cluster.check_connected()
        self._check_open()
        for source in self._sources:
            self._seek(source, position)
        self._arrived.clear()
        if self._sink is not None:
            self._sink.on_sought()
        self.attach(self.cluster.wall_ms())
        self._flow_all()

    def _seek(self, source: _Source, position: MessageId | int) -> None:
        log = source.subscription.log
        if isinstance(position, int):
            seq, mask = log.locate_time(position), None
        else:
            seq, mask = self._place(log, position)

        def carry_out() -> None:
            source.end()
            source.subscription.seek(seq, self.cluster.wall_ms(), mask)
            source.attached = None

        self.cluster.command("SEEK", source.topic, self.subscription_name, position, carry_out)

    def _place(self, log: TopicLog, position: MessageId) -> tuple[int, int | None]:
        """Where an id leads: (place in the log, bits of its batch still to be delivered)."""
        inclusive = self._options.start_message_id_inclusive
        where = position.first_chunk if inclusive and position.first_chunk else position
        seq = log.locate(where.ledger_id(), where.entry_id())
        if seq is None:
            return log.locate_from(where.ledger_id() % 2**64, where.entry_id() % 2**64), None
        index = where.batch_index() + (not inclusive)
        size = log.at(seq).batch
        if where.batch_index() < 0 or size == 0:
            return seq + (not inclusive), None
        if index >= size:
            return seq + 1, None
        return seq, (((1 << size) - 1) >> index << index) if index else None

    async def last_message_id(self) -> MessageId:
        self.cluster.check_connected()
        self._check_open()
        if len(self._sources) != 1:
            raise OperationNotSupported(
                "the last message id is one topic's; this consumer has several"
            )
        log = self._sources[0].subscription.log
        if log.end == log.base:
            return MessageId(log.partition, -1, -1, topic=self.topic)
        last = log.at(log.end - 1)
        return MessageId(
            log.partition,
            last.ledger,
            last.entry,
            last.batch - 1,
            batch_size=last.batch,
            topic=self.topic,
        )

    async def unsubscribe(self) -> None:
        self.cluster.check_connected()
        for source in self._sources:
            if any(one is not source.attached for one in source.subscription.consumers):
                raise BrokerMetadataError("the subscription has other consumers")
        self.drop()
        for source in self._sources:
            state = self.cluster.state(source.topic)
            state.subscriptions.pop(self.subscription_name, None)

    async def close(self) -> None:
        self.drop()

    def drop(self) -> None:
        """Leave at once; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            if self._discovery is not None:
                self._discovery.cancel()
            self.detach(self.cluster.wall_ms())
            self.cluster.links.remove(self)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer was closed")


def _chunks(subscription: Subscription, ledger: int, entry: int) -> Iterator[int]:
    """The entry, and with the last chunk of a message all its chunks."""
    log = subscription.log
    seq = log.locate(ledger, entry)
    stored = log.at(seq) if seq is not None else None
    if isinstance(stored, StoredEntry) and stored.chunks is not None:
        number, total = stored.chunks
        if number == total - 1:
            yield from range(entry - number, entry)
    yield entry
