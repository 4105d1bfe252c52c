"""The consumer: stock's methods, and the right behaviour behind them.

Owns `Consumer`, the object an application holds: it checks the call, and hands it to the part that
does it (`opening.assemble` wires them). All of it runs on one event loop; nothing here blocks it or
starts a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..core.topic_state import TopicState
from ..errors import (
    ClosedError,
    ConfigurationError,
    CumulativeAcknowledgementNotAllowedError,
    InvalidConfiguration,
    OperationNotSupported,
)
from ..eventloop.affinity import LoopAffinity, end_all, get_ident
from ..eventloop.awaitables import settles
from ..eventloop.close_once import seen
from ..eventloop.fair_yield import FairYield
from ..letters.evidence import check_error
from ..message import Message
from ..options import ConsumerOptions
from ..options.checks import integer
from ..transport.interface import TransportConsumer
from ..values.backoff import BackoffLike, to_ms
from ..values.message_id import MessageId
from .consumer_status import ConsumerStatus
from .delivery.batch_receiver import BatchReceiver
from .delivery.listener import Listener
from .delivery.receive_queue import ReceiveQueue
from .delivery_handler import DeliveryHandler
from .event_publisher import EventPublisher
from .forwarding.arrival_filter import ArrivalFilter
from .forwarding.forwarder import Forwarder
from .forwarding.nack_handler import NackHandler
from .leases import lease_handle as handles
from .leases.lease import Lease
from .leases.lease_record import length_ms
from .leases.lease_table import LeaseTable
from .leases.pop_queue import PopQueue
from .leases.restored_leases import RestoredLeases
from .leases.topic_choice import TopicChoices
from .settlement.ack_sender import AckSender
from .settlement.ownership import Settleable
from .settlement.redelivery import Redelivery
from .settlement.settlement import Settlement
from .settlement_calls import LONG, SettlementCalls
from .statistics import Statistics, snapshot
from .topic_states import TopicStates
from .unacked_window import UnackedWindowMonitor

if TYPE_CHECKING:  # a consumer that keeps no state loads none of its modules
    from ..state.spilling.spilling_metrics import MetricSample
    from .nack_spilling import NackSpilling
    from .state_writer import StateWriter

logger: logging.Logger = logging.getLogger(__name__)

# Longest wait of `close` for a connection that acks need, and how often it looks.
_CLOSE_S: Final = 5.0
_CLOSE_RETRY_S: Final = 0.1

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerParts:
    """What a consumer is made of, wired; see each for what it does."""

    link: TransportConsumer
    options: ConsumerOptions
    status: ConsumerStatus
    fair_yield: FairYield
    sources: TopicStates
    queue: ReceiveQueue
    batches: BatchReceiver
    acks: AckSender
    redelivery: Redelivery
    settlement: Settlement
    router: NackHandler
    forwarder: Forwarder | None
    arrivals: ArrivalFilter | None
    window: UnackedWindowMonitor
    event_publisher: EventPublisher
    delivery_handler: DeliveryHandler
    leases: LeaseTable
    inheritance: RestoredLeases | None
    popping: PopQueue
    state_writer: StateWriter | None = None
    spilling: NackSpilling | None = None


class Consumer:
    """A subscription, made by `Client.subscribe`.

    Every await can be cancelled or timed out at any point without losing a message. `async with`
    closes it; `async for` receives until it is closed. It belongs to the event loop it was made on:
    a call from another one raises `WrongLoopError`, in a forked child `ForkedError`.
    """

    def __init__(
        self, parts: ConsumerParts, *, on_closed: Callable[[Consumer], None] | None = None
    ) -> None:
        self._parts = parts
        self._link = parts.link
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
        self._acted, self._acted_last = calls.acted, calls.acted_last  # for each message
        self._sources = parts.sources
        # Whose messages are acked without more ado; nobody's where acks wait for receipts.
        self._acked_at_once: TopicStates | None = parts.sources if receipts is None else None
        self._queue = parts.queue
        self._acks = parts.acks
        self._settlement = parts.settlement
        self._router = parts.router
        self._leases = parts.leases
        self._choices = TopicChoices(parts.link, parts.options.topics)
        self._listener: Listener | None = None
        options = parts.options
        self._no_receiving = options.ordered_leases or options.message_listener is not None
        self._closing: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._cut_off = False  # nothing can be sent any more, and need not be waited for
        parts.link.start(parts.delivery_handler)
        if parts.options.message_listener is not None:
            self._listener = Listener(
                self, parts.queue, parts.options.message_listener, parts.fair_yield
            )
            parts.status.on_failure(self._listener.failed)
            if parts.status.refusal is not None:  # the link failed before the listener was there
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
    ) -> Message:
        """The next message, waiting for one.

        Args:
            timeout_millis: Longest wait in ms (the synchronous stock client's name for it).
            timeout: Longest wait in seconds or as a timedelta.

        Raises:
            ReceiveTimeout: Nothing came in time. No message was taken.
            ClosedError: The consumer was closed.
            ConfigurationError: With a `message_listener`, which does the receiving.
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

    async def batch_receive(self) -> list[Message]:
        """Several messages at once, as the subscription's `batch_receive_policy` says.

        Returns:
            At least one message, or none when the policy's time ran out.
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
    ) -> list[Lease]:
        """Lease messages for a time; a message that is not settled in that time has failed.

        It is then redelivered after the backoff of its attempt, if the subscription has a
        `negative_ack_redelivery_backoff` (RIP-73's revive), and at once if not.

        Pops are served in line. One in five takes messages that failed before first, where there
        are any; else they go out in the order they came. At most 10,000 leases are out at once;
        with so many, a pop waits until one is settled or expires. `receive` may be called beside:
        each message goes to one of them. No ack timeout runs for a leased message.

        With `ordered_leases` one pop at a time has messages of a key. Several messages of a key are
        side by side in the list, in order: ack them in this order. If one fails, or its lease
        ends, the leases on those behind it are lost, and all of them are popped again in order.
        Only the attempt at the one that failed counts. If a message is acked before one that
        precedes it, it stays acked, and the key waits for the other one.

        Args:
            max_messages: At most so many.
            lease: Seconds or timedelta that each is held, up to 30 days.
            wait: Seconds or timedelta to wait for the first.
            max_per_key: With `ordered_leases`, messages of one key at most; None for no bound. Pass
                1 if the messages of a list are worked on side by side.
            topic: Take messages of this partition or topic only, one of those that the consumer
                reads; of a partitioned topic from all its partitions. Pops of other topics do not
                wait for this one. Letters are on the retry letter topic, not on this one.

        Returns:
            At least one, of what is here; or none when `wait` is over.

        Raises:
            ConfigurationError: On Exclusive and Failover, with a `message_listener`, a topic that
                is not read here, or another bad argument.
            ClosedError: The consumer was closed.
        """
        self._check_open()
        self._check_receiver()
        if not self._options.shared:
            raise ConfigurationError(
                "pop needs a Shared or Key_Shared consumer, as only there one message can come "
                f"again alone; this one is {self._options.consumer_type.name}: subscribe with "
                "consumer_type=ConsumerType.Shared, or receive and acknowledge"
            )
        most = integer(max_messages, "max_messages", low=1)
        popping = self._parts.popping
        length, longest_ms = length_ms(lease, "lease"), to_ms(wait, "wait")
        if max_per_key is not None:
            integer(max_per_key, "max_per_key", low=1)
            if not self._options.ordered_leases:
                raise ConfigurationError("max_per_key needs subscribe(..., ordered_leases=True)")
        only = self._choices.of(topic)
        grants = await popping.pop(most, length, longest_ms, only, max_per_key)
        return [Lease(grant, self._leases, self._fair_yield, self._loop) for grant in grants]

    async def lease(self, handle: str) -> Lease:
        """The lease that a handle names, to settle it from elsewhere in the program.

        With a `state=` also one of before a restart, as long as it has not ended; it has no
        `message`.

        Raises:
            ConfigurationError: It is no handle.
            LeaseLostError: It is over, or another consumer's.
            MessageNotHeldError: No message that the state knows has come in 5 s after a restart, so
                that it may be of another cluster. Try again.
        """
        self._check_open()
        named, leases, inheritance = handles.read(handle), self._leases, self._parts.inheritance
        if inheritance is not None and leases.granted_elsewhere(named):
            found = await inheritance.find(named, handle)
            return Lease(found, inheritance, self._fair_yield, self._loop)
        return Lease(leases.find(handle), leases, self._fair_yield, self._loop)

    def _check_receiver(self) -> None:
        if self._listener is not None:
            raise InvalidConfiguration("the message_listener receives; do not receive beside it")

    def _check_unordered(self) -> None:
        if self._options.ordered_leases:
            raise ConfigurationError(
                "this consumer has ordered_leases, and what is received beside pop would go past "
                "what failed before it: pop, or subscribe without ordered_leases"
            )

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive()
        except ClosedError:
            raise StopAsyncIteration from None

    # Settling

    @settles
    def acknowledge(self, message: Settleable | Sequence[Settleable]) -> Coroutine[Any, Any, None]:
        """The message, or each of a list, is done and need not come again.

        Done when the call returns; awaiting the result lets the event loop run when it is time, and
        raises what there is to raise. (In a listener's callback the call itself does.) Called in a
        thread without an event loop, it is done on this consumer's. Sent with others within
        `ack_group_time_ms`; kept while disconnected. Acking twice is harmless, acking a nacked
        message cancels its nack, and an id without index is its entry's.

        With `ack_receipt_enabled` awaiting it takes until the broker has confirmed the ack, which
        is sent again after a reconnect. Cancelled meanwhile, the message is acked all the same.

        Raises:
            MessageNotHeldError: Another consumer's, of no topic read here, or part of a batch that
                this consumer does not hold. Nothing was acked but what precedes it in the list.
            WrongLoopError: Called on another event loop.
            ClosedError: The consumer is closed; or was before the broker confirmed, and the message
                may come again.
        """
        if self.affinity.thread != get_ident() and not self.affinity.is_here():
            whole = tuple(message) if isinstance(message, list) else message
            return self._calls.elsewhere(self.acknowledge, whole)
        if type(message) is Message and self._status.refusal is None:
            # What nearly every call is; the rules are `Settlement.ack`'s.
            entry = message._entry
            if (
                entry is not None
                and entry.live
                and (state := entry.source).owner is self._acked_at_once
            ):
                unsent = state.ack(entry, message._index)
                if unsent:
                    self._acks.added(state, unsent)
                fair_yield: FairYield = self._fair_yield
                done: Coroutine[Any, Any, None] = self._acted
                if fair_yield.checked:
                    fair_yield.checked = False
                elif fair_yield.clock() >= fair_yield.ends:
                    done = self._acted_last
                return done
        if isinstance(message, (list, tuple)) and len(message) > LONG:
            return self._calls.ack_list(message)
        return self._calls.act(self._acknowledge, message)

    def _acknowledge(self, message: Settleable | Sequence[Settleable]) -> set[TopicState]:
        if isinstance(message, (list, tuple)):
            return self._calls.ack_now(message)
        return {self._settlement.ack(message)}  # type: ignore[arg-type]  # refuses other sequences

    @settles
    def acknowledge_cumulative(self, message: Settleable) -> Coroutine[Any, Any, None]:
        """The message and all before it, of its topic or partition, are done.

        Done when the call returns, and confirmed when it is awaited, as `acknowledge` is.

        Raises:
            ConfigurationError: On Shared and Key_Shared, where other consumers hold the rest.
        """
        if self.affinity.thread != get_ident() and not self.affinity.is_here():
            return self._calls.elsewhere(self.acknowledge_cumulative, message)
        return self._calls.act(self._acknowledge_cumulative, message)

    def _acknowledge_cumulative(self, message: Settleable) -> set[TopicState]:
        self._check_cumulative("acknowledge_cumulative")
        return {self._settlement.ack_cumulative(message)}

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
        """The message failed: it comes again after `delay`.

        Done when the call returns, as `acknowledge` is.
        Per message, also inside a batch: siblings that are acked or still held do not come with it.
        Nacking again moves it; acking cancels it, and after an ack a nack does nothing. On
        Exclusive and Failover the broker can only rewind: when the delay is over everything unacked
        of the topic comes again, in order.

        Args:
            message: A message of this consumer, or an id.
            delay: Seconds or timedelta until it comes again; None for the subscription's
                `negative_ack_redelivery_backoff`, else `negative_ack_redelivery_delay_ms`.
            error: Why; kept as evidence for the day the message is dead-lettered.

        Raises:
            ConfigurationError: A delay below 0, or an `error` of another kind; nothing was done.
            MessageNotHeldError: Another consumer's, or of no topic read here.
        """
        if self.affinity.thread != get_ident() and not self.affinity.is_here():
            return self._calls.elsewhere(
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
        self._router.nack(message, delay, error)
        self._parts.window.watch()

    async def reconsume_later(
        self,
        message: Message | Sequence[Message],
        delay: float | timedelta | BackoffLike = 0,
        properties: Mapping[str, str] | None = None,
        *,
        error: BaseException | str | None = None,
    ) -> None:
        """The message comes again through the retry-letter topic, after `delay`.

        It is copied there and then acked, so it does not count against the broker's unacked window
        while it waits, and its count survives everything (RECONSUMETIMES). With its retries used up
        it goes to the dead-letter topic. If the copy fails, the message comes back by redelivery. A
        cancelled call is finished in the background.

        Args:
            message: Held by this consumer; or a list, all sent side by side.
            delay: Seconds or timedelta; or a `Backoff`, or a list of delays by attempt such as
                `[10, 60, 600]`, of which the last one repeats.
            properties: Added to the letter's; not the names that letters use (`letters.RESERVED`).
            error: Why; kept as evidence on the letter.

        Raises:
            ConfigurationError: Without retry_enable, or a bad argument; nothing was sent.
            MessageNotHeldError: Settled already, or another consumer's; nothing was sent.
            TransportError: The copy is not known to be persisted.
            ExceptionGroup: For a list, with the error of every message that failed.
        """
        forwarder = self._need_retry()
        check_error(error)
        if isinstance(message, Message):
            await forwarder.reconsume(message, delay, properties, error)
            return
        if not isinstance(message, (list, tuple)):
            raise ConfigurationError(
                "reconsume_later needs the received message, or a list of them, got "
                f"{type(message).__name__}: it is copied"
            )
        await forwarder.reconsume_each(message, delay, properties, error)

    async def reconsume_later_cumulative(
        self,
        message: Message,
        delay: float | timedelta | BackoffLike = 0,
        properties: Mapping[str, str] | None = None,
        *,
        error: BaseException | str | None = None,
    ) -> None:
        """`reconsume_later` for this message; all before it, of its topic, are acked.

        Raises as that does, and ConfigurationError on Shared and Key_Shared.
        """
        forwarder = self._need_retry()
        check_error(error)
        self._check_cumulative("reconsume_later_cumulative")
        await forwarder.reconsume(message, delay, properties, error, cumulative=True)

    def _need_retry(self) -> Forwarder:
        self._check_open()
        forwarder = self._parts.forwarder
        if forwarder is None or not self._options.retry_enable:
            raise ConfigurationError("reconsume_later needs subscribe(..., retry_enable=True)")
        return forwarder

    def redeliver_unacknowledged_messages(self) -> None:
        """Everything this consumer has and did not ack comes again now, pending nacks included."""
        self._check_open()
        self._calls.settle_now()
        self._parts.redelivery.redeliver_all()
        self._leases.sweep()

    # Position and life

    async def seek(self, messageid: Settleable | int) -> None:
        """Continue from a message id or a publish time in ms since the epoch.

        From after the id, or from it with `start_message_id_inclusive=True`, as stock does.

        The seek drops pending nacks, and sends the acks made so far first. Do not ack messages from
        before the seek: as in Java's client, such an ack also counts for the replay of the message.
        Right after acks the seek takes half a second longer on the native transport, because a
        broker that is still writing one may skip the seek without a word.
        """
        self._check_open()
        if isinstance(messageid, int):
            position: MessageId | int = integer(messageid, "seek's time", low=0, high=2**63 - 1)
        else:
            position = _position(messageid)
        await self._settle_and_send()
        await self._finish(self._seek(position))

    async def _settle_and_send(self) -> None:
        """Finish the settling calls that are under way, and send all acks.

        Raises:
            ClosedError: The consumer was closed meanwhile.
        """
        await self._calls.settle()
        await self._acks.flush_in_turns()
        self._check_open()

    async def _seek(self, position: MessageId | int) -> None:
        try:
            await self._link.seek(position)
        finally:
            self._leases.sweep()

    async def get_last_message_id(self) -> MessageId:
        """Id of the last message in the topic.

        Raises:
            OperationNotSupported: Of several topics or partitions: each has its own.
        """
        self._check_open()
        try:
            return await self._link.last_message_id()
        except OperationNotSupported as error:
            raise OperationNotSupported(
                "get_last_message_id is for one topic without partitions: ask a consumer of each "
                "topic or partition"
            ) from error

    async def unsubscribe(self) -> None:
        """Delete the subscription, with what it holds, and close."""
        self._check_open()
        await self._settle_and_send()
        await self._finish(self._unsubscribe())

    async def _unsubscribe(self) -> None:
        await self._link.unsubscribe()
        self._cut_off = True
        try:
            self._leases.forget()
            if self._parts.state_writer is not None:
                self._parts.state_writer.forget()
        finally:  # there is nothing left to go on with
            await self.close()

    def pause_message_listener(self) -> None:
        """The listener gets nothing more until resumed; the call under way ends first."""
        self._need_listener().pause()

    def resume_message_listener(self) -> None:
        self._need_listener().resume()

    def _need_listener(self) -> Listener:
        if self._listener is None:
            raise ConfigurationError("this consumer has no message_listener")
        self._check_open()
        return self._listener

    def topic(self) -> str:
        return self._link.topic

    def subscription_name(self) -> str:
        return self._link.subscription_name

    def consumer_name(self) -> str:
        return self._link.consumer_name

    def is_connected(self) -> bool:
        return self._status.refusal is None and self._link.is_connected()

    def statistics(self) -> Statistics:
        """Counts of what is here and waits, and how full the broker's unacked window is."""
        parts, state_writer = self._parts, self._parts.state_writer
        return snapshot(
            self._sources,
            parts.window,
            parts.event_publisher,
            self.is_connected(),
            parts.link.capabilities.name,
            len(parts.leases),
            None if state_writer is None else state_writer.trouble,
            None if parts.spilling is None else parts.spilling.statistics(),
            None if state_writer is None else state_writer.statistics(),
        )

    def metrics(self) -> list[MetricSample]:
        """Return the metrics of this consumer, for a monitoring system.

        With `nack_index`: the five metrics of PIP-195 (`pulsar_delayed_message_index_bucket_total`
        and others) of each topic or partition, named and labelled as Pulsar's broker does, with
        the labels `topic` and `subscription`. Without it there are none. No library of a monitoring
        system is needed.
        """
        spilling = self._parts.spilling
        return [] if spilling is None else spilling.metrics()

    def has_reached_end_of_topic(self) -> bool:
        """Whether every topic read here was terminated and is acked to its end: nothing more comes.

        False on the stock transport, which is not told.
        """
        return self._parts.event_publisher.all_ended

    async def close(self) -> None:
        """Send the acks made, give everything else back to the broker. Idempotent.

        A `message_listener` that is under way may end first and settle its message; after 5 s it is
        cancelled, and the message comes again.
        """
        if not self.affinity.is_here():
            if self.affinity.over:  # and with it all that could be sent or waited for
                self.abandon()
                return
            self.affinity.check()
        if self._closing is None:
            self._calls.take_handed()
            self._leases.close(_closed())
            if self._listener is None:
                self._status.refusal = _closed()
            self._status.closing = True
            self._closing = seen(self._loop.create_task(self._close()))
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._calls.settle()
            if self._listener is not None:
                await self._listener.close()
                await self._calls.settle()  # what its last callback has called for
                self._status.refusal = _closed()
            if self._parts.arrivals is not None:
                self._parts.arrivals.close()
            if self._parts.forwarder is not None:
                await self._parts.forwarder.close()
            await self._leases.flush()
        finally:
            # Last in, first out. Each step is done though another one failed or was cancelled: the
            # subscription is given back in any case.
            async with AsyncExitStack() as ending:
                ending.callback(self._forget)
                if self._parts.spilling is not None:
                    ending.push_async_callback(self._parts.spilling.close)
                if self._parts.state_writer is not None:
                    ending.push_async_callback(self._parts.state_writer.close)
                ending.push_async_callback(self._link.close)
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
            self._link.stop_flow,
            self._queue.drop,
            lambda: self._queue.fail(why),
        )

    def _end_acks(self, why: ClosedError) -> None:
        if self._parts.state_writer is not None:
            self._parts.state_writer.end_acks()
        self._acks.close(why)

    async def _send_acks(self) -> None:
        """Send what is acked: while disconnected, acks wait for the reconnect, within a limit. A
        link that has ended for good never reconnects, so nothing waits for that."""
        deadline = self._loop.time() + _CLOSE_S
        if not self._cut_off:
            await self._acks.flush_in_turns()
        while not ((self._acks.flush() and not self._sources.lost_acks) or self._cut_off):
            if self._status.dead or self._loop.time() >= deadline:
                ended = "after its subscription had ended for good"
                logger.warning(
                    "%s/%s was closed %s: acks of %d entries were not sent, those of %d may be "
                    "lost with the connection, and their messages come again",
                    self.topic(),
                    self.subscription_name(),
                    ended if self._status.dead else "while disconnected",
                    self._sources.unsent_acks,
                    self._sources.lost_acks,
                )
                return
            await asyncio.sleep(_CLOSE_RETRY_S)
        if not self._cut_off:
            await self._acks.confirmed(deadline - self._loop.time())

    def abandon(self) -> None:
        """Every call fails from now on, nothing is sent; for the client, which was shut down."""
        self._cut_off = True
        shut_down = ClosedError("the client was shut down")
        ending = [
            lambda: self._end_receiving(shut_down),
            lambda: self._end_acks(shut_down),
            self._leases.finish,
        ]
        if self._parts.state_writer is not None:
            ending.append(self._parts.state_writer.abandon)
        if self._parts.spilling is not None:
            ending.append(self._parts.spilling.abandon)
        end_all(self.affinity.loop, *ending, self._forget)

    def _forget(self) -> None:
        on_closed, self._on_closed = self._on_closed, None
        if on_closed is not None:
            on_closed(self)

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self.affinity.thread != get_ident():
            self.affinity.check()
        self._status.check()

    async def _finish(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Await `work`, which goes on to its end even when the caller is cancelled."""
        task = self._in_background(work)
        task.add_done_callback(_retrieve)
        return await asyncio.shield(task)

    def _in_background(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.debug("background call failed: %r", task.exception())


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
