"""Entries that wait until a large payload has been decompressed, and the room for such payloads.

Owns `DecompressionQueue`, of one source, and `MemoryBudget`, which all sources of a consumer share.
An entry in the line is held as the broker stored it. The payload at the head is decompressed once the room admits it, so
that unread messages take little more memory than on the wire, however well they compress. Entries
leave the line in the order in which they arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from ....wire.chunks import Place
from ....wire.entries import EntryError
from ..connection.codecs import Codecs
from .entries import Packed, Read


class MemoryBudget:
    """Bytes of large decompressed payloads that were delivered and not yet taken, of one consumer.

    Args:
        most: The bound in bytes. A payload that is larger is admitted alone.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        # Callbacks of refused `take` calls, oldest first, with the size that each needs.
        self._waiting: OrderedDict[Callable[[], None], int] = OrderedDict()

    @property
    def used(self) -> int:
        """Bytes taken."""
        return self._used

    def take(self, size: int, granted: Callable[[], None]) -> bool:
        """Take room for `size` bytes.

        Returns:
            False if there is none; `granted` is called once the room has been taken after all.
        """
        if self._waiting or not self._admits(size):
            self._waiting[granted] = size
            return False
        self._used += size
        return True

    def give(self, size: int) -> None:
        """Give room back; those who waited take it."""
        self._used -= size
        while self._waiting:
            granted, wanted = next(iter(self._waiting.items()))
            if not self._admits(wanted):
                break
            del self._waiting[granted]
            self._used += wanted
            granted()

    def leave(self, granted: Callable[[], None]) -> None:
        """Wait for room no longer."""
        if self._waiting.pop(granted, None) is not None:
            self.give(0)  # the next one may need less

    def _admits(self, size: int) -> bool:
        return not self._used or self._used + size <= self._most


@dataclass(slots=True)
class QueuedEntry:
    """An entry in the line, or a notice that must not overtake the entries before it.

    Attributes:
        ledger, entry, redelivery_count, ack_set: As in MESSAGE.
        opened: The entry; its payload still compressed if it is `Packed`. An `EntryError` if it is
            broken. A callable for a notice.
        size: Bytes of the entry as it is held.
        charged: Messages that the broker counted down for it.
        chunks: The entries of a chunked message that is complete; else None.
        uuid: Of that message.
    """

    ledger: int
    entry: int
    redelivery_count: int
    ack_set: int
    opened: Read | EntryError | Callable[[], None]
    size: int
    charged: int
    chunks: tuple[Place, ...] | None = None
    uuid: str = ""


class DecompressionQueue:
    """The entries of one source that wait.

    Args:
        budget: For decompressed payloads.
        codecs: Where payloads are decompressed.
        loop: Whose thread handles the entries.
        unpack: Decompresses a payload; called in the codecs' thread.
        handle: Called with an entry that has left the line and its content, or the error that came
            of decompressing it.
        delivered: Messages of this source that were delivered so far, those included that `handle`
            has just added.
        moved: Called when entries have left the line at another time than in `advance`.
    """

    def __init__(
        self,
        budget: MemoryBudget,
        codecs: Codecs,
        loop: asyncio.AbstractEventLoop,
        unpack: Callable[[Packed], Read],
        handle: Callable[[QueuedEntry, Read | Exception | Callable[[], None]], None],
        delivered: Callable[[], int],
        moved: Callable[[], None],
    ) -> None:
        self._budget = budget
        self._codecs = codecs
        self._loop = loop
        self._unpack = unpack
        self._handle = handle
        self._delivered = delivered
        self._on_moved = moved
        #: The entries, in order.
        self.waiting: deque[QueuedEntry] = deque()
        #: Messages that the broker counted down for them.
        self.charged: int = 0
        self._job: Future[Read] | None = None  # decompresses the head
        self._admitted = 0  # bytes of room taken for the head
        #: Large payloads that were delivered: how many messages have been delivered up to each, and
        #: its size.
        self.held: deque[tuple[int, int]] = deque()

    def append(self, entry: QueuedEntry) -> None:
        """Add an entry at the end."""
        self.waiting.append(entry)
        self.charged += entry.charged

    def insert(self, entry: QueuedEntry) -> None:
        """Put an entry at the head: a chunked message that its last chunk has just completed."""
        self.waiting.appendleft(entry)
        self.charged += entry.charged

    def advance(self) -> None:
        """Let entries leave, up to one whose payload is still to be decompressed."""
        while self.waiting and self._job is None:
            packed = self.waiting[0].opened
            if not isinstance(packed, Packed):
                self._leave(packed)
                continue
            if not self._admitted:
                if not self._budget.take(packed.size, self._granted):
                    return
                self._admitted = packed.size
            self._job = job = self._codecs.submit(partial(self._unpack, packed))
            if not job.done():
                job.add_done_callback(self._done)
                return
            self._finish(job)

    def _granted(self) -> None:
        """Room was taken for the head. Advance in a later turn of the loop: the caller of `give`
        may be inside the consumer's own code, where no delivery may happen."""
        packed = self.waiting[0].opened
        assert isinstance(packed, Packed)
        self._admitted = packed.size
        if not self._loop.is_closed():
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self.advance()
        self._on_moved()

    def _done(self, job: Future[Read]) -> None:
        """In the codecs' thread: the call is over."""
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._unpacked, job)

    def _unpacked(self, job: Future[Read]) -> None:
        if job is self._job and not job.cancelled():  # else the line was cleared meanwhile
            self._finish(job)
            self.advance()
            self._on_moved()

    def _finish(self, job: Future[Read]) -> None:
        """The head was decompressed, or is broken."""
        self._job = None
        size, self._admitted = self._admitted, 0
        error = job.exception()
        before = self._delivered()
        self._leave(error if isinstance(error, Exception) else job.result())
        after = self._delivered()
        if after > before:
            self.held.append((after, size))
        else:
            self._budget.give(size)

    def _leave(self, content: Read | Exception | Callable[[], None]) -> None:
        first = self.waiting.popleft()
        self.charged -= first.charged
        self._handle(first, content)

    def taken(self, messages: int) -> None:
        """Give back the room of payloads up to a total of `messages` taken."""
        held = self.held
        while held and held[0][0] <= messages:
            self._budget.give(held.popleft()[1])

    def forget_held(self) -> None:
        """Nothing that was delivered is held any more."""
        held, self.held = self.held, deque()
        self._budget.give(sum(size for _, size in held))

    def clear(self) -> list[QueuedEntry]:
        """Drop all entries: the broker redelivers them, or a seek made them void. The result of a
        running decompression is discarded.

        Messages that `handle` added and that are not delivered after all must not be counted in
        `delivered` any more.
        """
        dropped, self.waiting = list(self.waiting), deque()
        self.charged = 0
        size = 0
        held, delivered = self.held, self._delivered()
        while held and held[-1][0] > delivered:
            size += held.pop()[1]
        self._leave_head(size)
        return dropped

    def keep(self, entries: Sequence[QueuedEntry]) -> None:
        """Drop all entries but `entries`, which are in the order of the line.

        The next entry leaves the line in a later turn of the event loop.
        """
        has_head = bool(entries) and entries[0] is self.waiting[0]
        self.waiting = deque(entries)
        self.charged = sum(entry.charged for entry in entries)
        if not has_head:
            self._leave_head(0)
            self._loop.call_soon(self._go_on)

    def _leave_head(self, size: int) -> None:
        """The head has gone: discard its decompression, and give back its room and `size` bytes."""
        job, self._job = self._job, None
        if job is not None:
            job.cancel()
        size, self._admitted = size + self._admitted, 0
        self._budget.leave(self._granted)
        self._budget.give(size)
