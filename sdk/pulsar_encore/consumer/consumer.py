"""The public `Consumer`, which checks each call and passes it to the part that does the work.

All parts run on one event loop. Only the database of a `state` uses threads, and blocks the loop
while it is opened again after a failed write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from ..core.message_states import ACKED, QUEUED
from ..core.topic_state import TopicState
from ..errors import (
    ClosedError,
    ConfigurationError,
    CumulativeAcknowledgementNotAllowedError,
    InvalidConfiguration,
    OperationNotSupported,
)
from ..eventloop.affinity import LoopAffinity, end_all, get_ident
from ..eventloop.awaitables import AwaitingReceipt, raise_failure, settles
from ..eventloop.fair_yield import FairYield
from ..eventloop.shielded_work import seen, shielded
from ..letters.evidence import check_error
from ..message import Message, batch_of, handler_context_of
from ..options import ConsumerOptions
from ..options.checks import integer, text, topic_name
from ..transaction import Transaction, need_transport_transaction
from ..transport.interface import TransportConsumer, TransportTransaction
from ..values.backoff import BackoffLike, to_ms
from ..values.message_id import MessageId
from ..values.topic_names import base_name, full_name
from ..values.type_variables import T_co
from .consumer_status import ConsumerStatus
from .counters import Counters
from .delivery.batch_receiver import BatchReceiver
from .delivery.listener import Listener
from .delivery.paused_topics import PausedTopics
from .delivery.receive_queue import ReceiveQueue
from .delivery_handler import DeliveryHandler
from .event_publisher import EventPublisher
from .forwarding.arrival_filter import ArrivalFilter
from .forwarding.forwarder import Forwarder
from .forwarding.letter_topics import LetterTopics
from .forwarding.nack_handler import NackHandler
from .held_messages import HeldMessages
from .leases import lease_handle as handles
from .leases.lease import Lease
from .leases.lease_length import length_ms
from .leases.lease_table import LeaseTable
from .leases.pop_queue import PopQueue
from .leases.restored_leases import RestoredLeases
from .leases.topic_choice import TopicChoices
from .settlement.ack_sender import AckSender
from .settlement.ownership import Settleable
from .settlement.redelivery import Redelivery
from .settlement.rewinds import Rewinds
from .settlement.settlement import Settlement
from .settlement.transaction_acks import TransactionAcks
from .settlement_calls import LONG, SettlementCalls
from .statistics import Statistics
from .topic_counts import TopicCounts, topic_counts
from .topic_states import TopicStates
from .unacked_window_monitor import UnackedWindowMonitor

if TYPE_CHECKING:  # most consumers import none of these modules
    from ..admin import WebService
    from ..state.spilling.spilling_metrics import MetricSample
    from .lag import Lag
    from .nack_disk_index import NackSpilling
    from .pending_messages import PendingMessage
    from .state_writer import StateWriter


# Longest time that `close` waits for a connection that acks need, and how often it checks.
_CLOSE_S: Final = 5.0
_CLOSE_RETRY_S: Final = 0.1

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerParts:
    """The connected parts of one consumer."""

    transport_consumer: TransportConsumer
    options: ConsumerOptions
    status: ConsumerStatus
    fair_yield: FairYield
    topic_states: TopicStates
    queue: ReceiveQueue
    batches: BatchReceiver
    acks: AckSender
    redelivery: Redelivery
    rewinds: Rewinds
    settlement: Settlement
    transaction_acks: TransactionAcks
    nack_handler: NackHandler
    forwarder: Forwarder | None
    letter_topics: LetterTopics | None
    arrivals: ArrivalFilter | None
    window: UnackedWindowMonitor
    event_publisher: EventPublisher
    delivery_handler: DeliveryHandler
    leases: LeaseTable
    restored_leases: RestoredLeases | None
    popping: PopQueue
    held_messages: HeldMessages
    state_writer: StateWriter | None = None
    spilling: NackSpilling | None = None
    logger_of: Callable[[str], logging.Logger] = logging.getLogger
    new_web_service: Callable[[], WebService] | None = None


class Consumer(Generic[T_co]):
    """A subscription, made by `Client.subscribe`.

    The type parameter is the type of the values, as of `Message`.

    Every await can be cancelled or timed out at any point without losing a message. `async with`
    closes the consumer. `async for` receives messages until it is closed. A consumer belongs to the
    event loop on which it was made: a call from another loop raises `WrongLoopError`, and a call in
    a forked child raises `ForkedError`.

    Example:
        Receive, process, and ack or nack each message::

            async with await client.subscribe("orders", "billing") as consumer:
                async for message in consumer:
                    try:
                        await bill(message.value())
                    except Exception as error:
                        await consumer.negative_acknowledge(message, error=error)
                    else:
                        await consumer.acknowledge(message)
    """

    def __init__(
        self, parts: ConsumerParts, *, on_closed: Callable[[Consumer], None] | None = None
    ) -> None:
        self._parts = parts
        self._logger = parts.logger_of(__name__)
        self._transport_consumer = parts.transport_consumer
        self._options = parts.options
        self._on_closed = on_closed
        self.affinity: LoopAffinity = LoopAffinity("consumer")
        self._loop = self.affinity.loop
        self._status = parts.status
        self._fair_yield = parts.fair_yield
        receipts = parts.acks.receipts if parts.options.ack_receipt_enabled else None
        self._calls = calls = SettlementCalls(
            self.affinity, parts.fair_yield, parts.status, parts.settlement, receipts
        )
        # Cached for the fast path of `acknowledge`.
        self._done, self._done_last = calls.done, calls.done_last
        self._topic_states = parts.topic_states
        # `acknowledge` acks messages of this owner on its fast path. None with ack receipts,
        # because then the call has to wait.
        self._fast_ack_owner: TopicStates | None = parts.topic_states if receipts is None else None
        self._queue = parts.queue
        self._acks = parts.acks
        self._settlement = parts.settlement
        self._transaction_acks = parts.transaction_acks
        self._nack_handler = parts.nack_handler
        self._leases = parts.leases
        self._held = parts.held_messages
        parts.topic_states.consumer = self
        self._choices = TopicChoices(parts.transport_consumer, parts.options.topics)
        self._paused: PausedTopics | None = None  # made at the first pause
        self._listener: Listener | None = None
        callback = parts.options.message_listener
        self._no_receiving = parts.options.ordered_leases or callback is not None
        self._closing: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        # True if acks can no longer be sent.
        self._cannot_send = False
        self._on_lost: Callable[[], None] | None = None
        parts.transport_consumer.start(parts.delivery_handler)
        if callback is not None:
            self._listener = Listener(
                self, parts.queue, callback, parts.fair_yield, parts.logger_of
            )
            parts.status.on_failure(self._listener.failed)
            if parts.status.refusal is not None:  # the transport failed before the listener existed
                self._listener.failed(parts.status.refusal)

    def __repr__(self) -> str:
        return (
            f"<Consumer of {self.topic()}, subscription {self.subscription_name()!r}, "
            f"{self._options.consumer_type.name}, {self._state()}>"
        )

    def _state(self) -> str:
        if self._closing is not None or isinstance(self._status.refusal, ClosedError):
            return "closed"
        if self._status.refusal is not None:
            return "failed"
        return "connected" if self.is_connected() else "not connected"

    # Receiving

    async def receive(
        self, timeout_millis: int | None = None, *, timeout: float | timedelta | None = None
    ) -> Message[T_co]:
        """Wait for the next message and return it.

        Args:
            timeout_millis: Longest wait in ms (the name of the synchronous stock client).
            timeout: Longest wait in seconds or as a timedelta.

        Raises:
            ReceiveTimeout: if no message arrived in time. No message was taken.
            ClosedError: if the consumer was closed.
            ConfigurationError: with a `message_listener` or with `ordered_leases`.
        """
        if self.affinity.thread != get_ident():
            self.affinity.check()
        if self._no_receiving:
            self._check_receiver()
            self._check_unordered()
        if timeout_millis is None and timeout is None:
            fair_yield = self._fair_yield
            if fair_yield.clock() >= fair_yield.ends:
                await fair_yield.end()
            fair_yield.checked = True
            return self._queue.take() or await self._queue.get(None)
        if timeout is None:
            wait_ms = integer(timeout_millis, "timeout_millis", low=0, unit="ms")
        elif timeout_millis is None:
            wait_ms = to_ms(timeout, "timeout")
        else:
            raise ConfigurationError("give timeout or timeout_millis, not both")
        return await self._queue.get(wait_ms / 1000)

    def _receive_now(self) -> Message[T_co] | None:
        return self._queue.take()

    async def receive_highest(self, rank: Callable[[str], int]) -> Message[T_co]:
        """As `receive`, but arrived messages of the topic with the highest rank come first.

        For a worker, whose topics have priorities.

        Args:
            rank: Returns the rank of a topic or partition by its full name.
        """
        self.affinity.check()
        self._check_receiver()
        self._check_unordered()
        return self._queue.take_highest(rank) or await self.receive()

    def take_rest_of_batches(self, running: Iterable[Message]) -> list[Message[T_co]]:
        """Take the arrived messages of batches that have begun, without waiting. For a worker.

        Args:
            running: Messages in handlers. A batch with one of them, or with an acked message, has
                begun.
        """
        self.affinity.check()
        batches = {batch_of(each) for each in running}
        return self._queue.take_of_batches(
            lambda entry: entry in batches or entry.unacked < entry.size
        )

    async def batch_receive(self) -> list[Message[T_co]]:
        """Return several messages at once, within the limits of `batch_receive_policy`.

        Returns:
            At least one message, or an empty list if the time of the policy is over.
        """
        self.affinity.check()
        self._check_receiver()
        self._check_unordered()
        return await self._parts.batches.receive()

    async def pop(
        self,
        max_messages: int = 32,
        *,
        lease: float | timedelta = 60,
        wait: float | timedelta = 20,
        topic: str | None = None,
        max_per_key: int | None = None,
    ) -> list[Lease[T_co]]:
        """Lease messages for a time; a message that is not settled in that time has failed.

        A message whose lease expires is redelivered after the backoff of its attempt if the
        subscription has a `negative_ack_redelivery_backoff` (as in RIP-73), and otherwise at once.

        Pops are served in the order of their calls. Every fifth pop takes previously failed
        messages first; the others take messages in the order of arrival. At most `max_leases`
        leases are active at once; further pops wait until a lease is settled or expires. `receive`
        may be called at the same time: each message goes to one caller. A leased message has no ack
        timeout.

        With `ordered_leases`, only one pop at a time holds messages of a key. The list contains the
        messages of one key side by side and in order: ack them in this order. If a message fails or
        its lease ends, the leases on the following messages of the key are lost, and all of them
        are popped again in order. Only the attempt at the failed message counts. A message that is
        acked before its predecessor stays acked, and the key waits for the predecessor.

        Args:
            max_messages: Largest number of leases.
            lease: Length of each lease, in seconds or as a timedelta, up to 30 days.
            wait: Longest wait for the first message, in seconds or as a timedelta.
            max_per_key: With `ordered_leases`, largest number of messages of one key; None for no
                limit. Pass 1 if you process the messages of a list in parallel.
            topic: Take messages of this topic or partition only. The consumer must read it. A
                partitioned topic stands for all its partitions. Pops of other topics do not wait
                for this pop. Letters belong to the retry letter topic, not to this topic.

        Returns:
            Leases on messages that have arrived, at least one; an empty list if `wait` is over.

        Raises:
            ConfigurationError: on Exclusive and Failover, with a `message_listener`, for a topic
                that the consumer does not read, or for an invalid argument.
            ClosedError: if the consumer was closed.
        """
        self._check_open()
        self._check_receiver()
        if not self._options.shared:
            raise ConfigurationError(
                "pop needs a Shared or Key_Shared consumer, where one message can be redelivered "
                f"alone; this one is {self._options.consumer_type.name}: subscribe with "
                "consumer_type=ConsumerType.Shared, or receive and acknowledge"
            )
        most = integer(max_messages, "max_messages", low=1)
        length, longest_ms = length_ms(lease, "lease"), to_ms(wait, "wait")
        if max_per_key is not None:
            integer(max_per_key, "max_per_key", low=1)
            if not self._options.ordered_leases:
                raise ConfigurationError("max_per_key needs subscribe(..., ordered_leases=True)")
        only = self._choices.of(topic)
        records = await self._parts.popping.pop(most, length, longest_ms, only, max_per_key)
        return [Lease(record, self._leases, self._fair_yield, self._loop) for record in records]

    async def lease(self, handle: str) -> Lease[T_co]:
        """Return the lease that a handle names, to settle it in another part of the program.

        With `state=`, handles of leases from before a restart work until the lease ends. Such a
        lease has no `message`.

        Raises:
            ConfigurationError: if the text is not a handle.
            LeaseLostError: if the lease is over, or belongs to another consumer.
            MessageNotHeldError: if no message that the state knows arrived within 5 s after a
                restart, so that the state may belong to another cluster. Try again.
        """
        self._check_open()
        named, leases, restored = handles.read(handle), self._leases, self._parts.restored_leases
        if restored is not None and leases.is_foreign(named):
            found = await restored.find(named, handle)
            return Lease(found, restored, self._fair_yield, self._loop)
        return Lease(leases.find(handle), leases, self._fair_yield, self._loop)

    def _check_receiver(self) -> None:
        if self._listener is not None:
            raise InvalidConfiguration(
                "the message_listener of this consumer receives: do not call receive or pop"
            )

    def _check_unordered(self) -> None:
        if self._options.ordered_leases:
            raise ConfigurationError(
                "this consumer has ordered_leases, and a message received without pop could "
                "overtake a failed one of its key: use pop, or subscribe without ordered_leases"
            )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T_co]:
        try:
            return await self.receive()
        except ClosedError:
            raise StopAsyncIteration from None

    # Settling

    @settles
    def acknowledge(
        self, message: Settleable | Sequence[Settleable], *, txn: Transaction | None = None
    ) -> Coroutine[Any, Any, None]:
        """Ack a message, or each message of a list, so that it is not redelivered.

        The ack takes effect when the call returns. Awaiting the result raises the errors and lets
        the event loop run if the call used up its time slice. Inside a listener's callback, the
        call itself raises. In a thread without an event loop, the call runs on the consumer's loop.
        Acks are sent in groups, within `ack_group_time_ms`, and kept while disconnected. Acking
        twice is harmless, an ack cancels a pending nack, and an id without a batch index acks its
        whole entry.

        With `ack_receipt_enabled`, the await ends when the broker has confirmed the ack; an
        unconfirmed ack is sent again after a reconnect. Cancelling the await does not cancel the
        ack.

        With `txn` (native transport), the message is acked if that transaction is committed. If it
        is aborted, the message is redelivered, and the abort counts as no failed attempt here.
        Until then the broker delivers it to nobody, and a nack or an ack timeout does not change
        it. An ack without `txn` acks it for good. The await ends when the broker has stored the
        acks. The messages of a list are acked together or not at all, in one command for each
        topic. See `docs/transactions.md`.

        Args:
            message: A message that this consumer received, an id, or a list of them.
            txn: The transaction that the ack belongs to. All messages must be held here.

        Raises:
            NotSupportedError: with `txn`, on the stock transport.
            TransactionStateError: if `txn` is not open, or belongs to another client.
            TransactionConflict: if a message is acked in another open transaction. If the broker
                says so, `txn` can only abort.
            TransactionAbortedError: if `txn` was aborted before the ack was sent.
            ConfigurationError: with `txn`, if the topic is not persistent, or with ordered leases.
            MessageNotHeldError: if the message belongs to another consumer or to a topic that this
                consumer does not read, or is part of a batch that it does not hold. Of a list, only
                the messages before the failing one were acked.
            WrongLoopError: if called on another event loop.
            ClosedError: if the consumer is closed, or was closed before the broker confirmed the
                ack. The message may be redelivered.
        """
        if self.affinity.thread != get_ident() and not self.affinity.is_here():
            whole = tuple(message) if isinstance(message, list) else message
            return self._calls.call_on_loop(partial(self.acknowledge, txn=txn), whole)
        if txn is not None:
            return self._calls.act_in_transaction(partial(self._acknowledge_in, message), txn)
        if type(message) is Message and self._status.refusal is None:
            # The fast path of nearly every call. It must match the rules of `Settlement.ack`.
            entry = message._entry
            if (
                entry is not None
                and entry.live
                and (state := entry.topic_state).owner is self._fast_ack_owner
            ):
                unsent = state.ack(entry, message._index)
                if unsent:
                    self._acks.added(state, unsent)
                fair_yield: FairYield = self._fair_yield
                done: Coroutine[Any, Any, None] = self._done
                if fair_yield.checked:
                    fair_yield.checked = False
                elif fair_yield.clock() >= fair_yield.ends:
                    done = self._done_last
                return done
        if isinstance(message, (list, tuple)) and len(message) > LONG:
            return self._calls.ack_list(message)
        return self._calls.act(self._acknowledge, message)

    def _acknowledge(self, message: Settleable | Sequence[Settleable]) -> set[TopicState]:
        if isinstance(message, (list, tuple)):
            return self._calls.ack_now(message)
        return {self._settlement.ack(message)}  # type: ignore[arg-type]  # refuses other sequences

    def _acknowledge_in(
        self, message: Settleable | Sequence[Settleable], txn: TransportTransaction
    ) -> list[asyncio.Future[None]]:
        items = message if isinstance(message, (list, tuple)) else (message,)
        return self._transaction_acks.ack(items, txn)

    def _begin_acks(
        self, messages: Sequence[Message], txn: Transaction
    ) -> list[asyncio.Future[None]]:
        self._status.check()
        return self._acknowledge_in(messages, need_transport_transaction(txn))

    def _was_acked(self, message: Message) -> bool:
        entry = message._entry
        return entry is not None and entry.state[message._index] == ACKED

    def _acknowledge_held(self, message: Message) -> bool:
        entry = message._entry
        if entry is not None and entry.live and self._status.refusal is None:
            state = entry.topic_state
            if state.owner is self._fast_ack_owner:  # the fast path of `acknowledge`
                index = message._index
                if not state.holds(entry, index, message._delivery_number):
                    return False
                unsent = state.ack(entry, index)
                if unsent:
                    self._acks.added(state, unsent)
                return True
        if not self.holds(message):
            return False
        raise_failure(self.acknowledge(message))
        return True

    @settles
    def acknowledge_cumulative(
        self, message: Settleable, *, txn: Transaction | None = None
    ) -> Coroutine[Any, Any, None]:
        """Ack a message and every message before it in its topic or partition.

        The ack takes effect and is confirmed as described at `acknowledge`.

        Args:
            message: A message that this consumer received, or an id.
            txn: The transaction that the ack belongs to. While it is open, the topic can have no
                other acks in transactions.

        Raises:
            ConfigurationError: on Shared and Key_Shared, where other consumers hold some of the
                earlier messages.
            TransactionConflict: if other messages of the topic are acked in an open transaction,
                one by one or in another transaction.
        """
        if self.affinity.thread != get_ident() and not self.affinity.is_here():
            return self._calls.call_on_loop(partial(self.acknowledge_cumulative, txn=txn), message)
        if txn is not None:
            step = partial(self._acknowledge_cumulative_in, message)
            return self._calls.act_in_transaction(step, txn)
        return self._calls.act(self._acknowledge_cumulative, message)

    def _acknowledge_cumulative(self, message: Settleable) -> set[TopicState]:
        self._check_cumulative("acknowledge_cumulative")
        return {self._settlement.ack_cumulative(message)}

    def _acknowledge_cumulative_in(
        self, message: Settleable, txn: TransportTransaction
    ) -> list[asyncio.Future[None]]:
        self._check_cumulative("acknowledge_cumulative")
        return self._transaction_acks.ack_cumulative(message, txn)

    def _check_cumulative(self, call: str) -> None:
        if self._options.shared:
            raise CumulativeAcknowledgementNotAllowedError(
                f"{call} needs an Exclusive or Failover consumer; this one is "
                f"{self._options.consumer_type.name}: settle the messages one by one"
            )

    @settles
    def negative_acknowledge(
        self,
        message: Settleable,
        delay: float | timedelta | None = None,
        *,
        error: BaseException | str | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Nack a message: it is redelivered after `delay`.

        The nack takes effect when the call returns, as described at `acknowledge`. It concerns one
        message, also inside a batch: siblings that are acked or held are not redelivered with it.
        Nacking again changes the due time, an ack cancels the nack, and a nack after an ack does
        nothing. On Exclusive and Failover the broker can only rewind: when the delay is over, every
        unacked message of the topic is redelivered, in order.

        Args:
            message: A message of this consumer, or an id.
            delay: Time until the redelivery, in seconds or as a timedelta; None for the
                subscription's `negative_ack_redelivery_backoff` or, without that,
                `negative_ack_redelivery_delay_ms`.
            error: The reason, kept as evidence in case the message is dead-lettered.

        Raises:
            ConfigurationError: if `delay` is negative or `error` has another type; nothing was
                done.
            MessageNotHeldError: if the message belongs to another consumer, or to a topic that this
                consumer does not read.
        """
        if self.affinity.thread != get_ident() and not self.affinity.is_here():
            return self._calls.call_on_loop(
                partial(self.negative_acknowledge, error=error), message, delay
            )
        return self._calls.act(self._negative_acknowledge, message, delay, error)

    def _negative_acknowledge(
        self,
        message: Settleable,
        delay: float | timedelta | None,
        error: BaseException | str | None,
    ) -> None:
        check_error(error)
        self._nack_handler.nack(message, delay, error)
        self._parts.window.warn_if_nearly_full()

    async def reconsume_later(
        self,
        message: Message | Sequence[Message],
        delay: float | timedelta | BackoffLike = 0,
        properties: Mapping[str, str] | None = None,
        *,
        error: BaseException | str | None = None,
        txn: Transaction | None = None,
    ) -> None:
        """Redeliver a message through the retry letter topic, after `delay`.

        The message is copied to that topic and then acked. While it waits, it does not count
        against the broker's unacked window, and its attempts are kept in a property
        (RECONSUMETIMES). A message without retries left is dead-lettered. If the copy fails, the
        message is redelivered. A cancelled call is completed in the background.

        With `txn` (native transport), the letter is visible and the message is acked if that
        transaction is committed. If it is aborted, the message is redelivered, and the abort counts
        as no failed attempt here. The call returns when the broker has stored the letter and the
        ack. Of a list all messages are in the transaction, or none. Await the call before the end
        of the transaction: at the end, a letter whose topic is not connected yet is not sent, and
        its message stays held. See `docs/transactions.md`.

        Args:
            message: A message that this consumer holds; or a list, whose letters are sent
                concurrently.
            delay: Seconds or a timedelta; or a `Backoff`, or a list of delays by attempt such as
                `[10, 60, 600]`, whose last delay repeats.
            properties: Added to the properties of the letter. The names that letters use
                (`letters.RESERVED`) are not allowed.
            error: The reason, kept as evidence on the letter.
            txn: The transaction that the letter and the ack belong to.

        Raises:
            ConfigurationError: without `retry_enable`, or for an invalid argument; with `txn`, if a
                topic is not persistent, or with ordered leases. Nothing was sent.
            MessageNotHeldError: if the message is settled or belongs to another consumer; nothing
                was sent.
            NotSupportedError: with `txn`, on the stock transport.
            TransactionStateError: if `txn` is not open, or belongs to another client. Nothing was
                sent.
            TransactionConflict: as for `acknowledge`.
            TransactionAbortedError: if `txn` was aborted before the letter was sent.
            TransportError: if the broker did not confirm the copy. `txn` can then only abort.
            ExceptionGroup: for a list without `txn`, with the error of every message that failed.
        """
        forwarder = self._need_retry()
        check_error(error)
        if isinstance(message, Message):
            messages: Sequence[Message] = (message,)
        elif isinstance(message, (list, tuple)):
            messages = message
        else:
            raise ConfigurationError(
                "reconsume_later needs the received message, or a list of them, got "
                f"{type(message).__name__}: it is copied"
            )
        if txn is not None:
            transport_txn = need_transport_transaction(txn)
            await forwarder.reconsume_in(transport_txn, messages, delay, properties, error)
        elif messages is message:
            await forwarder.reconsume_each(messages, delay, properties, error)
        else:
            await forwarder.reconsume(messages[0], delay, properties, error)

    async def reconsume_later_cumulative(
        self,
        message: Message,
        delay: float | timedelta | BackoffLike = 0,
        properties: Mapping[str, str] | None = None,
        *,
        error: BaseException | str | None = None,
        txn: Transaction | None = None,
    ) -> None:
        """Call `reconsume_later` for a message, and ack every message before it in its topic.

        Args:
            message: A message that this consumer holds.
            delay: As for `reconsume_later`.
            properties: As for `reconsume_later`.
            error: As for `reconsume_later`.
            txn: As for `reconsume_later`. While it is open, the topic can have no other acks in
                transactions, so the policy must not be transactional.

        Raises:
            ConfigurationError: on Shared and Key_Shared, and as `reconsume_later`.
            MessageNotHeldError: as `reconsume_later`.
            TransactionConflict: with `txn`, as `acknowledge_cumulative`.
            TransportError: as `reconsume_later`.
        """
        forwarder = self._need_retry()
        check_error(error)
        self._check_cumulative("reconsume_later_cumulative")
        if txn is not None:
            transport_txn = need_transport_transaction(txn)
            await forwarder.reconsume_in(
                transport_txn, (message,), delay, properties, error, cumulative=True
            )
            return
        await forwarder.reconsume(message, delay, properties, error, cumulative=True)

    def _need_retry(self) -> Forwarder:
        self._check_open()
        forwarder = self._parts.forwarder
        if forwarder is None or not self._options.retry_enable:
            raise ConfigurationError("reconsume_later needs subscribe(..., retry_enable=True)")
        return forwarder

    # Held messages

    async def reject(
        self,
        message: Message,
        reason: BaseException | str,
        *,
        path: str = "reject",
        keep: bool = False,
    ) -> None:
        """Dead-letter a message now, however often it was attempted.

        The message is copied to the dead letter topic, with `reason` as evidence, and then acked. A
        cancelled call is completed in the background.

        Args:
            message: A message that this consumer holds.
            reason: The exception, or a text.
            path: Value of the letter's property ENCORE_REASON: how the message failed.
            keep: If the letter cannot be written, keep the message held. By default, and after a
                cancelled call, the message is redelivered after a backoff, as after
                `reconsume_later`. With a transactional policy it is also redelivered if the commit
                fails.

        Raises:
            ConfigurationError: without a `dead_letter_policy`, or for an invalid argument; nothing
                was sent.
            MessageNotHeldError: if the message is settled or belongs to another consumer; nothing
                was sent.
            TransportError: if the broker did not confirm the letter.
        """
        self._check_open()
        forwarder = self._parts.forwarder
        if forwarder is None:
            raise ConfigurationError(
                "reject needs a dead letter topic: subscribe(..., dead_letter_policy="
                "DeadLetterPolicy(...)), or acknowledge the message to discard it"
            )
        check_error(reason)
        if reason is None:
            raise ConfigurationError("reject needs a reason: the exception, or a text")
        text(path, "path")
        held = self._held.need(message)
        await forwarder.reject(message, held, reason, path=path, keep=keep)

    async def send_to_retry_topic(
        self,
        message: Message,
        delay: float | timedelta,
        *,
        error: BaseException | str | None = None,
        keep: bool = False,
    ) -> None:
        """End a failed attempt: redeliver a message through the retry letter topic.

        Unlike `reconsume_later`, the attempts made so far count on in `redelivery_count`, as after
        a nack. A letter with no attempts left is dead-lettered when it arrives.

        Args:
            message: A message that this consumer holds.
            delay: Seconds or a timedelta.
            error: The reason, kept as evidence on the letter.
            keep: As for `reject`.

        Raises:
            ConfigurationError: without `retry_enable`, or for an invalid argument; nothing was
                sent.
            MessageNotHeldError: as `reject`.
            TransportError: as `reject`.
        """
        forwarder = self._need_retry()
        check_error(error)
        delay_ms = to_ms(delay, "delay")
        held = self._held.need(message)
        await forwarder.send_to_retry_topic(message, held, delay_ms, error, keep=keep)

    def holds(self, message: Message) -> bool:
        """Return True if a message is held: this delivery is the current one and is not settled.

        False after an ack, a nack, `release`, `fail_in_place` or a seek, when the message was
        redelivered, and while it is copied to a letter topic.

        Raises:
            MessageNotHeldError: if the message belongs to another consumer.
        """
        if self.affinity.thread != get_ident():
            self.affinity.check()
        return self._held.holds(message)

    def release(self, message: Message) -> None:
        """Give a held message back to this consumer, as if it had not been delivered.

        No attempt is counted, also not with `state=` after a restart. The message is the next of
        its topic to be received. Several released messages are received in the order of the topic.
        A message that is not held is left alone. If the consumer closes, the broker delivers the
        message to another one.

        Raises:
            ConfigurationError: with `ordered_leases`.
            MessageNotHeldError: if the message belongs to another consumer.
        """
        self.affinity.check()
        self._held.release(message)

    def fail_in_place(
        self, message: Message, *, error: BaseException | str | None = None
    ) -> Message:
        """Count a failed attempt at a message that stays held, for another attempt here.

        Nothing is sent to the broker, so no other message is redelivered on Exclusive and Failover,
        and no later message overtakes this one. The message keeps its place in the unacked window.
        With `state=` the failure is on disk when the call returns. Without it, the failure counts
        in this process only.

        Args:
            message: A message that this consumer holds. It is out of date afterwards.
            error: The reason, kept as evidence in case the message is dead-lettered.

        Returns:
            The message of the next attempt.

        Raises:
            ConfigurationError: with `ordered_leases`, or if `error` has another type.
            MessageNotHeldError: if the message is not held.
        """
        self._check_open()
        check_error(error)
        return self._held.fail_in_place(message, error)

    def begin_attempt(self, message: Message) -> None:
        """Write the present attempt at a held message to the `state`, before it is made.

        `receive` does so with `count_attempts="before"`. Call it for the message that
        `fail_in_place` returned, and for each message with `count_attempts="explicit"`, so that an
        attempt that kills the process is counted. Without `state=` it does nothing.

        Raises:
            MessageNotHeldError: if the message is not held.
        """
        self._check_open()
        self._held.begin_attempt(message)

    def end_attempt(self, message: Message) -> None:
        """Note that an attempt has not failed, though the message stays held. For a worker.

        With `state=`, the attempt does not count after a restart.

        Raises:
            MessageNotHeldError: if the message is not held.
        """
        self.affinity.check()
        self._held.end_attempt(message)

    def detach(self, message: Message, lease: float | timedelta = 3600) -> Lease:
        """Turn a held message into a lease, which any part of the program can settle by its handle.

        Args:
            message: A message that this consumer holds. It has no ack timeout any more.
            lease: Length of the lease, in seconds or as a timedelta, up to 30 days.

        Raises:
            ConfigurationError: on Exclusive and Failover, with `ordered_leases`, for an invalid
                length, or if `max_leases` leases are active.
            MessageNotHeldError: if the message is not held.
        """
        self._check_open()
        record = self._held.detach(message, length_ms(lease, "lease"))
        return Lease(record, self._leases, self._fair_yield, self._loop)

    @settles
    def extend(self, message: Message, seconds: float | timedelta) -> Coroutine[Any, Any, None]:
        """Move the ack timeout of a held message, or the timeout of the handler that holds it.

        See `Message.extend`.
        """
        if self.affinity.thread != get_ident() and not self.affinity.is_here():
            return self._calls.call_on_loop(self.extend, message, seconds)
        return self._calls.act(self._extend, message, seconds)

    def _extend(self, message: Message, seconds: float | timedelta) -> None:
        length = length_ms(seconds, "seconds")
        self._held.need(message)
        context = handler_context_of(message)
        if context is not None:
            context.extend(seconds)
        else:
            self._held.extend(message, length)

    def attempts_by_letters(self, message: Message) -> int:
        """Return how often `reconsume_later` sent a message of the retry letter topic before.

        `Message.attempt` includes this number.
        """
        return self._held.attempts_by_letters(message)

    async def flush(self) -> None:
        """Send all acks now, and wait until the broker has confirmed them.

        The stock transport gets no receipts: there the call returns when the acks are sent. While
        disconnected, the call waits for the reconnect: use `asyncio.timeout`.

        Raises:
            ClosedError: if the consumer is closed before the broker confirmed.
        """
        await self._settle_and_send()
        unconfirmed = self._acks.receipts.of(self._topic_states)
        if unconfirmed:
            await AwaitingReceipt(unconfirmed)

    async def create_letter_subscriptions(self) -> list[str]:
        """Create the subscriptions of the dead letter topics now, rather than at the first letter.

        The policy names them (`initial_subscription_name`). A topic that is found later gets its
        subscription before its first letter.

        Returns:
            Names of the dead letter topics.

        Raises:
            ConfigurationError: without a `dead_letter_policy` that names a subscription.
            TransportError: if the broker refused, or could not be reached.
        """
        self._check_open()
        letter_topics = self._parts.letter_topics
        if letter_topics is None:
            raise ConfigurationError(
                "without a dead_letter_policy there are no dead letter topics: "
                "subscribe(..., dead_letter_policy=DeadLetterPolicy(...))"
            )
        consumer, options = self._transport_consumer, self._options
        topics = {consumer.topic_of(number)[0] for number in consumer.topic_numbers()}
        topics.update({full_name(each) for each in options.topics} - {*map(base_name, topics)})
        read = (each for each in topics if not options.reads_letters(each))
        return await letter_topics.create_subscriptions(read)

    def redeliver_unacknowledged_messages(self) -> None:
        """Redeliver every unacked message of this consumer now, pending nacks included."""
        self._check_open()
        self._calls.settle_now()
        self._parts.redelivery.redeliver_all()
        self._messages_lost()

    def redeliver_topic(self, topic: str) -> None:
        """Redeliver every unacked message of one topic or partition (Exclusive and Failover).

        No attempt is counted. If another consumer of a Failover subscription is active for the
        topic, the broker delivers the messages to that consumer.

        Raises:
            ConfigurationError: on Shared and Key_Shared, or for another topic.
        """
        self._check_open()
        topic_name(topic, "topic")
        name = full_name(topic)
        consumer = self._transport_consumer
        number = next(
            (each for each in consumer.topic_numbers() if consumer.topic_of(each)[0] == name), None
        )
        if number is None:
            raise ConfigurationError(f"this consumer does not read the topic {topic!r}")
        # A topic of which nothing was delivered yet gets its state here.
        if not self._parts.rewinds.begin_if_unshared(self._topic_states.by_number[number]):
            raise ConfigurationError(
                "redeliver_topic needs an Exclusive or Failover consumer; this one is "
                f"{self._options.consumer_type.name}: nack the messages one by one"
            )

    # Position, state and close

    async def seek(self, messageid: Settleable | int) -> None:
        """Continue from a message id, or from a publish time in ms since the epoch.

        Reading continues after the id, or at the id with `start_message_id_inclusive=True`, as in
        the stock client.

        The seek sends the acks made so far and then drops pending nacks. Do not ack messages from
        before the seek: as in Java's client, such an ack also counts for the replay of the message.
        On the native transport, a seek shortly after acks takes half a second longer, because a
        broker that is still writing an ack may silently skip the seek.
        """
        self._check_open()
        if isinstance(messageid, int):
            position: MessageId | int = integer(messageid, "seek's time", low=0, high=2**63 - 1)
        else:
            position = _position(messageid)
        await self._settle_and_send()
        await self._finish(self._seek(position))

    async def _settle_and_send(self) -> None:
        """Finish pending settling calls and send all acks; raise if the consumer was closed."""
        await self._calls.settle()
        await self._acks.flush_in_steps()
        self._check_open()

    async def _seek(self, position: MessageId | int) -> None:
        try:
            await self._transport_consumer.seek(position)
        finally:
            self._messages_lost()

    def watch_losses(self, on_lost: Callable[[], None]) -> None:
        """Call a function after each seek and `redeliver_unacknowledged_messages`. For a worker.

        It is also called when an aborted transaction has rewound an Exclusive or Failover topic.

        `holds` then says which messages this consumer still holds. For a seek of several topics the
        function is called for each of them, before its first message arrives.
        """
        self._on_lost = on_lost
        self._parts.delivery_handler.on_sought = on_lost
        self._transaction_acks.on_rewound = on_lost

    def _messages_lost(self) -> None:
        self._leases.sweep()
        if self._on_lost is not None:
            self._on_lost()

    async def get_last_message_id(self) -> MessageId:
        """Return the id of the last message in the topic.

        Raises:
            OperationNotSupported: with several topics or partitions, because each has its own.
        """
        self._check_open()
        try:
            return await self._transport_consumer.last_message_id()
        except OperationNotSupported as error:
            raise OperationNotSupported(
                "get_last_message_id is for one topic without partitions: ask a consumer of each "
                "topic or partition"
            ) from error

    async def unsubscribe(self) -> None:
        """Delete the subscription with all its unacked messages, and close the consumer."""
        self._check_open()
        await self._settle_and_send()
        await self._finish(self._unsubscribe())

    async def _unsubscribe(self) -> None:
        await self._transport_consumer.unsubscribe()
        self._cannot_send = True
        try:
            self._leases.forget()
            if self._parts.state_writer is not None:
                self._parts.state_writer.forget()
        finally:  # the subscription is gone, so the consumer cannot continue
            await self.close()

    def pause(self, topic: str | None = None) -> None:
        """Deliver no message of a topic, or of any, until `resume`.

        `receive`, `batch_receive`, `pop`, `async for` and a `message_listener` wait meanwhile, as
        if no message had arrived. Acks, nacks and redeliveries go on. Messages that arrive are
        kept here until the queue of their topic is full; their ack timeouts do not run. Other
        topics go on. On the stock transport, where topics share one queue, up to 20,000 messages
        of paused topics are kept before they hold up the other topics.

        A topic that is paused already stays paused. Messages that were delivered before are not
        affected, and neither are leases.

        Args:
            topic: A topic or partition that this consumer reads. A partitioned topic stands for
                all its partitions, also future ones. Letters belong to the retry letter topic.
                None for all topics.

        Raises:
            ConfigurationError: if the consumer does not read the topic.
            ClosedError: if the consumer was closed.
        """
        self._set_paused(topic, True)

    def resume(self, topic: str | None = None) -> None:
        """Deliver messages of a topic, or of all, again after `pause`. Arguments as there.

        The latest call for a topic decides: after `pause()`, `resume("orders")` ends the pause of
        this topic only.
        """
        self._set_paused(topic, False)

    def _set_paused(self, topic: str | None, paused: bool) -> None:
        self._check_open()
        name = self._choices.name_of(topic)
        if self._paused is None:
            if not paused:
                return
            topic_of = self._transport_consumer.topic_of
            declared = self._choices.declared
            if declared and self._options.retry_letter_topic is not None:
                declared = [*declared, full_name(self._options.retry_letter_topic)]
            self._paused = PausedTopics(lambda number: topic_of(number)[0], declared)
        self._paused.set(name, paused)
        self._queue.pause(self._paused)

    def is_paused(self, topic: str | None = None) -> bool:
        """Return True while a topic is paused; without a topic, while any topic is."""
        if topic is None:
            return bool(self._paused)
        name = self._choices.name_of(topic)
        return self._paused is not None and name is not None and self._paused.covers(name)

    def pause_message_listener(self) -> None:
        """Pause the listener after its current call, until `resume_message_listener`."""
        self._need_listener().pause()

    def resume_message_listener(self) -> None:
        self._need_listener().resume()

    def _need_listener(self) -> Listener:
        if self._listener is None:
            raise ConfigurationError("this consumer has no message_listener")
        self._check_open()
        return self._listener

    def topic(self) -> str:
        return self._transport_consumer.topic

    def subscription_name(self) -> str:
        return self._transport_consumer.subscription_name

    def consumer_name(self) -> str:
        return self._transport_consumer.consumer_name

    def is_connected(self) -> bool:
        return self._status.refusal is None and self._transport_consumer.is_connected()

    def statistics(self) -> Statistics:
        """Return the counts of messages, leases and acks, and the state of the connection."""
        parts, states, events = self._parts, self._topic_states, self._parts.event_publisher
        queued = states.count(QUEUED)
        return Statistics(
            queued=queued,
            # This saves another walk over all messages.
            in_flight=states.unacked - states.nacked - queued,
            nacked=states.nacked,
            unsent_acks=states.unsent_acks,
            unacked=states.unacked,
            unacked_window=parts.window.size,
            connected=self.is_connected(),
            transport=parts.transport_consumer.capabilities.name,
            ended_topics=events.ended_topics,
            inactive_topics=events.inactive_topics,
            leased=len(parts.leases),
            state_failure=None if parts.state_writer is None else parts.state_writer.failure,
            retrying=events.retries,
            failure=events.failure,
            nack_index=None if parts.spilling is None else parts.spilling.statistics(),
            store=None if parts.state_writer is None else parts.state_writer.statistics(),
        )

    def pending(self, *, limit: int = 500) -> list[PendingMessage]:
        """Return the messages that were delivered and are not settled: held, leased or nacked.

        Messages that the application holds come first, in the order of their arrival, then nacked
        ones, the next due first. Queued messages are not listed; `statistics` counts them. With a
        `nack_index`, only the nacked messages in memory are listed: the newest, and the next that
        are due. Leases from before a restart are listed once their message has arrived again.

        The call takes about 1 ms for each 100 messages of the result, and up to 10 ms more if
        100,000 nacked messages wait. Nothing else runs on the loop meanwhile, so keep `limit`
        small.

        Args:
            limit: Most messages in the result.
        """
        from .pending_messages import pending_messages  # lazy: for a person who asks

        return pending_messages(
            self._topic_states,
            self._leases,
            self._loop,
            self._options.unacked_messages_timeout_ms,
            integer(limit, "limit", low=1),
        )

    async def lag(self) -> Lag:
        """Return how far the subscription is behind: unacked messages and their age, by topic.

        With `Client(admin_url=...)`, the web service answers for the whole subscription, with all
        its consumers. Messages in flight and delayed messages count. The broker counts entries, so
        it reads backlogs of up to 10,000 entries to count their messages; a larger backlog is
        reported in entries, with `exact=False`.

        Without it, the numbers are estimates: from the last id of each topic and the position up to
        which everything is acked (the stock transport knows the acks of this consumer only), and
        from the publish time of the oldest message that waits here. They are None if these tell
        nothing.

        Raises:
            AuthorizationError: if the login may not read the statistics of a topic; it needs the
                action consume or produce.
            AuthenticationError: if the web service refuses the login.
            ConnectError: if the web service does not answer.
            TransportError: if the request failed in another way.
            ClosedError: if the consumer was closed.
        """
        self._check_open()
        from .lag import LagQuery  # lazy: for a person who asks

        return await LagQuery(
            self._transport_consumer,
            self._options,
            self._topic_states,
            self._queue,
            self._leases,
            self._loop,
        ).run(self._parts.new_web_service)

    def counters(self) -> Counters:
        """Return the counts of events since the consumer was made."""
        parts, forwarder = self._parts, self._parts.forwarder
        return Counters(
            received=self._queue.received,
            acked=self._topic_states.acked,
            nacked=self._nack_handler.nacked,
            redelivered=self._topic_states.redelivered,
            rejected=0 if forwarder is None else forwarder.rejected,
            retry_letters=0 if forwarder is None else forwarder.retry_letters,
            dead_letters=0 if forwarder is None else forwarder.dead_letters,
            leases_lost=self._leases.lost,
            reconnects=parts.event_publisher.reconnects,
        )

    def _given_topics(self) -> tuple[str, ...]:
        return self._options.topics

    def _counts_by_topic(self) -> list[TopicCounts]:
        return topic_counts(self._topic_states)

    def metrics(self) -> list[MetricSample]:
        """Return the metrics of this consumer, for a monitoring system.

        With `nack_index`, the list has the five metrics of PIP-195
        (`pulsar_delayed_message_index_bucket_total` and others) for each topic or partition. They
        are named and labelled as in Pulsar's broker, with the labels `topic` and `subscription`.
        Without `nack_index` the list is empty. No monitoring library is needed.
        """
        spilling = self._parts.spilling
        return [] if spilling is None else spilling.metrics()

    def has_reached_end_of_topic(self) -> bool:
        """Return True if every topic is terminated and fully acked, so no message can arrive.

        Always False on the stock transport, which does not report ended topics.
        """
        return self._parts.event_publisher.all_ended

    async def close(self) -> None:
        """Send all acks, give up unacked messages, and close. A second call does nothing.

        A running callback of a `message_listener` may end and settle its message first. After 5 s
        it is cancelled, and the message is redelivered.
        """
        if not self.affinity.is_here():
            if self.affinity.loop_is_closed:  # a closed loop can neither send nor wait
                self.abandon()
                return
            self.affinity.check()
        if self._closing is None:
            self._calls.take_mailbox()
            self._leases.close(_closed())
            if self._listener is None:
                self._status.refusal = _closed()
            self._status.closing = True
            self._closing = seen(self._loop.create_task(self._close()))
        closing: asyncio.Task[None] | None = None
        while closing is not self._closing:  # `close_soon` replaces the task
            closing = self._closing
            await asyncio.wait((closing,))
        closing.result()

    async def _close(self) -> None:
        try:
            await self._calls.settle()
            if self._listener is not None:
                await self._listener.close()
                await self._calls.settle()  # calls that the last callback made
                self._status.refusal = _closed()
            if self._parts.arrivals is not None:
                self._parts.arrivals.close()
            if self._parts.forwarder is not None:
                await self._parts.forwarder.close()
            await self._leases.flush()
        finally:
            # The steps run in reverse order, and each one even if another one failed or was
            # cancelled, so that the subscription is released in any case.
            async with AsyncExitStack() as ending:
                ending.callback(self._forget)
                if self._parts.spilling is not None:
                    ending.push_async_callback(self._parts.spilling.close)
                if self._parts.state_writer is not None:
                    ending.push_async_callback(self._parts.state_writer.close)
                ending.push_async_callback(self._transport_consumer.close)
                ending.callback(self._queue.drop)
                why = ClosedError("the consumer was closed before the broker confirmed")
                ending.callback(self._end_acks, why)
                self._end_receiving(_closed())
                await self._send_acks()

    def _end_receiving(self, why: ClosedError) -> None:
        self._status.refusal = why
        end_all(
            self.affinity.loop,
            lambda: self._leases.close(why),
            self._parts.event_publisher.close,
            self._parts.redelivery.close,
            self._parts.rewinds.close,
            self._transport_consumer.stop_flow,
            self._queue.drop,
            lambda: self._queue.fail(why),
        )

    def _end_acks(self, why: ClosedError) -> None:
        self._transaction_acks.close()
        if self._parts.state_writer is not None:
            self._parts.state_writer.end_acks()
        self._acks.close(why)

    async def _send_acks(self) -> None:
        """Send all acks. While disconnected, wait up to `_CLOSE_S` for the reconnect."""
        deadline = self._loop.time() + _CLOSE_S
        if not self._cannot_send:
            await self._acks.flush_in_steps()
        while not ((self._acks.flush() and not self._topic_states.lost_acks) or self._cannot_send):
            if self._status.dead or self._loop.time() >= deadline:
                ended = "after its subscription had ended for good"
                self._logger.warning(
                    "%s/%s was closed %s: acks of %d entries were not sent, those of %d may be "
                    "lost with the connection, and their messages are redelivered",
                    self.topic(),
                    self.subscription_name(),
                    ended if self._status.dead else "while disconnected",
                    self._topic_states.unsent_acks,
                    self._topic_states.lost_acks,
                )
                return
            await asyncio.sleep(_CLOSE_RETRY_S)
        if not self._cannot_send:
            await self._acks.wait_for_receipts(deadline - self._loop.time())

    def close_soon(self) -> None:
        """Close in the background, and give up the letters and acks that `close` would wait for.

        Use it after a `close` that took too long. Acks are sent if the consumer is connected. The
        broker is told to close the subscription's consumer: otherwise it would go on delivering
        messages to it for as long as the client keeps the connection open.
        """
        if not self._status.dead and not self._cannot_send:
            self._acks.flush()
        self.abandon("the consumer was closed")
        earlier = self._closing
        self._closing = seen(self._loop.create_task(self._close_without_draining()))
        if earlier is not None:
            earlier.cancel()

    async def _close_without_draining(self) -> None:
        forwarder = self._parts.forwarder
        letters = () if forwarder is None else (forwarder.close(drain_s=0),)
        await asyncio.gather(self._transport_consumer.close(), *letters)

    def abandon(self, why: str = "the client was shut down") -> None:
        """Fail every call from now on and send nothing."""
        self._cannot_send = True
        shut_down = ClosedError(why)
        ending = [
            lambda: self._end_receiving(shut_down),
            lambda: self._end_acks(shut_down),
            self._leases.finish,
        ]
        if self._parts.state_writer is not None:
            ending.append(self._parts.state_writer.close_now)
        if self._parts.spilling is not None:
            ending.append(self._parts.spilling.abandon)
        end_all(self.affinity.loop, *ending, self._forget)

    def _forget(self) -> None:
        on_closed, self._on_closed = self._on_closed, None
        if on_closed is not None:
            on_closed(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self.affinity.thread != get_ident():
            self.affinity.check()
        self._status.check()

    async def _finish(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Await `work`, which runs to its end even if the caller is cancelled."""
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(self._retrieve)
        return await shielded(task)

    def _retrieve(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._logger.debug("background call failed: %r", task.exception())


def receive_now(consumer: Consumer[Any]) -> Message | None:
    """Return the next message if it has arrived, else None.

    For a caller on the consumer's loop that has awaited `receive` before, so that other tasks run.
    """
    return consumer._receive_now()


def acknowledge_held(consumer: Consumer[Any], message: Message) -> bool:
    """Ack a message on the consumer's loop if the consumer holds it; return False otherwise.

    Raises:
        ClosedError: if the consumer is closed.
        MessageNotHeldError: if the message belongs to another consumer.
    """
    return consumer._acknowledge_held(message)


def begin_acks(
    consumer: Consumer[Any], messages: Sequence[Message], txn: Transaction
) -> list[asyncio.Future[None]]:
    """Ack messages in a transaction; the futures are done when the broker has stored the acks.

    Raises:
        EncoreError: as `Consumer.acknowledge` with ``txn``. None of the messages was acked.
    """
    return consumer._begin_acks(messages, txn)


def was_acked(consumer: Consumer[Any], message: Message) -> bool:
    """Return True if a message of the consumer was acked in this process."""
    return consumer._was_acked(message)


def topics_of(consumer: Consumer[Any]) -> tuple[str, ...]:
    """Return the topics that were given to `subscribe`; empty for a pattern."""
    return consumer._given_topics()


def counts_by_topic(consumer: Consumer[Any]) -> list[TopicCounts]:
    """Return the counts of each topic or partition, for metrics."""
    return consumer._counts_by_topic()


def _position(messageid: Any) -> MessageId:
    try:
        return MessageId.wrap(messageid)
    except ConfigurationError as error:
        raise ConfigurationError(
            "seek needs a MessageId, or a publish time in ms since the epoch as an int, got "
            f"{type(messageid).__name__}"
        ) from error


def _closed() -> ClosedError:
    return ClosedError("the consumer was closed")
