"""`FsyncThread`: one fsync for all writes of a few milliseconds, for `durability="power"`.

After a failed fsync, RocksDB refuses every later fsync of the same log. It would prove nothing: the
kernel may have dropped the pages that it could not write. The database must be reopened, which
replays the log into tables and syncs those. The thread requests that until an fsync succeeds, even
without new writes.

Only this thread syncs, because a write that syncs would hold the GIL (see `database`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from pulsar_encore.errors import StoreError

from .write_journal import WriteJournal

logger: logging.Logger = logging.getLogger(__name__)

# All writes of this time, or this many writes, share one fsync.
_GATHER_S: Final = 0.005
_GATHER_WRITES: Final = 500
_PAUSE_S: Final = 1.0  # after a failed fsync; doubles with each further failure, up to:
_MAX_PAUSE_S: Final = 30.0


class FsyncThread:
    """The thread that syncs the writes of a journal.

    Args:
        failed: Called on this thread after each failed fsync; must have the database reopened.

    Attributes:
        syncing: Held during an fsync, and while the database is closed.
    """

    def __init__(self, journal: WriteJournal, failed: Callable[[], None]) -> None:
        self._journal = journal
        self._failed = failed
        self.syncing: threading.Lock = threading.Lock()
        self._reopened = False
        self._condition = threading.Condition()
        self._written = 0
        self._synced = 0
        self._stopping = False
        self._ended = False
        self._waiters: list[tuple[int, Future[None]]] = []
        self._thread = threading.Thread(target=self._run, name="state-sync", daemon=True)
        self.syncs: int = 0
        self.failure: StoreError | None = None

    def start(self) -> None:
        self._thread.start()

    def note_write(self) -> None:
        with self._condition:
            self._written += 1
            if self._written - self._synced in (1, _GATHER_WRITES):
                self._condition.notify_all()

    def next_sync(self) -> Future[None]:
        """Return a future for the fsync of all writes so far. It may fail with StoreError."""
        future: Future[None] = Future()
        with self._condition:
            if self._synced >= self._written:
                future.set_result(None)
            elif self._ended:
                future.set_exception(self._closed_error())
            else:
                self._waiters.append((self._written, future))
        return future

    async def synced(self) -> None:
        await asyncio.wrap_future(self.next_sync())

    def note_reopened(self) -> None:
        with self._condition:
            self._reopened = True
            self._condition.notify_all()

    def stop(self) -> None:
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        self._thread.join()

    def _report(self, failure: StoreError | None) -> None:
        if failure is not None and self.failure is None:
            logger.error("written state may not survive a loss of power: %s", failure)
        elif failure is None and self.failure is not None:
            logger.warning("written state survives a loss of power again")
        self.failure = failure

    def _closed_error(self) -> StoreError:
        return self.failure or StoreError("the state was closed before that was synced")

    def _run(self) -> None:
        self._sync_until_stopped()
        with self._condition:
            self._ended = True
            unserved, self._waiters = self._waiters, []
        for _, future in unserved:
            if future.set_running_or_notify_cancel():
                future.set_exception(self._closed_error())

    def _sync_until_stopped(self) -> None:
        condition = self._condition
        pause_s = _PAUSE_S
        while True:
            with condition:
                # Wait for a write, then for further writes that can share the fsync.
                self._reopened = False
                condition.wait_for(lambda: self._stopping or self._written > self._synced)
                if not self._stopping:
                    condition.wait_for(
                        lambda: self._stopping or self._written - self._synced >= _GATHER_WRITES,
                        _GATHER_S,
                    )
                stopping, target = self._stopping, self._written
                if stopping and target == self._synced:
                    return
            failure: StoreError | None = None
            try:
                with self.syncing:
                    self._journal.database.sync()
            except StoreError as error:
                failure = error
            self._report(failure)
            with condition:
                self.syncs += 1
                if failure is None:
                    self._synced = target
                ready = [future for point, future in self._waiters if point <= target]
                self._waiters = [each for each in self._waiters if each[0] > target]
            for future in ready:
                if not future.set_running_or_notify_cancel():
                    continue
                if failure is None:
                    future.set_result(None)
                else:
                    future.set_exception(failure)
            if failure is None:
                pause_s = _PAUSE_S
                continue
            if stopping:
                return
            self._failed()
            with condition:
                condition.wait_for(lambda: self._stopping or self._reopened, pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
