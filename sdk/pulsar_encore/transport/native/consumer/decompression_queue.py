"""The queue of entries that wait until a large payload has been decompressed.

Entries stay compressed in the queue, and leave it in the order in which they arrived. The payload
at the head is decompressed once the `MemoryBudget` admits it, so that unread messages take little
more memory than on the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from ....wire.chunk_assembler import Place
from ....wire.entries import EntryError
from ...interface import AckPlan
from ..connection.codec_thread import Codecs
from .entry_contents import ChunkEntry, CompressedEntry, EntryContent, messages_charged
from .memory_budget import MemoryBudget

QueueOutput: TypeAlias = EntryContent | Exception | Callable[[], None]
"""An entry after decompression, the error of decompressing it, or a notice."""


@dataclass(slots=True)
class QueuedEntry:
    """An entry in the queue, or a notice that must not overtake the entries before it.

    Attributes:
        content: The entry; an `EntryError` if it is broken; a callable for a notice.
        size: Bytes of the entry as it is held.
        charged: Permits that the broker took for it.
        chunks, uuid: Of a complete chunked message: its entries and its uuid.
    """

    ledger: int
    entry: int
    redelivery_count: int
    ack_set: int
    content: EntryContent | EntryError | Callable[[], None]
    size: int
    charged: int
    chunks: tuple[Place, ...] | None = None
    uuid: str = ""


class DecompressionQueue:
    """The queue of one topic.

    Args:
        unpack: Decompresses a payload; called in the codec thread.
        handle: Called with each entry that leaves the queue.
        delivered: Returns how many messages of this topic were delivered so far, including those
            that `handle` has just added.
        advanced: Called when entries have left the queue outside `advance`.

    Attributes:
        charged: Permits that the broker took for the waiting entries.
        held: For each large payload that was delivered: `delivered()` after it, and its size.
    """

    def __init__(
        self,
        budget: MemoryBudget,
        codecs: Codecs,
        loop: asyncio.AbstractEventLoop,
        unpack: Callable[[CompressedEntry], EntryContent],
        handle: Callable[[QueuedEntry, QueueOutput], None],
        delivered: Callable[[], int],
        advanced: Callable[[], None],
    ) -> None:
        self._budget = budget
        self._codecs = codecs
        self._loop = loop
        self._unpack = unpack
        self._handle = handle
        self._delivered = delivered
        self._on_advanced = advanced
        self.waiting: deque[QueuedEntry] = deque()
        self.charged: int = 0
        self._job: Future[EntryContent] | None = None  # decompresses the head
        self._reserved = 0  # bytes of the budget reserved for the head
        self.held: deque[tuple[int, int]] = deque()

    def append(self, entry: QueuedEntry) -> None:
        self.waiting.append(entry)
        self.charged += entry.charged

    def insert(self, entry: QueuedEntry) -> None:
        """Put a chunked message at the head, because its last chunk was there."""
        self.waiting.appendleft(entry)
        self.charged += entry.charged

    def advance(self) -> None:
        """Let entries leave, up to the first that has to be decompressed."""
        while self.waiting and self._job is None:
            packed = self.waiting[0].content
            if not isinstance(packed, CompressedEntry):
                self._leave(packed)
                continue
            if not self._reserved:
                if not self._budget.reserve(packed.size, self._granted):
                    return
                self._reserved = packed.size
            self._job = job = self._codecs.submit(partial(self._unpack, packed))
            if not job.done():
                job.add_done_callback(self._done)
                return
            self._finish(job)

    def _granted(self) -> None:
        """Continue in a later iteration of the loop, because the budget admits the head now.

        The caller of `MemoryBudget.release` may be code in which no delivery may happen.
        """
        packed = self.waiting[0].content
        assert isinstance(packed, CompressedEntry)
        self._reserved = packed.size
        if not self._loop.is_closed():
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self.advance()
        self._on_advanced()

    def _done(self, job: Future[EntryContent]) -> None:
        """Continue on the loop. Called in the codec thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._unpacked, job)

    def _unpacked(self, job: Future[EntryContent]) -> None:
        if job is self._job and not job.cancelled():  # else the queue was cleared meanwhile
            self._finish(job)
            self.advance()
            self._on_advanced()

    def _finish(self, job: Future[EntryContent]) -> None:
        self._job = None
        size, self._reserved = self._reserved, 0
        error = job.exception()
        before = self._delivered()
        self._leave(error if isinstance(error, Exception) else job.result())
        after = self._delivered()
        if after > before:
            self.held.append((after, size))
        else:
            self._budget.release(size)

    def _leave(self, content: QueueOutput) -> None:
        first = self.waiting.popleft()
        self.charged -= first.charged
        self._handle(first, content)

    def taken(self, messages: int) -> None:
        """Release the payloads of the first `messages` messages, which the application took."""
        held = self.held
        while held and held[0][0] <= messages:
            self._budget.release(held.popleft()[1])

    def release_held(self) -> None:
        """Release all delivered payloads."""
        held, self.held = self.held, deque()
        self._budget.release(sum(size for _, size in held))

    def clear(self) -> list[QueuedEntry]:
        """Drop all entries, and return them.

        Messages that `handle` added and that are not delivered after all must not be counted in
        `delivered` any more.
        """
        dropped, self.waiting = list(self.waiting), deque()
        self.charged = 0
        size = 0
        held, delivered = self.held, self._delivered()
        while held and held[-1][0] > delivered:
            size += held.pop()[1]
        self._drop_head(size)
        return dropped

    def drop_acked(self, plan: AckPlan) -> int:
        """Drop messages that were acked by id, and return the permits that they used.

        An entry may wait longer than the tracking state remembers that its ack was sent.
        """
        whole = set(plan.entries)
        masks = {(ledger, entry): mask for ledger, entry, _, mask in plan.partial}
        through: tuple[int, int] = (-1, -1)
        if plan.cumulative is not None:
            ledger, entry, _, mask = plan.cumulative
            through = (ledger, entry)
            if mask != -1:
                masks[through] = masks.get(through, -1) & mask
                through = (ledger, entry - 1)
        kept: list[QueuedEntry] = []
        dropped = 0
        for each in self.waiting:
            key, opened = (each.ledger, each.entry), each.content
            if not isinstance(opened, EntryError) and not callable(opened):
                acked = key <= through or key in whole
                left = 0 if acked else each.ack_set & masks.get(key, -1)
                if left != each.ack_set:
                    each.ack_set = left
                    if isinstance(opened, ChunkEntry):
                        kept.append(each)  # later chunks of its message may not be acked
                        continue
                    charged = messages_charged(opened, left) if left else 0
                    dropped += each.charged - charged
                    each.charged = charged
                    if not charged:
                        continue
            kept.append(each)
        self._keep(kept)
        return dropped

    def drop_redelivered(self) -> list[tuple[QueuedEntry, int]]:
        """Drop the entries that a broker redelivers when all unacked messages are requested.

        Chunks stay, because they follow chunks that were joined already. Broken entries stay,
        because they lead to another attachment.

        Returns:
            The dropped entries, each with its number of messages.
        """
        kept: list[QueuedEntry] = []
        dropped: list[tuple[QueuedEntry, int]] = []
        for each in self.waiting:
            opened = each.content
            if isinstance(opened, EntryError | ChunkEntry) or callable(opened):
                kept.append(each)
            else:
                dropped.append((each, messages_charged(opened, -1)))
        if dropped:
            self._keep(kept)
        return dropped

    def _keep(self, entries: Sequence[QueuedEntry]) -> None:
        """Keep only `entries`, in the order of the queue."""
        has_head = bool(entries) and entries[0] is self.waiting[0]
        self.waiting = deque(entries)
        self.charged = sum(entry.charged for entry in entries)
        if not has_head:
            self._drop_head(0)
            self._loop.call_soon(self._go_on)

    def _drop_head(self, size: int) -> None:
        """Discard the decompression of the head, and release its memory and `size` bytes."""
        job, self._job = self._job, None
        if job is not None:
            job.cancel()
        size, self._reserved = size + self._reserved, 0
        self._budget.cancel(self._granted)
        self._budget.release(size)
