"""A durable subscription over the C++ client.

The rules: `docs/notes/cpp-client.md#rules-for-the-stock-transport`. Acks use the native ids of the
last delivery. They are refused while disconnected, when the C++ client would lose them. Redelivery
uses the C++ client's nack timer, fed in bursts that do not starve it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Final
from weakref import WeakMethod, finalize

import _pulsar
import pulsar

from ...errors import EncoreError, NotConnected, NotSupportedError, UnknownError
from ...eventloop.alarm import wall_now_ms
from ...eventloop.mailbox import Mailbox
from ...options import ConsumerType, Subscription
from ...values.message_id import MessageId
from ..interface import (
    AckPlan,
    Capabilities,
    Delivery,
    DeliveryListener,
    TopicEnds,
    TransportTransaction,
)
from .cpp_ids import from_native, to_native
from .deliveries import Grouper, partition_name
from .originals import CppOriginal, CppOriginals
from .pump import Pump
from .result_errors import NO_TRANSACTIONS
from .seek import seek
from .stock_messages import wrap_messages
from .stock_subscription import StockSubscription

logger: logging.Logger = logging.getLogger(__name__)

# The C++ client holds a nacked id for at least 100 ms and checks every 33 ms, so no redelivery is
# early with this lead. Each hand-over restarts its timer, so bursts are more than one interval
# apart.
_LEAD_MS: Final = 100
_BURST_GAP_S: Final = 0.050
_BURST: Final = 10_000  # ids in one burst, 3 us each
_SLICE: Final = 1_000  # ids in one pass of the loop
_NATIVE_GROUP_S: Final = 0.2  # the C++ client groups acks for 100 ms, then sends them
# If a reconnect interrupts a chunked message, the C++ client keeps its first chunks and drops the
# message when all arrive again. A redelivery requested after this time completes it.
_CHUNK_RETRY_S: Final = 1.0
_CLEANUP_GAP_S: Final = 0.02  # least time between two cleanups of `_originals`
_CLOSE_S: Final = 5.0
# A rewind during a read makes the broker skip a block. A pause before it uses up the permits: 0 of
# 12 rewinds then skipped messages, without it 9 of 12
# (`docs/notes/wire-protocol.md#rewind-during-a-read`).
_REWIND_PAUSE_S: Final = 0.300
# Time after a seek until it is checked for a lost answer.
_SEEK_CHECK_S: Final = 3.0

STOCK: Final = Capabilities(
    name="stock",
    redeliver_lead_ms=_LEAD_MS,
    rewind_lead_ms=int(_REWIND_PAUSE_S * 1000) - 10,
    ack_unseen_index=False,
    rewind_one_topic=False,
    binary_keys=False,
    receipts=False,
    producer_events=False,
    initial_subscriptions=False,
    queue_per_topic=False,
    all_topics=False,
    active_changes=False,
    transactions=False,
)


class StockConsumer(StockSubscription):
    """A `TransportConsumer` over a native consumer.

    Args:
        partitioned: The only topic is partitioned. For several topics or partitions the C++ client
            has one connection state, so with one disconnected the others continue.
    """

    capabilities = STOCK

    def __init__(
        self, native: _pulsar.Consumer, subscription: Subscription, *, partitioned: bool = False
    ) -> None:
        super().__init__(native, subscription)
        self._mailbox = Mailbox(self._loop)
        self._is_multi_topic = (
            partitioned or subscription.pattern is not None or len(subscription.topics) > 1
        )
        self._grouper = Grouper(
            self._topics, one_queue=subscription.shared and not self._is_multi_topic
        )
        self._originals = CppOriginals()
        self._due: list[tuple[int, int, int]] = []
        self._last_burst = 0.0
        self._last_ack = -_NATIVE_GROUP_S
        self._draining = 0
        self._has_chunked = False
        self._seek_count = 0
        self._arrivals = 0  # lists received from the pump so far
        self._seek_retry: asyncio.Task[None] | None = None
        self._unsubscribing = False  # the native consumer ends with its subscription
        self._connected = self._reported_connected = True
        self._burst_timer: asyncio.TimerHandle | None = None
        self._cleanup_timer: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._pump = Pump(
            native,
            self._mailbox,
            max(1, subscription.receiver_queue_size // 2),
            self._grouper.group,
            _weakly(self._on_arrived),
            _weakly(self._on_connection),
            _weakly(self._pump_ended),
            stops_while_disconnected=not self._is_multi_topic,
        )
        self._cpp_lock = self._pump.cpp_lock
        # The thread must not keep a consumer without references alive, nor run on without it.
        finalize(self, self._pump.end_and_close).atexit = False

    @property
    def topic(self) -> str:
        return str(self._native.topic())

    @property
    def consumer_name(self) -> str:
        # For several topics the C++ client returns an empty name.
        return self._subscription.consumer_name or str(self._native.consumer_name())

    # Deliveries

    def start(self, listener: DeliveryListener) -> None:
        self._listener = listener
        self._pump.start()

    def consumed(self, topic_number: int, messages: int) -> None:
        self._pump.note_consumed(messages)

    def stop_flow(self) -> None:
        self._flow_stopped = True
        self._pump.pause(True)

    def _on_arrived(self, deliveries: list[Delivery]) -> None:
        if self._listener is None or self._closed:
            return
        if self._draining:  # on Shared: the broker sends them again, here or to another consumer
            self._pump.note_consumed(sum(len(delivery.messages) for delivery in deliveries))
            self._listener.on_all_requested(deliveries)
            return
        self._arrivals += 1
        now = self._loop.time()
        for delivery in deliveries:
            if not self._topics.is_non_persistent(delivery.topic_number):
                self._originals.keep(delivery, now)
            self._has_chunked = self._has_chunked or delivery.first_chunk is not None
            wrap_messages(delivery)
        self._ensure_cleanup()
        self._listener.on_deliveries(deliveries)

    def _ensure_cleanup(self) -> None:
        if self._cleanup_timer is None:
            self._clean_up()

    def _clean_up(self) -> None:
        self._cleanup_timer = None
        wait = self._originals.compact(self._loop.time())
        if wait is not None and not self._closed:
            self._cleanup_timer = self._loop.call_later(
                max(wait, _CLEANUP_GAP_S), _weakly(self._clean_up)
            )

    def _note_all_requested(self) -> None:
        self._originals.note_all_requested(self._loop.time())
        self._ensure_cleanup()

    def _on_connection(self, connected: bool) -> None:
        self._connected = connected
        self._report_connection()

    def _report_connection(self) -> None:
        # A seek reopens the subscription, but acks from before it must not be sent again.
        if self._listener is None or self._closed or self._seeking:
            return
        if self._connected == self._reported_connected:
            return
        self._reported_connected = self._connected
        if self._connected:
            if not self._is_multi_topic:
                self._note_all_requested()  # the reconnect requested them
            self._listener.on_connected()
            if self._has_chunked and self._subscription.shared:
                self._loop.call_later(_CHUNK_RETRY_S, self._request_all)
        elif self._is_multi_topic:
            self._listener.on_uncertain()
        else:
            self._originals.lose_payloads()
            self._listener.on_disconnected()

    def _pump_ended(self, error: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        if self._closed or self._unsubscribing or self._listener is None:
            return
        cause = f": {error!r}" if error is not None else ""
        failed = UnknownError(f"the native consumer stopped delivering{cause}")
        failed.__cause__ = error
        self._listener.on_failed(failed)

    # Acks

    def can_ack(self, topic_number: int) -> bool:
        """False while the only topic is disconnected.

        With several topics, acks are always sent, and again once all are connected
        (`DeliveryListener.on_uncertain`).
        """
        if self._closed or self._seeking:
            return False
        return self._is_multi_topic or bool(self._native.is_connected())

    def ack(self, plan: AckPlan) -> None:
        if not self.can_ack(plan.topic_number):
            raise NotConnected("not connected")
        self._last_ack = self._loop.time()
        self._pump.watch()
        if plan.cumulative is not None:
            self._ack_cumulative(plan.topic_number, *plan.cumulative)
        for ledger, entry in plan.entries:
            native_id = self._originals.chunked_id(plan.topic_number, (ledger, entry))
            self._acknowledge(native_id or self._native_id(plan.topic_number, ledger, entry))
            self._originals.pop(plan.topic_number, (ledger, entry))
        for ledger, entry, _, remaining in plan.partial:
            self._ack_part(plan.topic_number, (ledger, entry), remaining)

    def ack_in_transaction(self, plan: AckPlan, txn: TransportTransaction) -> asyncio.Future[None]:
        raise NotSupportedError(NO_TRANSACTIONS)

    def _ack_part(self, topic_number: int, key: tuple[int, int], remaining: int) -> None:
        # An entry without ids was requested again: its messages are acked after redelivery.
        for each in self._originals.take_acked(topic_number, key, remaining):
            self._acknowledge(each)

    def _acknowledge(self, native_id: _pulsar.MessageId, *, cumulative: bool = False) -> None:
        native = self._native
        try:
            (native.acknowledge_cumulative if cumulative else native.acknowledge)(native_id)
        except (pulsar.AlreadyClosed, pulsar.NotConnected) as error:
            raise NotConnected("not connected") from error
        except Exception as error:
            # The consumer does not read the id's topic. A retry would block other acks.
            logger.warning("the native client refused the ack of %s: %s", native_id, error)

    def _ack_cumulative(
        self, topic_number: int, ledger: int, entry: int, size: int, remaining: int
    ) -> None:
        key = (ledger, entry)
        if remaining == -1:
            native_id = self._originals.chunked_id(topic_number, key)
            self._acknowledge(native_id or self._native_id(topic_number, *key), cumulative=True)
            self._originals.pop_through(topic_number, key)
            return
        last = (remaining & -remaining).bit_length() - 2
        original = self._originals.find(topic_number, key)
        if original is not None and len(original) == size:
            self._acknowledge(original.id_of(last), cumulative=True)
        else:
            # The id of an index also sends the C++ client's state of the higher ones, which would
            # undo single acks. So ack up to the previous entry, and this entry's messages singly.
            previous = self._native_id(topic_number, ledger, entry - 1)
            self._acknowledge(previous, cumulative=True)
            self._ack_part(topic_number, key, remaining)
        self._originals.pop_through(topic_number, (ledger, entry - 1))

    def _native_id(self, topic_number: int, ledger: int, entry: int) -> _pulsar.MessageId:
        topic, partition = self._topics.name(topic_number)
        native_id = _pulsar.MessageId(partition, ledger, entry, -1)
        if self._is_multi_topic or partition >= 0:
            native_id.topic_name(topic)
        return native_id

    # Redelivery

    def redeliver(self, topic_number: int, groups: Sequence[tuple[int, Sequence[int]]]) -> None:
        incomplete = False
        for ledger, entries in groups:
            for entry in entries:
                if self._originals.chunked_id(topic_number, (ledger, entry)) is None:
                    self._due.append((topic_number, ledger, entry))
                else:
                    incomplete = (
                        self._redeliver_chunked(topic_number, (ledger, entry)) or incomplete
                    )
        if incomplete:
            self._request_all()
        self._schedule_burst()

    def _redeliver_chunked(self, topic_number: int, key: tuple[int, int]) -> bool:
        """Deliver the kept chunked message again: the C++ client requests its last chunk only.

        Return True if it is not kept and must be requested from the broker.
        """
        original = self._originals.find(topic_number, key)
        if original is not None and original.chunked is not None:
            lead_s = (_LEAD_MS + 1) / 1000  # a loop's timer may run a tick early
            self._loop.call_later(lead_s, self._redeliver_kept, original, original.chunked)
        return original is None or original.crowded_out

    def _request_all(self) -> None:
        """Request all unacked messages. Held ones are filtered on arrival."""
        if not self._closed and self._listener is not None:
            self._note_all_requested()
            self._listener.on_all_requested(())
            self._pump.call(self._pump.request_all)

    def _redeliver_kept(self, original: CppOriginal, delivery: Delivery) -> None:
        if original.chunked is not delivery or self._closed or self._listener is None:
            return  # acked meanwhile, or redelivered by a reconnect or a rewind
        delivery.redelivery_count += 1
        self._pump.note_consumed(-1)  # it takes a place in the buffer again
        again = copy(delivery)
        wrap_messages(again)
        self._listener.on_deliveries([again])

    def _schedule_burst(self) -> None:
        if self._burst_timer is not None or not self._due:
            return
        wait = self._last_burst + _BURST_GAP_S - self._loop.time()
        if wait <= 0:
            self._send_burst()
        else:
            self._burst_timer = self._loop.call_later(wait, self._send_burst)

    def _send_burst(self) -> None:
        self._burst_timer = None
        if self._closed:
            return
        burst, self._due = self._due[:_BURST], self._due[_BURST:]
        self._send_slice(burst, 0)

    def _send_slice(self, burst: list[tuple[int, int, int]], at: int) -> None:
        if self._closed:
            return
        for topic_number, ledger, entry in burst[at : at + _SLICE]:
            self._native.negative_acknowledge(self._native_id(topic_number, ledger, entry))
            self._originals.note_requested(topic_number, (ledger, entry), self._loop.time())
        self._last_burst = self._loop.time()
        self._ensure_cleanup()
        if at + _SLICE < len(burst):
            self._burst_timer = self._loop.call_later(0, self._send_slice, burst, at + _SLICE)
        else:
            self._burst_timer = None
            self._schedule_burst()

    def redeliver_all(self, topic_number: int | None = None) -> None:
        self._due.clear()
        if self._subscription.shared:
            self._draining += 1
            self._note_all_requested()
            unsent_s = self._last_ack + _NATIVE_GROUP_S - self._loop.time()
            self._pump.call(lambda: self._drain_and_ask(unsent_s))
        elif self._has_chunked:
            # A pause may split a chunked message, which the C++ client drops when its chunks arrive
            # twice.
            self._loop.call_later(_REWIND_PAUSE_S, self._rewind_chunked, self._seek_count)
        else:
            self._pump.call(self._rewind)

    def _drain_and_ask(self, unsent_s: float) -> None:
        """Request everything again on Shared, on the pump's thread.

        The broker resends the native queue, so it is drained first. Grouped acks must leave before
        the request.
        """
        unseen = self._pump.drain(self._subscription.receiver_queue_size)
        self._pump.sleep_reporting(unsent_s)
        self._pump.request_all()
        self._mailbox.post(self._on_drained, self._grouper.group(unseen))

    def _on_drained(self, unseen: list[Delivery]) -> None:
        self._draining -= 1
        if self._listener is not None and not self._closed:
            self._listener.on_all_requested(unseen)

    def _rewind_chunked(self, sought: int) -> None:
        if not (self._closed or self._seeking) and sought == self._seek_count:
            self._pump.call(self._pump.request_all)

    def _rewind(self) -> None:
        """Rewind, on the pump's thread. A drained native queue would let the broker read on."""
        self._pump.sleep_reporting(_REWIND_PAUSE_S)
        self._pump.request_all()

    # Position and life

    async def seek(self, position: MessageId | int) -> None:
        target = position if isinstance(position, int) else to_native(position)
        latest = position == MessageId.latest or (
            isinstance(position, int) and position >= wall_now_ms(self._loop)
        )
        await self._seek(target)
        # No check if the position moves, or if other consumers may have received the messages.
        if not latest and self._subscription.consumer_type is ConsumerType.Exclusive:
            again = _weakly(self._repeat_seek)
            self._loop.call_later(_SEEK_CHECK_S, again, target, self._seek_count, self._arrivals)

    def _repeat_seek(self, target: Any, sought: int, arrivals: int) -> None:
        """Repeat a seek after which no message arrived: its answer may have been a little late.

        On an empty topic the repetition costs one reconnect.
        """
        if not (self._closed or self._seeking) and (sought, arrivals) == (
            self._seek_count,
            self._arrivals,
        ):
            self._seek_retry = self._loop.create_task(self._seek(target, unless_after=arrivals))
            self._seek_retry.add_done_callback(_log_failure)

    async def _seek(self, target: Any, *, unless_after: int | None = None) -> None:
        pump = self._pump
        async with self._seeks:
            pump_paused = self._loop.create_future()
            self._seeking = True
            pump.pause(True)
            pump.call(lambda: self._mailbox.post(_set, pump_paused))
            try:
                await asyncio.wait((pump_paused, self._ended), return_when=asyncio.FIRST_COMPLETED)
                if unless_after not in (None, self._arrivals):
                    return
                # Let grouped acks leave: after the seek they would ack messages that it brings
                # back.
                await asyncio.sleep(self._last_ack + _NATIVE_GROUP_S - self._loop.time())
                await seek(self._native, self._calls, target, pump.note_seek, self._cpp_lock)
                self._seek_count += 1
                self._due.clear()
                self._originals.clear()
                if self._listener is not None:
                    self._listener.on_seek()
            finally:
                self._seeking = False
                pump.pause(self._flow_stopped)
                self._report_connection()  # the state after the seek's own reconnect

    async def last_message_id(self) -> MessageId:
        native_id = await self._calls.run(
            self._native.get_last_message_id_async, "get_last_message_id"
        )
        topics = self._subscription.topics
        topic = partition_name(topics[0], native_id.partition()) if len(topics) == 1 else ""
        return from_native(native_id, topic)

    async def ends_of(self, topic_number: int) -> TopicEnds | None:
        if len(self._topics) != 1 or len(self._subscription.topics) != 1:
            return None
        return TopicEnds(await self.last_message_id(), None)

    async def has_message_available(self) -> bool:
        raise NotSupportedError(
            "a durable subscription has acks and no single read position; use a reader"
        )

    async def unsubscribe(self) -> None:
        self._unsubscribing = True
        try:
            await self._calls.run(self._native.unsubscribe_async, "unsubscribe")
        except BaseException:
            self._unsubscribing = False
            raise

    async def _close(self) -> None:
        if self._closed:
            return
        self._stop()
        with contextlib.suppress(EncoreError):
            await self._calls.run(self._native.close_async, "close")
        if self._listener is not None and self._loop is asyncio.get_running_loop():
            await asyncio.wait((self._ended,), timeout=_CLOSE_S)
        self._calls.abandon()

    def abandon(self) -> None:
        self._stop()
        self._calls.abandon()

    def _stop(self) -> None:
        self._closed = True
        if self._burst_timer is not None:
            self._burst_timer.cancel()
        if self._cleanup_timer is not None:
            self._cleanup_timer.cancel()
        self._pump.stop()


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Return `method` as a function that does not keep its object alive."""
    reference = WeakMethod(method)

    def call(*args: Any) -> None:
        bound = reference()
        if bound is not None:
            bound(*args)

    return call


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.debug("a seek was not repeated: %r", task.exception())


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
