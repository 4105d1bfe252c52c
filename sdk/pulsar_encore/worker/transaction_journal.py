"""The ids of a worker's open transactions, on disk.

A process that was killed leaves a transaction open, and all readers of its results wait for the
timeout. The next process with the same state directory aborts it at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from ..errors import EncoreError, TransactionNotFound
from ..values.transaction_id import TxnId

FILE_NAME: Final = "open-transactions.txt"
_MOST_LINES: Final = 1_000  # of ended transactions, before the file is written again


class TransactionJournal:
    """One line for each transaction: its id, and when the cluster aborts it (s since the epoch).

    A lost line costs nothing but the wait. So the file is not synced, and an error of the disk is
    logged once.

    Args:
        directory: The state directory of the worker, which one process uses at a time. None to
            remember nothing.
    """

    def __init__(self, directory: Path | None, name: str, log: logging.Logger) -> None:
        self._path = None if directory is None else directory / FILE_NAME
        self._name = name
        self._log = log
        self._open: dict[TxnId, str] = {}  # with their lines
        self._lines = 0
        self._has_failed = False

    def begun(self, txn_id: TxnId, timeout_s: float) -> None:
        self._open[txn_id] = line = f"{txn_id} {time.time() + timeout_s:.0f}\n"
        self._lines += 1
        if self._lines < _MOST_LINES:
            self._write("a", line)
        else:
            self._rewrite()

    def ended(self, txn_id: TxnId) -> None:
        self._open.pop(txn_id, None)
        if not self._open:
            self._rewrite()

    def _rewrite(self) -> None:
        self._lines = len(self._open)
        self._write("w", "".join(self._open.values()))

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


async def abort_left(
    directory: Path, abort: Callable[[TxnId], Awaitable[None]], name: str, log: logging.Logger
) -> None:
    """Abort the transactions that a killed process with this directory has left.

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

    await asyncio.gather(*map(abort_one, _left(directory / FILE_NAME)))


def _left(path: Path) -> list[TxnId]:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        text, _, until = line.partition(" ")
        try:
            if float(until) > time.time():
                found.append(TxnId.parse(text))
        except ValueError:
            continue  # a line that was cut off
    return found
