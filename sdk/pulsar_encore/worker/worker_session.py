"""A running worker: it takes messages, runs their handlers, and settles them.

`worker_core` decides; this file does the I/O. Every message that the session takes stays held by
its consumer until it is settled, so a session that ends early gives all of them back.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ..client import logger_of, observers_of
from ..consumer.consumer import acknowledge_held, receive_now
from ..errors import (
    ClosedError,
    EncoreError,
    MessageNotHeldError,
    SchemaVersionError,
)
from ..eventloop.alarm import Alarm, clock_of, now_ms, wall_now_ms
from ..eventloop.awaitables import raise_failure
from ..message import Message, batch_of, has_siblings, set_handler_context, size_of
from .drain_deadline import DrainDeadline
from .failure_log import FailureLog
from .handler_call import HandlerCall
from .handler_context import HandlerContext
from .health import Health, LongHandler, Report
from .limit_log import LimitLog
from .loop_watchdog import LOGGER as WATCHDOG_LOGGER
from .loop_watchdog import LoopWatchdog
from .message_groups import MessageGroups
from .message_values import Undecodable, decoded, decoded_after_fetch
from .outbox import Outbox, Outgoing
from .outcome import Outcome, outcome_of
from .readiness import health_of
from .retry_policy import Reject, causes_of
from .scheduler import (
    BLOCKED,
    COMMITTING,
    FAIR_START,
    READY,
    RUNNING,
    SET_ASIDE,
    SETTLING,
    WAITING,
    Order,
)
from .slots import OUTSIDE, TIMEOUT, Cancelled, Raised, Returned, Slots, TimedOut
from .slots import Result as SlotResult
from .standby import Standby
from .topic_priorities import TopicPriorities
from .worker_core import (
    Ack,
    DeadLetter,
    Discard,
    Failed,
    Hold,
    Job,
    Lost,
    Nack,
    RetryLetter,
    Succeeded,
    WorkerCore,
)
from .worker_options import HELD_LIMIT, LONG_HANDLER_S, WorkerOptions

if TYPE_CHECKING:
    from ..client import Client
    from ..consumer.consumer import Consumer
    from ..consumer.leases.lease import Lease
    from ..consumer.pending_messages import PendingMessage
    from ..observability.observer_list import ObserverList
    from .observed_calls import ObservedCalls

_SETTLE_AGAIN_MS: Final = 5_000
_OUTSIDE_S: Final = 1.0  # between a cancellation by other code and the failure of the attempt
SUCCEEDED: Final = Succeeded()
LOST: Final = "lost"
DRAIN: Final = "drain"
_UNKNOWN_S: Final = 5.0  # the broker names the active consumer about 1 s after a subscribe


class Session:
    """One run of a worker on one consumer.

    Args:
        options: The checked parameters of the worker.
        failed: Called once with the error that ends the session.
    """

    _job_type: ClassVar[type[Job]] = Job

    def __init__(
        self,
        client: Client,
        consumer: Consumer[Any],
        options: WorkerOptions,
        handler: HandlerCall,
        name: str,
        stopping: asyncio.Event,
        failed: Callable[[BaseException], None],
    ) -> None:
        self.consumer: Consumer[Any] = consumer
        self._options = options
        self._handler = handler
        self._name = name
        self._log = logger_of(client)(__name__)
        self.stopping: asyncio.Event = stopping
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._clock = clock_of(self._loop)
        self._priorities = TopicPriorities(options.priorities, options.subscription)
        self.order: Order = Order(options.order)
        self._groups = MessageGroups(self.order, name, self._log)
        self._max_age_ms = options.retry.max_age_ms
        publish = options.publish
        self.publish_topic: str | None = None if publish is None else publish.topic
        # Messages can be too old, or spent, when they would start.
        self._has_early_verdicts = options.retry.max_age_ms is not None or options.state is not None
        self._writes_attempts = options.writes_attempts
        self._has_exact_attempts = options.has_exact_attempts
        self._outbox = Outbox(client, publish)
        self.core: WorkerCore = self._make_core(options)
        self._watchdog_log = logger_of(client)(WATCHDOG_LOGGER)
        self._watchdog = LoopWatchdog.watch(self._watchdog_log)
        self.slots: Slots[Any] = self._make_slots(options)
        self._room = asyncio.Event()
        # With priorities, room is used at once: the broker may have more urgent messages then.
        self._refill = 1 if self._priorities.differ else max(1, options.prefetch_messages // 4)
        self._receive_next: Callable[[], Awaitable[Message]] = (
            self._receive_by_priority if self._priorities.differ else self.consumer.receive
        )
        self._alarm = Alarm(self._loop)
        self._alarm.start(self._ring)
        self._receiver: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._received = self._succeeded = 0
        self._counts = dict.fromkeys(("failed", "retried", "rejected", "discarded", "lost"), 0)
        self._failures = FailureLog(name, self._log)
        observers = observers_of(client)
        self._calls = self._observed_calls(observers)
        breaker_changed = None if observers is None else observers.breaker_changed
        self._limit_log = LimitLog(
            name,
            self._log,
            None if breaker_changed is None else partial(self._tell_breaker, breaker_changed),
        )
        self.standby: Standby[Message] | None = None
        self._detached: set[Job] = set()
        # Nacks and rejections by handlers, as results: they are no successes.
        self._verdicts: dict[Job, Failed | Lost] = {}
        self._given_back = 0
        self._abandoned = 0
        self._is_consumer_closing = False
        self._is_ending_batches = False
        self._has_pauses = False  # a topic is paused
        self._put_aside: list[Job] = []  # jobs that the drain does not start
        #: Called with the outcome of each handler call, for tests.
        self.on_outcome: Callable[[Outcome], None] | None = None

    def _observed_calls(self, observers: ObserverList | None) -> ObservedCalls | None:
        if observers is None or not (
            observers.handler_started or observers.handler_ended or observers.call_meters
        ):
            return None
        from .observed_calls import ObservedCalls  # lazy: only for observers

        return ObservedCalls(observers, self._name, self._options.subscription)

    def _tell_breaker(
        self, observe: Callable[..., None], is_open: bool, error: BaseException | None
    ) -> None:
        from ..observability.observations import BreakerChange  # lazy: only for observers

        observe(BreakerChange(worker=self._name, is_open=is_open, error=error))

    def _make_core(self, options: WorkerOptions) -> WorkerCore:
        return WorkerCore(
            order=self.order,
            concurrency=options.concurrency,
            prefetch=options.prefetch_messages,
            max_bytes=options.max_bytes,
            retry=options.core_retry,
            breaker=options.breaker,
            reject_limit=options.reject_limit,
            rng=Random(),
            held_limit=HELD_LIMIT,
        )

    def _make_slots(self, options: WorkerOptions) -> Slots[Any]:
        return Slots(
            options.concurrency,
            self._next_job,
            self._handle,
            self._finished,
            timeout=options.timeout_s,
            cancellable=self._handler.cancellable,
            stuck=self._on_stuck,
            watchdog=self._watchdog,
            name=f"pulsar-encore handler of {self._name}",
        )

    # Taking messages

    def start(self) -> None:
        self.consumer.watch_losses(self._lose_messages)
        self._receiver = self._loop.create_task(self._receive())

    async def _receive(self) -> None:
        core, room, consumer = self.core, self._room, self.consumer
        receive_next = self._receive_next
        try:
            while True:
                wanted = core.demand()
                if wanted <= 0:
                    room.clear()
                    await room.wait()
                    continue
                self._take(await receive_next())
                for _ in range(min(wanted, self._refill) - 1):  # `demand` is asked once for all
                    if core.takes_nothing or (message := receive_now(consumer)) is None:
                        break
                    self._take(message)
        except ClosedError as error:
            if not self.stopping.is_set():
                self._failed(error)
        except Exception as error:  # nothing else would notice that the task has ended
            self._failed(error)

    async def _receive_by_priority(self) -> Message:
        # Some messages are taken in the order of arrival, so that the core always has messages of
        # each topic to choose from.
        if self._received % FAIR_START == 0:
            return await self.consumer.receive()
        return await self.consumer.receive_highest(self._priorities.rank)

    def _take(self, message: Message) -> None:
        topic, now = message.topic_name(), int(self._clock() * 1000)
        standby = self.standby
        if standby is not None and standby.keeps(topic, message):
            if not standby.is_known(topic):
                self._loop.call_later(_UNKNOWN_S, self._assume_active, topic)
            return
        priorities = self._priorities
        priority, may_be_letters = priorities.known.get(topic) or priorities.learn(topic)
        if may_be_letters:
            priority = priorities.of_letter(message, topic)
        published_ms = 0
        if self._max_age_ms is not None:
            # On the clock of the loop, which the core uses for all times.
            published_ms = message.publish_timestamp() - wall_now_ms(self._loop) + now
        job = self._job_type(
            message,
            topic,
            self._groups.of(message, topic),
            size_of(message),
            message.attempt if may_be_letters else message.redelivery_count() + 1,
            published_ms,
            priority,
            self._has_exact_attempts,
        )
        self._received += 1
        action = self.core.received(job, now)
        if action is not None:
            self._act(job, action)
        # Before the next message, so that messages start in the order of their arrival.
        self.slots.wake()

    def _assume_active(self, topic: str) -> None:
        """Process the messages of a topic of which the broker has named no active consumer."""
        standby = self.standby
        if standby is not None and not (standby.is_known(topic) or self.stopping.is_set()):
            self._log.warning(
                "worker %s: the broker has named no active consumer of %s for %g s; its messages "
                "are processed",
                self._name,
                topic,
                _UNKNOWN_S,
            )
            for each in standby.became_active(topic):
                self._take(each)

    def update(self) -> None:
        """Start what may start now, and set the alarm for what may start later."""
        self.slots.wake()
        if self.core.demand() > 0:
            self._room.set()
        self._alarm.at(self.core.next_wake_ms(now_ms(self._loop)))

    def _ring(self, now: int) -> int | None:
        for job, action in self.core.due_actions(now):
            self._act(job, action)
        self.slots.wake()
        if self.core.demand() > 0:
            self._room.set()
        return self.core.next_wake_ms(now)

    # Paused topics

    def pause_topic(self, topic: str) -> None:
        """Start no handler of a topic. Its messages that have not started go back to the consumer.

        Raises:
            ConfigurationError: if the consumer does not read the topic.
        """
        self.consumer.pause(topic)
        self._has_pauses = True
        self._give_back_paused(now_ms(self._loop))
        self.update()

    def resume_topic(self, topic: str | None) -> None:
        self.consumer.resume(topic)
        self._has_pauses = self.consumer.is_paused()
        self.update()

    def _remove_paused(self, job: Job, now: int) -> bool:
        """Return False if a job may start. Else give back all jobs of paused topics that could.

        All of them, because another one may be behind this job in its key. Not at each start of
        another topic's job: with thousands of waiting messages that would take most of the time.
        """
        if not self.consumer.is_paused(job.topic):
            return False
        self._give_back_paused(now)
        return True

    def _give_back_paused(self, now: int) -> None:
        """Give back what could start. A message that waits for its next call keeps its delay."""
        paused: dict[str, bool] = {}
        for job in self.core.jobs():
            is_due = job.state in (READY, BLOCKED, SET_ASIDE) or (
                job.state == WAITING and job.due_ms <= now
            )
            if not is_due:
                continue
            if job.topic not in paused:
                paused[job.topic] = self.consumer.is_paused(job.topic)
            if paused[job.topic]:
                self.core.remove(job)
                if self.consumer.holds(job.message):
                    self.consumer.release(job.message)

    # Running handlers

    def _next_job(self) -> Job | None:
        if self.stopping.is_set() and not self._is_ending_batches:
            return None
        now = int(self._clock() * 1000)
        job = self.core.start(now, self._remove_paused if self._has_pauses else None)
        if self._has_early_verdicts:
            self._alarm.at(self.core.next_wake_ms(now))
        return job

    def _begin_attempt(self, job: Job) -> None:
        """Write the attempt to the state, so that it counts if the message kills the process."""
        try:
            self.consumer.begin_attempt(job.message)
        except MessageNotHeldError:
            pass  # noticed at the end of the call
        except EncoreError as error:
            self._log.error(
                "worker %s: the attempt at %r is not recorded: %s", self._name, job, error
            )

    async def _handle(self, job: Job) -> None:
        message: Message = job.message
        if self._calls is not None:
            self._calls.started(job, (message,))
        if self._writes_attempts:
            # Not in `_next_job`: a message that ends the process in its first step would use up
            # an attempt of each message that was to start after it.
            self._begin_attempt(job)
        context = HandlerContext(self, job)
        set_handler_context(message, context)
        try:
            value = decoded(message)
        except SchemaVersionError:
            value = await decoded_after_fetch(message)
        try:
            result = await self._handler.call(value, message, context.add_result)
        finally:
            # A task that the handler left behind can publish nothing from here on.
            set_handler_context(message, None)
        if result is not None:
            context.add_result(result)
        if context.outgoing:
            await self._store(job, context.outgoing)

    async def _store(self, job: Job, results: Sequence[Outgoing]) -> None:
        """Publish the results of a handler. An error is that of the handler."""
        await self._outbox.store(results)

    def extend(self, job: Job, seconds: float) -> None:
        if not self.slots.extend(job, seconds):
            self._log.warning(
                "worker %s: the handler of %r has ended already", self._name, job.message
            )

    def note_verdict(self, job: Job, error: BaseException | str | None) -> None:
        self._verdicts[job] = Failed(error) if isinstance(error, BaseException) else Lost()

    def nack_delay_s(self, job: Job) -> float:
        return self.core.backoff_ms(job) / 1000

    def detach(self, job: Job, lease: float) -> Lease:
        if self.consumer.affinity.is_here():
            return self._detach(job, lease)
        made: concurrent.futures.Future[Lease] = concurrent.futures.Future()

        def detach_on_loop() -> None:
            try:
                made.set_result(self._detach(job, lease))
            except BaseException as error:
                made.set_exception(error)

        self._loop.call_soon_threadsafe(detach_on_loop)  # the handler runs in a thread
        return made.result()

    def _detach(self, job: Job, lease: float) -> Lease:
        made = self.consumer.detach(job.message, lease)
        self._detached.add(job)
        self.core.remove(job)
        return made

    def _finished(self, job: Job, result: SlotResult) -> None:
        if type(result) is Returned and self._acked(job):
            return
        if type(result) is Cancelled and self._is_deferred(result, partial(self._finished, job)):
            return
        core, now = self.core, now_ms(self._loop)
        outcome = SUCCEEDED if type(result) is Returned else self._outcome_of(result)
        if outcome is None:
            if self._calls is not None:
                self._calls.drained(job)
            return  # the drain gives the message back
        if type(outcome) is Failed and self.stopping.is_set() and not self._rejects(outcome.error):
            self._note_failure_in_drain(job, outcome.error)
            if self._calls is not None:
                self._calls.drained(job, outcome.error)
            return
        result_for_core: Succeeded | Failed | Lost = outcome
        verdict = self._verdicts.pop(job, None) if self._verdicts else None
        is_settled = job in self._detached or not self.consumer.holds(job.message)
        if is_settled:
            # The handler has settled or detached the message, or another consumer has it now.
            self._on_settled_by_handler(job, outcome, verdict)
            self._detached.discard(job)
            core.remove(job)
            if type(outcome) is Failed:
                self._log.warning(
                    "worker %s: the handler of %r failed after the message was settled or lost: %r",
                    self._name,
                    job.message,
                    outcome.error,
                )
            elif verdict is not None:
                result_for_core = verdict
                self._count_verdict(verdict)
        elif type(outcome) is Failed and has_siblings(job.message):
            # The broker would redeliver the whole batch for one nack, also to other consumers, and
            # they would process the messages of the batch that are held here.
            job.waits_here = True
        if result_for_core is outcome:
            self._count(outcome)
        message, attempt = job.message, job.attempt
        action = core.finished(job, result_for_core, now)
        self._note_retry(message, attempt, action, now)
        if self.on_outcome is not None:
            self.on_outcome(self._outcome(message, attempt, action, outcome, now))
        if self._calls is not None:
            # A handler that returned after its message was lost has settled nothing.
            by_handler = is_settled and getattr(result, "reason", None) != LOST
            self._calls.decided(job, outcome, verdict, action, now, by_handler=by_handler)
        if action is not None:
            self._act(job, action)
        self._make_room()
        if type(action) is not Ack:  # after an ack, nothing becomes due earlier
            self._alarm.at(core.next_wake_ms(now))
            self._limit_log.note(core)
        elif self._limit_log.in_force:
            self._limit_log.note(core)

    def _note_retry(self, message: Message, attempt: int, action: Any, now: int) -> None:
        """Log an action that lets a failed message be attempted again."""
        if isinstance(action, Hold | Nack | RetryLetter):
            self._failures.retried(
                message,
                attempt,
                action.error,
                action.due_ms - now if isinstance(action, Hold) else action.delay_ms,
                now,
                breaker_stays_open=self._limit_log.breaker_stays_open(self.core),
            )

    def _acked(self, job: Job) -> bool:
        """Ack a processed message; return False if its end is less simple than nearly always."""
        if self._verdicts or self._detached or self.on_outcome is not None:
            return False
        try:
            if job.state != RUNNING or not acknowledge_held(self.consumer, job.message):
                return False
        except Exception:
            return False  # the other way logs the error, and tries again later
        self._succeeded += 1
        self.core.acked(job, int(self._clock() * 1000))
        if self._calls is not None:
            self._calls.acked(job)
        self._make_room()
        if self._limit_log.in_force:
            self._limit_log.note(self.core)
        return True

    def _on_settled_by_handler(
        self, job: Job, outcome: Succeeded | Failed | Lost, verdict: Failed | Lost | None
    ) -> None:
        """Note the end of a handler whose message is not held any more (for subclasses)."""

    async def _flush_results(self, deadline: DrainDeadline) -> None:
        """Store the results of handlers that have returned (for subclasses)."""

    def _end_results(self) -> None:
        """Store no more results (for subclasses)."""

    def _make_room(self) -> None:
        """Wake the receiver, if the core takes messages.

        It takes several at once, because waking it costs a task's step. But a worker without a
        ready message does not wait until it can take several.
        """
        if self._room.is_set():
            return
        wanted = self.core.demand()
        if wanted >= self._refill or (wanted > 0 and not self.core.has_ready):
            self._room.set()

    def _outcome(
        self,
        message: Message,
        attempt: int,
        action: Any,
        result: Succeeded | Failed | Lost,
        now: int,
    ) -> Outcome:
        error = result.error if type(result) is Failed else None
        return outcome_of(message, attempt, action, error, (), now)

    def _outcome_of(self, result: SlotResult) -> Succeeded | Failed | Lost | None:
        match result:
            case Returned():
                return SUCCEEDED
            case TimedOut():
                return Failed(self._timeout_error())
            case Cancelled(reason) | Raised(_, reason) if reason == DRAIN:
                return None
            case Cancelled(reason) | Raised(_, reason) if reason == LOST:
                return Lost()
            case Raised(error, reason):
                if reason != TIMEOUT:
                    return Failed(error)
                timeout = self._timeout_error()
                timeout.__cause__ = error
                return Failed(timeout)
        return None  # cancelled by other code, in the drain

    def _timeout_error(self) -> TimeoutError:
        return TimeoutError(f"the handler took longer than {self._options.timeout_s:g} s")

    def _on_stuck(self, call: Any, reason: str) -> None:
        self._log.error(
            "worker %s: the handler of %s ignores its cancellation (%s) and keeps its slot",
            self._name,
            self._text_of(call),
            reason,
        )

    def _text_of(self, call: Any) -> str:
        """Return the message of a job in a slot, as text."""
        return repr(call.message)

    def _count(self, outcome: Succeeded | Failed | Lost) -> None:
        if type(outcome) is Succeeded:
            self._succeeded += 1
        elif type(outcome) is Failed:
            self._counts["failed"] += 1

    def _is_deferred(self, result: Cancelled, finish: Callable[[SlotResult], None]) -> bool:
        """Call `finish` in a second if other code cancelled the task; return False otherwise.

        At its end, `asyncio.run` cancels all tasks, and the task of the worker may be the last of
        them. That is a drain for the handlers, and no failure.
        """
        if result.reason != OUTSIDE or self.stopping.is_set():
            return False

        def finish_later() -> None:
            if not self.stopping.is_set():
                finish(Raised(asyncio.CancelledError("the task of the handler was cancelled")))
                self.slots.wake()

        self._loop.call_later(_OUTSIDE_S, finish_later)
        return True

    def _rejects(self, error: BaseException) -> bool:
        kinds = self._options.retry.reject_kinds
        return any(isinstance(each, kinds) for each in causes_of(error))

    def _note_failure_in_drain(self, call: Any, error: BaseException) -> None:
        """Log a failure that counts no attempt: the drain gives the message back.

        Handlers that watch `Message.stopping` may end by an error of their own.
        """
        self._counts["failed"] += 1
        self._log.warning(
            "worker %s: the handler of %s failed during the drain, which counts no attempt: %r",
            self._name,
            self._text_of(call),
            error,
        )

    def _count_verdict(self, verdict: Failed | Lost) -> None:
        is_rejected = type(verdict) is Failed and isinstance(verdict.error, Reject)
        self._counts["rejected" if is_rejected else "retried"] += 1

    # Settling

    def _act(self, job: Job, action: Any) -> None:
        """Carry out a decision of the core. A message that is no longer held is dropped."""
        try:
            self._carry_out(job, action)
        except MessageNotHeldError:
            self._lose(job)
        except ClosedError as error:
            self._failed(error)
        except Exception as error:
            # For example, the disk of the state is full. The message stays held.
            self._log.error(
                "worker %s: %r is not settled, trying again: %s",
                self._name,
                job,
                error,
                exc_info=not isinstance(error, EncoreError),
            )
            if type(action) is not Hold:
                self.core.not_settled(job, now_ms(self._loop) + _SETTLE_AGAIN_MS)
                self.update()

    def _carry_out(self, job: Job, action: Any) -> None:
        consumer, message = self.consumer, job.message
        if type(action) is Ack:
            raise_failure(consumer.acknowledge(message))
            self.core.settled(job, now_ms(self._loop))
            return
        match action:
            case Hold(due_ms=due_ms, counted=counted, error=error):
                self._counts["retried"] += 1
                self._failures.waits(due_ms - now_ms(self._loop), self.order)
                if counted:
                    job.message = consumer.fail_in_place(message, error=error)
            case Nack(delay_ms=delay_ms, error=error):
                delay_s = delay_ms / 1000
                raise_failure(consumer.negative_acknowledge(message, delay_s, error=error))
                self._counts["retried"] += 1
                self.core.settled(job, now_ms(self._loop))
            case Discard(reason=reason, error=error):
                raise_failure(consumer.acknowledge(message))
                self._counts["discarded"] += 1
                self._failures.discarded(message, reason, error, now_ms(self._loop))
                self.core.settled(job, now_ms(self._loop))
            case RetryLetter(delay_ms=delay_ms, error=error):
                delay_s = delay_ms / 1000
                send = partial(
                    consumer.send_to_retry_topic, message, delay_s, error=error, keep=True
                )
                self._in_background(self._forward(job, send, "retried"))
            case DeadLetter(reason=reason, error=error, path=path):
                evidence: BaseException | str = reason if error is None else error
                if isinstance(evidence, Undecodable):
                    evidence = evidence.__cause__ or evidence
                reject = partial(consumer.reject, message, evidence, path=path, keep=True)
                self._in_background(self._forward(job, reject, "rejected"))

    async def _forward(
        self, job: Job, forward: Callable[[], Awaitable[None]], counted_as: str
    ) -> None:
        """Forward a message to a letter topic. If that fails, it stays held and is tried again."""
        try:
            await forward()
        except MessageNotHeldError:
            self._lose(job)
        except Exception as error:
            if not isinstance(error, EncoreError):  # the consumer logs the others
                self._log.exception("worker %s: %r is not forwarded", self._name, job)
            self.core.not_settled(job, now_ms(self._loop) + _SETTLE_AGAIN_MS)
        else:
            self._counts[counted_as] += 1
            self.core.settled(job, now_ms(self._loop))
        self.update()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # Messages that another consumer has now

    def _lose(self, job: Job) -> None:
        self._counts["lost"] += 1
        self.core.remove(job)
        self._cancel(job)

    def _cancel(self, job: Job) -> None:
        """Cancel the handler of a message that another consumer has now."""
        self.slots.cancel(job, LOST)

    def has_jobs_of(self, topic: str) -> bool:
        return any(each.topic == topic for each in self.core.jobs())

    def _lose_messages(self) -> None:
        """Cancel the handlers of messages that a seek or a rewind took away, and drop those."""
        holds = self.consumer.holds
        for job in self.core.jobs():
            # A letter of its own may be sent, or its transaction committed.
            if job.state not in (SETTLING, COMMITTING) and not holds(job.message):
                self._lose(job)
        self.update()

    def lose_topic(self, topic: str) -> None:
        """Cancel the handlers of a topic that another consumer reads now, and drop its messages."""
        for job in self.core.jobs():
            if job.topic == topic and job.state != COMMITTING:  # that one is perhaps committed
                self._lose(job)
        self.consumer.redeliver_topic(topic)
        self.update()

    # The end

    async def drain(self, deadline: DrainDeadline) -> None:
        """Let running handlers end, give unfinished messages back, and flush acks.

        Nothing is nacked, and no attempt is counted.
        """
        self._end_receiving()
        loop = self._loop
        ends_s = loop.time() + deadline.handlers_left_s()
        if ends_s > loop.time():
            self._end_batches()
        while not await self.slots.join(ends_s) and loop.time() < ends_s:
            pass  # a slot was free, and has a handler again
        await self._end_handlers(deadline)
        await self._flush_results(deadline)
        if self._background:
            await asyncio.wait(tuple(self._background), timeout=deadline.flush_left_s())
        self._give_back()
        try:
            async with asyncio.timeout(deadline.flush_left_s()):
                await self.consumer.flush()
        except (TimeoutError, EncoreError) as error:
            self._log.warning("worker %s: acks are not confirmed: %r", self._name, error)

    def _end_batches(self) -> None:
        """Start the rest of each batch that has begun, and nothing else.

        A broker that keeps no acks of single batch messages redelivers a batch as a whole, and so
        does every broker after it has unloaded the topic.
        """
        core = self.core
        states = (RUNNING, SETTLING, COMMITTING)
        running = [job.message for job in core.jobs() if job.state in states]
        for message in self.consumer.take_rest_of_batches(running):
            self._take(message)
        begun = {batch_of(each) for each in running}

        def has_begun(job: Job) -> bool:
            batch = batch_of(job.message)
            if batch is None or not self.consumer.holds(job.message):
                return False
            return batch in begun or batch.unacked < batch.size

        self._put_aside = core.keep(has_begun)
        self._is_ending_batches = True
        self.slots.wake()

    def _end_receiving(self) -> None:
        if self._receiver is not None:
            self._receiver.cancel()

    async def _end_handlers(self, deadline: DrainDeadline) -> None:
        """Cancel the running handlers, and leave those behind that ignore it."""
        ends_s = self._loop.time() + deadline.flush_left_s() / 2
        for call in await self.slots.close(ends_s, DRAIN):
            self._abandoned += 1
            self._log.error(
                "worker %s: the handler of %s ignores its cancellation and is left behind",
                self._name,
                self._text_of(call),
            )

    def _give_back(self) -> None:
        if self._calls is not None:
            self._calls.all_drained()  # handlers that were left behind
        for job in [*self.core.jobs(), *self._put_aside]:
            self.core.remove(job)
            if self.consumer.holds(job.message):
                self._given_back += 1
                self.consumer.release(job.message)

    async def close(self, deadline: DrainDeadline) -> None:
        """Close the consumer and the producers, within the budget.

        They close in the background if this call is cancelled, so that the broker does not deliver
        messages to a worker that has ended.
        """
        self._end_receiving()
        try:
            await self._end_handlers_and_give_back(deadline)
            async with asyncio.timeout(deadline.left_s()):
                await asyncio.gather(self._outbox.close(), self._close_consumer())
        except TimeoutError:
            self._log.warning(
                "worker %s: the broker did not confirm the close in time; messages whose acks are "
                "unconfirmed may be redelivered",
                self._name,
            )
            self._outbox.close_soon()
            self.consumer.close_soon()
        except BaseException:
            self._outbox.close_soon()
            if not self._is_consumer_closing:  # its close does not end with this call
                self.consumer.close_soon()
            raise

    async def _end_handlers_and_give_back(self, deadline: DrainDeadline) -> None:
        try:
            await self._end_handlers(deadline)
        finally:
            self._watchdog.release(self._watchdog_log)
            self._alarm.close()
            for task in self._background:
                task.cancel()
            self._end_results()
            self._give_back()

    async def _close_consumer(self) -> None:
        self._is_consumer_closing = True
        await self.consumer.close()

    # What is seen from outside

    def long_handlers(self) -> tuple[LongHandler, ...]:
        now = self._loop.time()
        return tuple(
            LongHandler(message=self._text_of(call), running=now - started_s)
            for call, started_s in self.slots.running().items()
            if now - started_s > LONG_HANDLER_S
        )

    def pending(self, limit: int) -> list[PendingMessage]:
        from .worker_pending import worker_pending  # lazy: for a person who asks

        return worker_pending(
            self.consumer.pending(limit=limit), self.core.jobs(), self._started_s(), self._loop
        )

    def _started_s(self) -> dict[Job, float]:
        """Return when the call of each running job began."""
        return self.slots.running()

    def health(self, state: str) -> Health:
        return health_of(
            self.core.snapshot(),
            self._options,
            state,
            connected=self.consumer.is_connected(),
            has_paused_topics=self._has_pauses,
            stuck=len(self.slots.stuck()),
            abandoned=self._abandoned,
            long_handlers=self.long_handlers(),
        )

    def unfinished(self) -> int:
        """Return how many handlers on the event loop were left behind and still run."""
        return self.slots.left_behind()

    def report(self) -> Report:
        return Report(
            name=self._name,
            received=self._received,
            succeeded=self._succeeded,
            **self._counts,
            published=self._outbox.published,
            given_back=self._given_back,
            abandoned=self._abandoned,
        )
