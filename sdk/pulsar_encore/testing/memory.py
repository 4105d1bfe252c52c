"""A transport without a network: the development broker's rules, called directly.

Owns `MemoryTransport`: what a test puts into the cluster and asks of it, and the seam, which makes
the cluster's consumers, producers and readers. Everything runs on one event loop, real or virtual.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ..devbroker.recorder import check_command
from ..devbroker.rules.consumers import SubscriptionType
from ..devbroker.rules.faults import FaultPlan
from ..devbroker.rules.refusal import Refusal, missing_subscription
from ..devbroker.settings import BrokerSettings
from ..errors import ClosedError, ConfigurationError, NotSupportedError
from ..exceptions import named
from ..ids import MessageId
from ..options.checks import string_map
from .cluster import MemoryCluster
from .commands import Command, MemoryMessage
from .consuming import MemoryConsumer
from .producing import MemoryProducer
from .reading import MemoryReader

if TYPE_CHECKING:
    from ..options import ConsumerOptions, ProducerOptions, ReaderOptions


class MemoryTransport(MemoryCluster):
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

    def __init__(
        self, settings: BrokerSettings | None = None, *, faults: FaultPlan | None = None
    ) -> None:
        super().__init__(settings, faults=faults)
        self._numbers = itertools.count()

    # Publishing and looking

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

    def recorded(self, name: str) -> list[Command]:
        """The commands of one type, such as ``"ACK"``, oldest first.

        Raises:
            ConfigurationError: The protocol has no such command.
        """
        check_command(name)
        return [command for command in self.commands if command.name == name]

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

    async def create_producer(self, options: ProducerOptions) -> MemoryProducer:
        self.check_connected()
        names = self.parts_of(options.topic)
        self.command("PRODUCER", names[0], "", options, _nothing)
        return MemoryProducer(self, options, names, f"memory-{next(self._numbers)}")

    async def create_reader(self, options: ReaderOptions) -> MemoryReader:
        self.check_connected()
        logs = [self.state(name).log for name in self.parts_of(options.topic)]
        reader = MemoryReader(logs, options, self.readers.remove)
        self.readers.append(reader)
        return reader

    async def schema_of(self, topic: str, version: int) -> Any:
        raise NotSupportedError("messages in memory have no schema version")

    async def topic_partitions(self, topic: str) -> list[str]:
        return self.parts_of(topic)

    def shutdown(self) -> None:
        """Drop every link without flushing; the topics stay."""
        for link in list(self.links):
            link.drop()
            link.fail(ClosedError("the transport was shut down"))
        for reader in list(self.readers):
            reader.drop()
        for producer in list(self.producers):
            producer.drop()

    async def close(self) -> None:
        self.shutdown()


def _nothing() -> None:
    """For commands that are carried out by the caller."""
