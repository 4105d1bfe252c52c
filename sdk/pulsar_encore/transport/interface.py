"""The interface between consumers, readers and producers and the transports that reach Pulsar.

Its shape is the protocol's: entries, ack sets, redelivery by id, connection events. A transport
declares missing features in `Capabilities`. Using one raises `NotSupportedError` before anything is
sent. All methods and callbacks run on the event loop. A transport with its own threads hands over
by `call_soon_threadsafe`, and never calls a `DeliveryListener` from another thread.

A consumer may read several topics or partitions. Each of them is a *topic*: a small integer that
the transport consumer assigns, so that hot paths carry no strings. `TransportConsumer.topic_of`
gives its name.

A reader is a subscription that is not durable (`Subscription.durable`). Its transport consumer is
never asked for acks, redeliveries or `unsubscribe`. After a reconnect it continues behind the last
delivered message. Nothing is delivered twice, so messages in the reader's queue stay valid.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from ..errors import ClosedError

if TYPE_CHECKING:
    from ..message import RawMessage
    from ..options import ProducerOptions, Subscription
    from ..values.message_id import MessageId
    from ..values.outgoing_message import OutgoingMessage

_SINGLE_INDEX: Final = (0,)  # the index of a message that is not in a batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """The abilities of a transport on which its users depend.

    Attributes:
        name: For messages and logs.
        redeliver_lead_ms: Time from `redeliver` until the command is on the wire. The consumer's
            timer calls it that much earlier.
        rewind_lead_ms: Least time from `redeliver_all` on Exclusive and Failover until the broker
            is asked.
        ack_unseen_index: Can ack a part of a batch that it has not delivered itself.
        rewind_one_topic: `redeliver_all` of one topic leaves the others alone.
        binary_keys: Can read and write binary partition and ordering keys.
        receipts: `TransportConsumer.ack` returns ack receipts.
        producer_events: Calls the `ProducerListener` of a producer.
        initial_subscriptions: A producer can name a subscription that the broker creates with it.
        queue_per_topic: Each topic has its own receive queue, so that messages of one topic that
            are not taken do not hold up another topic.
    """

    name: str
    redeliver_lead_ms: int = 0
    rewind_lead_ms: int = 0
    ack_unseen_index: bool = True
    rewind_one_topic: bool = True
    binary_keys: bool = True
    receipts: bool = True
    producer_events: bool = True
    initial_subscriptions: bool = True
    queue_per_topic: bool = True


@dataclass(slots=True, eq=False)
class Delivery:
    """Messages of one entry: all of them, or a part if the transport splits entries.

    Attributes:
        topic_number: The topic or partition.
        ledger, entry: The entry's position.
        batch_size: Messages in the entry; 0 if it is not a batch.
        redelivery_count: The broker's count for the entry, 0 on the first delivery.
        indexes: Batch indexes of `messages`, ascending; (0,) for a single message.
        messages: One `RawMessage` for each index.
        ack_set: Mask of the indexes that are unacked at the broker; -1 if the broker did not say
            (all of them, or the transport cannot see it).
        first_chunk: (ledger, entry) of the first chunk of a chunked message, else None.
    """

    topic_number: int
    ledger: int
    entry: int
    batch_size: int
    redelivery_count: int
    indexes: Sequence[int]
    messages: Sequence[RawMessage]
    ack_set: int = -1
    first_chunk: tuple[int, int] | None = None


class PlainDeliveries:
    """Consecutive plain messages of one topic on their first delivery.

    A `Delivery` for each would cost as much as all other work for a small message.

    Attributes:
        topic_number: The topic or partition.
        positions: (ledger, entry) of each message.
        messages: One `RawMessage` for each of `positions`.
    """

    __slots__ = ("messages", "positions", "topic_number")

    def __init__(self, topic_number: int) -> None:
        self.topic_number: int = topic_number
        self.positions: list[tuple[int, int]] = []
        self.messages: list[RawMessage] = []

    def each_delivery(self, start: int = 0) -> Iterator[Delivery]:
        """Yield a `Delivery` for each message, beginning with the one at `start`."""
        for (ledger, entry), message in islice(
            zip(self.positions, self.messages, strict=True), start, None
        ):
            yield Delivery(self.topic_number, ledger, entry, 0, 0, _SINGLE_INDEX, (message,))


Deliveries: TypeAlias = Sequence[Delivery | PlainDeliveries]
"""The deliveries that a transport consumer hands over at once, in order."""


def each_delivery(deliveries: Deliveries) -> Iterator[Delivery]:
    """Yield a `Delivery` for each entry, for a listener that cannot use `PlainDeliveries`."""
    for each in deliveries:
        if isinstance(each, PlainDeliveries):
            yield from each.each_delivery()
        else:
            yield each


class SkipReason(Enum):
    """Why an entry of a subscription that is not durable is not delivered."""

    MARKER = "a broker's own entry"
    CHUNK = "a chunk that is kept until the last one comes, or is no longer needed"
    INCOMPLETE = "a chunk without the chunks before it"
    BROKEN = "an entry whose bytes cannot be read"
    ENCRYPTED = "an encrypted entry that is not delivered"


class SkippedEntry(NamedTuple):
    """An entry of a subscription that is not durable, which is not delivered.

    Attributes:
        ledger, entry: The entry's position.
        reason: The reason.
        error: The fault in the entry, if it is known.
    """

    ledger: int
    entry: int
    reason: SkipReason
    error: Exception | None = None


@dataclass(slots=True)
class AckPlan:
    """The acks of one flush for one topic.

    Attributes:
        cumulative: (ledger, entry, batch_size, ack_set): every message up to this position. -1 as
            `ack_set` covers the entry; else bit 1 means that the index is unacked.
        entries: (ledger, entry) of entries that are acked whole.
        partial: (ledger, entry, batch_size, ack_set); bit 1 means that the index is unacked.
    """

    topic_number: int
    cumulative: tuple[int, int, int, int] | None
    entries: list[tuple[int, int]]
    partial: list[tuple[int, int, int, int]]


class ShutDownError(ClosedError):
    """The application shut down the client or ended its event loop, and so ended the consumer."""


class RetryNotice(NamedTuple):
    """A failed attempt to attach again, which is retried.

    Attributes:
        topic: Full name of the topic or partition; the pattern for a watch of topics.
        error: The last refusal, with the broker's reason.
        attempts: Failed attempts since the connection was lost, from 1.
        elapsed_s: Time since the connection was lost, in s.
    """

    topic: str
    error: Exception
    attempts: int
    elapsed_s: float


class ProducerListener(Protocol):
    """Called by a `TransportProducer` on the event loop. No method may raise or suspend.

    For a partitioned topic, the methods are called for each partition.
    """

    def on_retrying(self, notice: RetryNotice) -> None:
        """Handle a failed attempt to attach again. More attempts follow.

        Called at the first failed attempt since the connection was lost, then at growing intervals,
        at least every few minutes.
        """

    def on_disconnected(self, topic: str) -> None:
        """Handle the loss of the connection to the broker of `topic`. The producer attaches
        again."""

    def on_connected(self, topic: str) -> None:
        """Handle that the producer is attached to `topic` again.

        Not called for the first attachment, except that of a partition that was found later.
        """

    def on_removed(self, topic: str) -> None:
        """Handle that `topic` was deleted, or has other partitions now. It gets no more
        messages."""

    def on_failed(self, topic: str, error: Exception) -> None:
        """Handle the final end of the producer on `topic`. Every send to it fails with `error`."""


class DeliveryListener(Protocol):
    """Called by a `TransportConsumer` on the event loop. No method may raise or suspend."""

    def on_deliveries(self, deliveries: Deliveries) -> None: ...
    def on_connected(self, topics: Container[int] | None = None) -> None:
        """Handle that topics are subscribed again after a loss: everything unacked is redelivered.

        This call comes before any permit is sent on the new connection. Acks that are sent within
        the call leave before the first permit, so messages whose acks may have been lost are not
        redelivered. (The C++ client sends permits on its own, so the stock transport cannot do
        this. Its listener must recognize the redelivered messages.)

        Args:
            topics: The topics concerned, here and in the next methods; None for all.
        """

    def on_disconnected(self, topics: Container[int] | None = None) -> None:
        """Handle a lost connection. Messages from it that were not handed over are redelivered.

        Nothing of the old connection is delivered after this call. Acks from the last moments, and
        acks whose receipt is missing, may not have arrived.
        """

    def on_uncertain(self, topics: Container[int] | None = None) -> None:
        """Handle that one of these topics, which cannot be identified, lost its connection.

        Acks go on for the topics that are connected. The next `on_connected` tells which acks
        arrived.
        """

    def on_all_requested(
        self, unseen: Sequence[Delivery], topics: Container[int] | None = None
    ) -> None:
        """Shared and Key_Shared: handle that everything unacked was requested, which the broker
        counts.

        Called by a transport consumer that has more to report than `redeliver_all` tells.

        Args:
            unseen: Messages that were received and are not delivered, because they are redelivered.
            topics: The topics concerned; None for all.
        """

    def on_seek(self, topics: Container[int] | None = None) -> None:
        """Handle a completed seek: all deliveries before this call precede it, none after the call
        do."""

    def on_end_of_topic(self, topic_number: int) -> None:
        """Handle that the topic was terminated and all of it is acked by this subscription."""

    def on_active_changed(self, topic_number: int, active: bool) -> None:
        """Failover: handle that this consumer gets the topic's messages from now on, or stands by.

        The broker sends this to each new consumer, so also after a reconnect, and perhaps
        repeatedly.
        """

    def on_new_topic(self, topic_number: int) -> None:
        """Handle a new partition or topic. No other call for this topic comes earlier."""

    def on_removed(self, topic_number: int) -> None:
        """Handle that a topic's topic was deleted, or has other partitions now. It is not read any
        more."""

    def on_skipped(self, topic_number: int, entries: Sequence[SkippedEntry]) -> None:
        """Handle entries that are not delivered. Everything before them was delivered.

        Called for subscriptions that are not durable, by transports that see entries. So the reader
        of a range knows the end of its range and the gaps in it.
        """

    def on_retrying(self, topic_number: int | None, notice: RetryNotice) -> None:
        """Handle a failed attempt to attach `topic_number` again, as often as
        `ProducerListener.on_retrying`.

        `on_connected` reports the success. For a partition or topic that was found later and is not
        a topic yet, `topic_number` is None, and `on_new_topic` reports the success.
        """

    def on_failed(self, error: Exception, topic_number: int | None = None) -> None:
        """Handle the final end of the consumer. Pending and later receives get this error.

        Args:
            error: The reason.
            topic_number: The topic that caused it; None for the whole consumer. Several topics
            may fail
                at the same time, each with a call.
        """


class TransportConsumer(Protocol):
    """One subscription. Methods without `async` do not block and may be called from any task."""

    capabilities: Capabilities

    @property
    def topic(self) -> str: ...
    @property
    def subscription_name(self) -> str: ...
    @property
    def consumer_name(self) -> str: ...
    def is_connected(self) -> bool: ...
    def topic_of(self, topic_number: int) -> tuple[str, int]:
        """Return the full topic name and the partition number (-1 without partitions) of a
        topic."""

    def topic_numbers(self) -> Collection[int]:
        """Return all known topics that it reads now."""

    def topic_number_of(self, topic: str, partition: int, ledger: int = -1) -> int | None:
        """Return the topic of an id with this topic ("" if unknown), partition and ledger."""

    def start(self, listener: DeliveryListener) -> None:
        """Begin to deliver. Called once, on the loop that later receives.

        Messages before the start position, or before a sought position, are not delivered, even if
        they are in the same batch.
        """

    def consumed(self, topic_number: int, messages: int) -> None:
        """Report that the application took, or the consumer dropped, messages of a topic."""

    def request_messages(self, messages: int) -> None:
        """Report that this many messages are waited for, if `receiver_queue_size` is 0.

        Only messages that are waited for are then requested from the broker.
        """

    def stop_flow(self) -> None:
        """Request nothing more, permanently. Messages in flight still arrive."""

    def can_ack(self, topic_number: int) -> bool:
        """Return True if an ack of this topic would be sent now."""

    def ack(self, plan: AckPlan) -> Awaitable[None] | None:
        """Send the acks of one flush.

        May be called within `DeliveryListener.on_connected`, with acks that may have been lost.
        They leave before any permit of the new connection.

        Returns:
            The receipt, if the transport has receipts: done when the broker confirmed the whole
                flush. It fails with a TransportError if the outcome is unknown, because the
                connection was lost or no answer came in time. The caller then sends the acks again.
                None without receipts.

        Raises:
            TransportError: if it is not connected. Nothing of the plan was taken: keep it.
        """

    def redeliver(self, topic_number: int, groups: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Request entries again, as (ledger, entry ids) groups. Shared and Key_Shared only.

        A chunked message is named by its last chunk, and all its chunks are requested. A request
        for the last chunk alone may stall the subscription:
        `docs/notes/wire-protocol.md#chunked-messages`.

        Raises:
            TransportError: if nothing was requested. Try again.
        """

    def redeliver_all(self, topic_number: int | None = None) -> None:
        """Request everything unacked again, of one topic or of all.

        Never raises: the request is sent as soon as possible, and a reconnect redelivers everything
        anyway. Without `rewind_one_topic` in the capabilities, all topics are rewound. Messages
        that were received before may still be delivered. On Exclusive and Failover the broker may
        skip messages (see `core.rewind_check`).
        """

    async def seek(self, position: MessageId | int) -> None:
        """Move behind a message id (or to it, as the options say), or to a publish time in ms.

        Calls `DeliveryListener.on_seek` when the seek took effect.
        """

    async def last_message_id(self) -> MessageId: ...
    async def acked_position(self) -> MessageId | None:
        """Return the last message up to which everything is acked, for a consumer of one topic.

        None if the transport cannot tell. Ledger and entry are -1 before the first message.
        """

    async def has_message_available(self) -> bool:
        """Return True if a message is stored behind the last delivered one.

        `last_message_id` does not tell this: only the transport consumer knows its position in each
        topic before the first delivery, and behind entries that it never delivers.

        Raises:
            NotSupportedError: if the subscription is durable. It has acks instead of such a
                position.
        """

    async def unsubscribe(self) -> None: ...
    async def close(self) -> None:
        """Close the consumer. Idempotent; does not raise if the consumer is already gone."""


class TransportProducer(Protocol):
    """One producer. After a cancelled `publish` the message may or may not be stored."""

    @property
    def topic(self) -> str: ...
    @property
    def producer_name(self) -> str: ...
    @property
    def last_sequence_id(self) -> int: ...
    def is_connected(self) -> bool: ...
    def publish(self, message: OutgoingMessage) -> Awaitable[MessageId]:
        """Send a message, in the order of the calls. The result comes when the broker has stored
        it."""

    async def flush(self) -> None: ...
    async def close(self) -> None: ...


class Transport(Protocol):
    """One client's connection to a cluster."""

    capabilities: Capabilities

    async def subscribe(self, subscription: Subscription) -> TransportConsumer: ...
    async def create_producer(
        self, options: ProducerOptions, listener: ProducerListener | None = None
    ) -> TransportProducer:
        """Create a producer and wait until the broker has accepted it.

        Args:
            options: The producer's.
            listener: Called for lost connections and failures; never by a transport without
                `Capabilities.producer_events`.
        """

    async def topic_partitions(self, topic: str, *, create: bool = True) -> list[str]:
        """Return the full names of a topic's partitions, or its own.

        Args:
            topic: Short or full name.
            create: True if a missing topic may be created, for transports with this choice.
        """

    async def topics_matching(self, pattern: str) -> list[str]:
        """Return the full names of the persistent topics that match, each partition by its name.

        Raises:
            NotSupportedError: if the transport cannot list topics.
        """

    async def schema_of(self, topic: str, version: int) -> Any:
        """Return a version (0 or more) of a topic's schema, as `ProducerOptions.schema` takes it.

        A producer with this schema sends bytes of that version unchanged. Its `key_value` is True
        if partition keys are half of the value.
        """

    async def latest_schema(self, topic: str) -> Any | None:
        """Return the current schema of a topic's producers, like `schema_of`; None without a
        schema.

        None also for a topic that does not exist, because brokers give the same answer.

        Raises:
            NotSupportedError: if the transport cannot ask for it.
        """

    def shutdown(self) -> None:
        """Drop everything at once, without waiting or flushing."""

    async def close(self) -> None: ...
