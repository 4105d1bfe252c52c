"""A subscription without acks over a native reader.

The C++ client cannot take back a pending read, so at most one is pending, while the buffer is not
full. It calls back reads and seeks in order, so an epoch tells outdated messages. Messages that
arrive during a seek are kept until its result is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Sequence
from threading import get_ident
from typing import Any, Final, Never
from weakref import finalize, ref

import _pulsar

from ...errors import ClosedError, NotSupportedError, TransportError
from ...options import Subscription
from ...values.message_id import MessageId
from ..interface import AckPlan, Delivery, DeliveryListener, TransportTransaction
from .cpp_calls import close_quietly
from .cpp_ids import to_native
from .deliveries import Grouper
from .result_errors import failure, raised
from .seek import seek
from .stock_consumer import STOCK
from .stock_messages import wrap_messages
from .stock_subscription import StockSubscription

_MAX_READ_AHEAD: Final = 100  # 5 us each

_CLOSE_S: Final = 5.0
_POLL_S: Final = 0.001

# A native message and the epoch in which it arrived.
_Read = tuple[int, Any]


class _Inbox:
    """The callback of native reads, on any thread.

    The C++ client keeps it for ever, so it refers to neither reader.

    Attributes:
        epoch: Seeks so far.
        within: True while the loop's thread is inside `read_next_async`.
        answered: Set while no native read is pending.
    """

    __slots__ = ("_loop", "_reader", "_thread", "answered", "epoch", "within")

    def __init__(self, reader: StockReader, loop: asyncio.AbstractEventLoop) -> None:
        self._reader = ref(reader)
        self._loop = loop
        self._thread = get_ident()
        self.epoch = 0
        self.within = False
        self.answered = threading.Event()
        self.answered.set()

    def note_seek(self) -> None:
        self.epoch += 1

    def __call__(self, *outcome: Any) -> None:
        try:
            if self.within and get_ident() == self._thread:  # the message was in the native queue
                self._read_ended(True, self.epoch, *outcome)
            else:
                self._loop.call_soon_threadsafe(self._read_ended, False, self.epoch, *outcome)
        except BaseException:  # a native thread must not raise
            return
        finally:
            self.answered.set()

    def _read_ended(self, within: bool, *read: Any) -> None:
        reader = self._reader()
        if reader is not None:
            reader.read_ended(*read)
            if not within:  # else the running `read_on` continues
                reader.read_on()


class StockReader(StockSubscription):
    """A `TransportConsumer` for a subscription of one topic that is not durable."""

    capabilities = STOCK

    def __init__(self, native: Any, subscription: Subscription) -> None:
        super().__init__(native, subscription)
        self._cpp_lock = threading.Lock()
        self._topic: str = native.topic()
        self._inbox = _Inbox(self, self._loop)
        self._grouper = Grouper(self._topics, one_queue=False)
        self._read_ahead = min(max(1, subscription.receiver_queue_size // 2), _MAX_READ_AHEAD)
        self._ahead = 0  # messages read and not yet consumed
        self._unread: list[_Read] = []
        # The last message delivered from each topic: ledger, entry, index.
        self._last: dict[int, tuple[int, int, int]] = {}
        self._reading = False
        # Else a pending read would keep the native reader and its subscription for ever.
        self._unclosed = finalize(self, _close_in_process, os.getpid(), native)
        self._unclosed.atexit = False

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def consumer_name(self) -> str:
        return self._subscription.consumer_name or ""

    # Reading

    def start(self, listener: DeliveryListener) -> None:
        self._listener = listener
        self.read_on()

    def consumed(self, topic_number: int, messages: int) -> None:
        self._ahead -= messages
        if self._ahead <= self._read_ahead // 2:  # reading many at once is cheaper
            self.read_on()

    def stop_flow(self) -> None:
        self._flow_stopped = True

    def read_on(self) -> None:
        """Read until the buffer is full or a read is pending, then deliver."""
        inbox = self._inbox
        while not (self._reading or self._is_held_back()):
            self._reading = True
            inbox.answered.clear()
            inbox.within = True
            try:
                self._native.read_next_async(inbox)
            except Exception as error:
                self._reading = False
                inbox.answered.set()
                self._fail(raised(error, f"read from {self._topic}"))
            finally:
                inbox.within = False
        self._deliver()

    def _is_held_back(self) -> bool:
        return (
            self._ahead >= self._read_ahead
            or self._closed
            or self._seeking
            or self._flow_stopped
            or self._listener is None
        )

    def read_ended(self, epoch: int, result: Any, native: Any) -> None:
        self._reading = False
        if result == _pulsar.Result.Ok:
            self._ahead += 1
            self._unread.append((epoch, native))
        else:
            self._fail(failure(result, f"read from {self._topic}"))

    def _deliver(self) -> None:
        if self._seeking or self._listener is None or not self._unread:
            return
        unread, self._unread = self._unread, []
        deliveries = self._grouper.group([native for _, native in unread])
        fresh = [each for each in deliveries if self._drop_repeat(each)]
        for each in fresh:
            wrap_messages(each)
        if fresh:
            self._listener.on_deliveries(fresh)
        else:  # no `consumed` call will follow
            self.read_on()

    def _drop_repeat(self, delivery: Delivery) -> bool:
        """Drop the last delivered message, which the C++ client may repeat after a reconnect.

        It does so if the start is inclusive. Return True if any message is left.
        """
        topic_number, indexes = delivery.topic_number, delivery.indexes
        entry_key = (delivery.ledger, delivery.entry)
        if self._last.get(topic_number) == (
            *entry_key,
            indexes[0],
        ) and not self._topics.is_non_persistent(topic_number):
            self._ahead -= 1
            delivery.indexes = indexes = indexes[1:]
            delivery.messages = delivery.messages[1:]
        if indexes:
            self._last[topic_number] = (*entry_key, indexes[-1])
        return bool(indexes)

    def _fail(self, error: Exception) -> None:
        self._flow_stopped = True
        if not self._closed and self._listener is not None:
            self._listener.on_failed(error)

    async def has_message_available(self) -> bool:
        self._check_open()
        # The C++ client counts a message as read shortly before it calls back. A second answer
        # comes after that moment.
        return await self._available() or (self._reading and await self._available())

    async def _available(self) -> bool:
        return bool(
            await self._calls.run(
                self._native.has_message_available_async, f"has_message_available of {self._topic}"
            )
        )

    async def last_message_id(self) -> MessageId:
        raise NotSupportedError(
            "the stock library's readers cannot ask for the last message id: ask a consumer "
            "(get_last_message_id), or read from MessageId.latest with start_message_id_inclusive"
        )

    # Position and life

    async def seek(self, position: MessageId | int) -> None:
        self._check_open()
        target = position if isinstance(position, int) else to_native(position)
        async with self._seeks:
            self._seeking = True
            try:
                await seek(self._native, self._calls, target, self._inbox.note_seek, self._cpp_lock)
                outdated = [each for each in self._unread if each[0] != self._inbox.epoch]
                self._unread = self._unread[len(outdated) :]
                self._ahead -= len(outdated)
                self._last.clear()
                if self._listener is not None:
                    self._listener.on_seek()
            finally:
                self._seeking = False
                self.read_on()

    async def _close(self) -> None:
        self._stop()
        with contextlib.suppress(ClosedError, TransportError):
            await self._calls.run(self._native.close_async, "close the reader")
        # A native client that is closed before the pending read has ended keeps a thread for ever.
        deadline = time.monotonic() + _CLOSE_S
        while not self._inbox.answered.is_set() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        self.abandon()

    def abandon(self) -> None:
        self._stop()
        self._unclosed.detach()
        self._calls.abandon()

    def _stop(self) -> None:
        self._closed = True
        self._unread.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the reader is closed: create another")

    # Without acks

    def can_ack(self, topic_number: int) -> bool:
        return False

    def ack(self, plan: AckPlan) -> None:
        _reject_ack()

    def ack_in_transaction(self, plan: AckPlan, txn: TransportTransaction) -> asyncio.Future[None]:
        _reject_ack()

    def redeliver(self, topic_number: int, groups: Sequence[tuple[int, Sequence[int]]]) -> None:
        _reject_ack()

    def redeliver_all(self, topic_number: int | None = None) -> None:
        _reject_ack()

    async def unsubscribe(self) -> None:
        _reject_ack()


def _reject_ack() -> Never:
    raise NotSupportedError("a subscription that is not durable has no acks, and ends when closed")


def _close_in_process(process: int, native: Any) -> None:
    if os.getpid() == process:  # in a forked child the reader belongs to the parent
        close_quietly(native)
