"""The ids of a worker's open transactions, on disk.

A process that was killed leaves a transaction open, and all readers of its results wait for the
timeout. The next process with the same state directory aborts it at once.
"""

from __future__ import annotations

import asyncio
import logging
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
# Workers of one process may share a directory, and so its file. A journal whose worker has ended
# stays until its transactions have, because the client commits or aborts them in the background.
_journals: Final[WeakSet[TransactionJournal]] = WeakSet()


class TransactionJournal:
    """One line for each transaction: its id, and when the cluster aborts it (s since the epoch).

    A lost line costs nothing but the wait. So the file is not synced, and an error of the disk is
    logged once.

    Args:
        directory: The state directory of the worker, which one process uses at a time, and in it
            one thread. None to remember nothing.

    Attributes:
        open_lines: The lines of open transactions.
    """

    def __init__(self, directory: Path | None, name: str, log: logging.Logger) -> None:
        self.path: Path | None = None if directory is None else directory.resolve() / FILE_NAME
        self._name = name
        self._log = log
        self.open_lines: dict[TxnId, str] = {}
        self._lines = 0
        self._has_failed = False
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

    def _rewrite(self) -> None:
        self._lines = len(self.open_lines)
        if self.path is not None:
            self._write("w", "".join(_open_here(self.path).values()))

    def _write(self, mode: str, text: str) -> None:
        if self.path is None or self._has_failed:
            return
        try:
            with self.path.open(mode, encoding="ascii") as file:
                file.write(text)
        except OSError as error:
            self._has_failed = True
            self._log.warning(
                "worker %s: the ids of its transactions are not stored, so after a crash readers "
                "wait for their timeout: %s",
                self._name,
                error,
            )


def _open_here(path: Path) -> dict[TxnId, str]:
    """Return the open transactions of this process in a file, with their lines."""
    journals = [each for each in _journals if each.path == path]
    return {txn_id: line for each in journals for txn_id, line in each.open_lines.items()}


@asynccontextmanager
async def nothing_left(
    state: RocksState, abort: Callable[[TxnId], Awaitable[None]], name: str, log: logging.Logger
) -> AsyncIterator[None]:
    """Own a state directory, after aborting the transactions that a killed process left there.

    Without the directory's lock, these would be those of a process that lives.
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

    file = await asyncio.to_thread(directory.resolve) / FILE_NAME
    await asyncio.gather(*map(abort_one, _left(file)))


def _left(path: Path) -> Iterator[TxnId]:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return
    own = _open_here(path)
    for line in lines:
        text, _, until = line.partition(" ")
        try:
            txn_id = TxnId.parse(text)
            is_over = float(until) <= time.time()
        except ValueError:
            continue  # a line that was cut off
        if not is_over and txn_id not in own:
            yield txn_id
