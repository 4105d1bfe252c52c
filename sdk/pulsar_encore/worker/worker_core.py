"""The rules of a worker as one state machine. Pure: times are arguments, and nothing is awaited.

A job is one received message. It is ready, running, waiting in place, blocked behind another job of
its group, or settling. `WorkerCore.finished` maps the result of a handler call to an action that
the shell performs. The job stays, and blocks its group, until the shell reports that the action is
done. In a transactional worker, a job is committing after the return of its handler: it stays until
its transaction is committed, but the next job of its group may start.

Attempts. A failed attempt counts, except for `Retry(count=False)` and for failures of a breaker's
kinds without proof that the dependency was there. The proof is another message that started after
the previous such failure of this message, and was processed before this call started. Calls that
started earlier prove nothing, because they may have had their answer before the dependency went
away. Calls that ended later prove nothing either: they may have hung until the dependency was back.
So the first such failure of a message never counts, and no failure within one outage.

Trials. While the breaker is open, or the limit of rejections is reached, single messages start as
trials. Both share the trials: a trial starts when all that stop the worker allow it. Messages that
were not tried yet come first, then a new message, then the message that was tried longest ago.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

from ..letters.evidence import text_of
from .breaker import Breaker, BreakerState
from .reject_streak import TRIAL_PAUSE_MS, RejectStreak
from .retry_policy import Retry, RetryPolicy, causes_of
from .scheduler import (
    COMMITTING,
    GONE,
    LOST,
    NEW,
    RUNNING,
    SETTLING,
    STATE_NAMES,
    UNSETTLED,
    DueJobs,
    Job,
    Order,
    Scheduler,
)

__all__ = [
    "Ack",
    "Action",
    "CoreSnapshot",
    "DeadLetter",
    "Discard",
    "Failed",
    "Hold",
    "Job",
    "Lost",
    "Nack",
    "Order",
    "Result",
    "RetryLetter",
    "Succeeded",
    "WorkerCore",
]

# A trial waits this long for a message that was not tried yet.
_NEW_MESSAGE_WAIT_MS: Final = 1_000
# Blocked messages of healthy groups that are taken to find other groups while slots are free: as
# many as a receive queue holds by default.
_LOOKAHEAD: Final = 1_000
_EXAMPLES: Final = 10
_MEAN_WEIGHT: Final = 16  # of earlier sizes, for the mean size of a message


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned, and its results are stored."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised an error, or took longer than its timeout (`TimeoutError`)."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Lost:
    """The call was cancelled, or the consumer no longer holds the message. Nothing is settled."""


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledge the message."""


@dataclass(frozen=True, slots=True)
class Nack:
    """Negatively acknowledge the message, and count the attempt."""

    delay_ms: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class RetryLetter:
    """Send the message to the retry letter topic, and count the attempt."""

    delay_ms: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Send the message to the dead letter topic.

    Attributes:
        path: How it failed, for the property ENCORE_REASON: "reject", "attempts" or "max_age".
    """

    reason: str
    error: BaseException | None
    path: str = "reject"


@dataclass(frozen=True, slots=True)
class Discard:
    """Acknowledge the message and count it as discarded: the policy has no dead letters."""

    reason: str
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep the message until its next call. The core has scheduled it already.

    Attributes:
        due_ms: Earliest start of the next call.
        counted: True if the attempt counts; the shell then calls `Consumer.fail_in_place`.
        error: The failure.
    """

    due_ms: int
    counted: bool
    error: BaseException


Result: TypeAlias = Succeeded | Failed | Lost
Action: TypeAlias = Ack | Nack | RetryLetter | DeadLetter | Discard | Hold

_ACK: Final = Ack()


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSnapshot:
    """The counts of a worker's core.

    Attributes:
        ready: Jobs that may start.
        running: Jobs with a handler call, including calls for lost messages.
        waiting: Jobs that wait for the due time of their next call, or for the end of the trials.
        blocked: Jobs behind another job of their group.
        settling: Jobs with an action that is not done.
        unsettled: Jobs with an action that failed and is due later.
        committing: Jobs between the return of their handler and the commit.
        bytes: Total size of all jobs.
        held_back: Jobs that cannot start because of a failure: waiting, behind a failed job of
            their group, or unsettled.
        held_groups: Number of groups with a failed head.
        held_group_examples: Up to 10 of these groups, the longest held back first.
        is_paused: True between `pause` and `resume`.
        is_breaker_open: True if only probes start.
        breaker_error: The latest failure of the breaker's kinds since the last success.
        failures_in_row: Such failures in a row.
        rejects_in_row: Rejections since the last success.
        is_reject_limit_reached: True if rejected messages are kept, and only trials start.
        reject_error: The latest rejection since the last success.
    """

    ready: int
    running: int
    waiting: int
    blocked: int
    settling: int
    unsettled: int
    committing: int
    bytes: int
    held_back: int
    held_groups: int
    held_group_examples: tuple[Hashable, ...]
    is_paused: bool
    is_breaker_open: bool
    breaker_error: BaseException | None
    failures_in_row: int
    rejects_in_row: int
    is_reject_limit_reached: bool
    reject_error: BaseException | None


class WorkerCore:
    """Decides which message of a worker starts, and how the result of its call is settled.

    All times are in ms since the epoch, and do not go back.

    Args:
        order: Groups of jobs start one job at a time; with `Order.NONE`, jobs have no group.
        concurrency: Slots of the worker.
        prefetch: Messages that are ready beyond those in slots.
        max_bytes: No messages are taken while the jobs have this size. A larger message runs alone.
        retry: The rules for failed messages.
        breaker: None if failures never stop the worker.
        reject_limit: Rejections in a row that stop the worker; None for no limit.
        rng: Source of the jitter of delays.
        held_limit: No messages are taken while this many are held back.
    """

    def __init__(
        self,
        *,
        order: Order,
        concurrency: int,
        prefetch: int,
        max_bytes: int,
        retry: RetryPolicy,
        breaker: Breaker | None,
        reject_limit: int | None,
        rng: Random,
        held_limit: int = 10_000,
    ) -> None:
        self.order: Order = order
        self.retry: RetryPolicy = retry
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._max_bytes = max_bytes
        self._held_limit = held_limit
        self._rng = rng
        self._has_max_age = retry.max_age_ms is not None
        self._breaker = None if breaker is None else BreakerState(breaker)
        self._rejects = RejectStreak(reject_limit)
        self._scheduler = Scheduler()
        self._actions = DueJobs()  # of jobs in the state UNSETTLED
        self._jobs: dict[Job, None] = {}  # all but GONE and LOST
        self._running = 0
        self._lost = 0  # of the running jobs
        self._settling = 0
        self._committing = 0
        self._bytes = 0
        self._running_bytes = 0
        self._mean_size = 0.0
        self._events = 0  # starts and failures by outages; gives them an order
        self._proof = 0  # event of the latest start of a message that was processed
        self._taken_for_trial = 0  # received since the last trial began, or a job left
        self._is_paused = False
        self._now_ms = 0

    # Messages

    def received(self, job: Job, now_ms: int) -> DeadLetter | Discard | None:
        """Add a message; return an action if it must be settled without a call.

        A message with such an action is settling.
        """
        assert job.state == NEW, f"the job is {STATE_NAMES[job.state]}"
        self._now_ms = now_ms
        self._jobs[job] = None
        self._bytes += job.size
        self._mean_size += (job.size - self._mean_size) / _MEAN_WEIGHT
        self._taken_for_trial += 1
        is_ready = self._scheduler.add(job)
        # A blocked message is checked when it would start, so that its group stays in order.
        if is_ready and (job.is_attempt_exact or self._has_max_age):
            action = self._verdict_before_call(job, now_ms)
            if action is not None:
                self._scheduler.take(job)
                self._settle(job, action)
                return action
        return None

    def start(
        self, now_ms: int, remove_paused: Callable[[Job, int], bool] | None = None
    ) -> Job | None:
        """Return the job to run now, None if no job may start. The caller has a free slot.

        Call `due_actions` afterwards: a message that became too old is not returned here.

        Args:
            remove_paused: Called with (job, now_ms) before a job starts. Returns False if it may
                start, and True if its topic is paused and it was removed.
        """
        self._now_ms = now_ms
        scheduler = self._scheduler
        scheduler.release_due(now_ms)
        if self._is_paused:
            return None
        is_trial = bool(scheduler.trials)
        due_ms = self._trial_due_ms() if is_trial else 0
        if now_ms < due_ms:
            return None
        while True:
            job = scheduler.next_job()
            if job is None and is_trial and now_ms >= due_ms + _NEW_MESSAGE_WAIT_MS:
                job = scheduler.next_set_aside()
            if job is None:
                return None
            if remove_paused is not None and remove_paused(job, now_ms):
                continue
            if not (job.is_attempt_exact or self._has_max_age):
                break
            action = self._verdict_before_call(job, now_ms)
            if action is None:
                break
            scheduler.take(job)
            self._put_off(job, action, now_ms)
        if self._running_bytes and self._running_bytes + job.size > self._max_bytes:
            return None  # it keeps its turn until enough running jobs have ended
        scheduler.take(job)
        if is_trial:
            job.tried_in = scheduler.trials
            self._trial_started(now_ms)
        job.called = True
        self._running += 1
        self._running_bytes += job.size
        if job.outage_at:
            job.has_proof = job.outage_at < self._proof
        self._events += 1
        job.started_at = self._events
        return job

    def finished(self, job: Job, result: Result, now_ms: int) -> Action | None:
        """Note the end of a handler call, and return the action that settles the message.

        Returns None if the message was lost, or removed during the call: it leaves. Its result
        still counts for the breaker and for rejections in a row.
        """
        state = job.state
        assert state == RUNNING or state == LOST, f"the job is {STATE_NAMES[state]}"
        self._now_ms = now_ms
        self._running -= 1
        self._running_bytes -= job.size
        action: Action | None = None
        if type(result) is Succeeded:
            self._succeeded(job)
            action = _ACK
        elif type(result) is Failed:
            action = self._failed(job, result.error, now_ms)
        elif self._breaker is not None and self._is_trial(job):
            self._breaker.probe_said_nothing(now_ms)
        if state == LOST or action is None:
            if state == LOST:
                self._lost -= 1
            self._leave(job)
            action = None
        elif type(action) is Hold:
            job.attempt += action.counted
            self._scheduler.wait(job, action.due_ms)
        else:
            self._settle(job, action)
        self._update_trials()
        return action

    def acked(self, job: Job, now_ms: int) -> None:
        """Note a handler call that has succeeded, and whose message is acked already.

        It is the short form of `finished` and `settled` for nearly every message.
        """
        assert job.state == RUNNING, f"the job is {STATE_NAMES[job.state]}"
        self._now_ms = now_ms
        self._running -= 1
        self._running_bytes -= job.size
        self._succeeded(job)
        self._leave(job)
        if self._scheduler.trials:
            self._update_trials()

    def handled(self, job: Job, now_ms: int) -> None:
        """Note a handler call that has succeeded; its results wait for their transaction.

        The next job of its group may start.
        """
        assert job.state == RUNNING, f"the job is {STATE_NAMES[job.state]}"
        self._now_ms = now_ms
        self._running -= 1
        self._running_bytes -= job.size
        self._succeeded(job)
        self._scheduler.leave(job)
        job.has_left_group = True
        job.state = COMMITTING
        self._committing += 1
        self._taken_for_trial = 0
        if self._scheduler.trials:
            self._update_trials()

    def committed(self, job: Job, now_ms: int) -> None:
        """The transaction of a job is committed: the job leaves. No effect for a removed job."""
        self._now_ms = now_ms
        if job.state != GONE:
            assert job.state == COMMITTING, f"the job is {STATE_NAMES[job.state]}"
            self._committing -= 1
            self._leave(job)

    def not_committed(self, job: Job, error: BaseException, now_ms: int) -> Action:
        """The results of a job cannot be stored, which is a failed attempt.

        Returns:
            `Hold` to try the same results again at its time; the job is still committing. Another
            action settles the message, and then the job is settling.
        """
        assert job.state == COMMITTING, f"the job is {STATE_NAMES[job.state]}"
        self._now_ms = now_ms
        if job.outage_at:
            job.has_proof = job.outage_at < self._proof
        action = self._failed(job, error, now_ms)
        if type(action) is Hold:
            job.attempt += action.counted
        else:
            self._committing -= 1
            self._settle(job, action)
        self._update_trials()
        return action

    def settled(self, job: Job, now_ms: int) -> None:
        """The action of a job is done: the job leaves. Without effect for a removed job."""
        self._now_ms = now_ms
        if job.state != GONE:
            assert job.state == SETTLING, f"the job is {STATE_NAMES[job.state]}"
            self._settling -= 1
            self._leave(job)

    def not_settled(self, job: Job, due_ms: int) -> None:
        """The action of a job failed; `due_actions` returns it again from `due_ms` on.

        Without effect for a removed job.
        """
        if job.state != GONE:
            assert job.state == SETTLING, f"the job is {STATE_NAMES[job.state]}"
            self._settling -= 1
            self._put_off(job, job.action, due_ms)

    def due_actions(self, now_ms: int) -> list[tuple[Job, Action]]:
        """Return the actions that are due. Their jobs are settling from now on."""
        self._now_ms = now_ms
        due: list[tuple[Job, Action]] = []
        while (job := self._actions.pop(now_ms)) is not None:
            self._settle(job, job.action)
            due.append((job, job.action))
        return due

    def remove(self, job: Job) -> None:
        """Remove a job in any state: its message is lost, detached, or settled by the handler.

        A running job occupies its slot and its group until `finished`, so that no two handlers work
        for one group. Without effect for a job that has left.
        """
        if job.state == RUNNING:
            job.state = LOST
            self._lost += 1
            del self._jobs[job]
        elif job.state != LOST and job.state != GONE:
            if job.state == SETTLING:
                self._settling -= 1
            elif job.state == UNSETTLED:
                self._actions.discard(job)
            elif job.state == COMMITTING:
                self._committing -= 1
            self._leave(job)

    def keep(self, may_start: Callable[[Job], bool]) -> list[Job]:
        """Remove the jobs that wait for a call and may not start any more, and return them.

        Jobs behind a removed job of their group may not start either.
        """
        removed: list[Job] = []
        groups: set[Hashable] = set()
        for job in self._jobs:
            if job.state in (RUNNING, SETTLING, UNSETTLED, COMMITTING):
                continue
            if job.group in groups or not may_start(job):
                removed.append(job)
                if job.group is not None:
                    groups.add(job.group)
        for job in reversed(removed):
            self.remove(job)
        return removed

    # Flow

    def demand(self) -> int:
        """Return how many more messages the worker may take now, 0 or more.

        The time is that of the latest call with a time. While trials run, the answer is 1 if a
        trial is due and each ready message was tried.
        """
        if self._is_paused or self._bytes >= self._max_bytes:
            return 0
        scheduler = self._scheduler
        room = self._held_limit - self._held_back()
        if scheduler.trials:
            return 1 if room > 0 and self._needs_message() else 0
        room = min(room, self._prefetch - scheduler.unstarted)
        behind = scheduler.behind_healthy
        if behind:
            if self._running + scheduler.ready < self._concurrency:
                room = min(room, _LOOKAHEAD - behind)
            else:
                room -= behind
        if room > 1 and self._mean_size > 1:
            room = min(room, max(1, int((self._max_bytes - self._bytes) / self._mean_size)))
        return max(0, room)

    def next_wake_ms(self, now_ms: int) -> int | None:
        """Return when `start`, `due_actions` or `demand` may change by time alone.

        None if they cannot. `now_ms` if an action is due already.
        """
        self._now_ms = now_ms
        scheduler = self._scheduler
        scheduler.release_due(now_ms)
        times: list[int | None] = [self._actions.next_due()]
        if not self._is_paused:
            times.append(scheduler.waiting.next_due())
            if scheduler.trials:
                due_ms = self._trial_due_ms()
                if now_ms < due_ms:
                    times.append(due_ms)
                elif now_ms < due_ms + _NEW_MESSAGE_WAIT_MS:
                    times.append(due_ms + _NEW_MESSAGE_WAIT_MS)
        later = [each for each in times if each is not None]
        return max(now_ms, min(later)) if later else None

    def pause(self) -> None:
        """Start no more jobs and take no more messages. Running jobs end, actions stay due."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False

    # Views

    @property
    def is_breaker_open(self) -> bool:
        return self._breaker is not None and self._breaker.is_open

    @property
    def is_reject_limit_reached(self) -> bool:
        return self._rejects.is_reached

    @property
    def takes_nothing(self) -> bool:
        """True while paused, while trials run, or with `max_bytes` of messages."""
        return self._is_paused or self._bytes >= self._max_bytes or self._scheduler.trials > 0

    @property
    def has_ready(self) -> bool:
        """True if a message can start as soon as a slot is free."""
        return self._scheduler.has_ready

    @property
    def running(self) -> int:
        """Number of handler calls, including those for lost messages."""
        return self._running

    def jobs(self) -> Iterable[Job]:
        """Return all jobs in the order of their arrival, without removed jobs."""
        return list(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    def snapshot(self) -> CoreSnapshot:
        scheduler, breaker, rejects = self._scheduler, self._breaker, self._rejects
        return CoreSnapshot(
            ready=scheduler.ready,
            running=self._running,
            waiting=len(scheduler.waiting) + scheduler.set_aside,
            blocked=scheduler.blocked,
            settling=self._settling,
            unsettled=len(self._actions),
            committing=self._committing,
            bytes=self._bytes,
            held_back=len(scheduler.waiting)
            + scheduler.set_aside
            + scheduler.behind_failed
            + len(self._actions),
            held_groups=scheduler.held_back,
            held_group_examples=tuple(scheduler.held_back_groups(_EXAMPLES)),
            is_paused=self._is_paused,
            is_breaker_open=self.is_breaker_open,
            breaker_error=None if breaker is None else breaker.error,
            failures_in_row=0 if breaker is None else breaker.failures_in_row,
            rejects_in_row=rejects.in_row,
            is_reject_limit_reached=rejects.is_reached,
            reject_error=rejects.error,
        )

    # Results

    def _succeeded(self, job: Job) -> None:
        if job.started_at > self._proof:
            self._proof = job.started_at
        if self._rejects.in_row:
            self._rejects.succeeded()
        breaker = self._breaker
        if breaker is not None and breaker.error is not None:  # a failure since the last success
            breaker.succeeded(was_probe=self._is_trial(job))

    def _failed(self, job: Job, error: BaseException, now_ms: int) -> Action:
        """Decide about a failure. The caller drops the action if the message is lost."""
        causes = list(causes_of(error))
        breaker, is_trial = self._breaker, self._is_trial(job)
        kinds = self.retry.reject_kinds
        rejection = next((each for each in causes if isinstance(each, kinds)), None)
        request = next((each for each in causes if isinstance(each, Retry)), None)
        is_outage = (
            breaker is not None
            and rejection is None
            and request is None
            and breaker.options.matches(error)
        )
        if breaker is not None:
            if is_outage:
                self._tell_breaker(error, now_ms, is_trial)
            elif is_trial:
                breaker.probe_said_nothing(now_ms)
        if is_outage:
            self._events += 1
            job.outage_at = self._events
        if rejection is not None:
            is_kept = self._rejects.rejected(rejection, now_ms)
            if is_kept and job.state != LOST:
                job.uncounted += 1
                return Hold(now_ms + TRIAL_PAUSE_MS, False, error)
            text = text_of(rejection) or type(rejection).__name__
            return self._dead_letter(f"rejected: {text}", error)
        is_counted = job.has_proof if is_outage else request is None or request.count
        delay_ms = None if request is None else request.delay_ms
        if delay_ms is None:
            delay_ms = self.backoff_ms(job)
        if is_counted and job.attempt >= self.retry.attempts:
            return self._dead_letter(f"failed in {job.attempt} attempts", error, "attempts")
        if self._is_too_old(job, now_ms):
            return self._dead_letter(self._age_text(), error, "max_age")
        if not is_counted:
            job.uncounted += 1
            return Hold(now_ms + delay_ms, False, error)
        if self.order is not Order.NONE or is_outage:
            return Hold(now_ms + delay_ms, True, error)
        letters_after_ms = self.retry.letters_after_ms
        if letters_after_ms is not None and delay_ms > letters_after_ms:
            return RetryLetter(delay_ms, error)
        if job.waits_here:
            return Hold(now_ms + delay_ms, True, error)
        return Nack(delay_ms, error)

    def backoff_ms(self, job: Job) -> int:
        """Return the delay of the backoff after a failure of the present attempt, in ms."""
        return self.retry.delays.delay_ms(job.attempt - 1 + job.uncounted, self._rng)

    def _tell_breaker(self, error: BaseException, now_ms: int, is_trial: bool) -> None:
        assert self._breaker is not None
        self._breaker.failed(error, now_ms, was_probe=is_trial)

    def _verdict_before_call(self, job: Job, now_ms: int) -> DeadLetter | Discard | None:
        if self._is_too_old(job, now_ms):
            return self._dead_letter(self._age_text(), None, "max_age")
        if job.is_attempt_exact and job.attempt > self.retry.attempts:
            return self._dead_letter(
                f"ended its process or failed in {job.attempt - 1} attempts", None, "attempts"
            )
        return None

    def _is_too_old(self, job: Job, now_ms: int) -> bool:
        max_age_ms = self.retry.max_age_ms
        return max_age_ms is not None and now_ms - job.published_ms > max_age_ms

    def _age_text(self) -> str:
        return f"older than max_age, {(self.retry.max_age_ms or 0) / 1000:g} s"

    def _dead_letter(
        self, reason: str, error: BaseException | None, path: str = "reject"
    ) -> DeadLetter | Discard:
        if not self.retry.dead_letters:
            return Discard(reason, error)
        return DeadLetter(reason, error, path)

    # States

    def _settle(self, job: Job, action: Action) -> None:
        job.state = SETTLING
        job.action = action
        self._settling += 1

    def _put_off(self, job: Job, action: Action, due_ms: int) -> None:
        job.state = UNSETTLED
        job.action = action
        self._actions.add(job, due_ms)
        if not job.has_left_group:
            self._scheduler.hold_back(job)

    def _leave(self, job: Job) -> None:
        self._jobs.pop(job, None)  # a lost job is not in it
        self._taken_for_trial = 0
        self._bytes -= job.size
        if job.has_left_group:
            job.state = GONE
        else:
            self._scheduler.leave(job)

    def _held_back(self) -> int:
        """Return the number of jobs that are neither running, ready, nor behind a healthy job.

        Jobs that are committing count, so that they are bounded too.
        """
        scheduler = self._scheduler
        return (
            len(self._jobs)
            - (self._running - self._lost)
            - scheduler.unstarted
            - scheduler.behind_healthy
        )

    # Trials

    def _is_trial(self, job: Job) -> bool:
        trials = self._scheduler.trials
        return trials != 0 and job.tried_in == trials

    def _update_trials(self) -> None:
        scheduler = self._scheduler
        is_needed = self._rejects.is_reached or self.is_breaker_open
        if is_needed and not scheduler.trials:
            self._taken_for_trial = 0
            scheduler.begin_trials()
        elif scheduler.trials and not is_needed:
            scheduler.end_trials()

    def _trial_due_ms(self) -> int:
        due_ms = self._rejects.due_ms if self._rejects.is_reached else 0
        if self._breaker is not None and self._breaker.is_open:
            due_ms = max(due_ms, self._breaker.due_ms)
        return due_ms

    def _trial_started(self, now_ms: int) -> None:
        self._taken_for_trial = 0
        if self._breaker is not None and self._breaker.is_open:
            self._breaker.probe_started(now_ms)
        if self._rejects.is_reached:
            self._rejects.trial_started(now_ms)

    def _needs_message(self) -> bool:
        """Return True if a trial is due and no message is ready for it.

        New messages may all be blocked by their groups, so their number is limited until something
        changes.
        """
        return (
            self._now_ms >= self._trial_due_ms()
            and self._taken_for_trial < self._prefetch
            and not self._scheduler.has_ready
        )
