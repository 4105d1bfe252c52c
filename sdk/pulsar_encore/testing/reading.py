"""Readers of the transport in memory: a place in the log, and nothing to settle.

Owns `MemoryReader`. A waiting read is only woken and takes its message itself, so a cancelled one
has taken nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..devbroker.topics import Topic
from ..errors import ClosedError
from ..ids import MessageId
from ..options import ReaderOptions
from ..transport.base import Delivery
from .commands import StoredEntry


class MemoryReader:
    """A `ReaderLink`; made by `MemoryTransport.create_reader`."""

    def __init__(
        self, log: Topic, options: ReaderOptions, forget: Callable[[MemoryReader], None]
    ) -> None:
        self._log = log
        self._inclusive = options.start_message_id_inclusive
        self._forget = forget
        self._closed = False
        self._waiters: set[asyncio.Future[None]] = set()
        self._seq, self._index = self._place(options.start_message_id)

    def _place(self, position: MessageId) -> tuple[int, int]:
        """Where reading from an id begins: (place in the log, batch index)."""
        if position == MessageId.latest:
            return self._last() if self._inclusive else (self._log.end, 0)
        ledger, entry = position.ledger_id(), position.entry_id()
        exact = self._log.locate(ledger, entry)
        if exact is None:
            return self._log.locate_from(ledger % 2**64, entry % 2**64), 0
        index = position.batch_index()
        if self._inclusive:
            return exact, max(0, index)
        return (exact + 1, 0) if index < 0 else (exact, index + 1)

    def _last(self) -> tuple[int, int]:
        """The place of the last message, or the end of a log without any."""
        for seq in range(self._log.end - 1, -1, -1):
            entry = self._log.at(seq)
            if isinstance(entry, StoredEntry) and entry.content:
                return seq, len(entry.content) - 1
        return self._log.end, 0

    @property
    def topic(self) -> str:
        return self._log.name

    def is_connected(self) -> bool:
        return not self._closed

    def topic_of(self, source: int) -> str:
        return self._log.name

    def wake(self) -> None:
        """Something was published, or the reader was closed."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def read_next(self, timeout_ms: int | None) -> Delivery | None:
        loop = asyncio.get_running_loop()
        deadline = None if timeout_ms is None else loop.time() + timeout_ms / 1000
        while not self._available():
            rest = None if deadline is None else max(0, deadline - loop.time())
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.add(waiter)
            try:
                await asyncio.wait((waiter,), timeout=rest)
            finally:
                self._waiters.discard(waiter)
            if deadline is not None and deadline <= loop.time() and not self._available():
                return None
        return self._take()

    def _available(self) -> bool:
        if self._closed:
            raise ClosedError("the reader was closed")
        while self._seq < self._log.end:
            entry = self._log.at(self._seq)
            if isinstance(entry, StoredEntry) and self._index < len(entry.content):
                return True
            self._seq += 1
            self._index = 0
        return False

    def _take(self) -> Delivery:
        entry = self._log.at(self._seq)
        assert isinstance(entry, StoredEntry)
        index = self._index
        self._index += 1
        first = entry.chunks and (entry.ledger, entry.entry - entry.chunks[1] + 1)
        return Delivery(
            0,
            entry.ledger,
            entry.entry,
            entry.batch,
            0,
            (index,),
            (entry.content[index],),
            first_chunk=first,
        )

    async def has_message_available(self) -> bool:
        return self._available()

    async def seek(self, position: MessageId | int) -> None:
        if isinstance(position, int):
            self._seq, self._index = self._log.locate_time(position), 0
        else:
            self._seq, self._index = self._place(position)
        self.wake()

    def drop(self) -> None:
        """Close at once; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self._forget(self)
            self.wake()

    async def close(self) -> None:
        self.drop()
