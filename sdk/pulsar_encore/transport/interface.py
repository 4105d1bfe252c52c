"""The interface between transports and consumers, readers and producers.

All methods and callbacks run on the event loop. Using a feature that is missing in `Capabilities`
raises `NotSupportedError` before anything is sent. Topics and partitions have numbers, so that hot
paths carry no strings.

A reader is a subscription that is not durable. Its transport consumer is never asked for acks,
redeliveries or `unsubscribe`. After a reconnect it continues after the last delivered message, so
messages in the reader's queue stay valid.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from ..errors import ClosedError

if TYPE_CHECKING:
    from ..message import RawMessage
    from ..options import ProducerOptions, Subscription
    from ..values.message_id import MessageId
    from ..values.outgoing_message import OutgoingMessage
    from ..values.transaction_id import TxnId
    from ..values.transaction_state import TxnState

#: Results of a send that concern one message. After another error the producer may have ended.
MESSAGE_RESULTS: Final = frozenset(
    {"MessageTooBig", "InvalidMessage", "Timeout", "ProducerQueueIsFull", "MemoryBufferIsFull"}
)
_SINGLE_INDEX: Final = (0,)  # the index of a message that is not in a batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """The abilities of a transport.

    Attributes:
        redeliver_lead_ms: Time from `redeliver` until the command is on the wire.
        rewind_lead_ms: Minimum time from `redeliver_all` on Exclusive and Failover until the
            request is sent.
        ack_unseen_index: Can ack a part of a batch that it has not delivered itself.
        rewind_one_topic: `redeliver_all` of one topic leaves the others alone.
        binary_keys: Keys may be any bytes, not only UTF-8 text.
        receipts: `ack` returns an ack receipt.
        producer_events: The transport calls a `ProducerListener`.
        initial_subscriptions: A producer can name a subscription that the broker creates with it.
        queue_per_topic: Messages of one topic that are not taken do not hold up another topic.
        active_changes: The transport reports the active consumer of a Failover topic.
        all_topics: `topic_numbers` has each topic of a pattern before its first message.
        transactions: `begin_transaction` works if the cluster has transactions.
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
    active_changes: bool = True
    all_topics: bool = True
    transactions: bool = True


@dataclass(slots=True, eq=False)
class Delivery:
    """Messages of one entry: all of them, or a part if the transport splits entries.

    Attributes:
        batch_size: Messages in the entry; 0 if it is not a batch.
        redelivery_count: The broker's count for the entry, 0 on the first delivery.
        indexes: Batch indexes of `messages`, ascending; (0,) for a single message.
        ack_set: Mask of the unacked indexes; -1 for all or unknown.
        first_chunk: (ledger, entry) of the first chunk of a chunked message.
        withheld: Mask of the indexes that the broker has left out, because they are acked or
            pending in a transaction.
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
    withheld: int = 0


class PlainDeliveries:
    """Consecutive plain messages of one topic on their first delivery.

    A `Delivery` for each would cost as much as all other work for a small message.

    Attributes:
        positions: (ledger, entry) of each message.
    """

    __slots__ = ("messages", "positions", "topic_number")

    def __init__(
        self,
        topic_number: int,
        positions: Sequence[tuple[int, int]],
        messages: Sequence[RawMessage],
    ) -> None:
        self.topic_number: int = topic_number
        self.positions: Sequence[tuple[int, int]] = positions
        self.messages: Sequence[RawMessage] = messages

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
    """Why an entry is not delivered to a reader."""

    MARKER = "an entry that the broker wrote for itself"
    CHUNK = "a chunk that waits for the rest of its message or is no longer needed"
    INCOMPLETE = "a chunk without the chunks before it"
    BROKEN = "an entry whose bytes cannot be read"
    ENCRYPTED = "an encrypted entry that is not delivered"


class SkippedEntry(NamedTuple):
    """An entry that is not delivered to a reader."""

    ledger: int
    entry: int
    reason: SkipReason
    error: Exception | None = None


@dataclass(slots=True)
class AckPlan:
    """The acks of one flush for one topic.

    Attributes:
        cumulative: (ledger, entry, batch_size, ack_set): every message up to this position. An
            `ack_set` of -1 covers the entry.
        entries: (ledger, entry) of entries that are acked whole.
        partial: (ledger, entry, batch_size, ack_set); bit 1 means that the index is unacked.
    """

    topic_number: int
    cumulative: tuple[int, int, int, int] | None
    entries: list[tuple[int, int]]
    partial: list[tuple[int, int, int, int]]


class ShutDownError(ClosedError):
    """The application shut down the client or ended its event loop."""


class RetryNotice(NamedTuple):
    """A failed attempt to reattach. More attempts follow.

    Attributes:
        topic: Full name of the topic or partition; the pattern for a watch of topics.
        attempts, elapsed_s: Failed attempts and time since the connection was lost.
    """

    topic: str
    error: Exception
    attempts: int
    elapsed_s: float


class ProducerListener(Protocol):
    """Called by a `TransportProducer` for each partition. No method may raise or suspend."""

    def on_retrying(self, notice: RetryNotice) -> None:
        """Handle a failed attempt to attach again. More attempts follow.

        Called at the first failed attempt after a loss, then at growing intervals of at most a few
        minutes.
        """

    def on_disconnected(self, topic: str) -> None:
        """Handle the loss of the connection to the broker of `topic`."""

    def on_connected(self, topic: str) -> None:
        """Handle that the producer is attached to `topic` again.

        Not called for the first attachment, except that of a partition that was found later.
        """

    def on_removed(self, topic: str) -> None:
        """Handle that `topic` was deleted, or has other partitions now."""

    def on_failed(self, topic: str, error: Exception) -> None:
        """Handle that every later send to `topic` fails with `error`."""


class DeliveryListener(Protocol):
    """Called by a `TransportConsumer` on the event loop. No method may raise or suspend.

    `topics` are the topics concerned; None for all.
    """

    def on_deliveries(self, deliveries: Deliveries) -> None: ...
    def on_connected(self, topics: Container[int] | None = None) -> None:
        """Handle that topics are subscribed again after a loss: everything unacked is redelivered.

        Acks that are sent within this call leave before the first permit of the new connection, so
        their messages are not redelivered. The C++ client sends permits on its own: with the stock
        transport, the listener must recognize redelivered messages.
        """

    def on_disconnected(self, topics: Container[int] | None = None) -> None:
        """Handle a lost connection. Nothing from it is delivered after this call.

        Recent acks, and acks whose receipt is missing, may not have arrived.
        """

    def on_uncertain(self, topics: Container[int] | None = None) -> None:
        """Handle that at least one of these topics lost its connection.

        The transport cannot say which. Messages stay valid. Recent acks may be lost: the listener
        sends them again in the next `on_connected`.
        """

    def on_all_requested(
        self, unseen: Sequence[Delivery], topics: Container[int] | None = None
    ) -> None:
        """Shared and Key_Shared: handle that everything unacked was requested again.

        The broker counts a redelivery for each message.

        Args:
            unseen: Messages that were received and are not delivered, because they are redelivered.
        """

    def on_seek(self, topics: Container[int] | None = None) -> None:
        """Handle a completed seek. Later deliveries begin at the new position."""

    def on_end_of_topic(self, topic_number: int) -> None:
        """Handle that the topic was terminated and this subscription has acked all of it."""

    def on_active_changed(self, topic_number: int, active: bool) -> None:
        """Failover: handle that this consumer gets the topic's messages from now on, or stands by.

        The broker sends this to each new consumer, also after a reconnect, and perhaps repeatedly.
        """

    def on_new_topic(self, topic_number: int) -> None:
        """Handle a new partition or topic. No other call for this topic comes earlier."""

    def on_removed(self, topic_number: int) -> None:
        """Handle that a topic was deleted, or has other partitions now."""

    def on_skipped(self, topic_number: int, entries: Sequence[SkippedEntry]) -> None:
        """Handle entries that are not delivered. Everything before them was delivered.

        Called for readers, by transports that see entries.
        """

    def on_retrying(self, topic_number: int | None, notice: RetryNotice) -> None:
        """Handle a failed attempt to attach again, as `ProducerListener.on_retrying`.

        `topic_number` is None for a topic that was found later and has no number yet.
        """

    def on_failed(self, error: Exception, topic_number: int | None = None) -> None:
        """Handle the final end of the consumer. Pending and later receives get this error.

        Args:
            topic_number: The topic that caused it; None for the whole consumer.
        """


class TopicEnds(NamedTuple):
    """The end of a topic for one subscription.

    Attributes:
        last: The last stored message; ledger and entry are -1 if there is none.
        acked: The last entry up to which everything is acked; None if unknown.
    """

    last: MessageId
    acked: MessageId | None


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
        """Return the full name and the partition number (-1 without partitions) of a topic."""

    def topic_numbers(self) -> Collection[int]:
        """Return the numbers of all topics."""

    def topic_number_of(self, topic: str, partition: int, ledger: int = -1) -> int | None:
        """Return the topic number of a message id. Its topic name is "" if unknown."""

    def start(self, listener: DeliveryListener) -> None:
        """Begin to deliver. Called once, on the loop that later receives.

        Messages before the start or a sought position are not delivered, even in the same batch.
        """

    def consumed(self, topic_number: int, messages: int) -> None:
        """Report that the application took, or the consumer dropped, messages of a topic."""

    def request_messages(self, messages: int) -> None:
        """Report that this many messages are waited for, if `receiver_queue_size` is 0."""

    def stop_flow(self) -> None:
        """Request nothing more, permanently. Messages in flight still arrive."""

    def can_ack(self, topic_number: int) -> bool:
        """Return True if acks of this topic can be sent now."""

    def ack(self, plan: AckPlan) -> Awaitable[None] | None:
        """Send the acks of one flush.

        Returns:
            The receipt, done when the broker has confirmed the whole flush; None without receipts.
            It fails with a TransportError if the outcome is unknown. The caller then sends the acks
            again.

        Raises:
            TransportError: if it is not connected. Nothing was sent.
        """

    def ack_in_transaction(self, plan: AckPlan, txn: TransportTransaction) -> asyncio.Future[None]:
        """Send acks that count when the transaction is committed (PIP-31).

        They leave once the subscription is registered in the transaction, which waits for them
        before its end. Acks of one turn of the event loop can share a command.

        Args:
            plan: The mask of a part of a batch has all indexes that are not acked now; 0 for none.

        Returns:
            Done when the broker has stored the acks. It fails with `TransactionConflict` or another
            error of the broker, and then the transaction can only abort.

        Raises:
            NotSupportedError: if the transport has no transactions.
            TransactionStateError: if the transaction is not open, or belongs to another client.
        """

    def redeliver(self, topic_number: int, groups: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Request entries again, as (ledger, entry ids) groups. Shared and Key_Shared only.

        A chunked message is named by its last chunk, and all its chunks are requested, because a
        request for one chunk may stall the subscription
        (`docs/notes/wire-protocol.md#chunked-messages`).

        Raises:
            TransportError: if nothing was requested.
        """

    def redeliver_all(self, topic_number: int | None = None) -> None:
        """Request everything unacked again, of one topic or of all.

        Never raises, because a reconnect redelivers everything anyway. On Exclusive and Failover
        the broker may skip messages (see `core.rewind_check`).
        """

    async def seek(self, position: MessageId | int) -> None:
        """Seek to a message id, or to a publish time in ms.

        Delivery continues after the message with that id, or with it if
        `start_message_id_inclusive` is set.
        """

    async def last_message_id(self) -> MessageId: ...
    async def ends_of(self, topic_number: int) -> TopicEnds | None:
        """Return the end of a topic and of the acks in it; None if the transport cannot tell."""

    async def acked_position(self) -> MessageId | None:
        """Return the last message up to which everything is acked, for a consumer of one topic.

        None if the transport cannot tell. Ledger and entry are -1 before the first message.
        """

    async def has_message_available(self) -> bool:
        """Return True if a message is stored after the last delivered one.

        Raises:
            NotSupportedError: if the subscription is durable.
        """

    async def unsubscribe(self) -> None: ...
    async def close(self) -> None:
        """Close the consumer. Idempotent."""


OnPosted: TypeAlias = Callable[[Exception | None], None]
"""Called once with the outcome of a posted message: None when it is stored, else the error."""


class TransportProducer(Protocol):
    """One producer. After a cancelled `publish` the message may or may not be stored."""

    @property
    def topic(self) -> str: ...
    @property
    def producer_name(self) -> str: ...
    @property
    def last_sequence_id(self) -> int: ...
    def is_connected(self) -> bool: ...
    def check(self, message: OutgoingMessage) -> None:
        """Raise the error that each send of this message would get, such as `MessageTooBig`.

        Without an error, a send may fail nevertheless. By default, nothing is checked.
        """
        return

    def publish(self, message: OutgoingMessage) -> Awaitable[MessageId]:
        """Send a message, in the order of the calls. Done when the broker has stored it."""

    def post(self, message: OutgoingMessage, on_done: OnPosted) -> None:
        """Send a message as `publish` does, but report its outcome to `on_done`.

        `on_done` is called once, perhaps before this method returns. If this method raises an
        error, `on_done` is not called.
        """
        sending = asyncio.ensure_future(self.publish(message))
        sending.add_done_callback(partial(report_posted, on_done))

    async def flush(self) -> None: ...
    async def close(self) -> None: ...


def report_posted(on_done: OnPosted, sending: asyncio.Future[MessageId]) -> None:
    """Report the outcome of a send that is done."""
    if sending.cancelled():
        on_done(ClosedError("the producer was shut down before the message was sent"))
        return
    error = sending.exception()
    if error is None or isinstance(error, Exception):
        on_done(error)


class TransportTransaction(Protocol):
    """One open transaction. It belongs to the event loop that began it.

    `commit` and `abort` run to their end also if their callers are cancelled, and raise
    `TransactionAbortedError`, `TransactionOutcomeUnknown` or `TransactionStateError`.
    """

    @property
    def id(self) -> TxnId: ...
    @property
    def state(self) -> TxnState: ...
    @property
    def timed_out(self) -> bool: ...
    @property
    def may_send(self) -> bool:
        """False as soon as no message or ack of it may leave any more."""

    def check_open(self, action: str) -> None:
        """Raise `TransactionStateError` if no more messages can be sent or acked in it.

        Args:
            action: What the caller wants to do, such as "send in it".
        """

    def when_ended(self, callback: Callable[[bool], None]) -> None:
        """Call back once after the end, with True if all its acks took effect.

        False also means that this is not certain. If a request for its end had no answer, this
        happens when a later one is answered, or when its timeout must be over.
        """

    def spoil(
        self, error: Exception, operation: str, is_seen: Callable[[], bool] | None = None
    ) -> None:
        """Have `commit` abort instead. The first error of an operation is the reason.

        A send that its producer accepted need not be reported.

        Args:
            is_seen: For an operation that was refused before anything left. It returns True if a
                caller has seen the error by the time of the commit, and commits nevertheless.
        """

    async def commit(self) -> None: ...
    async def abort(self) -> None: ...
    def abandon(self) -> None:
        """Abort it in the background, if it is open."""

    def hand_over(self) -> None:
        """Leave the end to another process, which has its id. Nothing more leaves in it.

        Its messages need their receipts before. The client never aborts it afterwards.
        """

    async def ended(self) -> None:
        """Wait for the end of a commit or abort that has begun."""


class Transport(Protocol):
    """One client's connection to a cluster."""

    capabilities: Capabilities

    def new_consumer_name(self) -> str:
        """Return a name that no other consumer has, to give it to several subscriptions."""

    async def subscribe(self, subscription: Subscription) -> TransportConsumer: ...
    async def create_producer(
        self, options: ProducerOptions, listener: ProducerListener | None = None
    ) -> TransportProducer:
        """Create a producer and wait until the broker has accepted it.

        A transport without `Capabilities.producer_events` never calls `listener`.
        """

    async def topic_partitions(self, topic: str, *, create: bool = True) -> list[str]:
        """Return the full names of a topic's partitions, or the topic's own without partitions.

        Args:
            create: A missing topic may be created. Not every transport has this choice.
        """

    async def topics_matching(self, pattern: str) -> list[str]:
        """Return the full names of the persistent topics that match.

        A partitioned topic is listed as its partitions.

        Raises:
            NotSupportedError: if the transport cannot list topics.
        """

    async def schema_of(self, topic: str, version: int) -> Any:
        """Return a version (0 or more) of a topic's schema, as `ProducerOptions.schema` takes it.

        A producer with this schema sends bytes of that version unchanged.
        """

    async def latest_schema(self, topic: str) -> Any | None:
        """Return the current schema of a topic's producers, like `schema_of`.

        None without a schema, and for a topic that does not exist: brokers give the same answer.

        Raises:
            NotSupportedError: if the transport cannot ask for it.
        """

    async def begin_transaction(self, timeout_s: float) -> TransportTransaction:
        """Begin a transaction, which the cluster aborts after `timeout_s`.

        Raises:
            NotSupportedError: if the transport has no transactions; `TransactionNotEnabledError` if
                the cluster has none.
        """

    async def join_transaction(self, txn_id: TxnId, timeout_s: float) -> TransportTransaction:
        """Send in a transaction that another process has begun and will end.

        The coordinator is not asked. If the transaction has ended, the first send to each topic
        fails. `commit` and `abort` end the transaction for all processes.

        Args:
            timeout_s: The time that is left of its timeout. Nothing is sent later.

        Raises:
            NotSupportedError: if the transport has no transactions.
        """

    async def end_transaction(self, txn_id: TxnId, *, commit: bool) -> None:
        """Commit or abort a transaction that perhaps another process has begun.

        Raises:
            TransactionNotFound: if it has ended before, or belongs to another role.
            InvalidTxnStatusError: if it is ending the other way.
            TransactionOutcomeUnknown: if an answer was lost, and it has ended by then.
        """

    def shutdown(self) -> None:
        """Drop everything at once, without waiting or flushing."""

    async def close(self) -> None: ...
