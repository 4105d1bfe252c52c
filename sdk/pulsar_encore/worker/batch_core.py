"""The rules of a `BatchWorker`: `WorkerCore` with several messages in one handler call. Pure.

A list of one message follows the rules of `WorkerCore`. The failures of single messages in a longer
list do so too. If the whole call failed, any of the messages may be the cause. The list is then
halved for the next attempt, and no message loses an attempt, because nothing is known about it. The
halves wait for the first delay of the backoff, and are not mixed with other messages. Halving ends
at lists of one message, whose failures count.

Trials. While the breaker is open, or the limit of rejections is reached, lists have one message.

Order. Without an order, each message of a list is a running job. With `Order.PARTITION`, only the
head is: the messages behind it stay blocked, and the results of the list are reported one after the
other, as if the messages had run one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import takewhile
from random import Random
from typing import Final

from .breaker import Breaker
from .list_scheduler import ListJob, ListScheduler, MessageList
from .retry_policy import Retry, RetryPolicy, causes_of
from .scheduler import BLOCKED, GONE, LOST, RUNNING
from .worker_core import (
    Action,
    CoreSnapshot,
    DeadLetter,
    Discard,
    Failed,
    Hold,
    Job,
    Lost,
    Order,
    Succeeded,
    WorkerCore,
)

__all__ = ["BatchCore", "ListJob", "MessageList"]

# Messages that are taken to find other partitions while slots are free: as many as a receive queue
# holds by default.
_LOOKAHEAD: Final = 1_000
_SUCCEEDED: Final = Succeeded()
_LOST_CALL: Final = Lost()


class BatchCore(WorkerCore):
    """Decides which messages of a `BatchWorker` start together, and how they are settled.

    Args:
        order: `Order.NONE` or `Order.PARTITION`.
        max_messages: Size of a full list.
        max_wait_ms: A list starts when its oldest message has waited so long.
        is_suspect: Returns True for a message with earlier attempts if it must not be in a list
            with others: it failed alone before, or it may have ended its process.
        concurrency: Lists that run at the same time.
        prefetch: Messages that wait here for a list, beyond those in running lists.
        max_bytes: As for `WorkerCore`. Lists are cut so that running messages stay below.
    """

    def __init__(
        self,
        *,
        order: Order,
        max_messages: int,
        max_wait_ms: int,
        is_suspect: Callable[[ListJob], bool] = lambda job: False,
        concurrency: int,
        prefetch: int,
        max_bytes: int,
        retry: RetryPolicy,
        breaker: Breaker | None,
        reject_limit: int | None,
        rng: Random,
        held_limit: int = 10_000,
    ) -> None:
        super().__init__(
            order=order,
            concurrency=concurrency,
            prefetch=prefetch,
            max_bytes=max_bytes,
            retry=retry,
            breaker=breaker,
            reject_limit=reject_limit,
            rng=rng,
            held_limit=held_limit,
        )
        self._has_order = order is not Order.NONE
        self._max_messages = max_messages
        self._is_suspect = is_suspect
        self._lists = ListScheduler(
            self._has_order, max_messages, max_wait_ms, lambda: self._now_ms
        )
        self._scheduler = self._lists
        self._running_lists = 0
        # Blocked jobs in running lists, behind a head that has not failed or has failed.
        self._behind_running = [0, 0]
        self._has_told_breaker = False

    # Messages

    def received(self, job: Job, now_ms: int) -> DeadLetter | Discard | None:
        assert isinstance(job, ListJob)
        job.since_ms = now_ms
        if job.attempt > 1 and self._is_suspect(job):
            job.is_alone = True
        if not self._has_order and self._verdict_before_call(job, now_ms) is not None:
            job.is_alone = True
        action = super().received(job, now_ms)
        if self._bytes >= self._max_bytes:
            self._lists.start_gathered()  # no further messages come
        return action

    def start_list(self, now_ms: int) -> MessageList | None:
        """Return the list to run now, None if no list may start. The caller has a free slot.

        Call `due_actions` afterwards, as after `start`.
        """
        head = self.start(now_ms)
        if head is None:
            return None
        assert isinstance(head, ListJob)
        jobs = [head]
        if self._has_order:
            if not self._is_trial(head):
                jobs += self._listed_behind(head, now_ms)
        elif head.group is not None:
            if not self._is_trial(head):
                jobs += self._taken_behind(head, now_ms)
            self._lists.leave_group(head)
        messages = MessageList(jobs)
        for job in jobs:
            job.called = True
            job.running_in = messages
            job.started_at = head.started_at
            job.has_proof = 0 < job.outage_at < self._proof
        self._running_lists += 1
        return messages

    def _listed_behind(self, head: ListJob, now_ms: int) -> list[ListJob]:
        """Return the messages of a partition that start with a head. They stay blocked."""
        jobs = []
        is_behind_failed = self._lists.is_held_back(head)
        for job in self._lists.behind(head):
            if self._running_bytes + job.size > self._max_bytes:
                break
            if self._verdict_before_call(job, now_ms) is not None:
                break  # it is settled when it is the head, so that the order is kept
            self._running_bytes += job.size
            job.is_behind_failed = is_behind_failed
            self._behind_running[is_behind_failed] += 1
            jobs.append(job)
        return jobs

    def _taken_behind(self, head: ListJob, now_ms: int) -> list[ListJob]:
        """Return the messages without order that start with a head. They run now."""
        jobs = []
        for job in self._lists.behind(head):
            if self._running_bytes + job.size > self._max_bytes:
                break
            self._lists.take_behind(head, job)
            action = self._verdict_before_call(job, now_ms)
            if action is not None:
                self._put_off(job, action, now_ms)
                continue
            self._running += 1
            self._running_bytes += job.size
            jobs.append(job)
        return jobs

    def _put_off(self, job: Job, action: Action, due_ms: int) -> None:
        if not self._has_order and job.group is not None:
            assert isinstance(job, ListJob)
            self._lists.leave_group(job)  # the others need not wait for its action
        super()._put_off(job, action, due_ms)

    def remove(self, job: Job) -> None:
        assert isinstance(job, ListJob)
        if job.state == BLOCKED and job.running_in is not None:
            self._no_longer_listed(job)
        super().remove(job)

    def _no_longer_listed(self, job: ListJob) -> None:
        self._behind_running[job.is_behind_failed] -= 1
        self._running_bytes -= job.size

    # Results

    def finished_list(
        self, messages: MessageList, error: BaseException | None, now_ms: int, *, lost: bool = False
    ) -> Iterator[tuple[ListJob, Action]]:
        """Note the end of a handler call, and yield the actions that settle the messages.

        The caller carries out each action before it asks for the next. Messages that are removed
        before that get no action.

        Args:
            messages: The list, with the errors of single messages in `MessageList.errors`.
            error: The failure of the whole call, None if the messages without an own error were
                processed.
            lost: True if the call was cancelled because all messages are lost.
        """
        self._now_ms = now_ms
        self._running_lists -= 1
        self._has_told_breaker = False
        for job in messages.jobs:
            if job.running_in is messages and job.state == BLOCKED:
                self._no_longer_listed(job)
            job.running_in = None
        if error is not None and not (self._has_order and messages.errors):
            # A call that was cancelled early has passed nothing. Its messages share the failure.
            known = {*messages.passed, *messages.errors}
            messages.passed.extend(job for job in messages.jobs if job not in known)
        if error is not None and len(messages.passed) == 1:
            # The failure is about this message.
            messages.passed[0].is_alone = True
            messages.errors[messages.passed[0]] = error
            error = None
        if self._has_order:
            yield from self._finish_in_order(messages, error, now_ms, lost)
        else:
            yield from self._finish_all(messages, error, now_ms, lost)

    def _finish_all(
        self, messages: MessageList, error: BaseException | None, now_ms: int, lost: bool
    ) -> Iterator[tuple[ListJob, Action]]:
        errors = messages.errors
        shared = [] if error is None else messages.passed
        failed = [job for job in messages.jobs if job in errors]
        processed = 0
        if error is None:
            for job in messages.jobs:
                if job not in errors:
                    processed += not lost
                    action = self.finished(job, _LOST_CALL if lost else _SUCCEEDED, now_ms)
                    if action is not None:
                        yield job, action
        for job in failed:
            action = self.finished(job, Failed(errors[job]), now_ms)
            if processed:
                # A call that processed messages, too, is no rejection in a row.
                self._rejects.succeeded()
                self._update_trials()
            if action is not None:
                yield job, action
        if error is not None:
            together = [job for job in shared if job not in errors]
            for job in together:
                if job.state == LOST:
                    self.finished(job, _LOST_CALL, now_ms)
            together = [job for job in together if job.state == RUNNING]
            yield from self._fail_together(together, error, now_ms)

    def _finish_in_order(
        self, messages: MessageList, error: BaseException | None, now_ms: int, lost: bool
    ) -> Iterator[tuple[ListJob, Action]]:
        errors = messages.errors
        shared: list[ListJob] = []
        if error is not None:
            shared = list(takewhile(lambda job: job not in errors, messages.passed))
        suspects = set(shared)
        for job in messages.jobs:
            rejection = messages.rejected.get(job)
            if job.state == GONE:
                if job in errors:
                    return  # the handler named it, and settled it
                if rejection is not None:
                    self._rejects.rejected(rejection, now_ms)
                    self._update_trials()
                continue
            if job in suspects and job.state != LOST:
                assert error is not None
                self._begin(job)
                together = [each for each in shared if each.state not in (GONE, LOST)]
                yield from self._fail_together(together, error, now_ms)
                return
            own = errors.get(job)
            self._begin(job)
            if lost or job in suspects:
                action = self.finished(job, _LOST_CALL, now_ms)
            else:
                failure = rejection if own is None else own
                result = _SUCCEEDED if failure is None else Failed(failure)
                action = self.finished(job, result, now_ms)
            if action is not None:
                yield job, action
            if own is not None or job.state != GONE:
                return  # the messages behind it are passed to the handler again

    def _begin(self, job: ListJob) -> None:
        """Let a message be the running head of its partition, after those before it have left."""
        if job.state != RUNNING and job.state != LOST:
            self._lists.take_head(job)
            self._running += 1
            self._running_bytes += job.size

    def _fail_together(
        self, jobs: list[ListJob], error: BaseException, now_ms: int
    ) -> Iterator[tuple[ListJob, Action]]:
        """Halve a list whose call failed. The failure counts once for the breaker, and for no job.

        Args:
            jobs: The messages that are still here, in order. With an order, only the first runs.
        """
        causes = list(causes_of(error))
        kinds = self.retry.reject_kinds
        request = next((each for each in causes if isinstance(each, Retry)), None)
        if (
            self._breaker is not None
            and request is None
            and not any(isinstance(each, kinds) for each in causes)
            and self._breaker.options.matches(error)
        ):
            self._tell_breaker(error, now_ms, False)
            self._events += 1
            for job in jobs:
                job.outage_at = self._events
        middle = (len(jobs) + 1) // 2
        halves = [half for half in (jobs[:middle], jobs[middle:]) if half]
        due_ms = [now_ms + self._delay_ms(request) for _ in halves]
        for half, due in zip(halves, due_ms, strict=True):
            for job in half:
                if job.state == RUNNING:
                    self._running -= 1
                    self._running_bytes -= job.size
            self._wait(half, due)
        self._update_trials()
        for half, due in zip(halves, due_ms, strict=True):
            for job in half:
                yield job, Hold(due, False, error)

    def _delay_ms(self, request: Retry | None) -> int:
        if request is not None and request.delay_ms is not None:
            return request.delay_ms
        return self.retry.delays.delay_ms(0, self._rng)

    def _wait(self, half: list[ListJob], due_ms: int) -> None:
        if len(half) == 1:
            half[0].is_alone = True
        if self._has_order:
            part = object()
            for job in half:
                job.part = part
                job.is_retry = True
            if half[0].state == RUNNING:
                self._lists.wait(half[0], due_ms)
        elif len(half) == 1:
            self._lists.wait(half[0], due_ms)
        else:
            self._lists.wait_as_list(half, due_ms)

    def _tell_breaker(self, error: BaseException, now_ms: int, is_trial: bool) -> None:
        if not self._has_told_breaker:
            self._has_told_breaker = True
            super()._tell_breaker(error, now_ms, is_trial)

    # Flow

    def demand(self) -> int:
        scheduler = self._lists
        if self._is_paused or scheduler.trials or self._bytes >= self._max_bytes:
            return super().demand()
        waiting = scheduler.unstarted + scheduler.behind_healthy
        limit = self._prefetch
        if self._has_order:
            waiting -= self._behind_running[False]
            if self._running_lists + scheduler.startable < self._concurrency:
                limit = max(limit, _LOOKAHEAD)
        room = min(self._held_limit - self._held_back(), limit - waiting)
        if room > 1 and self._mean_size > 1:
            room = min(room, max(1, int((self._max_bytes - self._bytes) / self._mean_size)))
        return max(0, room)

    def _held_back(self) -> int:
        return super()._held_back() - self._behind_running[True]

    def next_wake_ms(self, now_ms: int) -> int | None:
        wake_ms = super().next_wake_ms(now_ms)
        list_ms = None if self._is_paused else self.list_due_ms()
        if list_ms is None or (wake_ms is not None and wake_ms <= list_ms):
            return wake_ms
        return list_ms

    def list_due_ms(self) -> int | None:
        """Return when the next list starts that is not full, None if there is none."""
        return self._lists.gathering.next_due()

    def snapshot(self) -> CoreSnapshot:
        """Return the counts. Messages that wait for a list are ready."""
        found = super().snapshot()
        if self._has_order:
            return replace(
                found,
                running=found.running + sum(self._behind_running),
                blocked=found.blocked - sum(self._behind_running),
                held_back=found.held_back - self._behind_running[True],
            )
        return replace(
            found,
            ready=found.ready + self._lists.behind_healthy,
            waiting=found.waiting + self._lists.behind_failed,
            blocked=0,
            held_groups=0,
            held_group_examples=(),
        )
