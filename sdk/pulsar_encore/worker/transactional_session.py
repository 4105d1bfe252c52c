"""A running transactional worker: results and acks take effect together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ..consumer.consumer import was_acked
from ..errors import EncoreError
from ..eventloop.alarm import now_ms
from ..message import has_siblings
from .drain_deadline import DrainDeadline
from .health import Health
from .outbox import Outgoing, Prepared
from .result_commits import ResultCommits
from .scheduler import COMMITTING, GONE, RUNNING, Order
from .slots import Result as SlotResult
from .worker_core import Ack, Failed, Hold, Job, Lost, Succeeded
from .worker_session import SUCCEEDED, Session

_ACK: Final = Ack()
_AGAIN_MS: Final = 5_000  # before the results of a message are tried again during a drain


class TransactionalSession(Session):
    """A session that commits the results of handlers in transactions (see `result_commits`).

    A slot is free when its handler has returned. Its message is then committing in the core.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        client, options = args[0], self._options
        assert options.transactions is not None
        # Of handlers that have returned, until their end is noted.
        self._results: dict[Job, list[Prepared]] = {}
        self._commits = ResultCommits(
            client,
            self.consumer,
            self._outbox,
            options.transactions,
            is_ordered=self.order is not Order.NONE,
            state_directory=None if options.state is None else Path(options.state.path),
            name=self._name,
            log=self._log,
            committed=self._committed,
            not_stored=self._not_stored,
            given_up=self._given_up,
            come_again=self._come_again,
            changed=self.update,
            broken=self._failed,
        )

    def _next_job(self) -> Job | None:
        # Else results of any size would wait here for a broker that is away.
        return None if self._commits.bytes >= self._options.max_bytes else super()._next_job()

    async def _store(self, job: Job, results: Sequence[Outgoing]) -> None:
        self._results[job] = await self._outbox.prepare(results)

    def _finished(self, job: Job, result: SlotResult) -> None:
        super()._finished(job, result)
        self._results.pop(job, None)

    def _acked(self, job: Job) -> bool:
        return self._begin_commit(job) or super()._acked(job)

    def _begin_commit(self, job: Job) -> bool:
        """Leave a processed message to its transaction; return False if it does not need one.

        A message without results needs none, but all messages of a batch are acked in one way.
        """
        results = self._results.get(job)
        if not results and not has_siblings(job.message):
            return False
        if (
            job.state != RUNNING
            or job in self._verdicts
            or job in self._detached
            or not self.consumer.holds(job.message)
        ):
            return False
        now = int(self._clock() * 1000)
        self.core.handled(job, now)
        if self._writes_attempts:
            self._end_attempt(job)
        self._commits.add(job, results or (), job.group)
        if self.on_outcome is not None:
            self.on_outcome(self._outcome(job.message, job.attempt, _ACK, SUCCEEDED, now))
        if self._calls is not None:
            self._calls.acked(job)
        self._make_room()
        if self._limit_log.in_force:
            self._limit_log.note(self.core)
        return True

    def _end_attempt(self, job: Job) -> None:
        """Note in the state that the handler did not end the process."""
        try:
            self.consumer.end_attempt(job.message)
        except EncoreError as error:
            self._log.error(
                "worker %s: the end of the attempt at %r is not recorded: %s",
                *(self._name, job, error),
            )

    def _on_settled_by_handler(
        self, job: Job, outcome: Succeeded | Failed | Lost, verdict: Failed | Lost | None
    ) -> None:
        results = self._results.get(job)
        if not results or outcome is not SUCCEEDED:
            return
        # Otherwise it came again, for example after the abort of others, and has its results then.
        if job in self._detached or verdict is not None or was_acked(self.consumer, job.message):
            self._commits.add(None, results, job.group)

    # The ends of transactions

    def _committed(self, jobs: Sequence[Job]) -> None:
        now = now_ms(self._loop)
        for job in jobs:
            self._succeeded += 1
            self.core.committed(job, now)

    def _not_stored(self, job: Job, error: Exception) -> int | None:
        """Decide what follows if the results of a message cannot be stored.

        Returns:
            When they are tried again; None if they are dropped.
        """
        if job.state != COMMITTING:  # its topic went to another consumer
            return None
        now, message, attempt = now_ms(self._loop), job.message, job.attempt
        if self.stopping.is_set() and not self._rejects(error):
            self._note_failure_in_drain(job, error)
            return now + _AGAIN_MS
        # The broker would redeliver the whole batch for one nack, also to other consumers.
        job.waits_here = job.waits_here or has_siblings(message)
        self._counts["failed"] += 1
        action = self.core.not_committed(job, error, now)
        self._note_retry(message, attempt, action, now)
        self._act(job, action)
        self._limit_log.note(self.core)
        return action.due_ms if isinstance(action, Hold) else None

    def _given_up(self, jobs: Sequence[Job]) -> None:
        """Forget messages that this worker does not hold any more, or that will come again."""
        for job in jobs:
            if job.state != GONE:
                self._counts["lost"] += 1
                self.core.remove(job)

    def _come_again(self) -> None:
        """Have all messages delivered again, in order, behind those of an aborted transaction."""
        try:
            for job in self.core.jobs():
                if self.consumer.holds(job.message):
                    self.consumer.release(job.message)  # so that no attempt is counted
            self.consumer.redeliver_unacknowledged_messages()
        except EncoreError as error:  # the worker is being closed
            self._log.debug("worker %s: not redelivered: %s", self._name, error)

    def health(self, state: str) -> Health:
        found, stall = super().health(state), self._commits.stall()
        return found if stall is None else replace(found, reasons=(*found.reasons, stall))

    # The end

    async def _flush_results(self, deadline: DrainDeadline) -> None:
        await self._commits.flush(deadline.flush_left_s())

    def _end_results(self) -> None:
        self._commits.close()
