"""Chunks of one topic as they arrive, and the deliveries of complete messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ....wire.chunk_assembler import ChunkFate, JoinedMessage
from ....wire.compression import UncompressedSizeError
from ....wire.entries import EntryError
from ...interface import Delivery, SkipReason
from .ack_writer import AckWriter
from .chunked_messages import ChunkedMessages, uuid_of
from .decompression_queue import DecompressionQueue, QueuedEntry
from .entry_contents import ChunkEntry, CompressedEntry, EntryContent
from .entry_reader import EntryReader
from .message_views import PlainMessage
from .permits import Permits
from .read_position import ReadPosition
from .skipped_entries import SkippedEntries

_ONLY: Final = (0,)


class ChunkHandler:
    """Handles the chunks of one topic.

    Args:
        position: None for a durable subscription.
        deliver: Adds a delivery to those of the current read.
    """

    def __init__(
        self,
        number: int,
        permits: Permits,
        position: ReadPosition | None,
        reader: EntryReader,
        queue: DecompressionQueue,
        chunked: ChunkedMessages,
        acks: AckWriter,
        skipped: SkippedEntries,
        deliver: Callable[[Delivery], None],
    ) -> None:
        self._number = number
        self._permits = permits
        self._position = position
        self._reader = reader
        self._queue = queue
        self._chunked = chunked
        self._acks = acks
        self._skipped = skipped
        self._deliver = deliver

    def is_missing(self, opened: EntryContent) -> bool:
        """Return True for a chunk that a reader needs, although its position is already past it.

        Chunks of the same message were lost with a connection.
        """
        if not isinstance(opened, ChunkEntry) or self._position is None:
            return False
        uuid = uuid_of(opened.metadata)
        return uuid in self._position.missing_chunks or self._chunked.assembler.holds(uuid)

    def add(
        self, ledger: int, entry: int, redelivery_count: int, ack_set: int, chunk: ChunkEntry
    ) -> None:
        joined = self._chunked.add(chunk, ledger, entry, redelivery_count)
        if self._position is not None:
            self._position.missing_chunks.pop(uuid_of(chunk.metadata), None)
        if not isinstance(joined, JoinedMessage):
            self._permits.kept_chunk()
            if joined is ChunkFate.REFUSE:
                error = UncompressedSizeError("a chunk of a message over max_uncompressed_size")
                self._skipped.report(ledger, entry, SkipReason.BROKEN, error)
            else:
                is_torn = joined is ChunkFate.REDELIVER
                self._skipped.report(
                    ledger, entry, SkipReason.INCOMPLETE if is_torn else SkipReason.CHUNK
                )
            return
        places, size = joined.places, len(joined.payload)
        if not ack_set:  # the message was acked while its last chunk waited in the queue
            self._chunked.forget([(ledger, entry)])
            self._permits.arrived(1, 0, size)
            return
        count = joined.redelivery_count
        opened: EntryContent | EntryError
        try:
            opened = self._reader.read_chunked(chunk, joined.payload, joined.encrypted)
        except EntryError as error:
            opened = error
        queued = QueuedEntry(
            ledger, entry, count, -1, opened, size, 1, places, uuid_of(chunk.metadata)
        )
        if isinstance(opened, CompressedEntry):
            self._permits.queued(1, size)
            self._queue.insert(queued)
        else:
            self.message(queued, places, opened)

    def message(
        self,
        queued: QueuedEntry,
        places: tuple[tuple[int, int], ...],
        content: EntryContent | EntryError,
    ) -> None:
        """Handle a complete message.

        Args:
            queued: Its last chunk.
            places: The entries of all chunks.
        """
        ledger, entry, size = queued.ledger, queued.entry, queued.size
        if isinstance(content, EntryError):
            self._permits.arrived(1, 0, size)
            self._skipped.skip_broken_message(ledger, entry, places, content)
        elif isinstance(content, PlainMessage):
            self._permits.arrived(1, 1, size + self._reader.take_grown())
            count = queued.redelivery_count
            self._deliver(
                Delivery(self._number, ledger, entry, 0, count, _ONLY, (content,), -1, places[0])
            )
        else:  # no client writes batches in chunks
            self._permits.arrived(1, 0, size)
            self._acks.ack_skipped(list(places))
            self._skipped.report(ledger, entry, SkipReason.BROKEN)
