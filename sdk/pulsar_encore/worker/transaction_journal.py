"""The ids of a worker's open transactions, on disk.

A process that was killed leaves a transaction open, and all readers of its results wait for the
timeout. The next process with the same state directory aborts it at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from weakref import WeakSet

from ..errors import EncoreError, TransactionNotFound
from ..options import RocksState
from ..values.transaction_id import TxnId

FILE_NAME: Final = "open-transactions.txt"
_MOST_LINES: Final = 1_000  # of ended transactions, before the file is written again
# Workers of one process may share a directory, and so its file. Threads share this set.
_journals: Final[WeakSet[TransactionJournal]] = WeakSet()
_journals_lock: Final = threading.Lock()


class TransactionJournal:
    """One line for each transaction: its id, and when the cluster aborts it (s since the epoch).

    A lost line costs nothing but the wait. So the file is not synced, and an error of the disk is
    logged once.

    Args:
        directory: The state directory, which one thread of one process uses at a time. None to
            remember nothing.

    Attributes:
        open_lines: The lines of open transactions.
        directory_id: Equal for all names of the directory, as with a link or a bind mount.
    """

    def __init__(self, directory: Path | None, name: str, log: logging.Logger) -> None:
        self.directory_id: object = None if directory is None else _identity(directory)
        self._path = None if directory is None else directory / FILE_NAME
        self._name = name
        self._log = log
        self.open_lines: dict[TxnId, str] = {}
        self._lines = 0
        self._has_failed = False
        if directory is not None:
            with _journals_lock:
                _journals.add(self)

    def begun(self, txn_id: TxnId, timeout_s: float) -> None:
        self.open_lines[txn_id] = line = f"{txn_id} {time.time() + timeout_s:.0f}\n"
        self._lines += 1
        if self._lines < _MOST_LINES:
            self._write("a", line)
        else:
            self._rewrite()

    def ended(self, txn_id: TxnId) -> None:
        self.open_lines.pop(txn_id, None)
        if not self.open_lines:
            self._rewrite()

    def close(self) -> None:
        """Leave open transactions to the next worker with this directory, and write nothing more.

        The client still commits or aborts them in the background. An abort by the next worker may
        come first: then their messages are redelivered to it.
        """
        self._path = None
        with _journals_lock:
            _journals.discard(self)

    def _rewrite(self) -> None:
        self._lines = len(self.open_lines)
        if self._path is not None:
            self._write("w", "".join(_open_here(self.directory_id).values()))

    def _write(self, mode: str, text: str) -> None:
        if self._path is None or self._has_failed:
            return
        try:
            with self._path.open(mode, encoding="ascii") as file:
                file.write(text)
        except OSError as error:
            self._has_failed = True
            self._log.warning(
                "worker %s: the ids of its transactions are not stored, so after a crash readers "
                "wait for their timeout: %s",
                self._name,
                error,
            )


def _identity(directory: Path) -> object:
    try:
        found = directory.stat()
    except OSError:
        return directory
    return found.st_dev, found.st_ino


def _open_here(directory_id: object) -> dict[TxnId, str]:
    """Return the open transactions of all workers here with a directory, and their lines."""
    with _journals_lock:
        journals = [each for each in _journals if each.directory_id == directory_id]
    return {txn_id: line for each in journals for txn_id, line in list(each.open_lines.items())}


@asynccontextmanager
async def owned_after_aborts(
    state: RocksState, abort: Callable[[TxnId], Awaitable[None]], name: str, log: logging.Logger
) -> AsyncIterator[None]:
    """Own a state directory, and abort what a killed process left open there.

    Without the directory's lock, its transactions may belong to a live process.
    """
    from ..consumer.state_writer import open_store  # lazy: it needs RocksDB

    store = await open_store(state)
    try:
        await _abort_left(Path(state.path), abort, name, log)
        yield
    finally:
        await store.aclose()


async def _abort_left(
    directory: Path, abort: Callable[[TxnId], Awaitable[None]], name: str, log: logging.Logger
) -> None:
    """Abort the transactions of a directory that are of no worker of this process.

    Ids begin again in a new cluster, so an id that is older than its timeout is left alone: it may
    be the transaction of somebody else.
    """

    async def abort_one(txn_id: TxnId) -> None:
        try:
            await abort(txn_id)
        except TransactionNotFound:
            return  # it has ended
        except EncoreError as error:
            log.info(
                "worker %s: transaction %s of an earlier process ends by its timeout: %s",
                *(name, txn_id, error),
            )
        else:
            log.info("worker %s: aborted transaction %s of an earlier process", name, txn_id)

    text = await asyncio.to_thread(_read, directory / FILE_NAME)
    own = _open_here(_identity(directory))
    await asyncio.gather(*(abort_one(txn_id) for txn_id in _not_over(text) if txn_id not in own))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _not_over(text: str) -> Iterator[TxnId]:
    """Yield the transactions of a file whose timeouts are not over."""
    for line in text.splitlines():
        written, _, until = line.partition(" ")
        try:
            txn_id, is_over = TxnId.parse(written), float(until) <= time.time()
        except ValueError:
            continue  # a line that was cut off
        if not is_over:
            yield txn_id
