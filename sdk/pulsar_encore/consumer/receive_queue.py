"""What has arrived and was not yet handed over, and who waits for it.

Owns `ReceiveQueue`. A waiter is only woken, never given a message: it takes one itself, in one step
without an await, so a cancelled or timed-out receive cannot swallow anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..core.entry import HELD, QUEUED, Entry
from ..errors import ReceiveTimeout
from ..message import Message
from ..transport.base import RawMessage


class _Cursor:
    """The messages of one delivery, and how far they were taken."""

    __slots__ = ("at", "end", "entry", "indexes", "messages", "room")

    def __init__(
        self, entry: Entry, indexes: Sequence[int], messages: Sequence[RawMessage], room: int
    ) -> None:
        self.entry = entry
        self.indexes = indexes
        self.messages = messages
        self.at = 0
        self.end = len(messages)
        self.room = room


class ReceiveQueue:
    """Arrived messages in order, and the futures of those who wait.

    Attributes:
        handed_over: Called with (entry, index) at each hand-over, or None.

    Args:
        schema: Decodes `Message.value`.
        consumed: Called with (source, messages) that left the queue, a delivery at a time.
    """

    def __init__(
        self,
        schema: Any,
        consumed: Callable[[int, int], None],
    ) -> None:
        self._schema = schema
        self._consumed = consumed
        self.handed_over: Callable[[Entry, int], None] | None = None
        self._cursors: deque[_Cursor] = deque()
        self._waiters: deque[tuple[asyncio.Future[None], bool]] = deque()
        self._error: Exception | None = None
        self._head: Iterator[Message] = iter(())

    def __len__(self) -> int:
        """Messages queued, those settled while queued included."""
        return sum(cursor.end - cursor.at for cursor in self._cursors)

    def push(
        self,
        entry: Entry,
        indexes: Sequence[int],
        messages: Sequence[RawMessage],
        *,
        room: bool = True,
    ) -> None:
        """Queue messages; `room` False when their room was given back before."""
        self._cursors.append(_Cursor(entry, indexes, messages, len(messages) if room else 0))

    def take(self) -> Message | None:
        """The next message, QUEUED -> HELD, or None when nothing is here."""
        for message in self._head:
            return message
        while self._cursors:
            self._head = self._walk(self._cursors[0])
            for message in self._head:
                return message
        return None

    def _walk(self, cursor: _Cursor) -> Iterator[Message]:
        """The messages of one cursor, each handed over as it is asked for.

        A generator, because its locals are what makes taking a message cheap.
        """
        entry, schema, handed_over = cursor.entry, self._schema, self.handed_over
        attempts = entry.home.attempts
        for index, raw in zip(cursor.indexes, cursor.messages, strict=True):
            cursor.at += 1
            if entry.state[index] == QUEUED and entry.live:
                entry.state[index] = HELD
                if handed_over is not None:
                    handed_over(entry, index)
                counted = entry.looks is not None or attempts
                count = entry.redelivery_count(index) if counted else entry.base
                turn = 0 if entry.turns is None else entry.turn(index)
                yield Message(raw, schema, entry, index, count, turn)
        self._cursors.popleft()
        self._consumed(entry.home.source, cursor.room)

    def peek_sizes(self, most: int) -> list[int]:
        """Payload sizes of up to `most` messages from the head, in bytes."""
        sizes: list[int] = []
        for cursor in self._cursors:
            rest = cursor.messages[cursor.at : cursor.at + most - len(sizes)]
            sizes.extend(message.length() for message in rest)
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

    async def wait(self, deadline: float | None, *, takes: bool = True) -> bool:
        """Suspend until something arrives (True) or the loop's clock reaches `deadline` (False).

        Args:
            deadline: On the loop's clock, or None. takes: A message is taken at once when woken.
            Who may leave it and wait for more is woken
                beside those who take, or a message would lie there while they sleep.
        """
        if self._error is not None:
            raise self._error
        loop = asyncio.get_running_loop()
        if deadline is not None and deadline <= loop.time():
            return False
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append((waiter, takes))
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
            if (waiter, takes) in self._waiters:
                self._waiters.remove((waiter, takes))
        return True

    def wake(self, waiters: int) -> None:
        """Let up to `waiters` of those who take try again, and those in line before them."""
        while waiters > 0 and self._waiters:
            waiter, takes = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                waiters -= takes

    def drop(self, home: object | None = None) -> None:
        """Forget what is queued, of one source or of all; the states are the caller's to change."""
        gone = [each for each in self._cursors if home is None or each.entry.home is home]
        if not gone:
            return
        if self._cursors[0] is gone[0]:
            self._head = iter(())
        self._cursors = deque(each for each in self._cursors if each not in gone)
        for cursor in gone:
            self._consumed(cursor.entry.home.source, cursor.room)

    def fail(self, error: Exception) -> None:
        """Waiters, present and future, get `error` once nothing is queued."""
        self._error = error
        while self._waiters:
            waiter, _ = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(error)


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
