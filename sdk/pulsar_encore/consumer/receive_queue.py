"""What has arrived and was not yet handed over, and who waits for it.

Owns `ReceiveQueue`. A waiter is only woken, never given a message: it takes one itself, in one step
without an await, so a cancelled or timed-out receive cannot swallow anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..core.entry import HELD, QUEUED, Entry
from ..errors import ReceiveTimeout
from ..message import Message
from ..transport.base import RawMessage


class _Cursor:
    """The messages of one delivery, and how far they were taken."""

    __slots__ = ("at", "end", "entry", "indexes", "messages")

    def __init__(
        self, entry: Entry, indexes: Sequence[int], messages: Sequence[RawMessage]
    ) -> None:
        self.entry = entry
        self.indexes = indexes
        self.messages = messages
        self.at = 0
        self.end = len(messages)


class ReceiveQueue:
    """Arrived messages in order, and the futures of those who wait.

    Args:
        schema: Decodes `Message.value`.
        consumed: Called with the number of messages that left the queue, a delivery at a time.
        handed_over: Called with (entry, index) at each hand-over, or None.
    """

    def __init__(
        self,
        schema: Any,
        consumed: Callable[[int], None],
        handed_over: Callable[[Entry, int], None] | None,
    ) -> None:
        self._schema = schema
        self._consumed = consumed
        self._handed_over = handed_over
        self._cursors: deque[_Cursor] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._error: Exception | None = None
        self._count = 0

    def __len__(self) -> int:
        """Messages queued, those settled while queued included."""
        return self._count

    def push(self, entry: Entry, indexes: Sequence[int], messages: Sequence[RawMessage]) -> None:
        self._cursors.append(_Cursor(entry, indexes, messages))
        self._count += len(messages)

    def take(self) -> Message | None:
        """The next message, QUEUED -> HELD, or None when nothing is here."""
        cursors = self._cursors
        while cursors:
            cursor = cursors[0]
            at = cursor.at
            cursor.at = at + 1
            self._count -= 1
            if at + 1 == cursor.end:
                cursors.popleft()
                self._consumed(cursor.end)
            entry = cursor.entry
            index = cursor.indexes[at]
            if entry.state[index] == QUEUED and entry.live:
                entry.state[index] = HELD
                if self._handed_over is not None:
                    self._handed_over(entry, index)
                count = entry.base if entry.looks is None else entry.redelivery_count(index)
                return Message(cursor.messages[at], self._schema, entry, index, count)
        return None

    def peek_sizes(self, most: int) -> list[int]:
        """Payload sizes of up to `most` messages from the head, in bytes."""
        sizes: list[int] = []
        for cursor in self._cursors:
            for message in cursor.messages[cursor.at : cursor.at + most - len(sizes)]:
                sizes.append(message.length())
            if len(sizes) >= most:
                break
        return sizes

    async def get(self, timeout_s: float | None) -> Message:
        """The next message, waiting for it.

        Raises:
            ReceiveTimeout: Nothing came in time.
        """
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        while True:
            message = self.take()
            if message is not None:
                return message
            if not await self.wait(deadline):
                raise ReceiveTimeout(f"no message within {timeout_s} s")

    async def wait(self, deadline: float | None) -> bool:
        """Suspend until something arrives (True) or the loop's clock reaches `deadline` (False)."""
        if self._error is not None:
            raise self._error
        loop = asyncio.get_running_loop()
        if deadline is not None and deadline <= loop.time():
            return False
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        timer = None
        if deadline is not None:
            timer = loop.call_at(deadline, _expire, waiter)
        try:
            await waiter
        except TimeoutError:
            return False
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.wake(1)  # woken and cancelled at once: the next in line takes the turn
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        return True

    def wake(self, waiters: int) -> None:
        """Let up to `waiters` of those waiting try again."""
        while waiters > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                waiters -= 1

    def drop(self, home: object | None = None) -> None:
        """Forget what is queued, of one source or of all; their states are the caller's to change."""
        kept: deque[_Cursor] = deque()
        for cursor in self._cursors:
            if home is None or cursor.entry.home is home:
                self._count -= cursor.end - cursor.at
                self._consumed(cursor.end)
            else:
                kept.append(cursor)
        self._cursors = kept

    def fail(self, error: Exception) -> None:
        """Waiters, present and future, get `error` once nothing is queued."""
        self._error = error
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(error)


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
