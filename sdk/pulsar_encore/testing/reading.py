"""Readers of the transport in memory: a place in each partition's log, and nothing to settle.

Owns `MemoryReader`. A waiting read is only woken and takes its message itself, so a cancelled one
has taken nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ..devbroker.rules.names import parse
from ..devbroker.rules.topic_log import TopicLog
from ..errors import ClosedError
from ..exceptions import OperationNotSupported
from ..ids import MessageId
from ..options import ReaderOptions
from ..transport.base import Delivery
from .commands import StoredEntry


class _Source:
    """One topic or partition of a reader, and the place in its log.

    Args:
        inclusive: Whether an id stands for its own message or for the one after it.
    """

    def __init__(self, log: TopicLog, position: MessageId, inclusive: bool) -> None:
        self.log = log
        self._inclusive = inclusive
        self.go_to(position)

    def go_to(self, position: MessageId | int) -> None:
        """Go on from a message id, or from a publish time in ms."""
        self.seq, self.index = self._place(position)

    def _place(self, position: MessageId | int) -> tuple[int, int]:
        """Where reading begins: (place in the log, batch index)."""
        if isinstance(position, int):
            return self.log.locate_time(position), 0
        if position == MessageId.latest:
            return self._last() if self._inclusive else (self.log.end, 0)
        ledger, entry = position.ledger_id(), position.entry_id()
        exact = self.log.locate(ledger, entry)
        if exact is None:
            return self.log.locate_from(ledger % 2**64, entry % 2**64), 0
        index = position.batch_index()
        if self._inclusive:
            return exact, max(0, index)
        return (exact + 1, 0) if index < 0 else (exact, index + 1)

    def _last(self) -> tuple[int, int]:
        """The place of the last message, or the end of a log without any."""
        for seq in range(self.log.end - 1, -1, -1):
            entry = self.log.at(seq)
            if isinstance(entry, StoredEntry) and entry.content:
                return seq, len(entry.content) - 1
        return self.log.end, 0

    def next(self) -> StoredEntry | None:
        """The entry that has the next message, at `index`; None when all was read."""
        while self.seq < self.log.end:
            entry = self.log.at(self.seq)
            if isinstance(entry, StoredEntry) and self.index < len(entry.content):
                return entry
            self.seq += 1
            self.index = 0
        return None


class MemoryReader:
    """A `ReaderLink`; made by `MemoryTransport.create_reader`.

    Args:
        logs: Of the topic, or of all its partitions.
    """

    def __init__(
        self,
        logs: Sequence[TopicLog],
        options: ReaderOptions,
        forget: Callable[[MemoryReader], None],
    ) -> None:
        start, inclusive = options.start_message_id, options.start_message_id_inclusive
        self._sources = [_Source(log, start, inclusive) for log in logs]
        self._forget = forget
        self._closed = False
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def topic(self) -> str:
        return parse(self._sources[0].log.name).base if self._many else self._sources[0].log.name

    @property
    def _many(self) -> bool:
        return len(self._sources) > 1

    def is_connected(self) -> bool:
        return not self._closed

    def topic_of(self, source: int) -> str:
        return self._sources[source].log.name

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
        return any(source.next() is not None for source in self._sources)

    def _take(self) -> Delivery:
        number, source, entry = next(
            (number, source, entry)
            for number, source in enumerate(self._sources)
            if (entry := source.next()) is not None
        )
        index = source.index
        source.index += 1
        first = entry.chunks and (entry.ledger, entry.entry - entry.chunks[1] + 1)
        return Delivery(
            number,
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
        ends = (MessageId.earliest, MessageId.latest)
        if self._many and not isinstance(position, int) and position not in ends:
            raise OperationNotSupported(
                f"an id is a place in one partition, and {self.topic} has several: seek to a time, "
                "to MessageId.earliest or to MessageId.latest"
            )
        for source in self._sources:
            source.go_to(position)
        self.wake()

    def drop(self) -> None:
        """Close at once; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self._forget(self)
            self.wake()

    async def close(self) -> None:
        self.drop()
