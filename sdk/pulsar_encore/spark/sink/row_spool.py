"""Storage for the rows of a task until all have arrived: their numbers depend on all rows.

Beyond a limit in memory, record batches go to a temporary file. The digest covers the rows and not
the batches: the next attempt may split the rows into other batches.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import IO, Any, Final

import pyarrow as pa

from ...consumer.forwarding.copy_options import Destination
from ...errors import StoreError
from ...letters import ORIGIN_MESSAGE_ID
from ...values.outgoing_message import OutgoingMessage
from .row_batches import RowChunk

_MAX_IN_MEMORY: Final = 64 * 2**20
_MESSAGE_OVERHEAD: Final = 500  # approximate bytes of a message without its payload

Read = Callable[[pa.RecordBatch, int], RowChunk]
"""Returns the messages of a batch, given the index of its first row in the task."""


class RowSpool:
    """The rows of one task.

    Args:
        read: Converts a batch; called twice for batches that go to the file.
        copies: The rows are letters or replays, whose properties depend on the attempt.
        in_memory: Maximum bytes in memory.
    """

    def __init__(self, read: Read, *, copies: bool, in_memory: int = _MAX_IN_MEMORY) -> None:
        self._read = read
        self._copies = copies
        self._free_bytes = in_memory
        self._chunks: list[RowChunk] = []
        self._file: IO[bytes] | None = None
        self._writer: Any = None
        self._digest = hashlib.blake2b(digest_size=8)
        self._rows = 0
        self._filed_from = 0

    def add(self, batch: pa.RecordBatch) -> None:
        chunk = self._read(batch, self._rows)
        self._digest.update(_bytes_of(chunk, copies=self._copies))
        self._rows += batch.num_rows
        self._free_bytes -= chunk.size + _MESSAGE_OVERHEAD * len(chunk.messages)
        if self._file is None and self._free_bytes >= 0:
            self._chunks.append(chunk)
            return
        try:
            if self._file is None:
                self._filed_from = self._rows - batch.num_rows
                self._file = tempfile.TemporaryFile(prefix="pulsar-encore-")
                self._writer = pa.ipc.new_stream(self._file, batch.schema)
            self._writer.write_batch(batch)
        except OSError as error:
            raise self._storage_error(error) from error

    @property
    def digest(self) -> int:
        return int.from_bytes(self._digest.digest(), "big")

    def take(self) -> Iterator[RowChunk]:
        chunks, self._chunks = self._chunks, []
        yield from chunks
        if self._file is None:
            return
        rows = self._filed_from
        try:
            self._writer.close()
            self._file.seek(0)
            with pa.ipc.open_stream(self._file) as batches:
                for batch in batches:
                    yield self._read(batch, rows)
                    rows += batch.num_rows
        except OSError as error:
            raise self._storage_error(error) from error
        finally:
            self.close()

    def close(self) -> None:
        self._chunks = []
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _storage_error(self, error: OSError) -> StoreError:
        return StoreError(
            "deduplication=task-sequence keeps the rows of a task until all have arrived, those "
            f"over {_MAX_IN_MEMORY >> 20} MiB in {tempfile.gettempdir()} (TMPDIR): "
            f"{error.strerror or error}"
        )


def _bytes_of(chunk: RowChunk, *, copies: bool) -> bytes:
    destinations: Sequence[Destination] | repeat[Destination] = (
        chunk.destinations if isinstance(chunk.destinations, list) else repeat(chunk.destinations)
    )
    parts: list[bytes] = []
    for message, destination in zip(chunk.messages, destinations, strict=False):
        parts += _parts(message, destination.topic, copies=copies)
    return b"".join(parts)


def _parts(message: OutgoingMessage, topic: str, *, copies: bool) -> Iterator[bytes]:
    """Yield the content of a row, each part after its length, so that different rows differ."""
    properties = message.properties or {}
    identity: Any
    if copies:
        identity = properties.get(ORIGIN_MESSAGE_ID)
    else:
        # Without the delivery time: a delay ends at another time in each attempt.
        identity = sorted(properties.items()), message.event_timestamp, message.replication_clusters
    for part in (topic, message.payload, message.partition_key, message.ordering_key, identity):
        data = part if isinstance(part, bytes) else repr(part).encode("utf-8", "surrogatepass")
        yield b"b" if isinstance(part, bytes) else b"r"  # None is not b"None"
        yield len(data).to_bytes(5, "big")
        yield data
