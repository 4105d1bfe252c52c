"""A running `BatchWorker`: a `Session` whose handler gets a list of messages.

`batch_core` decides; this file does the I/O that differs from `worker_session`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from functools import partial
from itertools import takewhile
from random import Random
from typing import Any, ClassVar, Final

from ..errors import SchemaVersionError
from ..eventloop.alarm import now_ms
from ..eventloop.awaitables import raise_failure
from ..message import Message, has_siblings, set_handler_context
from ..values.message_id import MessageId
from .batch_core import BatchCore, ListJob, MessageList
from .batch_failure import BatchFailure
from .batch_options import BatchOptions
from .handler_context import HandlerContext
from .health import Health
from .message_values import decoded, decoded_after_fetch
from .outcome import outcome_of
from .scheduler import GONE, Job
from .scheduler import LOST as LOST_STATE
from .slots import Cancelled, Returned, Slots
from .slots import Result as SlotResult
from .worker_core import (
    Ack,
    Action,
    Failed,
    Hold,
    Lost,
    Nack,
    Order,
    RetryLetter,
    WorkerCore,
)
from .worker_options import HELD_LIMIT, WorkerOptions
from .worker_session import LOST, SUCCEEDED, Session

#: Nacked messages that failed alone and are remembered, at most.
_REMEMBERED: Final = 10_000


class BatchSession(Session):
    """One run of a `BatchWorker` on one consumer."""

    _job_type: ClassVar[type[Job]] = ListJob

    def _make_core(self, options: WorkerOptions) -> WorkerCore:
        assert isinstance(options, BatchOptions)
        self._failed_alone: OrderedDict[MessageId, None] = OrderedDict()
        self._lists = BatchCore(
            order=self.order,
            max_messages=options.max_messages,
            max_wait_ms=options.max_wait_ms,
            is_suspect=self._is_suspect,
            concurrency=options.concurrency,
            prefetch=options.prefetch_messages,
            max_bytes=options.max_bytes,
            retry=options.core_retry,
            breaker=options.breaker,
            reject_limit=options.reject_limit,
            rng=Random(),
            held_limit=HELD_LIMIT,
        )
        return self._lists

    def _make_slots(self, options: WorkerOptions) -> Slots[Any]:
        slots: Slots[MessageList] = Slots(
            options.concurrency,
            self._next_list,
            self._handle_list,
            self._list_finished,
            timeout=options.timeout_s,
            cancellable=self._handler.cancellable,
            stuck=self._on_stuck,
            watchdog=self._watchdog,
            name=f"pulsar-encore handler of {self._name}",
        )
        return slots

    def _is_suspect(self, job: ListJob) -> bool:
        message: Message = job.message
        has_failed = message.message_id() in self._failed_alone
        if has_failed:
            del self._failed_alone[message.message_id()]
        # With durable attempts, the earlier attempt may have ended its process. In a list it would
        # use up the attempts of the other messages, too.
        return has_failed or job.is_attempt_exact

    # Taking messages

    def _take(self, message: Message) -> None:
        super()._take(message)
        self._alarm.at(self._lists.list_due_ms())

    # Running handlers

    def _next_list(self) -> MessageList | None:
        if self.stopping.is_set():
            return None
        now = now_ms(self._loop)
        if self._has_pauses:
            self._give_back_paused(now)
        messages = self._lists.start_list(now)
        if self._has_early_verdicts or messages is not None:
            self._alarm.at(self.core.next_wake_ms(now))
        if messages is not None:
            if not self._room.is_set() and self.core.demand() > 0:
                self._room.set()  # the next list is gathered while this one runs
        return messages

    async def _handle_list(self, messages: MessageList) -> None:
        if self._calls is not None:
            self._calls.started(messages, tuple(job.message for job in messages.jobs))
        if self._writes_attempts:
            for job in messages.jobs:
                self._begin_attempt(job)
        values = await self._decode(messages)
        passed = messages.passed
        if not passed:
            return
        contexts = {job: HandlerContext(self, job) for job in passed}
        for job, context in contexts.items():
            set_handler_context(job.message, context)
        results = HandlerContext(self, passed[0])
        try:
            result = await self._handler.call_list(
                values, [job.message for job in passed], results.add_result
            )
            if result is not None:
                results.add_result(result)
        except BatchFailure as failure:
            for index, error in failure.checked_errors(len(passed)).items():
                messages.errors[passed[index]] = error
        finally:
            for job in passed:
                set_handler_context(job.message, None)
        processed = self._processed(messages)
        if processed:
            outgoing = results.outgoing
            for job in processed:
                outgoing += contexts[job].outgoing
            if outgoing:
                await self._outbox.store(outgoing)

    async def _decode(self, messages: MessageList) -> list[Any]:
        """Return the values for the handler, and note which messages have one."""
        values = []
        for job in messages.jobs:
            try:
                try:
                    value = decoded(job.message)
                except SchemaVersionError:
                    value = await decoded_after_fetch(job.message)
            except Exception as error:
                messages.errors[job] = error
                if self.order is not Order.NONE:
                    break  # the messages behind it wait until it is settled
            else:
                values.append(value)
                messages.passed.append(job)
        return values

    def _processed(self, messages: MessageList) -> list[ListJob]:
        """Return the messages that the handler got and that are acked."""
        errors = messages.errors
        if self.order is Order.NONE:
            return [job for job in messages.passed if job not in errors]
        return list(takewhile(lambda job: job not in errors, messages.passed))

    def _started_s(self) -> dict[Job, float]:
        calls = self.slots.running().items()
        return {job: started_s for call, started_s in calls for job in call.jobs}

    def extend(self, job: Job, seconds: float) -> None:
        assert isinstance(job, ListJob)
        if job.running_in is None or not self.slots.extend(job.running_in, seconds):
            self._log.warning(
                "worker %s: the handler of %r has ended already", self._name, job.message
            )

    def _list_finished(self, messages: MessageList, result: SlotResult) -> None:
        finish = partial(self._list_finished, messages)
        if type(result) is Cancelled and self._is_deferred(result, finish):
            return
        outcome = SUCCEEDED if type(result) is Returned else self._outcome_of(result)
        calls = self._calls
        if outcome is None:
            if calls is not None:
                calls.drained(messages)
            return  # the drain gives the messages back
        if self.stopping.is_set() and messages.errors and type(result) is Returned:
            self._finish_in_drain(messages)
            if calls is not None:
                calls.drained(messages, next(iter(messages.errors.values())))
            return
        if self.stopping.is_set() and type(outcome) is Failed:
            self._note_failure_in_drain(messages, outcome.error)
            if calls is not None:
                calls.drained(messages, outcome.error)
            return
        now = now_ms(self._loop)
        error = outcome.error if type(outcome) is Failed else None
        is_lost = type(outcome) is Lost
        has_failed = error is not None or bool(messages.errors)
        by_verb = set[ListJob]()  # nacked or rejected by the handler
        settled = 0  # by the handler
        for job in messages.jobs:
            verdict = self._verdicts.pop(job, None)
            if job.state not in (GONE, LOST_STATE) and not self.consumer.holds(job.message):
                # The handler has settled the message, or another consumer has it now.
                self.core.remove(job)
                settled += 1
                if verdict is not None:
                    self._count_verdict(verdict)
                    by_verb.add(job)
                if type(verdict) is Failed and error is None:
                    if self.order is Order.NONE:
                        messages.errors.setdefault(job, verdict.error)
                    else:  # an error there would pass the messages behind it again
                        messages.rejected[job] = verdict.error
            self._detached.discard(job)
            if self.on_outcome is not None and job.state in (GONE, LOST_STATE) and not is_lost:
                self.on_outcome(outcome_of(job.message, job.attempt, None, error, (), now))
        if has_failed:
            self._counts["failed"] += 1
            for job in messages.jobs:
                job.waits_here = has_siblings(job.message)  # as in `Session._finished`
        if error is None and not is_lost:
            self._succeeded += sum(job not in by_verb for job in self._processed(messages))
        is_logged = False
        for job, action in self._lists.finished_list(messages, error, now, lost=is_lost):
            # A failure that messages share is logged once.
            is_shared = error is not None and job not in messages.errors
            self._note(job, action, now, is_logged=is_shared and is_logged)
            is_logged = is_logged or is_shared
            if type(action) is Nack and job.is_alone:
                self._remember(job)
            if calls is not None:
                calls.note_action(messages, action, now)
            self._act(job, action)
        if calls is not None:
            first = error or next(
                iter([*messages.errors.values(), *messages.rejected.values()]), None
            )
            has_failed = has_failed or bool(by_verb)
            calls.list_decided(messages, first, settled, failed=has_failed, lost=is_lost)
        if not self._room.is_set() and self.core.demand() > 0:
            self._room.set()
        self._alarm.at(self.core.next_wake_ms(now))
        self._limit_log.note(self.core)

    def _note(self, job: ListJob, action: Action, now: int, *, is_logged: bool) -> None:
        """Log a failed attempt that is followed by another attempt, and report the outcome."""
        attempt, error = job.attempt, None
        if not isinstance(action, Ack):
            error = action.error
        if isinstance(action, Hold):
            attempt -= action.counted  # the core has counted already
        if isinstance(action, Hold | Nack | RetryLetter) and not is_logged:
            delay_ms = action.due_ms - now if isinstance(action, Hold) else action.delay_ms
            self._failures.retried(
                job.message,
                attempt,
                action.error,
                delay_ms,
                now,
                breaker_stays_open=self._limit_log.breaker_stays_open(self.core),
            )
        if self.on_outcome is not None:
            self.on_outcome(outcome_of(job.message, attempt, action, error, (), now))

    def _finish_in_drain(self, messages: MessageList) -> None:
        """Ack what a handler processed. The drain gives the other messages back."""
        for job in self._processed(messages):
            if self.consumer.holds(job.message):
                try:
                    raise_failure(self.consumer.acknowledge(job.message))
                except Exception as error:
                    self._log.error("worker %s: %r is not settled: %s", self._name, job, error)
                    return  # with an order, the messages behind it come again after it
                self._succeeded += 1
            self.core.remove(job)

    def _remember(self, job: ListJob) -> None:
        message: Message = job.message
        self._failed_alone[message.message_id()] = None
        if len(self._failed_alone) > _REMEMBERED:
            self._failed_alone.popitem(last=False)

    # Messages that another consumer has now

    def _cancel(self, job: Job) -> None:
        assert isinstance(job, ListJob)
        running = job.running_in
        # The last message first: usually the messages of a list are lost in their order.
        if running is not None and all(
            each.state in (GONE, LOST_STATE) for each in reversed(running.jobs)
        ):
            self.slots.cancel(running, LOST)

    def _end_batches(self) -> None:
        """Start no further list: a list may have messages of several batches of the producer."""

    # What is seen from outside

    def _text_of(self, call: Any) -> str:
        assert isinstance(call, MessageList)
        first, count = call.jobs[0].message, len(call.jobs)
        return repr(first) if count == 1 else f"{count} messages from {first!r} on"

    def health(self, state: str) -> Health:
        return replace(super().health(state), running=len(self.slots.running()))
