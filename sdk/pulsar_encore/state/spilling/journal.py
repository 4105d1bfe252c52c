"""The journal of the head: what the head would lose in a crash, on disk as it happens.

Owns the number of the journal that is written, when it is synced, and what could not be written.
Invariant: what was given to `write` is in the store or in the backlog, in order; nothing raises
but `flush`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import Final, Literal

from ...errors import StoreError
from ..blobs.base import BlobStore
from .metrics import Metrics
from .records import HEADER

logger: logging.Logger = logging.getLogger(__name__)

Fsync = Literal["none", "interval", "always"]
_MOST_BACKLOG: Final = 64 << 20


class Journal:
    """Writes journals to a store.

    Args:
        store: Where to.
        number: Of the first one that is written; it is not there yet.
        fsync: When what was written is to survive a loss of power, too.
        interval_s: At most so long after, with ``"interval"``.
        retry_s: How long to wait after a write that failed.
        clock: Seconds, of any origin.
        metrics: Counts what fails.
    """

    def __init__(
        self,
        store: BlobStore,
        number: int,
        *,
        fsync: Fsync,
        interval_s: float,
        retry_s: float,
        clock: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        self._store = store
        self.number: int = number
        self._fsync = fsync
        self._interval_s = interval_s
        self._retry_s = retry_s
        self._clock = clock
        self._metrics = metrics
        self._fresh = True  # nothing is in it yet
        self._backlog = bytearray()
        self._retry_at = 0.0
        self._synced_at = clock()
        self._unsynced = False
        self._behind: set[int] = set()  # journals that are being synced, or are to be
        self.size: int = 0  # bytes since `rotate`
        self.lost: bool = False  # the backlog grew too long: only a snapshot of the head helps

    def write(self, data: bytes) -> None:
        """Add a record."""
        self.size += len(data)
        if self._backlog:
            self._backlog += data
            if self._clock() >= self._retry_at:
                self._try()
            elif len(self._backlog) > _MOST_BACKLOG:
                self._backlog.clear()
                self.lost = True
        elif self._fresh:
            self._backlog += data
            self._try()
        else:
            try:
                self._store.append(self.number, data, sync=self._fsync == "always")
            except StoreError as error:
                self._backlog += data
                self._failed(error)
            self._unsynced = True

    def _try(self) -> None:
        try:
            self._write_backlog()
        except StoreError as error:
            self._failed(error)

    def _write_backlog(self) -> None:
        head = HEADER if self._fresh else b""
        self._store.append(self.number, head + self._backlog, sync=self._fsync == "always")
        self._fresh = False
        self._backlog.clear()
        self._unsynced = True

    def _failed(self, error: StoreError) -> None:
        self._metrics.journal_failed += 1
        self._retry_at = self._clock() + self._retry_s
        logger.warning(
            "the journal could not be written, %d bytes wait in memory for the next try in %g s: "
            "%s",
            len(self._backlog),
            self._retry_s,
            error,
        )

    def rotate(self) -> int:
        """Go on in another journal; returns its number. Those before count until `forget`."""
        if self._unsynced:
            self._behind.add(self.number)
        self.number += 1
        self.size = 0
        self._fresh = True
        self.lost = False
        return self.number

    def sync_is_due(self) -> bool:
        """Whether `syncing` is to be done now."""
        return (
            self._unsynced
            and self._fsync == "interval"
            and self._clock() - self._synced_at >= self._interval_s
        )

    def forget(self, first: int) -> None:
        """Journals before this one count no more."""
        over = [number for number in sorted(self._behind) if number < first]
        self._behind.difference_update(over)

    def syncing(self, first: int = 0) -> Generator[None, None, None]:
        """Make what was written by now, to journals from `first` on, survive a loss of power; the
        steps are for any thread.

        Raises:
            StoreError: It failed; of the steps.
        """
        self._synced_at = self._clock()
        self._unsynced = False
        if not self._fresh:
            self._behind.add(self.number)
        wanted = self._fsync != "none"
        return self._sync([number for number in sorted(self._behind) if wanted and number >= first])

    def _sync(self, numbers: list[int]) -> Generator[None, None, None]:
        yield
        try:
            for number in numbers:
                self._store.append(number, b"", sync=True)
        except StoreError:
            self._unsynced = True
            raise
        self._behind.difference_update(numbers)

    def flush(self) -> None:
        """Write what waits.

        Raises:
            StoreError: It could not be written, and waits on.
        """
        if self._backlog:
            self._write_backlog()
        if self.lost:
            raise StoreError("the journal had no room for too long; the head is to be sealed")
