"""A transport without a network: the development broker's rules, called directly.

Owns `MemoryTransport`. What a subscription delivers, holds, counts and blocks is decided by the
same pure code that the development broker runs; this module moves deliveries to the sinks, records
every command, and makes connections fail: by hand (`disconnect`, `reconnect`) or by step
(`FaultPlan`). Everything runs on one event loop, real or virtual.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..devbroker.recorder import check_command
from ..devbroker.rules.catalogue import Catalogue, TopicState
from ..devbroker.rules.consumers import SubscriptionType
from ..devbroker.rules.faults import Direction, Fault, FaultPlan
from ..devbroker.rules.names import parse
from ..devbroker.rules.refusal import Refusal, missing_subscription
from ..devbroker.rules.subscriptions import Subscription
from ..devbroker.settings import BrokerSettings
from ..errors import ClosedError, ConfigurationError, NotSupportedError
from ..exceptions import NotConnected, named
from ..ids import MessageId
from ..options.checks import string_map
from ..timer import now_ms, wall_now_ms
from ..transport.base import Capabilities
from .commands import Command, MemoryMessage, StoredEntry
from .consuming import MemoryConsumer
from .producing import MemoryProducer
from .reading import MemoryReader

if TYPE_CHECKING:
    from ..options import ConsumerOptions, ProducerOptions, ReaderOptions

CAPABILITIES = Capabilities(name="memory")
RECONNECT_S = 0.1

_PASS_ENTRIES = 1000
_NON_PERSISTENT = "non-persistent://"
_STAND_IN = "persistent://volatile-"


class MemoryTransport:
    """Topics and subscriptions of one imaginary cluster; pass it to `Client(..., transport=)`.

    Several clients may share one. It outlives its clients: `close` ends their links, and what was
    published stays.

    Args:
        settings: The broker rules to obey; when None Pulsar's defaults, with rewinds that nothing
            overtakes (`rewind_overtaken`).
        faults: What goes wrong at which command. Closed connections come back after 0.1 s.

    Attributes:
        commands: Every `Command` so far, oldest first; `recorded` has those of one type.
        connected: False between `disconnect` and `reconnect`.
        catalogue: The topics; `create_partitioned(topic, count)` makes one with partitions.
    """

    capabilities = CAPABILITIES

    def __init__(
        self, settings: BrokerSettings | None = None, *, faults: FaultPlan | None = None
    ) -> None:
        self.settings: BrokerSettings = settings or BrokerSettings(
            namespaces=None, rewind_overtaken=0
        )
        self.faults = faults
        self.commands: list[Command] = []
        self.connected: bool = True
        self.catalogue: Catalogue = Catalogue(
            self.settings.topic_rules(),
            self.settings.rules(),
            itertools.count(1).__next__,
            self._topic_created,
        )
        self.links: list[MemoryConsumer] = []
        self.producers: list[MemoryProducer] = []
        # Of the connections: what is on its way on an old one never arrives.
        self.generation: int = 0
        self._readers: list[MemoryReader] = []
        self._numbers = itertools.count()
        self._awake: dict[Subscription, None] = {}
        self._scheduled = False
        self._handing = False
        self._timers: dict[Subscription, asyncio.TimerHandle] = {}
        self._wall_offset_ms: int | None = None

    # Publishing

    def put(
        self,
        topic: str,
        *payloads: bytes | None,
        batch: bool | None = None,
        key: str = "",
        properties: dict[str, str] | None = None,
        event_ms: int = 0,
        deliver_at_ms: int = 0,
    ) -> list[MessageId]:
        """Store one entry, a batch if there are several payloads, and return the messages' ids.

        Args:
            topic: Of one topic or partition.
            payloads: One for each message; None is a tombstone.
            batch: True makes a batch of one message too.
            key: Partition key of all of them.
            properties: Of all of them.
            event_ms: Event time of all of them, ms since the epoch.
            deliver_at_ms: Not before, ms since the epoch (Shared and Key_Shared).

        Raises:
            ConfigurationError: No payload, or one that is not bytes; properties that are not text.
        """
        if not payloads:
            raise ConfigurationError("put needs at least one payload")
        for payload in payloads:
            if payload is not None and not isinstance(payload, bytes):
                raise ConfigurationError(
                    f"a payload must be bytes or None, got {type(payload).__name__}: encode it, as "
                    "a producer does with its schema"
                )
        if not isinstance(key, str):
            raise ConfigurationError(f"key must be a str, got {type(key).__name__}")
        given = string_map(properties, "properties")
        messages = [
            MemoryMessage(payload, key=key, attributes=dict(given), event_ms=event_ms)
            for payload in payloads
        ]
        batched = len(messages) > 1 if batch is None else batch
        entry = self.store(topic, messages, batched=batched, key=key, deliver_at_ms=deliver_at_ms)
        size = len(messages) if batched else 0
        partition = self.state(topic).log.partition
        return [
            MessageId(
                partition,
                entry.ledger,
                entry.entry,
                index if batched else -1,
                batch_size=size,
                topic=messages[index].topic,
            )
            for index in range(len(messages))
        ]

    def put_chunked(self, topic: str, payload: bytes, chunks: int) -> MessageId:
        """Store a message in several entries; it is delivered, once all of them were, as one."""
        entries = [
            self.store(
                topic,
                [MemoryMessage(payload)] if number == chunks - 1 else [],
                chunks=(number, chunks),
            )
            for number in range(chunks)
        ]
        first, last = entries[0], entries[-1]
        partition = self.state(topic).log.partition
        name = last.content[0].topic
        return MessageId(
            partition,
            last.ledger,
            last.entry,
            topic=name,
            first_chunk=MessageId(partition, first.ledger, first.entry, topic=name),
        )

    def store(
        self,
        topic: str,
        messages: Sequence[MemoryMessage],
        *,
        batched: bool = False,
        key: str = "",
        deliver_at_ms: int = 0,
        chunks: tuple[int, int] | None = None,
    ) -> StoredEntry:
        """Append an entry and wake who waits for it."""
        state = self.state(topic)
        name = topic if _volatile(topic) else state.name
        now_ms = self.wall_ms()
        for message in messages:
            message.topic = name
            message.publish_ms = now_ms
        entry = StoredEntry(
            body=b"",
            batch=len(messages) if batched else 0,
            publish_ms=now_ms,
            deliver_at_ms=deliver_at_ms,
            key=key.encode(),
            content=messages,
            chunks=chunks,
        )
        state.log.append(entry)
        for subscription in state.subscriptions.values():
            self.wake(subscription)
        for reader in self._readers:
            reader.wake()
        return entry

    def state(self, topic: str, *, create: bool = True) -> TopicState:
        """A topic or partition of the catalogue; a non-persistent name has a stand-in there."""
        name = topic.replace(_NON_PERSISTENT, _STAND_IN, 1)
        return self.catalogue.topic(name, create=create)

    def backlog(self, topic: str, subscription: str) -> int:
        """Entries of a subscription of one topic or partition that are not wholly acked.

        Raises:
            ConfigurationError: There is no such topic or subscription.
        """
        try:
            known = self.state(topic, create=False).subscriptions
        except Refusal as refusal:
            raise ConfigurationError(f"no backlog of {topic!r}: {refusal.message}") from refusal
        if subscription not in known:
            raise missing_subscription(topic, subscription, known)
        return known[subscription].backlog

    # Connections

    def disconnect(self) -> None:
        """Lose every connection, until `reconnect`. What was held is to be delivered again."""
        if not self.connected:
            return
        self.connected = False
        self.generation += 1
        for link in self.links:
            link.detach(self.wall_ms())
        for link in list(self.links):
            link.tell_disconnected()

    def reconnect(self, *, keep_ack_sets: bool = True) -> None:
        """Connect again; each consumer's acks go before its deliveries, and each producer sends
        again what was not answered.

        Args:
            keep_ack_sets: False for what an unload or an orderly stop of a broker does: partial
                acks are forgotten.
        """
        if self.connected:
            return
        if not keep_ack_sets:
            for state in self.catalogue.topics.values():
                for subscription in state.subscriptions.values():
                    subscription.cursor.forget_partial()
        self.connected = True
        for link in list(self.links):
            link.attach_again(self.wall_ms())
        for producer in list(self.producers):
            producer.send_again()

    def check_connected(self) -> None:
        """Raises NotConnected while connections are lost."""
        if not self.connected:
            raise NotConnected("not connected")

    # Commands and their faults

    def command(
        self,
        name: str,
        topic: str,
        subscription: str,
        details: Any,
        carry_out: Callable[[], None],
        *,
        direction: Direction = "in",
    ) -> None:
        """Record a command and carry it out, as the fault plan lets it.

        Raises:
            PulsarException: The plan refuses it.
        """
        loop = asyncio.get_running_loop()
        self.commands.append(Command(name, int(loop.time() * 1000), topic, subscription, details))
        faults = self.faults.step(direction, name, topic) if self.faults is not None else []
        for fault in faults:
            if self._instead(fault, carry_out, loop):
                return
        carry_out()
        for fault in faults:
            if fault.kind == "duplicate":
                carry_out()
            elif fault.kind == "close_after":
                loop.call_soon(self._lose, RECONNECT_S)

    def _instead(
        self, fault: Fault, carry_out: Callable[[], None], loop: asyncio.AbstractEventLoop
    ) -> bool:
        """Whether something else happens than carrying the command out."""
        if fault.kind == "drop":
            return True
        if fault.kind == "delay":
            loop.call_later(fault.delay_ms / 1000, carry_out)
            return True
        if fault.kind == "close_before":
            loop.call_soon(self._lose, RECONNECT_S)
            return True
        if fault.kind == "outage":
            loop.call_soon(self._lose, fault.outage_s)
            return True
        if fault.kind == "refuse":
            raise named(fault.error, f"refused by the fault plan: {fault.command}")
        return False

    def _lose(self, seconds: float) -> None:
        if self.connected:
            self.disconnect()
            asyncio.get_running_loop().call_later(seconds, self.reconnect)

    def recorded(self, name: str) -> list[Command]:
        """The commands of one type, such as ``"ACK"``, oldest first.

        Raises:
            ConfigurationError: The protocol has no such command.
        """
        check_command(name)
        return [command for command in self.commands if command.name == name]

    # Delivering

    def wall_ms(self) -> int:
        """Ms since the epoch on a clock that goes as the loop's does."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # before any loop runs
            return time.time_ns() // 1_000_000
        if hasattr(loop, "wall_time"):
            return wall_now_ms(loop)
        loop_ms = now_ms(loop)
        if self._wall_offset_ms is None:
            self._wall_offset_ms = time.time_ns() // 1_000_000 - loop_ms
        return loop_ms + self._wall_offset_ms

    def wake(self, subscription: Subscription) -> None:
        """Something may be deliverable."""
        self._awake[subscription] = None
        if not self._scheduled and subscription.consumers:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        awake, self._awake = self._awake, {}
        now_ms = self.wall_ms()
        for subscription in awake:
            deliveries = subscription.dispatch(now_ms, _PASS_ENTRIES)
            for consumer, entry, count, mask in deliveries:
                consumer.owner.deliver(entry, count, mask)
            if len(deliveries) >= _PASS_ENTRIES:
                self.wake(subscription)
                continue
            timer = self._timers.pop(subscription, None)
            if timer is not None:
                timer.cancel()
            wake_ms = subscription.wake_ms(now_ms)
            if wake_ms is not None:
                delay_s = max(wake_ms - now_ms, 1) / 1000
                loop = asyncio.get_running_loop()
                self._timers[subscription] = loop.call_later(delay_s, self.wake, subscription)
        self._hand_over()

    def hand_over_soon(self) -> None:
        """A delivery arrived that no pass of `_deliver` will hand over: a delayed one."""
        if not self._handing:
            self._handing = True
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._handing = False
        for link in list(self.links):
            link.hand_over()

    # The seam

    async def subscribe(self, options: ConsumerOptions) -> MemoryConsumer:
        self.check_connected()
        names = self.names_of(options)
        kind = SubscriptionType(options.consumer_type.value)
        name = options.consumer_name or f"memory-{next(self._numbers)}"
        link = MemoryConsumer(self, options, names, kind, name)
        self.command(
            "SUBSCRIBE", names[0] if names else "", options.subscription_name, options, _nothing
        )
        try:
            link.attach(self.wall_ms())
        except Refusal as error:
            link.detach(self.wall_ms())
            raise named(error.code, error.message) from error
        self.links.append(link)
        return link

    def names_of(self, options: ConsumerOptions) -> list[str]:
        """The topics and partitions that a consumer is to read now."""
        if options.pattern is None:
            return [name for topic in options.topics for name in self._parts(topic)]
        # As every client: in full, against the name without its domain and partition.
        wanted = re.compile(options.pattern.rpartition("://")[2])
        names = (parse(name) for name in self.catalogue.topics if not name.startswith(_STAND_IN))
        return [name.full for name in names if wanted.fullmatch(name.base.partition("://")[2])]

    def _topic_created(self) -> None:
        for link in self.links:
            link.topics_changed()

    def _parts(self, topic: str) -> list[str]:
        if _volatile(topic):
            return [topic]
        try:
            count = self.catalogue.partitions(topic, create=True)
            full = self.catalogue.name(topic).full
        except Refusal as error:
            raise named(error.code, error.message) from error
        return [f"{full}-partition-{each}" for each in range(count)] or [full]

    async def create_producer(self, options: ProducerOptions) -> MemoryProducer:
        self.check_connected()
        names = self._parts(options.topic)
        self.command("PRODUCER", names[0], "", options, _nothing)
        return MemoryProducer(self, options, names, f"memory-{next(self._numbers)}")

    async def create_reader(self, options: ReaderOptions) -> MemoryReader:
        self.check_connected()
        logs = [self.state(name).log for name in self._parts(options.topic)]
        reader = MemoryReader(logs, options, self._readers.remove)
        self._readers.append(reader)
        return reader

    async def schema_of(self, topic: str, version: int) -> Any:
        raise NotSupportedError("messages in memory have no schema version")

    async def topic_partitions(self, topic: str) -> list[str]:
        return self._parts(topic)

    def shutdown(self) -> None:
        """Drop every link without flushing; the topics stay."""
        for link in list(self.links):
            link.drop()
            link.fail(ClosedError("the transport was shut down"))
        for reader in list(self._readers):
            reader.drop()
        for producer in list(self.producers):
            producer.drop()

    async def close(self) -> None:
        self.shutdown()


def _volatile(topic: str) -> bool:
    return topic.startswith(_NON_PERSISTENT)


def _nothing() -> None:
    """For commands that are carried out by the caller."""
