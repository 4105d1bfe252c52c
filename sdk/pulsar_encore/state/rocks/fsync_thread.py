"""The thread of `durability="power"`: one fsync for all writes of a few milliseconds.

After an fsync that failed, RocksDB refuses every later one of the same log. Rightly: the kernel may
have dropped the pages that it could not write, so that a second fsync would succeed and prove
nothing. The database has to be opened anew, which replays the log into tables and syncs those. The
thread asks for that, and retries until an fsync succeeds, also if nothing more is written.

Owns `FsyncThread`. Whoever waits is woken by the fsync that began after their write, at the latest
by the end of it all. Refuses to write anything, because a write that asks for its own fsync would
hold the interpreter (see `database`).
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

# What an fsync costs is shared by all writes of this time, or of this many.
_GATHER_S: Final = 0.005
_GATHER_WRITES: Final = 500
_PAUSE_S: Final = 1.0  # after an fsync that failed, twice as long after each further one, up to:
_MAX_PAUSE_S: Final = 30.0


class FsyncThread:
    """Sees to it that what was written is on the platters.

    Args:
        failed: Called on the syncer's thread after each fsync that failed; has the database opened
            anew.

    Attributes:
        syncing: Held during an fsync, and by whoever closes the database.
        syncs: How many fsyncs there were.
        trouble: Why the last one failed; None when it did not.
    """

    def __init__(self, failed: Callable[[], None]) -> None:
        self._failed = failed
        self.syncing: threading.Lock = threading.Lock()
        self._reopened = False
        self._condition = threading.Condition()
        self._written = 0
        self._synced = 0
        self._stopping = False
        self._ended = False
        self._waiters: list[tuple[int, Future[None]]] = []
        self._journal: WriteJournal | None = None
        self._thread = threading.Thread(target=self._run, name="state-sync", daemon=True)
        self.syncs: int = 0
        self.trouble: StoreError | None = None

    def start(self, journal: WriteJournal) -> None:
        """Begin, with the writes of a journal."""
        self._journal = journal
        self._thread.start()

    def written(self) -> None:
        """One more write was made."""
        with self._condition:
            self._written += 1
            if self._written - self._synced in (1, _GATHER_WRITES):
                self._condition.notify_all()

    def point(self) -> Future[None]:
        """Done when all that is written by now is on the platters; StoreError when it is not."""
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
        """All that is written by now is on the platters.

        Raises:
            StoreError: It is not.
        """
        await asyncio.wrap_future(self.point())

    def mended(self) -> None:
        """The database was opened anew: sync now."""
        with self._condition:
            self._reopened = True
            self._condition.notify_all()

    def stop(self) -> None:
        """End, after a last fsync."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        self._thread.join()

    def _report(self, failure: StoreError | None) -> None:
        if failure is not None and self.trouble is None:
            logger.error("what is written may not survive the loss of power: %s", failure)
        elif failure is None and self.trouble is not None:
            logger.warning("what is written survives the loss of power again")
        self.trouble = failure

    def _closed_error(self) -> StoreError:
        return self.trouble or StoreError("the state was closed before that was synced")

    def _run(self) -> None:
        self._sync_until_stopped()
        with self._condition:
            self._ended = True
            unserved, self._waiters = self._waiters, []
        for _, future in unserved:
            if future.set_running_or_notify_cancel():
                future.set_exception(self._closed_error())

    def _sync_until_stopped(self) -> None:
        assert self._journal is not None
        condition = self._condition
        pause_s = _PAUSE_S
        while True:
            with condition:
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
