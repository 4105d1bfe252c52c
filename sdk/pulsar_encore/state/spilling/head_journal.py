"""`HeadJournal`: the changes of the head on disk, so that a crash does not lose them.

Written data is in the store or, in order, in the backlog. Otherwise the journal is `lost`, until a
manifest replaces it. Only methods that document a StoreError raise one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from typing import Final, Literal

from ...errors import StoreError
from ..blobs.blob_store import BlobStore
from .journal_records import HEADER
from .spilling_metrics import SpillingMetrics
from .stepwise_work import Steps, ThreadTasks

logger: logging.Logger = logging.getLogger(__name__)

Fsync = Literal["none", "interval", "always"]
_MAX_BACKLOG_BYTES: Final = 64 << 20


class HeadJournal:
    """Writes the journals of an index.

    Args:
        found: Earlier journals that are still needed, of `size` bytes. They may not be synced.
    """

    def __init__(
        self,
        store: BlobStore,
        number: int,
        *,
        found: Iterable[int],
        size: int,
        fsync: Fsync,
        interval_s: float,
        retry_s: float,
        clock: Callable[[], float],
        metrics: SpillingMetrics,
    ) -> None:
        self._store = store
        self.number: int = number
        self._fsync = fsync
        self._interval_s = interval_s
        self._retry_s = retry_s
        self._clock = clock
        self._metrics = metrics
        self._fresh = True  # the journal is empty
        self._backlog = bytearray()
        self._retry_at = 0.0
        self._synced_at = clock()
        self._writes = 0
        # Journals that are not synced, and the number of the last write to each.
        self._unsynced: dict[int, int] = dict.fromkeys(found, 0) if fsync != "none" else {}
        self.size: int = size  # bytes since `rotate`
        self._older: dict[int, int] = {}  # bytes by number, of earlier journals that are needed
        self._lost_in: int | None = None  # the last journal with lost records

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self._backlog:
            self._backlog += data
            if self._clock() >= self._retry_at:
                self._try_write_backlog()
            elif len(self._backlog) > _MAX_BACKLOG_BYTES:
                self._backlog.clear()
                self._lost_in = self.number
        elif self._fresh:
            self._backlog += data
            self._try_write_backlog()
        else:
            try:
                self._append(data)
            except StoreError as error:
                self._backlog += data
                self._write_failed(error)

    def _try_write_backlog(self) -> None:
        try:
            self._write_backlog()
        except StoreError as error:
            self._write_failed(error)

    def retry(self) -> None:
        """Write the backlog if its retry is due, in case no record follows for long."""
        if self._backlog and self._clock() >= self._retry_at:
            self._try_write_backlog()

    def _write_backlog(self) -> None:
        head = HEADER if self._fresh else b""
        self._append(head + self._backlog)
        self.size += len(head)
        self._fresh = False
        self._backlog.clear()

    def _append(self, data: bytes) -> None:
        self._store.append(self.number, data, sync=self._fsync == "always")
        if self._fsync == "interval":
            self._writes += 1
            self._unsynced[self.number] = self._writes

    def _write_failed(self, error: StoreError) -> None:
        self._metrics.journal_failed += 1
        self._retry_at = self._clock() + self._retry_s
        logger.warning(
            "the journal could not be written, %d bytes are in memory until the retry in %g s: %s",
            len(self._backlog),
            self._retry_s,
            error,
        )

    @property
    def lost(self) -> bool:
        """True if the backlog grew too long or an fsync failed, until a snapshot is committed."""
        return self._lost_in is not None

    @property
    def waiting(self) -> bool:
        return bool(self._backlog) or bool(self._unsynced) or self.lost

    @property
    def stored(self) -> int:
        return self.size + sum(self._older.values())

    def rotate(self) -> int:
        """Begin a new journal. Earlier ones are needed until `forget`."""
        self._older[self.number] = self.size
        self.number += 1
        self.size = 0
        self._fresh = True
        return self.number

    def forget(self, first: int) -> None:
        for numbers in (self._unsynced, self._older):
            for number in [number for number in numbers if number < first]:
                del numbers[number]
        if self._lost_in is not None and self._lost_in < first:
            self._lost_in = None

    def sync_is_due(self) -> bool:
        return bool(self._unsynced) and self._clock() - self._synced_at >= self._interval_s

    def sync_steps(self, first: int = 0) -> Steps:
        """Sync writes so far to journals from `first` on. The steps may raise StoreError."""
        marks = self._marks(first)
        yield ThreadTasks(self._sync(marks))
        self._mark_synced(marks)

    def sync(self) -> None:
        marks = self._marks(0)
        for _ in self._sync(marks):
            pass
        self._mark_synced(marks)

    def _marks(self, first: int) -> dict[int, int]:
        self._synced_at = self._clock()
        return {number: mark for number, mark in sorted(self._unsynced.items()) if number >= first}

    def _sync(self, numbers: Iterable[int]) -> Generator[None, None, None]:
        for number in numbers:
            try:
                self._store.append(number, b"", sync=True)
            except StoreError:
                # A second fsync would prove nothing: the kernel may have dropped the pages that it
                # could not write. Only a snapshot helps, because it writes the data again.
                self._lost_in = self.number
                self._metrics.journal_failed += 1
                raise
            yield

    def _mark_synced(self, marks: dict[int, int]) -> None:
        for number, mark in marks.items():
            if self._unsynced.get(number) == mark:  # else a write came during the sync
                del self._unsynced[number]

    def flush(self) -> None:
        """Write the backlog. If that fails, it stays, and this raises StoreError."""
        if self._backlog:
            self._write_backlog()
