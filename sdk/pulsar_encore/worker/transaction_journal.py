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
        self._open: set[TxnId] = set()
        self._has_failed = False

    def begun(self, txn_id: TxnId, timeout_s: float) -> None:
        self._open.add(txn_id)
        self._write("a", f"{txn_id} {time.time() + timeout_s:.0f}\n")

    def ended(self, txn_id: TxnId) -> None:
        self._open.discard(txn_id)
        if not self._open:
            self._write("w", "")

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

    def left(self) -> list[TxnId]:
        """Return the ids that an earlier process left, without those that have timed out.

        Ids begin again in a new cluster, so an old id may be the transaction of somebody else.
        """
        if self._path is None:
            return []
        try:
            lines = self._path.read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            text, _, until = line.partition(" ")
            try:
                if float(until) > time.time():
                    found.append(TxnId.parse(text))
            except (EncoreError, ValueError):
                continue  # a line that was cut off
        return found

    async def abort_left(
        self, left: list[TxnId], abort: Callable[[TxnId], Awaitable[None]]
    ) -> None:
        """Abort the transactions of a process that was killed."""

        async def abort_one(txn_id: TxnId) -> None:
            try:
                await abort(txn_id)
            except TransactionNotFound:
                return  # it has ended
            except EncoreError as error:
                self._log.info(
                    "worker %s: transaction %s of an earlier process ends by its timeout: %s",
                    self._name,
                    txn_id,
                    error,
                )
            else:
                self._log.info(
                    "worker %s: aborted transaction %s of an earlier process", self._name, txn_id
                )

        await asyncio.gather(*map(abort_one, left))
