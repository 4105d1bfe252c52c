"""What has come for a reader and was not read yet, and who waits for it, in line.

Owns `ReadQueue`, the `DeliveryListener` of a subscription without acks. Only the first in line is
woken, and takes what is here itself, in one step without an await: so a read that is cancelled or
timed out has taken nothing, and nobody overtakes. What is taken gives its room back at once, so the
link's permits bound what lies here. Whatever happens to connections, what lies here stays: of such
a subscription nothing comes twice.
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
    singly,
)

_T = TypeVar("_T")

#: Messages of one delivery: its place among `Delivery.messages`, and how many.
Part = tuple[Delivery, int, int]


class ReadQueue:
    """Deliveries of `link`, in order, each taken whole or message by message.

    Args:
        link: The subscription.
        event_publisher: Reports connections and failures to the application.
    """

    def __init__(self, link: TransportConsumer, event_publisher: EventPublisher) -> None:
        self._link = link
        self._event_publisher = event_publisher
        self._deliveries: deque[Delivery] = deque()
        self._at = 0  # messages of the first delivery that were taken
        self._line: deque[_Waiter] = deque()
        self._error: Exception | None = None

    def __bool__(self) -> bool:
        return bool(self._deliveries)

    # Taking

    def take_message(self) -> Part:
        """The next message. There must be one."""
        return self._take(1)

    def take_delivery(self) -> Part:
        """What is left of the next delivery. There must be one."""
        return self._take(len(self._deliveries[0].messages) - self._at)

    def _take(self, count: int) -> Part:
        delivery, at = self._deliveries[0], self._at
        self._at += count
        if self._at == len(delivery.messages):
            self._deliveries.popleft()
            self._at = 0
        self._link.consumed(delivery.source, count)
        return delivery, at, count

    async def get(self, take: Callable[[], _T], timeout_s: float | None) -> _T | None:
        """What `take` takes, when it is the caller's turn and something is here.

        Suspends once even with a `timeout_s` of 0: who asks again and again would never let
        anything come.

        Args:
            take: A method of this queue.
            timeout_s: Longest wait, or None.

        Returns:
            None when that has passed; nothing was taken.

        Raises:
            Exception: What ended the link, once nothing is here.
        """
        if self._deliveries and not self._line:
            return take()
        if self._error is not None and not self._deliveries:
            await asyncio.sleep(0)
            raise self._error.with_traceback(None)  # or it would grow each time
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

    # The link's side

    def on_deliveries(self, deliveries: Deliveries) -> None:
        self._deliveries.extend(singly(deliveries))
        self._wake()

    def on_connected(self, only: Container[int] | None = None) -> None:
        """The link goes on from its position."""
        self._event_publisher.connected(only)

    def on_disconnected(self, only: Container[int] | None = None) -> None:
        """The queue keeps its messages: they are not delivered again."""
        self._event_publisher.disconnected(only)

    def on_uncertain(self, only: Container[int] | None = None) -> None:
        """There are no acks to be lost."""

    def on_all_requested(
        self, unseen: Sequence[Delivery], only: Container[int] | None = None
    ) -> None:
        """Nothing is asked for again, of a subscription without acks."""

    def on_seek(self, only: Container[int] | None = None) -> None:
        void: dict[int, int] = {}  # messages that will not be read, by source
        kept: deque[Delivery] = deque()
        at = self._at
        for delivery in self._deliveries:
            if only is None or delivery.source in only:
                left = len(delivery.messages) - at
                void[delivery.source] = void.get(delivery.source, 0) + left
            else:
                kept.append(delivery)
            at = 0
        if not (kept and kept[0] is self._deliveries[0]):
            self._at = 0
        self._deliveries = kept
        self._event_publisher.sought(only)
        for source, messages in void.items():
            self._link.consumed(source, messages)

    def on_end_of_topic(self, source: int) -> None:
        """Reads wait on, as at the end of any topic."""

    def on_active_changed(self, source: int, active: bool) -> None:
        """Nobody takes turns with a reader."""

    def on_new_source(self, source: int) -> None:
        self._event_publisher.new_source(source)

    def on_removed(self, source: int) -> None:
        self._event_publisher.removed(source)

    def on_skipped(self, source: int, entries: Sequence[SkippedEntry]) -> None:
        """The log says of each what is wrong with it, if anything is."""

    def on_retrying(self, source: int | None, notice: RetryNotice) -> None:
        self._event_publisher.retrying(source, notice)

    def on_failed(self, error: Exception, source: int | None = None) -> None:
        self.end(error)
        self._event_publisher.failed(error, source)

    def end(self, error: Exception) -> None:
        """Reads get `error` once nothing is here; the first one that ended it stays."""
        if self._error is None:
            self._error = error
            self._wake()


class _Waiter:
    """Somebody in line, woken any number of times."""

    __slots__ = ("_future", "_loop", "gave_up")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] = loop.create_future()
        self.gave_up = False

    async def turn(self) -> None:
        """Suspend until woken, since the last time."""
        await self._future
        self._future = self._loop.create_future()

    def wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def give_up(self) -> None:
        self.gave_up = True
        self.wake()
