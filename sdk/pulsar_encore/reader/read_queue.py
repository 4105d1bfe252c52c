"""The queue of a reader: received messages, and the reads that wait for them.

Only the first waiting read is woken. It takes its messages itself, in one step without an await, so
a read that is cancelled or times out has taken nothing, and no read overtakes another. The queue
keeps its messages when a connection is lost: on a subscription without acks, the broker does not
deliver them again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import TypeVar

from ..consumer.event_publisher import EventPublisher
from ..transport.interface import (
    Deliveries,
    Delivery,
    RetryNotice,
    SkippedEntry,
    TransportConsumer,
    each_delivery,
)

_T = TypeVar("_T")

#: Some messages of one delivery: the delivery, the first index in its `messages`, and a count.
Part = tuple[Delivery, int, int]


class ReadQueue:
    """A reader's `DeliveryListener`."""

    def __init__(
        self, transport_consumer: TransportConsumer, event_publisher: EventPublisher
    ) -> None:
        self._transport_consumer = transport_consumer
        self._event_publisher = event_publisher
        self._deliveries: deque[Delivery] = deque()
        self._at = 0  # number of messages taken from the first delivery
        self._line: deque[_Waiter] = deque()
        self._error: Exception | None = None

    def __bool__(self) -> bool:
        return bool(self._deliveries)

    # Taking

    def take_message(self) -> Part:
        return self._take(1)

    def take_delivery(self) -> Part:
        return self._take(len(self._deliveries[0].messages) - self._at)

    def _take(self, count: int) -> Part:
        """Take messages of the first delivery, which must exist."""
        delivery, at = self._deliveries[0], self._at
        self._at += count
        if self._at == len(delivery.messages):
            self._deliveries.popleft()
            self._at = 0
        self._transport_consumer.consumed(delivery.topic_number, count)
        return delivery, at, count

    async def get(self, take: Callable[[], _T], timeout_s: float | None) -> _T | None:
        """Wait for a message and return the result of `take`, or None after a timeout.

        Suspends even if `timeout_s` is 0, because a caller that polls in a loop would otherwise
        never let a message arrive. Raises the error that ended the subscription once the queue is
        empty.
        """
        if self._deliveries and not self._line:
            return take()
        if self._error is not None and not self._deliveries:
            await asyncio.sleep(0)
            raise self._error.with_traceback(None)  # the traceback would grow each time
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop)
        self._line.append(waiter)
        timer = None if timeout_s is None else loop.call_later(timeout_s, waiter.give_up)
        try:
            while True:
                self._wake()
                await waiter.turn()
                if self._line[0] is waiter:
                    if self._deliveries:
                        return take()
                    if self._error is not None:
                        raise self._error.with_traceback(None)
                if waiter.gave_up:
                    return None
        finally:
            if timer is not None:
                timer.cancel()
            self._line.remove(waiter)
            self._wake()

    def _wake(self) -> None:
        if self._line and (self._deliveries or self._error is not None):
            self._line[0].wake()

    # Called by the transport

    def on_deliveries(self, deliveries: Deliveries) -> None:
        self._deliveries.extend(each_delivery(deliveries))
        self._wake()

    def on_connected(self, topics: Container[int] | None = None) -> None:
        self._event_publisher.connected(topics)

    def on_disconnected(self, topics: Container[int] | None = None) -> None:
        self._event_publisher.disconnected(topics)

    def on_uncertain(self, topics: Container[int] | None = None) -> None:
        """Do nothing: there are no acks that could be lost."""

    def on_all_requested(
        self, unseen: Sequence[Delivery], topics: Container[int] | None = None
    ) -> None:
        """Do nothing: a subscription without acks requests no redelivery."""

    def on_seek(self, topics: Container[int] | None = None) -> None:
        void: dict[int, int] = {}  # number of discarded messages by topic
        kept: deque[Delivery] = deque()
        at = self._at
        for delivery in self._deliveries:
            if topics is None or delivery.topic_number in topics:
                left = len(delivery.messages) - at
                void[delivery.topic_number] = void.get(delivery.topic_number, 0) + left
            else:
                kept.append(delivery)
            at = 0
        if not (kept and kept[0] is self._deliveries[0]):
            self._at = 0
        self._deliveries = kept
        self._event_publisher.sought(topics)
        for topic_number, messages in void.items():
            self._transport_consumer.consumed(topic_number, messages)

    def on_end_of_topic(self, topic_number: int) -> None:
        """Do nothing: reads wait on."""

    def on_active_changed(self, topic_number: int, active: bool) -> None:
        """Do nothing: a reader is alone on its subscription."""

    def on_new_topic(self, topic_number: int) -> None:
        self._event_publisher.new_topic(topic_number)

    def on_removed(self, topic_number: int) -> None:
        self._event_publisher.removed(topic_number)

    def on_skipped(self, topic_number: int, entries: Sequence[SkippedEntry]) -> None:
        """Do nothing: the transport has logged these entries."""

    def on_retrying(self, topic_number: int | None, notice: RetryNotice) -> None:
        self._event_publisher.retrying(topic_number, notice)

    def on_failed(self, error: Exception, topic_number: int | None = None) -> None:
        self.end(error)
        self._event_publisher.failed(error, topic_number)

    def end(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
            self._wake()


class _Waiter:
    """A waiting read, which can be woken several times."""

    __slots__ = ("_future", "_loop", "gave_up")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] = loop.create_future()
        self.gave_up = False

    async def turn(self) -> None:
        await self._future
        self._future = self._loop.create_future()

    def wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def give_up(self) -> None:
        self.gave_up = True
        self.wake()
