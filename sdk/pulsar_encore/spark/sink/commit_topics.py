"""The driver's access to the journal topic and the marker topic of a write.

Both topics have a durable subscription, which is created with them: it keeps the records that a
restart needs. The driver acks the others.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from typing import Any, Final

from ...client import Client, transport_of
from ...consumer.consumer import Consumer
from ...errors import (
    ConfigurationError,
    ConsumerBusy,
    NotAllowedError,
    ReceiveTimeout,
    TopicNotFound,
    TransportTimeout,
)
from ...message import Message
from ...options import ConsumerType, InitialPosition, Subscription
from ...producer import Producer
from ...transport.interface import Transport
from ...values.message_id import MessageId
from .commit_journal import (
    Journal,
    Marker,
    Prepared,
    Probe,
    Record,
    SharedTransaction,
    decode,
    encode,
    first_of,
)
from .sink_options import TransactionOptions

log: Final = logging.getLogger("pulsar_encore.spark")

SUBSCRIPTION: Final = "spark-sink"
# By then the brokers have closed the connection of a driver that was killed.
_BUSY_TIMEOUT_S: Final = 20.0
_RETRY_DELAY_S: Final = 0.2
_READ_TIMEOUT_S: Final = 60.0


class CommitTopics:
    """The journal topic and the marker topic. Used on the client's event loop."""

    def __init__(self, client: Client, options: TransactionOptions) -> None:
        self._client = client
        self._transport = transport_of(client)
        self._options = options

    async def ensure(self) -> None:
        """Create missing topics, and check that existing ones have their subscription.

        Raises:
            ConfigurationError: if a subscription is missing. Without it the records may be gone,
                and a batch that is committed would be written again.
        """
        for name, topic in (
            ("journalTopic", self._options.journal_topic),
            ("markerTopic", self._options.marker_topic),
        ):
            try:
                parts = await self._transport.topic_partitions(topic, create=False)
            except TopicNotFound:
                consumer = await self._attach(topic)  # creates the topic and the subscription
                await consumer.close()
                parts = await self._transport.topic_partitions(topic, create=False)
            else:
                if parts == [topic] and not await _has_subscription(self._transport, topic):
                    raise ConfigurationError(
                        f"{topic} ({name}) has no subscription {SUBSCRIPTION!r}, so records of "
                        "earlier batches may be gone. If you have just created the topic, create "
                        "the subscription, too (pulsar-admin topics create-subscription -m earliest"
                        f" -s {SUBSCRIPTION}). Else look for the newest rows in your topics, and "
                        f"then set {name} to a new name"
                    )
            if parts != [topic]:
                raise ConfigurationError(
                    f"{topic} ({name}) must not have partitions: create it without, or name "
                    "another topic"
                )

    @asynccontextmanager
    async def journal(self) -> AsyncIterator[OpenJournal]:
        """Read the journal, and keep other drivers from it meanwhile."""
        topic = self._options.journal_topic
        consumer = await self._attach(topic)
        try:
            producer = await self._client.create_producer(topic, batching_enabled=False)
            try:
                opened = OpenJournal(topic, consumer, producer)
                await opened.refresh()
                yield opened
            finally:
                await producer.close()
        finally:
            await consumer.close()

    async def _attach(self, topic: str) -> Consumer[Any]:
        deadline = time.monotonic() + _BUSY_TIMEOUT_S
        while True:
            try:
                return await self._client.subscribe(
                    topic,
                    SUBSCRIPTION,
                    ConsumerType.Exclusive,
                    initial_position=InitialPosition.Earliest,
                    ack_receipt_enabled=True,
                )
            # NotAllowedError: the broker has not yet removed the consumer of `_has_subscription`.
            except (ConsumerBusy, NotAllowedError) as error:
                if time.monotonic() > deadline:
                    raise ConsumerBusy(
                        f"the subscription {SUBSCRIPTION!r} of {topic} is in use: by another "
                        "driver of the same query, or by another write with this journalTopic"
                    ) from error
            await asyncio.sleep(_RETRY_DELAY_S)

    async def visible(self, prepared: Prepared, *, wait: bool = False) -> set[str]:
        """Return the transactions of a batch with a visible marker.

        Args:
            wait: Wait until nothing hides them any more: a plain message that is sent now is
                visible behind them. All transactions of the batch must have ended.

        Raises:
            TransportTimeout: if an open transaction of another write hides them for too long.
        """
        topic = self._options.marker_topic
        probe = Probe(uuid.uuid4().hex)
        if wait:
            async with await self._client.create_producer(topic, batching_enabled=False) as sender:
                await sender.send(encode(probe))
        start = MessageId(-1, *first_of(prepared.tasks).marker)
        found: set[str] = set()
        async with await self._client.create_reader(
            topic, start, start_message_id_inclusive=True
        ) as reader:
            deadline = time.monotonic() + _READ_TIMEOUT_S
            while wait or await reader.has_message_available():
                try:
                    timeout_s = max(0.1, deadline - time.monotonic())
                    message = await reader.read_next(timeout=timeout_s)
                except ReceiveTimeout as error:
                    raise TransportTimeout(
                        f"{prepared.key}: it cannot be found out which tasks are committed: an "
                        f"open transaction hides the end of {topic}. If another write uses this "
                        "topic, give it another markerTopic. Start the query again later"
                    ) from error
                record = decode(message.data(), topic)
                if isinstance(record, Marker) and record.key == prepared.key:
                    found.add(record.txn)
                if record == probe:
                    break
        return found

    async def trim_markers(self, prepared: Prepared) -> None:
        """Ack the markers of a batch that is settled, and all before them."""
        consumer = await self._attach(self._options.marker_topic)
        try:
            last = max(each.marker for each in prepared.tasks)
            await consumer.acknowledge_cumulative(MessageId(-1, *last))
        finally:
            await consumer.close()


async def read_batch(
    client: Client, topic: str, shared: SharedTransaction, last: Record
) -> list[Record]:
    """Read the journal from the begin of a batch up to a record that is stored.

    The subscription stays with the driver.
    """
    found: list[Record] = []
    start = MessageId(-1, *shared.place)
    async with await client.create_reader(topic, start, start_message_id_inclusive=True) as reader:
        while not found or found[-1] != last:
            message = await reader.read_next(timeout=_READ_TIMEOUT_S)
            found.append(decode(message.data(), topic))
    return found


class OpenJournal:
    """The journal topic, with the exclusive right to read it.

    Attributes:
        records: The records that were read.
    """

    def __init__(self, topic: str, consumer: Consumer[Any], producer: Producer[Any]) -> None:
        self.records: Journal = Journal([])
        self._topic = topic
        self._consumer = consumer
        self._producer = producer
        self._messages: list[Message[Any]] = []

    async def store(self, record: Record) -> tuple[int, int]:
        """Store a record behind the others, and read it. Return its (ledger, entry)."""
        await self._producer.send(encode(record))
        await self._read_to(record)
        place = self._messages[-1].message_id()
        return place.ledger_id(), place.entry_id()

    async def refresh(self) -> None:
        """Read everything that is stored by now."""
        await self.store(Probe(uuid.uuid4().hex))

    async def _read_to(self, last: Record) -> None:
        while True:
            message = await self._consumer.receive(timeout=_READ_TIMEOUT_S)
            place = message.message_id()
            if self._messages and place <= self._messages[-1].message_id():
                continue  # redelivered after a lost connection
            record = decode(message.data(), self._topic)
            self._messages.append(message)
            self.records.add(record)
            if record == last:
                return

    async def trim(self, ended: Container[str], now_ms: int) -> None:
        """Ack the records that no later read needs."""
        first = self.records.first_needed(ended, now_ms)
        if first:
            await self._consumer.acknowledge_cumulative(self._messages[first - 1])


async def _has_subscription(transport: Transport, topic: str) -> bool:
    """True if a topic has the durable subscription.

    A broker rejects a subscription of the same name that is not durable if it has.
    """
    try:
        consumer = await transport.subscribe(
            Subscription(
                topics=(topic,),
                subscription_name=SUBSCRIPTION,
                consumer_type=ConsumerType.Exclusive,
                receiver_queue_size=0,
                durable=False,
                # A consumer that subscribes while this one is removed may inherit its position.
                start_message_id=MessageId.earliest,
                force_topic_creation=False,
            )
        )
    except (NotAllowedError, ConsumerBusy):
        return True
    await consumer.close()
    return False
