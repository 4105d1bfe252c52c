"""A transport without a network: the client of the binary protocol and a broker, back to back.

Owns `MemoryTransport`: what a test puts into the cluster and asks of it, and how its connections
fail. It has no rules of its own; what a client does is the native transport's, and what a broker
does the development broker's. Everything runs on one event loop, real or virtual, and comes again
in the same order: what both draw at random elsewhere is fixed here, and nobody sets a timer that
goes round.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from ..devbroker.broker_settings import BrokerSettings
from ..devbroker.handlers.producer_commands import read_entry
from ..devbroker.recorder import check_command
from ..devbroker.rules.catalogue import BrokerTopic, Catalogue
from ..devbroker.rules.faults import FaultPlan
from ..devbroker.rules.refusal import Refusal, missing_subscription
from ..errors import ConfigurationError
from ..options.checks import string_map
from ..transport.interface import (
    Capabilities,
    ProducerListener,
    TransportConsumer,
    TransportProducer,
)
from ..transport.native.client_settings import ClientSettings
from ..transport.native.native_transport import NativeTransport
from ..values.message_id import MessageId
from .broker_clock import BrokerClock
from .command_log import Command, CommandLog
from .dialer import BrokerDialer
from .new_topics import NewTopics
from .stored_entries import chunk_bodies, entry_body

if TYPE_CHECKING:
    from ..options import ProducerOptions, Subscription

_URL: Final = "pulsar://memory:6650"
# Nothing is asked that no test asks for: a loop in which nobody has anything to do stands still.
_SETTINGS: Final = ClientSettings(keep_alive_s=math.inf, idle_s=0)


class _NoJitter(Random):
    """Spreads nothing: an attempt comes when its delay is over, a first partition is the first."""

    def random(self) -> float:
        return 0.0


class MemoryTransport:
    """Topics and subscriptions of one imaginary cluster; pass it to `Client(..., transport=)`.

    Several clients may share one. It outlives its clients: `close` ends their links, and what was
    published stays.

    What client and broker say to each other takes turns of the loop: a test that looks at what a
    call set going lets it run before, by `await asyncio.sleep(0.01)`, free in virtual time.

    Args:
        settings: The broker rules to obey; when None Pulsar's defaults, with rewinds that nothing
            overtakes (`rewind_overtaken`). Authentication is not among them.
        faults: What goes wrong at which command. Closed connections come back after 0.1 s.

    Attributes:
        commands: Every `Command` so far of consumers and producers, oldest first; none with
            `BrokerSettings.record` off. `recorded` has those of one type, answers too.
        connected: False between `disconnect` and `reconnect`.
        catalogue: The topics; `create_partitioned(topic, count)` makes one with partitions.
    """

    def __init__(
        self, settings: BrokerSettings | None = None, *, faults: FaultPlan | None = None
    ) -> None:
        self.settings: BrokerSettings = settings or BrokerSettings(
            namespaces=None, rewind_overtaken=0
        )
        self.capabilities: Capabilities = Capabilities(name="memory")
        self._clock = BrokerClock()
        broker_settings = replace(
            self.settings, keep_alive_s=math.inf, token=None, credentials=(), record=False
        )
        self._dialer = BrokerDialer(broker_settings, clock=self._clock)
        self._log = CommandLog(self._batch_of)
        self._new_topics = NewTopics()
        service = self._service = self._dialer.service
        service.start_outage = self._outage
        service.on_created = self._new_topics.created
        service.records = self._log if self.settings.record else None
        service.faults = faults
        self.catalogue: Catalogue = service.catalogue
        self._numbers = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: NativeTransport | None = None

    # Publishing and looking

    def put(
        self,
        topic: str,
        *payloads: bytes | None,
        batch: bool | None = None,
        key: str | bytes = "",
        properties: dict[str, str] | None = None,
        event_ms: int = 0,
        deliver_at_ms: int = 0,
    ) -> list[MessageId]:
        """Store one entry, a batch if there are several payloads, and return the messages' ids.

        Args:
            topic: Of one topic or partition.
            payloads: One for each message; None is a tombstone.
            batch: True makes a batch of one message too.
            key: Partition key of all of them; "" for none.
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
        if not isinstance(key, (str, bytes)):
            raise ConfigurationError(f"key must be str or bytes, got {type(key).__name__}")
        checked_properties = string_map(properties, "properties")
        batched = len(payloads) > 1 if batch is None else batch
        state = self.state(topic)
        body = entry_body(
            payloads,
            batched=batched,
            sequence_id=state.log.end,
            publish_ms=self.wall_ms(),
            key=key,
            properties=checked_properties,
            event_ms=event_ms,
            deliver_at_ms=deliver_at_ms,
        )
        entry = self._service.publish(state, read_entry(body))
        return [
            MessageId(
                state.log.partition,
                entry.ledger,
                entry.entry,
                index if batched else -1,
                batch_size=len(payloads) if batched else 0,
                topic=state.name,
            )
            for index in range(len(payloads))
        ]

    def put_chunked(self, topic: str, payload: bytes, chunks: int) -> MessageId:
        """Store a message in several entries; it is delivered, once all of them were, as one."""
        state = self.state(topic)
        entries = [
            self._service.publish(state, read_entry(body))
            for body in chunk_bodies(
                payload, chunks, sequence_id=state.log.end, publish_ms=self.wall_ms()
            )
        ]
        first, last = entries[0], entries[-1]
        partition, name = state.log.partition, state.name
        return MessageId(
            partition,
            last.ledger,
            last.entry,
            topic=name,
            first_chunk=MessageId(partition, first.ledger, first.entry, topic=name),
        )

    def terminate(self, topic: str) -> None:
        """Accept no more messages on a topic, or on all partitions of one.

        Raises:
            ConfigurationError: There is no such topic.
        """
        try:
            states = self.catalogue.states(topic)
        except Refusal as refusal:
            raise ConfigurationError(f"no end of {topic!r}: {refusal.message}") from refusal
        for state in states:
            self._service.terminate(state)

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

    @property
    def commands(self) -> list[Command]:
        return self._log.commands

    def recorded(self, name: str) -> list[Command]:
        """The commands of one type, such as ``"ACK"``, oldest first; answers too.

        Raises:
            ConfigurationError: The protocol has no such command.
        """
        check_command(name)
        return [command for command in self._log.every if command.name == name]

    def state(self, topic: str, *, create: bool = True) -> BrokerTopic:
        """A topic or partition as the broker has it, with its log and subscriptions.

        Raises:
            Refusal: There is none, and it is not to be created.
        """
        return self.catalogue.topic(topic, create=create)

    def wall_ms(self) -> int:
        """Ms since the epoch on the broker's clock, which is the loop's."""
        return self._clock.wall_ms()

    def _batch_of(self, topic: str, ledger: int, entry: int) -> int:
        state = self.catalogue.topics.get(topic)
        seq = None if state is None else state.log.locate(ledger, entry)
        return 0 if state is None or seq is None else state.log.at(seq).batch

    # Connections

    @property
    def connected(self) -> bool:
        return self._dialer.reachable

    @property
    def faults(self) -> FaultPlan | None:
        """The fault plan in force; assigning one starts its count."""
        return self._service.faults

    @faults.setter
    def faults(self, plan: FaultPlan | None) -> None:
        self._service.faults = plan

    @property
    def links(self) -> list[TransportConsumer]:
        """The subscriptions that clients have open, in the order they were made."""
        return [] if self._client is None else self._client.consumers

    def disconnect(self) -> None:
        """Lose every connection, until `reconnect`. What was held is to be delivered again."""
        self._dialer.reachable = False
        self._dialer.drop()

    def reconnect(self, *, keep_ack_sets: bool = True) -> None:
        """Let clients connect again, which they do at once, in the next turns of the loop; each
        consumer's acks go before its deliveries, and each producer sends again what was not
        answered.

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
        self._dialer.reachable = True
        # Not before those that have just lost their connection wait for another.
        self._clock.call_soon(self._retry_now)

    def _retry_now(self) -> None:
        if self._client is not None:
            self._client.hurry()

    def _outage(self, seconds: float) -> None:
        self.disconnect()
        self._clock.call_later(seconds, self.reconnect)

    # The seam

    def _native_transport(self) -> NativeTransport:
        """The client, on the running loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._dialer.forget()
            self._clock.enter(loop)
            self._loop, self._client = loop, None
        if self._client is None:
            self._client = NativeTransport(
                _URL,
                _SETTINGS,
                dialer=self._dialer,
                rng=_NoJitter(),
                make_round=self._new_topics.make_round,
            )
        return self._client

    async def subscribe(self, subscription: Subscription) -> TransportConsumer:
        client = self._native_transport()
        if not subscription.consumer_name:
            # Key_Shared goes by it, and it is to be the same each time.
            subscription = replace(subscription, consumer_name=f"memory-{next(self._numbers)}")
        consumer = await client.subscribe(subscription)
        consumer.capabilities = self.capabilities
        return consumer

    async def create_producer(
        self, options: ProducerOptions, listener: ProducerListener | None = None
    ) -> TransportProducer:
        return await self._native_transport().create_producer(options, listener)

    async def schema_of(self, topic: str, version: int) -> Any:
        return await self._native_transport().schema_of(topic, version)

    async def latest_schema(self, topic: str) -> Any | None:
        return await self._native_transport().latest_schema(topic)

    async def topic_partitions(self, topic: str, *, create: bool = True) -> list[str]:
        return await self._native_transport().topic_partitions(topic, create=create)

    def shutdown(self) -> None:
        """Drop every link without flushing; the topics stay."""
        client, self._client = self._client, None
        if client is not None:
            client.shutdown()
            if self._loop is not None and not self._loop.is_closed():
                self._dialer.drop()
            else:
                self._dialer.forget()

    async def close(self) -> None:
        client = self._client
        self.shutdown()
        if client is not None:
            await client.close()  # until nothing of it is left on the loop
