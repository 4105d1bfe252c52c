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
_ENOUGH: Final = 500
_PAUSE_S: Final = 1.0  # after an fsync that failed, twice as long after each further one, up to:
_LONGEST_PAUSE_S: Final = 30.0


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
        self._mended = False
        self._changed = threading.Condition()
        self._written = 0
        self._synced = 0
        self._ends = False
        self._over = False
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
        with self._changed:
            self._written += 1
            if self._written - self._synced in (1, _ENOUGH):
                self._changed.notify_all()

    def point(self) -> Future[None]:
        """Done when all that is written by now is on the platters; StoreError when it is not."""
        future: Future[None] = Future()
        with self._changed:
            if self._synced >= self._written:
                future.set_result(None)
            elif self._over:
                future.set_exception(self._closed())
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
        with self._changed:
            self._mended = True
            self._changed.notify_all()

    def stop(self) -> None:
        """End, after a last fsync."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._thread.join()

    def _tell(self, failure: StoreError | None) -> None:
        if failure is not None and self.trouble is None:
            logger.error("what is written may not survive the loss of power: %s", failure)
        elif failure is None and self.trouble is not None:
            logger.warning("what is written survives the loss of power again")
        self.trouble = failure

    def _closed(self) -> StoreError:
        return self.trouble or StoreError("the state was closed before that was synced")

    def _run(self) -> None:
        self._sync_until_the_end()
        with self._changed:
            self._over = True
            left, self._waiters = self._waiters, []
        for _, future in left:
            if future.set_running_or_notify_cancel():
                future.set_exception(self._closed())

    def _sync_until_the_end(self) -> None:
        assert self._journal is not None
        changed = self._changed
        pause_s = _PAUSE_S
        while True:
            with changed:
                self._mended = False
                changed.wait_for(lambda: self._ends or self._written > self._synced)
                if not self._ends:
                    changed.wait_for(
                        lambda: self._ends or self._written - self._synced >= _ENOUGH, _GATHER_S
                    )
                ends, upto = self._ends, self._written
                if ends and upto == self._synced:
                    return
            failure: StoreError | None = None
            try:
                with self.syncing:
                    self._journal.database.sync()
            except StoreError as error:
                failure = error
            self._tell(failure)
            with changed:
                self.syncs += 1
                if failure is None:
                    self._synced = upto
                ready = [future for point, future in self._waiters if point <= upto]
                self._waiters = [each for each in self._waiters if each[0] > upto]
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
            if ends:
                return
            self._failed()
            with changed:
                changed.wait_for(lambda: self._ends or self._mended, pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
