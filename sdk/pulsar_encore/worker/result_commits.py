"""The transactions of a worker: results of handlers and the acks of their messages, in groups.

`CommitQueue` decides which messages share a transaction. No handler runs in one, so a transaction
is short. `transaction_group` says which groups can be tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..consumer.consumer import begin_acks
from ..errors import EncoreError, NotSupportedError
from ..eventloop.alarm import Alarm, now_ms
from ..transaction import need_transport_transaction
from ..transaction_group import GroupEnd, GroupResult, commit_group
from ..values.backoff import FailureReports
from .commit_queue import CommitQueue, Handled, Transactional
from .outbox import Outbox, Prepared
from .scheduler import Job
from .transaction_journal import TransactionJournal

if TYPE_CHECKING:
    from ..client import Client
    from ..consumer.consumer import Consumer
    from ..transaction import Transaction
    from ..values.transaction_id import TxnId

# If its message is settled already, no handler makes a result again.
_TRIES_WITHOUT_MESSAGE: Final = 5


class ResultCommits:
    """Commits the results of one worker.

    Args:
        is_ordered: The worker has an order, which commits keep.
        state_directory: Where the ids of open transactions are stored, or None.
        committed: Called with the messages of a committed group.
        not_stored: Called with a message whose results cannot be stored, and the error. Returns
            when they are tried again, in ms on the loop's clock; None if they are dropped, and the
            message is settled another way.
        given_up: Called with messages that the worker does not hold any more, or that come again.
        come_again: Called after a group of an ordered worker whose messages may come again, so that
            the later messages of the topics come again too, behind them.
        changed: Called after the end of each group: there may be room for more results.
        broken: Called with an error after which the worker cannot go on.
    """

    def __init__(
        self,
        client: Client,
        consumer: Consumer[Any],
        outbox: Outbox,
        options: Transactional,
        *,
        is_ordered: bool,
        state_directory: Path | None,
        name: str,
        log: logging.Logger,
        committed: Callable[[Sequence[Job]], None],
        not_stored: Callable[[Job, Exception], int | None],
        given_up: Callable[[Sequence[Job]], None],
        come_again: Callable[[], None],
        changed: Callable[[], None],
        broken: Callable[[BaseException], None],
    ) -> None:
        self._client = client
        self._consumer = consumer
        self._outbox = outbox
        self._timeout_s = options.timeout
        self._is_ordered = is_ordered
        self._name = name
        self._log = log
        self._committed = committed
        self._not_stored = not_stored
        self._given_up = given_up
        self._come_again = come_again
        self._changed = changed
        self._broken = broken
        self._loop = asyncio.get_running_loop()
        self._queue = CommitQueue(options, is_ordered=is_ordered)
        self._journal = TransactionJournal(state_directory, name, log)
        self._alarm = Alarm(self._loop)
        self._alarm.start(self._ring)
        self._tasks: set[asyncio.Task[None]] = set()
        self._drained: asyncio.Future[None] | None = None
        self._is_closed = False
        # Since when results wait without a commit; None if none do.
        self._stalled_since_s: float | None = None
        self._last_error: Exception | None = None
        self._reports: FailureReports | None = None  # of begins that failed in a row

    @property
    def bytes(self) -> int:
        """Size of the results that are not committed."""
        return self._queue.bytes

    def stall(self) -> str | None:
        """Return why results wait for long without a commit; None if they do not."""
        if self._stalled_since_s is None or self._queue.is_idle:
            return None
        elapsed_s = self._loop.time() - self._stalled_since_s
        if elapsed_s < 2 * self._timeout_s:
            return None
        return (
            f"no results were committed for {elapsed_s:.0f} s, and some wait: "
            f"{self._last_error or 'the transaction has not ended yet'}"
        )

    def add(self, job: Job | None, results: Sequence[Prepared], group: Any = None) -> None:
        """Commit the results of a handler, and with them the ack of its message.

        Args:
            job: None if the handler has settled the message itself.
        """
        size = sum(each.size for each in results)
        if self._stalled_since_s is None:
            self._stalled_since_s = self._loop.time()
        self._queue.add(Handled(job, results, size, group, now_ms(self._loop)))
        self._pump()

    # Groups

    def _pump(self) -> None:
        if self._is_closed:
            return
        flush = self._drained is not None
        now = now_ms(self._loop)
        while (group := self._queue.take(now, self._is_live, flush=flush)) is not None:
            self._in_task(self._commit(group))
        self._alarm.at(self._queue.next_due_ms(now, flush=flush))
        if self._drained is not None and self._queue.is_idle and not self._drained.done():
            self._drained.set_result(None)

    def _ring(self, now: int) -> int | None:
        self._pump()
        return None

    def _in_task(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        self._is_closed = True
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._broken(error)

    def _is_live(self, handled: Handled) -> bool:
        """Return False for a message that another consumer has now, or that comes again."""
        if handled.job is None or self._consumer.holds(handled.job.message):
            return True
        self._given_up((handled.job,))
        self._loop.call_soon(self._changed)
        return False

    async def _commit(self, group: list[Handled]) -> None:
        begun: list[Transaction] = []
        has_ended = asyncio.Event()

        def ended(txn_id: TxnId, _: bool) -> None:
            has_ended.set()
            self._journal.ended(txn_id)

        async def begin() -> Transaction:
            txn = await self._client.transaction(self._timeout_s)
            begun.append(txn)
            need_transport_transaction(txn).when_ended(partial(ended, txn.id))
            self._journal.begun(txn.id, self._timeout_s)
            return txn

        results = [each for handled in group for each in handled.results]
        messages = [each.job.message for each in group if each.job is not None]
        send = partial(self._outbox.store_in, messages=results)
        result = await commit_group(begin, send, partial(self._ack, messages))
        if not begun:
            self._on_not_begun(group, result.error)
        else:
            self._reports = None
            await self._on_end(group, result, has_ended)
        self._last_error = result.error
        if self._queue.is_idle:
            self._stalled_since_s = None
        elif result.end is GroupEnd.COMMITTED:
            self._stalled_since_s = self._loop.time()
        self._pump()
        self._changed()

    def _ack(self, messages: Sequence[Any], txn: Transaction) -> None:
        if messages:
            for each in begin_acks(self._consumer, messages, txn):
                each.add_done_callback(_retrieve)  # the commit raises its error

    async def _on_end(
        self, group: list[Handled], result: GroupResult, has_ended: asyncio.Event
    ) -> None:
        jobs = [each.job for each in group if each.job is not None]
        if result.end is GroupEnd.COMMITTED:
            self._outbox.published += sum(len(each.results) for each in group)
            self._committed(jobs)
            self._queue.ended(group)
        elif result.end is GroupEnd.STILL_HELD:
            self._on_still_held(group, result.error)
        else:
            self._log.warning(
                "worker %s: the results of %d messages %s; the messages come again if they were "
                "not committed: %s",
                self._name,
                len(group),
                "were aborted" if result.end is GroupEnd.COMES_AGAIN else "were perhaps aborted",
                result.error,
            )
            self._given_up(jobs)
            if self._is_ordered:
                # Until its end at the cluster, the broker keeps them from all consumers, and
                # later messages would be committed before them.
                await has_ended.wait()
                self._come_again()
            self._queue.aborted(group, now_ms(self._loop))
            for each in group:
                if each.job is not None:
                    continue
                # Its message does not come again.
                if result.end is GroupEnd.COMES_AGAIN:
                    self._queue.add(each)
                else:
                    self._log.error(
                        "worker %s: results of a message that its handler settled were committed, "
                        "or are lost: sent again, they could be doubled: %s",
                        self._name,
                        result.error,
                    )

    def _on_not_begun(self, group: list[Handled], error: Exception | None) -> None:
        if isinstance(error, NotSupportedError):
            self._end(error)
            return
        now_s = self._loop.time()
        self._reports = self._reports or FailureReports()
        if self._reports.failed(now_s):
            self._log.warning(
                "worker %s: no transaction can begin, trying again for %.0f s: %s",
                self._name,
                self._reports.elapsed_s(now_s),
                error,
            )
        self._queue.not_begun(group, now_ms(self._loop))

    def _on_still_held(self, group: list[Handled], error: Exception | None) -> None:
        handled = self._queue.not_committed(group)
        if handled is None:
            self._log.debug("worker %s: a group failed, and is halved: %s", self._name, error)
            return
        job = handled.job
        due_ms: int | None = None
        if job is None:
            if handled.tries < _TRIES_WITHOUT_MESSAGE:
                due_ms = now_ms(self._loop) + 1_000 * 2**handled.tries
            else:
                self._log.error(
                    "worker %s: results of a message that its handler settled are lost: %s",
                    self._name,
                    error,
                )
        elif self._consumer.holds(job.message):
            due_ms = self._not_stored(job, error or EncoreError("no reason is known"))
        else:
            self._given_up((job,))
        if due_ms is not None:
            self._queue.wait(handled, due_ms)
        else:
            self._queue.done(handled)

    # The end

    async def flush(self, within_s: float) -> None:
        """Commit what has been added, for at most `within_s`."""
        if self._is_closed:
            return
        self._drained = self._loop.create_future()
        self._pump()
        await asyncio.wait((self._drained,), timeout=within_s)

    def close(self) -> None:
        """Commit nothing more. A commit goes on in the background if its acks have left."""
        self._is_closed = True
        self._alarm.close()
        self._journal.close()
        for task in self._tasks:
            task.cancel()


def _retrieve(acked: asyncio.Future[None]) -> None:
    if not acked.cancelled():
        acked.exception()
