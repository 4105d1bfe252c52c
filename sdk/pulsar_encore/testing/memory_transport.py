"""A transport without a network: the native transport and the development broker, back to back.

Everything runs on one event loop, in real or virtual time. Every run gives the same order: random
choices of both sides are fixed, and no timer runs periodically.
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
    TransportTransaction,
)
from ..transport.native.client_settings import ClientSettings
from ..transport.native.native_transport import NativeTransport
from ..values.message_id import MessageId
from ..values.transaction_id import TxnId
from .broker_clock import BrokerClock
from .command_log import Command, CommandLog
from .dialer import BrokerDialer
from .new_topics import NewTopics
from .stored_entries import chunk_bodies, entry_body

if TYPE_CHECKING:
    from ..options import ProducerOptions, Subscription

_URL: Final = "pulsar://memory:6650"
# With periodic timers, a loop in which every task waits would never count as deadlocked.
_SETTINGS: Final = ClientSettings(keep_alive_s=math.inf, idle_s=0)


class _NoJitter(Random):
    """Retries start on time, and producers start with partition 0."""

    def random(self) -> float:
        return 0.0


class MemoryTransport:
    """Topics and subscriptions of one imaginary cluster, for `Client(..., transport=)`.

    Several clients may share one transport. It outlives its clients: `close` ends their
    subscriptions and keeps the published messages. Commands take passes of the loop, so a test
    awaits `asyncio.sleep(0.01)`, which costs nothing in virtual time, before it checks an effect.

    Args:
        settings: Settings of the broker. None takes Pulsar's defaults, but with rewinds that no
            read overtakes (`rewind_overtaken`). Authentication is ignored.
        faults: Faults to inject. Closed connections come back after 0.1 s.

    Attributes:
        commands: Every `Command` of consumers and producers so far, oldest first; empty if
            `BrokerSettings.record` is off. `recorded` also returns answers.
        connected: False between `disconnect` and `reconnect`.
        catalogue: The topics. `create_partitioned(topic, count)` creates a topic with partitions.
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
            topic: A topic without partitions, or a partition.
            payloads: One for each message; None is a tombstone.
            batch: True stores a single message as a batch, too.
            key: Partition key of all messages; "" for none.
            properties: Properties of all messages.
            event_ms: Event time of all messages, in ms since the epoch.
            deliver_at_ms: Earliest delivery on Shared and Key_Shared, in ms since the epoch.

        Raises:
            ConfigurationError: if there is no payload, a payload is not bytes, or a property is not
                text.
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
        """Store one message as several chunks, and return its id."""
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
        """Accept no more messages on a topic, or on all its partitions.

        Raises:
            ConfigurationError: if the topic does not exist.
        """
        try:
            states = self.catalogue.states(topic)
        except Refusal as refusal:
            raise ConfigurationError(f"no end of {topic!r}: {refusal.message}") from refusal
        for state in states:
            self._service.terminate(state)

    def backlog(self, topic: str, subscription: str) -> int:
        """Return how many entries of a topic or partition a subscription has not fully acked.

        Raises:
            ConfigurationError: if the topic or subscription does not exist.
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
        """Return the commands of one type, such as ``"ACK"``, oldest first; answers too.

        Raises:
            ConfigurationError: if the protocol has no such command.
        """
        check_command(name)
        return [command for command in self._log.every if command.name == name]

    def state(self, topic: str, *, create: bool = True) -> BrokerTopic:
        """Return the log and subscriptions of a topic or partition.

        Without `create`, a missing topic raises `Refusal`.
        """
        return self.catalogue.topic(topic, create=create)

    def wall_ms(self) -> int:
        """Return the broker's wall time in ms since the epoch, by the clock of the loop."""
        return self._clock.wall_ms()

    def _batch_of(self, topic: str, ledger: int, entry: int) -> int:
        state = self.catalogue.topics.get(topic)
        seq = None if state is None else state.log.locate(ledger, entry)
        return 0 if state is None or seq is None else state.log.at(seq).batch

    @property
    def connected(self) -> bool:
        return self._dialer.reachable

    @property
    def faults(self) -> FaultPlan | None:
        """The active fault plan. Setting it starts its count."""
        return self._service.faults

    @faults.setter
    def faults(self, plan: FaultPlan | None) -> None:
        self._service.faults = plan

    @property
    def consumers(self) -> list[TransportConsumer]:
        """The clients' open subscriptions, in the order in which they were made."""
        return [] if self._client is None else self._client.consumers

    def disconnect(self) -> None:
        """Drop every connection until `reconnect`. Held messages will be redelivered."""
        self._dialer.reachable = False
        self._dialer.drop()

    def reconnect(self, *, keep_ack_sets: bool = True) -> None:
        """Let clients connect again. They do so in the next passes of the loop.

        Each consumer sends its acks before it gets deliveries, and each producer sends its
        unconfirmed messages again.

        Args:
            keep_ack_sets: False also drops all partial acks, as the unload of a topic or an orderly
                stop of a broker does.
        """
        if self.connected:
            return
        if not keep_ack_sets:
            for state in self.catalogue.topics.values():
                for subscription in state.subscriptions.values():
                    subscription.cursor.forget_partial()
        self._dialer.reachable = True
        # Clients that have just lost their connection must first be waiting for another one.
        self._clock.call_soon(self._retry_now)

    def _retry_now(self) -> None:
        if self._client is not None:
            self._client.retry_now()

    def _outage(self, seconds: float) -> None:
        self.disconnect()
        self._clock.call_later(seconds, self.reconnect)

    def _native_transport(self) -> NativeTransport:
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

    def new_consumer_name(self) -> str:
        # Key_Shared distributes keys by consumer name: it must be the same in every run.
        return f"memory-{next(self._numbers)}"

    async def subscribe(self, subscription: Subscription) -> TransportConsumer:
        client = self._native_transport()
        if not subscription.consumer_name:
            subscription = replace(subscription, consumer_name=self.new_consumer_name())
        consumer = await client.subscribe(subscription)
        consumer.capabilities = self.capabilities
        return consumer

    async def create_producer(
        self, options: ProducerOptions, listener: ProducerListener | None = None
    ) -> TransportProducer:
        return await self._native_transport().create_producer(options, listener)

    async def topics_matching(self, pattern: str) -> list[str]:
        return await self._native_transport().topics_matching(pattern)

    async def schema_of(self, topic: str, version: int) -> Any:
        return await self._native_transport().schema_of(topic, version)

    async def latest_schema(self, topic: str) -> Any | None:
        return await self._native_transport().latest_schema(topic)

    async def begin_transaction(self, timeout_s: float) -> TransportTransaction:
        return await self._native_transport().begin_transaction(timeout_s)

    async def join_transaction(self, txn_id: TxnId, timeout_s: float) -> TransportTransaction:
        return await self._native_transport().join_transaction(txn_id, timeout_s)

    async def end_transaction(self, txn_id: TxnId, *, commit: bool) -> None:
        await self._native_transport().end_transaction(txn_id, commit=commit)

    async def topic_partitions(self, topic: str, *, create: bool = True) -> list[str]:
        return await self._native_transport().topic_partitions(topic, create=create)

    def shutdown(self) -> None:
        """Drop every subscription without flushing. The topics stay."""
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
            await client.close()  # waits until none of its tasks is left on the loop
