"""The driver's part of transactional writes: the two phases of a commit, aborts, and restarts.

Used on the client's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final

from ...client import Client
from ...errors import (
    EncoreError,
    InvalidTxnStatusError,
    TransactionAbortedError,
    TransactionNotFound,
    TransactionOutcomeUnknown,
)
from ...values.transaction_id import TxnId
from ..spark_errors import DataLossError
from .commit_journal import (
    BatchKey,
    Outcome,
    Prepared,
    Settled,
    Step,
    TaskTransaction,
    first_of,
    is_late,
    lost_text,
    next_step,
    outcome_of,
)
from .commit_topics import CommitTopics, OpenJournal
from .sink_options import TransactionOptions

log: Final = logging.getLogger("pulsar_encore.spark")

_MAX_CONCURRENT_ENDS: Final = 32
_MAX_MARGIN_MS: Final = 60_000


class BatchCommits:
    """Commits and aborts the transactions of the tasks of a write."""

    def __init__(self, client: Client, options: TransactionOptions) -> None:
        self._client = client
        self._options = options
        self._topics = CommitTopics(client, options)
        self._limit = asyncio.Semaphore(_MAX_CONCURRENT_ENDS)

    async def begin_write(self) -> None:
        """Make the topics ready for a batch write, which is never continued after a crash."""
        await self._topics.ensure()
        async with self._topics.journal() as journal:
            await self._check_enabled(journal)

    async def recover(self) -> BatchKey | None:
        """Finish a micro-batch that was prepared before the driver ended.

        Returns:
            The last micro-batch that is committed. If Spark runs it again, its tasks write nothing.

        Raises:
            DataLossError: if only some transactions of a batch could be committed.
        """
        await self._topics.ensure()
        async with self._topics.journal() as journal:
            await self._check_enabled(journal)
            for prepared in journal.records.unsettled():
                outcome = await self._settle(journal, prepared, is_new=False)
                if outcome is Outcome.NONE:
                    log.warning("%s was prepared and is not visible: it is repeated", prepared.key)
            return journal.records.last_committed()

    async def _check_enabled(self, journal: OpenJournal) -> None:
        """Raise `TransactionNotEnabledError` before any task runs, in the first batch."""
        if journal.records.is_empty:
            txn = await self._client.transaction()
            await txn.abort()

    async def commit(self, key: BatchKey, tasks: Sequence[TaskTransaction]) -> None:
        """Commit the transactions of a batch.

        Raises:
            TransactionAbortedError: if they have ended by their timeout; nothing is visible.
            DataLossError: if only some of them could be committed.
        """
        async with self._topics.journal() as journal:
            foreign = journal.records.foreign(key.query, _now_ms())
            if foreign is not None and key.batch:  # the journal of a query, not of batch writes
                log.warning(
                    "%s is also used by the query %s: give each query a journalTopic of its own, "
                    "or one hides the rows of the other",
                    self._options.journal_topic,
                    foreign,
                )
            prepared = journal.records.prepared(key)
            is_new = prepared is None and bool(tasks)
            if is_new:
                margin_ms = min(_MAX_MARGIN_MS, self._options.timeout_ms // 10)
                if is_late(tasks, _now_ms(), margin_ms=margin_ms):
                    await self._abort_left(journal, key)
                    raise self._late_error(key)
                prepared = Prepared(key, tuple(tasks))
                await journal.store(prepared)
            if prepared is not None and not journal.records.is_committed(key):
                outcome = await self._settle(journal, prepared, is_new=is_new)
                if outcome is Outcome.NONE:
                    raise self._late_error(key)
            await journal.refresh()
            ended = await self._abort_left(journal, key)
            await journal.trim(ended, _now_ms())
        if prepared is not None:
            await self._topics.trim_markers(prepared)

    async def abort(self, key: BatchKey | None) -> None:
        """Abort all transactions of a batch that were begun and not prepared, and older ones.

        Args:
            key: None if no task told it; then the newest query of the journal is meant.
        """
        async with self._topics.journal() as journal:
            if key is None:
                query = journal.records.newest_query()
                if query is None:
                    return
                key = BatchKey(query, sys.maxsize)
            await self._abort_left(journal, key)

    def _late_error(self, key: BatchKey) -> TransactionAbortedError:
        return TransactionAbortedError(
            f"{key}: nothing of it is visible, because it took longer than its transactions may "
            f"({self._options.timeout_ms / 1000:g} s), or they were ended by their ids. Set a "
            "longer transactionTimeout, or let a batch have fewer rows, and start the query again"
        )

    async def _settle(self, journal: OpenJournal, prepared: Prepared, *, is_new: bool) -> Outcome:
        """Commit the transactions of a prepared batch, and determine the outcome.

        Args:
            is_new: It was prepared by this call, so that none is committed yet.
        """
        visible: set[str] = set()
        if not is_new:
            # An open transaction could hide a marker that is committed.
            await self._abort_left(journal, prepared.key, strict=True)
            visible = await self._topics.visible(prepared)
        if not await self._finish(journal, prepared, visible):
            await self._abort_left(journal, prepared.key, strict=True)
            visible = await self._topics.visible(prepared, wait=True)
            outcome = outcome_of(prepared, visible)
            if outcome is Outcome.PARTIAL:
                raise DataLossError(lost_text(prepared, visible))
        else:
            outcome = Outcome.COMMITTED
        await journal.store(Settled(prepared.key, outcome is Outcome.COMMITTED))
        return outcome

    async def _finish(self, journal: OpenJournal, prepared: Prepared, visible: set[str]) -> bool:
        """End the transactions that are not visible. Return True if all are committed now."""
        left = [each for each in prepared.tasks if each.txn not in visible]
        step = next_step(prepared, visible, _now_ms())
        if step is Step.COMMIT_IN_TURN:
            first = first_of(left)
            left.remove(first)
            if not await self.end(first.txn, commit=True):
                # It has ended before, or it is committed and the answer was lost.
                await self._abort_left(journal, prepared.key, strict=True)
                seen = await self._topics.visible(prepared)
                step = Step.COMMIT if first.txn in seen else Step.ABORT
        ended = await self._end_all((each.txn for each in left), commit=step is not Step.ABORT)
        return step is not Step.ABORT and all(ended)

    async def _abort_left(
        self, journal: OpenJournal, key: BatchKey, *, strict: bool = False
    ) -> set[str]:
        """Abort begun transactions that were not prepared, and return their ids.

        Return no ids if a coordinator did not answer.

        Args:
            strict: Raise the error if a coordinator does not answer. Else the next batch tries
                again.
        """
        left = [each.txn for each in journal.records.left_open(key, _now_ms())]
        try:
            await self._end_all(left, commit=False)
        except EncoreError as error:
            if strict:
                raise
            log.warning("transactions of failed attempts are open until their timeout: %s", error)
            return set()
        return set(left)

    async def _end_all(self, ids: Iterable[str], *, commit: bool) -> list[bool]:
        answers = await asyncio.gather(
            *(self.end(each, commit=commit) for each in ids), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer is True for answer in answers]

    async def end(self, txn: str, *, commit: bool) -> bool:
        """End a transaction. Return False if it has ended before, or is ending the other way."""
        end = self._client.commit_transaction if commit else self._client.abort_transaction
        async with self._limit:
            try:
                await end(TxnId.parse(txn))
            except (TransactionNotFound, InvalidTxnStatusError, TransactionOutcomeUnknown):
                return False
        return True


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
