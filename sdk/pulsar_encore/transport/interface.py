"""The seam: what consumers, readers and producers need of Pulsar, and nothing else.

Its shape is the protocol's (entries, ack sets, redelivery by id, connection events), not the stock
client's. A transport declares in `Capabilities` what it cannot do; asking for it anyway is a
`NotSupportedError` before anything is sent. Everything here runs on the event loop: a transport
with threads of its own hands over with `call_soon_threadsafe` and never calls a `DeliveryListener`
from elsewhere.

Sources: one consumer may read several topics or partitions; each is a *source*, a small integer
that the link hands out, so that hot paths carry no strings. `link.topic_of(source)` names it.

A reader is a subscription that is not durable (`Subscription.durable`). Its link delivers as any
other, and is never asked for acks, redeliveries or `unsubscribe`: what was delivered last is its
place, from where a reconnect goes on. So nothing of it comes twice, and what its sink holds stays.
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

_SINGLE_INDEX: Final = (0,)  # the index of a message that is its entry


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What a transport can and cannot do, as far as somebody above it acts by that.

    Attributes:
        name: For messages and logs.
        redeliver_lead_ms: From handing ids to `redeliver` until the command is on the wire; the
            consumer's timer hands over that much earlier.
        rewind_lead_ms: The least time from `redeliver_all` on Exclusive and Failover until the
            broker is asked.
        ack_unseen_index: Can ack part of a batch that it has not delivered itself.
        rewind_one_source: `redeliver_all` of one source leaves the others alone.
        binary_keys: Binary partition and ordering keys can be read and written.
        receipts: `TransportConsumer.ack` answers with a receipt.
        producer_events: Calls the `ProducerListener` of a producer.
        initial_subscriptions: A producer can name a subscription that the broker makes with it.
        room_by_source: Each source of a consumer has room of its own, so that messages of one that
            nobody takes do not keep those of another away.
    """

    name: str
    redeliver_lead_ms: int = 0
    rewind_lead_ms: int = 0
    ack_unseen_index: bool = True
    rewind_one_source: bool = True
    binary_keys: bool = True
    receipts: bool = True
    producer_events: bool = True
    initial_subscriptions: bool = True
    room_by_source: bool = True


class Delivery:
    """Messages of one entry, as they came: the whole of it, or a part when a transport splits it.

    Attributes:
        source: Which topic or partition.
        ledger, entry: The entry's position.
        batch_size: Messages in the entry; 0 when it is a single message and no batch.
        redelivery_count: The broker's count for the entry, 0 on the first delivery.
        indexes: Batch indexes of `messages`, ascending; (0,) for a single message.
        messages: One `RawMessage` for each index.
        ack_set: Bit mask of the indexes the broker still holds as unacked; -1 when it did not say
            (all of them, or the transport cannot see it).
        first_chunk: First chunk's (ledger, entry) of a chunked message, else None.
    """

    __slots__ = (
        "ack_set",
        "batch_size",
        "entry",
        "first_chunk",
        "indexes",
        "ledger",
        "messages",
        "redelivery_count",
        "source",
    )

    def __init__(
        self,
        source: int,
        ledger: int,
        entry: int,
        batch_size: int,
        redelivery_count: int,
        indexes: Sequence[int],
        messages: Sequence[RawMessage],
        ack_set: int = -1,
        first_chunk: tuple[int, int] | None = None,
    ) -> None:
        self.source: int = source
        self.ledger: int = ledger
        self.entry: int = entry
        self.batch_size: int = batch_size
        self.redelivery_count: int = redelivery_count
        self.indexes: Sequence[int] = indexes
        self.messages: Sequence[RawMessage] = messages
        self.ack_set: int = ack_set
        self.first_chunk: tuple[int, int] | None = first_chunk


class PlainDeliveries:
    """Plain messages of one source, one after the other, that the broker delivers for the first
    time: as a `Delivery` for each, which costs as much as all the rest of a small message.

    Attributes:
        source: Which topic or partition.
        places: (ledger, entry) of each.
        messages: One `RawMessage` for each of `places`.
    """

    __slots__ = ("messages", "places", "source")

    def __init__(self, source: int) -> None:
        self.source: int = source
        self.places: list[tuple[int, int]] = []
        self.messages: list[RawMessage] = []

    def singly(self, start: int = 0) -> Iterator[Delivery]:
        """A delivery for each, from the one at `start` on."""
        for (ledger, entry), message in islice(
            zip(self.places, self.messages, strict=True), start, None
        ):
            yield Delivery(self.source, ledger, entry, 0, 0, _SINGLE_INDEX, (message,))


Deliveries: TypeAlias = Sequence[Delivery | PlainDeliveries]
"""What a link delivers at once, in order."""


def singly(deliveries: Deliveries) -> Iterator[Delivery]:
    """Each entry by itself, for a sink to whom runs are no use."""
    for each in deliveries:
        if isinstance(each, PlainDeliveries):
            yield from each.singly()
        else:
            yield each


class SkipReason(Enum):
    """Why an entry of a subscription that is not durable is no delivery."""

    MARKER = "a broker's own entry"
    PIECE = "a piece of a chunked message, kept until its last one comes or of no use any more"
    TORN = "a piece of a chunked message whose earlier ones have not come"
    BROKEN = "an entry whose bytes cannot be read"
    SEALED = "an encrypted entry that is not handed on"


class SkippedEntry(NamedTuple):
    """An entry of a subscription that is not durable, and is no delivery.

    Attributes:
        ledger, entry: Where it is.
        why: It is none.
        error: What is wrong with it, where that is known.
    """

    ledger: int
    entry: int
    why: SkipReason
    error: Exception | None = None


@dataclass(slots=True)
class AckPlan:
    """What one flush sends for one source.

    Attributes:
        cumulative: (ledger, entry, batch_size, ack_set): everything up to here; ack_set -1 covers
            the entry, else bit 1 = index still unacked.
        entries: (ledger, entry) acked whole.
        partial: (ledger, entry, batch_size, ack_set), bit 1 = index still unacked.
    """

    source: int
    cumulative: tuple[int, int, int, int] | None
    entries: list[tuple[int, int]]
    partial: list[tuple[int, int, int, int]]


class ShutDownError(ClosedError):
    """The application shut the client down or ended its event loop, and so ended the link."""


class RetryNotice(NamedTuple):
    """A refused attempt to attach again, which is retried.

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
    """What a `TransportProducer` calls, on the event loop. None of these may raise or suspend.

    A producer of a partitioned topic calls these methods for each partition.
    """

    def on_retrying(self, notice: RetryNotice) -> None:
        """An attempt to attach again failed, and others follow.

        Called at the first failed attempt since the connection was lost, then at growing
        intervals, at least every few minutes.
        """

    def on_disconnected(self, topic: str) -> None:
        """The producer lost its connection to the broker of `topic`, and attaches again."""

    def on_connected(self, topic: str) -> None:
        """The producer is attached to `topic` again, after a loss.

        Not called for the first attachment, but for one of a partition that was found later.
        """

    def on_removed(self, topic: str) -> None:
        """`topic` was deleted, or has other partitions now: nothing is sent to it any more."""

    def on_failed(self, topic: str, error: Exception) -> None:
        """The producer on `topic` has ended for good; every send to it fails with `error`."""


class DeliveryListener(Protocol):
    """What a `TransportConsumer` calls, on the event loop. None of these may raise or suspend."""

    def on_deliveries(self, deliveries: Deliveries) -> None: ...
    def on_connected(self, only: Container[int] | None = None) -> None:
        """Subscribed again after a loss: everything unacked will come again.

        Before the link asks for anything on the new connection it calls this, and what is acked
        within the call leaves before the first permit: so what was acked and may have been lost
        with the old connection does not come again. (A link over a library that asks by itself, as
        the stock one, cannot; then it comes, and the sink has to know it.)

        Args:
            only: The sources concerned, here and in the next two; None for all.
        """

    def on_disconnected(self, only: Container[int] | None = None) -> None:
        """Connection lost, with all that came from it and was not handed over: it comes again.

        Nothing of the old connection is delivered after this call, and acks sent in the last
        moments may not have arrived, nor those whose receipt is still to come.
        """

    def on_uncertain(self, only: Container[int] | None = None) -> None:
        """One of these sources lost its connection, and it cannot be told which.

        Acks go on, for those that are connected; which of them arrived is known from the next
        `on_connected` on.
        """

    def on_all_requested(
        self, unseen: Sequence[Delivery], only: Container[int] | None = None
    ) -> None:
        """Shared and Key_Shared: everything unacked is asked for, and the broker counts that.

        Called by a link that has something to say beyond its `redeliver_all`.

        Args:
            unseen: What had come and is not delivered, because it comes again.
            only: The sources concerned; None for all.
        """

    def on_seek(self, only: Container[int] | None = None) -> None:
        """A seek took effect: all deliveries before this call are from before it, none after."""

    def on_end_of_topic(self, source: int) -> None:
        """The topic was terminated, and all of it is acked here."""

    def on_active_changed(self, source: int, active: bool) -> None:
        """Failover: this consumer gets the source's messages from now on, or stands by.

        As the broker says it: to each newcomer, so after a reconnect, and perhaps repeatedly.
        """

    def on_new_source(self, source: int) -> None:
        """A partition or topic that came into being is read too; before anything else of it."""

    def on_removed(self, source: int) -> None:
        """The topic of a source was deleted, or has other partitions now: it is read no more."""

    def on_skipped(self, source: int, entries: Sequence[SkippedEntry]) -> None:
        """Entries that are no deliveries; all before them was delivered.

        Of a subscription that is not durable, by engines that see entries: so a reader of a range
        knows its end, and what is missing in it.
        """

    def on_retrying(self, source: int | None, notice: RetryNotice) -> None:
        """An attempt to attach `source` again failed, and others follow.

        Called at the first failed attempt since the connection was lost, then at growing
        intervals, at least every few minutes. `on_connected` says when it is over.

        Args:
            source: The source; None for a partition or topic that was found later and is no source
                yet. Then `on_new_source` says when it is over.
            notice: The refusal.
        """

    def on_failed(self, error: Exception, source: int | None = None) -> None:
        """The link is dead for good; pending and later receives get this error.

        Args:
            error: The reason.
            source: The source that caused it; None for the link as a whole. Several sources may
                fail at the same time, each with a call.
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
    def topic_of(self, source: int) -> tuple[str, int]:
        """Full topic name and partition number (-1 without partitions) of a source."""

    def sources(self) -> Collection[int]:
        """All that it reads now, as far as it knows them."""

    def source_of(self, topic: str, partition: int, ledger: int = -1) -> int | None:
        """The source that an id of `topic` ("" when unknown), `partition` and `ledger` is of."""

    def start(self, listener: DeliveryListener) -> None:
        """Begin delivering; called once, on the loop that later receives.

        Nothing from before the start, or a position that was sought, is delivered, be it of the
        same batch.
        """

    def consumed(self, source: int, messages: int) -> None:
        """The application took, or the consumer dropped, that many of a source: room for more."""

    def wanted(self, messages: int) -> None:
        """Somebody waits for so many messages, of a link whose `receiver_queue_size` is 0.

        Such a link asks the broker for what is waited for, and for nothing else.
        """

    def stop_flow(self) -> None:
        """Ask for nothing more, for good; what is under way still comes."""

    def can_ack(self, source: int) -> bool:
        """Whether an ack of this source, handed over now, would be sent."""

    def ack(self, plan: AckPlan) -> Awaitable[None] | None:
        """Hand over one flush.

        Called from within `DeliveryListener.on_connected` too, with what may have been lost: that
        leaves before any permit of the new connection does.

        Returns:
            The receipt, of a link that has them: done when the broker confirmed all of the flush,
            a TransportError when that is not known, because the connection fell first or no answer
            came in time; then its acks are handed over again. None: nobody confirms.

        Raises:
            TransportError: Not connected; nothing of the plan was taken, keep it.
        """

    def redeliver(self, source: int, groups: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Ask for entries again, as (ledger, entry ids) groups. Shared and Key_Shared only.

        A chunked message is named by its last chunk, and all its chunks are asked for: the last one
        alone may stall the subscription: `docs/notes/wire-protocol.md#chunked-messages`.

        Raises:
            TransportError: Nothing was asked for; ask again.
        """

    def redeliver_all(self, source: int | None = None) -> None:
        """Ask for everything unacked again, of one source or of all.

        Never raises: what cannot be asked for now is asked for as soon as it can be, and a
        reconnect brings it anyway. Without `rewind_one_source` in its capabilities a link rewinds
        all its sources. What came before and is under way may still be delivered; on Exclusive and
        Failover the broker may skip some of what is to come (see `core.rewind`).
        """

    async def seek(self, position: MessageId | int) -> None:
        """To after a message id (or to it, as the options say), or to a publish time in ms.

        Calls `DeliveryListener.on_seek` when it took effect.
        """

    async def last_message_id(self) -> MessageId: ...
    async def acked_position(self) -> MessageId | None:
        """The last message of those that are acked without a gap, of a link to one topic.

        None where the engine cannot tell; ledger and entry are -1 before the first message.
        """

    async def has_message_available(self) -> bool:
        """Whether something is stored behind what was delivered last.

        The link says it, and not its user by `last_message_id`, because only the link knows where
        it stands in each of its topics before anything came, and behind what it never delivers.

        Raises:
            NotSupportedError: Of a durable subscription: it has acks, and no such place.
        """

    async def unsubscribe(self) -> None: ...
    async def close(self) -> None:
        """Idempotent; never raises for a link that is already gone."""


class TransportProducer(Protocol):
    """One producer. A cancelled `publish` may or may not have been stored, as in every client."""

    @property
    def topic(self) -> str: ...
    @property
    def producer_name(self) -> str: ...
    @property
    def last_sequence_id(self) -> int: ...
    def is_connected(self) -> bool: ...
    def publish(self, message: OutgoingMessage) -> Awaitable[MessageId]:
        """Sent in call order; resolves when the broker has it."""

    async def flush(self) -> None: ...
    async def close(self) -> None: ...


class Transport(Protocol):
    """One client's connection to a cluster."""

    capabilities: Capabilities

    async def subscribe(self, subscription: Subscription) -> TransportConsumer: ...
    async def create_producer(
        self, options: ProducerOptions, listener: ProducerListener | None = None
    ) -> TransportProducer:
        """A producer that the broker has accepted.

        Args:
            options: The producer's.
            listener: Told of lost connections and failures; never called by a transport without
                `Capabilities.producer_events`.
        """

    async def topic_partitions(self, topic: str, *, create: bool = True) -> list[str]:
        """Full names of its partitions, or its own.

        Args:
            topic: Short or full name.
            create: Whether a topic that is missing may come to be; for engines that can say it.
        """

    async def topics_matching(self, pattern: str) -> list[str]:
        """Full names of the persistent topics that match, partitions singly.

        Raises:
            NotSupportedError: The engine cannot list topics.
        """

    async def schema_of(self, topic: str, version: int) -> Any:
        """The schema of a topic's version, 0 or more, as `ProducerOptions.schema` takes it.

        A producer made with it sends bytes of that version as they are. `key_value` of it is True
        where partition keys are half of the value.
        """

    async def latest_schema(self, topic: str) -> Any | None:
        """The schema that producers of a topic agree on now, like `schema_of`; None without one.

        None too of a topic that does not exist: a broker does not say which it is.

        Raises:
            NotSupportedError: The engine cannot ask for it.
        """

    def shutdown(self) -> None:
        """Drop everything at once, without waiting and without flushing."""

    async def close(self) -> None: ...
