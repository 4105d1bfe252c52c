"""A reader over the stock library whose read can be cancelled.

Owns `StockReader`. The library cannot take a pending read back, so there is at most one, and it
outlives the caller that asked for it: what it brings is kept for the next. A seek outdates what
came before it; the library calls back reads and seeks in order, so an epoch tells which is which.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from threading import get_ident
from typing import Any

import _pulsar

from ...closing import CloseOnce
from ...errors import ClosedError, TransportError
from ...ids import MessageId
from ..base import Delivery
from .calls import Calls
from .errors import failure, raised
from .native_ids import from_native, to_native
from .seeking import seek

# A native message and the epoch it came in.
Read = tuple[int, Any]


class StockReader:
    """One reader (`ReaderLink`). All methods on the loop that created it."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._topic: str = native.topic()
        self._loop = asyncio.get_running_loop()
        self._topics: list[str] = []
        self._sources: dict[str, int] = {}
        self._kept: deque[Read] = deque()
        self._waiters: OrderedDict[asyncio.Future[Read], None] = OrderedDict()  # in line
        self._reading = False
        self._epoch = 0
        self._seeking = asyncio.Lock()  # the library refuses a second seek
        self._asking = threading.Lock()  # as `Pump.asking`
        self._calls = Calls()
        self._closed = False
        self._close_once = CloseOnce(self._close)

    @property
    def topic(self) -> str:
        return self._topic

    def is_connected(self) -> bool:
        if self._closed:
            return False
        with self._asking:
            return bool(self._native.is_connected())

    def topic_of(self, source: int) -> str:
        return self._topics[source]

    async def read_next(self, timeout_ms: int | None) -> Delivery | None:
        self._check_open()
        self._serve()
        if self._kept:  # what is left has nobody waiting before us
            return self._delivery(self._kept.popleft())
        future: asyncio.Future[Read] = self._loop.create_future()
        self._waiters[future] = None
        self._arm()
        if not future.done():
            try:
                await asyncio.wait(
                    (future,), timeout=None if timeout_ms is None else timeout_ms / 1000
                )
            except BaseException:
                self._give_back(future)
                raise
        if not future.done():
            del self._waiters[future]
            return None
        return self._delivery(future.result())

    def _give_back(self, future: asyncio.Future[Read]) -> None:
        """The caller is gone; what it got in the same turn goes to the next one."""
        if not future.done():
            del self._waiters[future]
        elif future.exception() is None:
            self._kept.appendleft(future.result())
            self._serve()

    def _serve(self) -> None:
        while self._kept and self._kept[0][0] != self._epoch:
            self._kept.popleft()
        while self._kept and self._waiters:
            future, _ = self._waiters.popitem(last=False)
            future.set_result(self._kept.popleft())

    def _arm(self) -> None:
        """Have a native read under way as long as somebody waits."""
        while self._waiters and not self._reading and not self._closed:
            self._reading = True
            try:
                self._native.read_next_async(self._callback())
            except Exception as error:
                self._reading = False
                self._fail(raised(error, f"read from {self._topic}"))

    def _callback(self) -> Callable[..., None]:
        loop_thread = get_ident()

        def read(*outcome: Any) -> None:
            try:
                epoch = self._epoch
                if get_ident() == loop_thread:  # from the queue, within `read_next_async`
                    self._arrived(epoch, *outcome)
                else:
                    self._loop.call_soon_threadsafe(self._arrived_later, epoch, *outcome)
            except BaseException:  # on a native thread nothing may pass
                return

        return read

    def _arrived_later(self, epoch: int, result: Any, native: Any) -> None:
        self._arrived(epoch, result, native)
        self._arm()

    def _arrived(self, epoch: int, result: Any, native: Any) -> None:
        self._reading = False
        if result == _pulsar.Result.Ok:
            self._kept.append((epoch, native))
            self._serve()
        else:
            self._fail(failure(result, f"read from {self._topic}"))

    def _fail(self, error: Exception) -> None:
        waiters, self._waiters = self._waiters, OrderedDict()
        for future in waiters:
            if not future.done():
                future.set_exception(error)

    def _delivery(self, read: Read) -> Delivery:
        native = read[1]
        message_id = from_native(native.message_id())
        topic = native.topic_name()
        source = self._sources.get(topic)
        if source is None:
            source = self._sources[topic] = len(self._topics)
            self._topics.append(topic)
        first = message_id.first_chunk
        return Delivery(
            source,
            message_id.ledger_id(),
            message_id.entry_id(),
            message_id.batch_size,
            native.redelivery_count(),
            (max(0, message_id.batch_index()),),
            (native,),
            first_chunk=None if first is None else (first.ledger_id(), first.entry_id()),
        )

    async def has_message_available(self) -> bool:
        self._check_open()
        self._serve()
        if self._kept:
            return True
        available = await self._calls.run(
            self._native.has_message_available_async, f"has_message_available of {self._topic}"
        )
        return bool(available) or bool(self._kept)

    async def seek(self, position: MessageId | int) -> None:
        self._check_open()
        target = position if isinstance(position, int) else to_native(position)
        async with self._seeking:
            await seek(self._native, self._calls, target, self._sought, self._asking)

    def _sought(self) -> None:
        self._epoch += 1

    async def close(self) -> None:
        await self._close_once()

    async def _close(self) -> None:
        self._closed = True
        self._fail(ClosedError("the reader was closed"))
        with contextlib.suppress(ClosedError, TransportError):
            await self._calls.run(self._native.close_async, "close the reader")
        self.abandon()

    def abandon(self) -> None:
        """The library's side is gone: nothing more will be called back."""
        self._closed = True
        self._calls.abandon()
        self._fail(ClosedError("the reader was closed"))
        self._kept.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the reader is closed: create another")
