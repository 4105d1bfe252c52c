"""The driver's part of transactional writes: the two phases of a commit, aborts, and restarts.

Used on the client's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ...client import Client, transport_of
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
    DRIVER,
    BatchKey,
    Begun,
    Closed,
    Outcome,
    Prepared,
    Probe,
    Settled,
    SharedTransaction,
    Step,
    TaskTransaction,
    first_of,
    is_late,
    lost_text,
    next_step,
    outcome_of,
    shared_task,
    spoiled,
    spoiled_text,
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

    async def begin_write(self, key: BatchKey) -> SharedTransaction | None:
        """Make the topics ready for a batch write, which is never continued after a crash.

        Returns:
            The transaction of the write if its tasks share one.
        """
        await self._topics.ensure()
        async with self._topics.journal() as journal:
            await self._check_enabled(journal)
            return await self._begin_shared(journal, key)

    async def recover(self) -> tuple[BatchKey | None, SharedTransaction | None]:
        """Finish a micro-batch that was prepared before the driver ended.

        Returns:
            The last micro-batch that is committed: if Spark runs it again, its tasks write nothing.
            And a transaction for the next one if its tasks share one.

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
            return journal.records.last_committed(), await self._begin_shared(journal, None)

    async def _begin_shared(
        self, journal: OpenJournal, key: BatchKey | None
    ) -> SharedTransaction | None:
        """Begin the transaction that all tasks of the next batch share, if they do.

        Args:
            key: The batch, or None if only its tasks will know it.
        """
        if not self._options.shared:
            return None
        deadline_ms = _now_ms() + self._options.timeout_ms
        txn = await transport_of(self._client).begin_transaction(self._options.timeout_ms / 1000)
        start: Begun | Probe = Probe(uuid.uuid4().hex)
        if key is not None:
            # Other writes trim the journal. They keep this record, so that tasks can read from it.
            start = Begun(key, DRIVER, str(txn.id), deadline_ms)
        try:
            place = await journal.store(start)
        except BaseException:
            txn.abandon()
            raise
        txn.hand_over()
        return SharedTransaction(str(txn.id), deadline_ms, start, place)

    async def _check_enabled(self, journal: OpenJournal) -> None:
        """Raise `TransactionNotEnabledError` before any task runs, in the first batch."""
        if journal.records.is_empty:
            txn = await self._client.transaction()
            await txn.abort()

    async def commit(
        self,
        key: BatchKey,
        tasks: Sequence[TaskTransaction],
        shared: SharedTransaction | None = None,
        attempts: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """Commit the transactions of a batch.

        Args:
            shared: The one transaction of all tasks, or None.
            attempts: With `shared`, the name of the accepted attempt at each task with rows.

        Raises:
            TransactionAbortedError: if they have ended by their timeout, or the shared one may have
                rows of another attempt; nothing is visible.
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
            if is_new and shared is not None:
                await self._close(journal, key, shared.txn, attempts)
                tasks = [shared_task(tasks)]
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
            await self._discard_unused(journal, shared, ended)
            await journal.trim(ended, _now_ms())
        if prepared is not None:
            await self._topics.trim_markers(prepared)

    async def _close(
        self, journal: OpenJournal, key: BatchKey, txn: str, attempts: Mapping[int, str]
    ) -> None:
        """Let no more attempts into a shared transaction, and check that it has no other rows."""
        await journal.store(Closed(key, txn))
        tasks = spoiled(journal.records.stored, txn, attempts)
        if tasks:
            await self._abort_left(journal, key)
            raise TransactionAbortedError(spoiled_text(key, txn, tasks), txn_id=TxnId.parse(txn))

    async def _discard_unused(
        self, journal: OpenJournal, shared: SharedTransaction | None, ended: set[str]
    ) -> None:
        """Abort a shared transaction that is not prepared, also if no attempt has stored it."""
        if shared is None or shared.txn in ended or journal.records.has_prepared(shared.txn):
            return
        await self.discard(shared)

    async def discard(self, shared: SharedTransaction) -> None:
        """Abort a shared transaction that is not needed, if it is open."""
        try:
            await self.end(shared.txn, commit=False)
        except EncoreError as error:
            log.warning("transaction %s is open until its timeout: %s", shared.txn, error)

    async def abort(self, key: BatchKey | None, shared: SharedTransaction | None = None) -> None:
        """Abort all transactions of a batch that were begun and not prepared, and older ones.

        Args:
            key: None if no task told it; then the newest query of the journal is meant.
            shared: The transaction of the batch if it is known. No task may have stored it.
        """
        async with self._topics.journal() as journal:
            ended: set[str] = set()
            query = journal.records.newest_query()
            if key is None and query is not None:
                key = BatchKey(query, sys.maxsize)
            if key is not None:
                ended = await self._abort_left(journal, key)
            await self._discard_unused(journal, shared, ended)

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
        left = {each.txn for each in journal.records.left_open(key, _now_ms())}
        try:
            await self._end_all(left, commit=False)
        except EncoreError as error:
            if strict:
                raise
            log.warning("transactions of failed attempts are open until their timeout: %s", error)
            return set()
        return left

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
