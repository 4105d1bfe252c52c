"""The seam: what a consumer, a producer and a reader need of Pulsar, and nothing else.

Its shape is the protocol's (entries, ack sets, redelivery by id, connection events), not the stock
client's. A transport declares in `Capabilities` what it cannot do; asking for it anyway is a
`NotSupportedError` before anything is sent. Everything here runs on the event loop: a transport
with threads of its own hands over with `call_soon_threadsafe` and never calls a `Sink` from
elsewhere.

Sources: one consumer may read several topics or partitions; each is a *source*, a small integer
that the link hands out, so that hot paths carry no strings. `link.topic_of(source)` names it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..ids import MessageId
    from ..message import RawMessage
    from ..options import ConsumerOptions, ProducerOptions, ReaderOptions
    from ..outgoing import Outgoing


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What a transport can and cannot do.

    Attributes:
        name: For messages and logs.
        redeliver_lead_ms: From handing ids to `redeliver` until the command is on the wire; the
            consumer's timer hands over that much earlier.
        rewind_lead_ms: The least time from `redeliver_all` on Exclusive and Failover until the
            broker is asked.
        ack_unseen_index: Can ack part of a batch that it has not delivered itself.
        ack_sets_delivered: Deliveries tell which indexes the broker already has as acked.
        rewind_one_source: `redeliver_all` of one source leaves the others alone.
        zero_queue: Can run with receiver_queue_size 0.
        binary_keys: Binary partition and ordering keys can be read and written.
    """

    name: str
    redeliver_lead_ms: int = 0
    rewind_lead_ms: int = 0
    ack_unseen_index: bool = True
    ack_sets_delivered: bool = True
    rewind_one_source: bool = True
    zero_queue: bool = True
    binary_keys: bool = True


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


class Sink(Protocol):
    """What a `ConsumerLink` calls, on the event loop. None of these may raise or suspend."""

    def on_deliveries(self, deliveries: Sequence[Delivery]) -> None: ...
    def on_connected(self, only: Container[int] | None = None) -> None:
        """Subscribed again after a loss: everything unacked will come again.

        Args:
            only: The sources concerned, here and in the next two; None for all.
        """

    def on_disconnected(self, only: Container[int] | None = None) -> None:
        """Connection lost, with all that came from it and was not handed over: it comes again.

        Nothing of the old connection is delivered after this call, and acks sent in the last
        moments may not have arrived.
        """

    def on_doubtful(self, only: Container[int] | None = None) -> None:
        """One of these sources lost its connection, and it cannot be told which.

        Acks go on, for those that are connected; which of them arrived is known from the next
        `on_connected` on.
        """

    def on_asked_all(self, unseen: Sequence[Delivery], only: Container[int] | None = None) -> None:
        """Shared and Key_Shared: everything unacked is asked for, and the broker counts that.

        Called by a link that has something to say beyond its `redeliver_all`.

        Args:
            unseen: What had come and is not delivered, because it comes again.
            only: The sources concerned; None for all.
        """

    def on_sought(self, only: Container[int] | None = None) -> None:
        """A seek took effect: all deliveries before this call are from before it, none after."""

    def on_failed(self, error: Exception) -> None:
        """The link is dead for good; pending and later receives get this error."""


class ConsumerLink(Protocol):
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

    def source_of(self, topic: str, partition: int, ledger: int = -1) -> int | None:
        """The source that an id of `topic` ("" when unknown), `partition` and `ledger` is of."""

    def start(self, sink: Sink) -> None:
        """Begin delivering; called once, on the loop that later receives."""

    def consumed(self, source: int, messages: int) -> None:
        """The application took, or the consumer dropped, that many of a source: room for more."""

    def stop_flow(self) -> None:
        """Ask for nothing more, for good; what is under way still comes."""

    def can_ack(self, source: int) -> bool:
        """Whether an ack of this source, handed over now, would be sent."""

    def ack(self, plan: AckPlan) -> None:
        """Hand over one flush.

        Raises:
            TransportError: Not connected; nothing of the plan was taken, keep it.
        """

    def redeliver(self, source: int, groups: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Ask for entries again, as (ledger, entry ids) groups. Shared and Key_Shared only.

        A chunked message is named by its last chunk, and all its chunks are asked for: the last one
        alone may wedge the subscription (wire notes 6.4).

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

        Calls `Sink.on_sought` when it took effect.
        """

    async def last_message_id(self) -> MessageId: ...
    async def unsubscribe(self) -> None: ...
    async def close(self) -> None:
        """Idempotent; never raises for a link that is already gone."""


class ProducerLink(Protocol):
    """One producer. A cancelled `publish` may or may not have been stored, as in every client."""

    @property
    def topic(self) -> str: ...
    @property
    def producer_name(self) -> str: ...
    @property
    def last_sequence_id(self) -> int: ...
    def is_connected(self) -> bool: ...
    def publish(self, message: Outgoing) -> Awaitable[MessageId]:
        """Sent in call order; resolves when the broker has it."""

    async def flush(self) -> None: ...
    async def close(self) -> None: ...


class ReaderLink(Protocol):
    """One reader. `read_next` can be cancelled at any point without losing a message."""

    @property
    def topic(self) -> str: ...
    def is_connected(self) -> bool: ...
    def topic_of(self, source: int) -> str: ...
    async def read_next(self, timeout_ms: int | None) -> Delivery | None:
        """One message, or None when `timeout_ms` passed."""

    async def has_message_available(self) -> bool: ...
    async def seek(self, position: MessageId | int) -> None: ...
    async def close(self) -> None: ...


class Transport(Protocol):
    """One client's connection to a cluster."""

    capabilities: Capabilities

    async def subscribe(self, options: ConsumerOptions) -> ConsumerLink: ...
    async def create_producer(self, options: ProducerOptions) -> ProducerLink: ...
    async def create_reader(self, options: ReaderOptions) -> ReaderLink: ...
    async def topic_partitions(self, topic: str) -> list[str]: ...
    async def schema_of(self, topic: str, version: int) -> Any:
        """The schema of a topic's version, 0 or more, as `ProducerOptions.schema` takes it.

        A producer made with it sends bytes of that version as they are. `key_value` of it is True
        where partition keys are half of the value.
        """

    def shutdown(self) -> None:
        """Drop everything at once, without waiting and without flushing."""

    async def close(self) -> None: ...
