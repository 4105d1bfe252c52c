"""One handler call by all rules of a worker, without a connection: `Worker.handle`."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from random import Random
from typing import Any, cast

from ..errors import ConfigurationError
from ..eventloop.alarm import now_ms, wall_now_ms
from ..eventloop.awaitables import Done, Settling
from ..message import (
    DetachedMessage,
    Message,
    handler_context_of,
    set_handler_context,
    size_of,
)
from .handler_call import HandlerCall
from .handler_context import HandlerContext
from .message_values import decoded_with
from .outcome import Outcome, outcome_of
from .scheduler import Job, Order
from .slots import Raised, Returned, Slots, TimedOut
from .worker_core import Failed, Succeeded, WorkerCore
from .worker_options import WorkerOptions


async def call_once(options: WorkerOptions, handler: HandlerCall, message: Message[Any]) -> Outcome:
    """Call the handler of a worker for one message, and return what the worker would do.

    Nothing is sent: published messages are in the outcome. The breaker and the reject limit see
    only this call.
    """
    return await _SingleCall(options, handler, message).run()


class _SingleCall:
    """The server of the message's verbs during the call, and its consumer."""

    def __init__(self, options: WorkerOptions, handler: HandlerCall, message: Message[Any]) -> None:
        if not isinstance(message, Message):
            raise ConfigurationError(
                f"handle needs a Message, got {type(message).__name__}: make one with "
                "pulsar_encore.testing.message(value)"
            )
        self.stopping: asyncio.Event = asyncio.Event()
        self.order: Order = Order(options.order)
        self.publish_topic: str | None = None if options.publish is None else options.publish.topic
        self._options = options
        self._handler = handler
        self._message = message
        self._is_settled = False
        self._context: HandlerContext | None = None
        self._slots: Slots[Job] | None = None

    async def run(self) -> Outcome:
        options, message = self._options, self._message
        loop = asyncio.get_running_loop()
        now = now_ms(loop)
        core = WorkerCore(
            order=self.order,
            concurrency=1,
            prefetch=1,
            max_bytes=options.max_bytes,
            retry=options.core_retry,
            breaker=options.breaker,
            reject_limit=None,
            rng=Random(),
        )
        job = Job(
            message,
            message.topic_name(),
            None if self.order is Order.NONE else message.topic_name(),
            size_of(message),
            message.redelivery_count() + 1,
            message.publish_timestamp() - wall_now_ms(loop) + now,
            is_attempt_exact=options.has_exact_attempts,
        )
        attempt = job.attempt
        early = core.received(job, now)
        if early is not None:
            return outcome_of(message, attempt, early, None, (), now)
        started = core.start(now)
        assert started is job
        result = await self._call(job)
        error: BaseException | None = None
        match result:
            case Returned():
                pass
            case Raised(error=error):
                pass
            case TimedOut():
                error = TimeoutError(f"the handler took longer than {options.timeout_s:g} s")
            case _:
                raise asyncio.CancelledError
        published = () if self._context is None or error else tuple(self._context.outgoing)
        if self._is_settled:
            return outcome_of(message, attempt, None, error, published, now)
        now = now_ms(loop)
        action = core.finished(job, Succeeded() if error is None else Failed(error), now)
        return outcome_of(message, attempt, action, error, published, now)

    async def _call(self, job: Job) -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        jobs = [job]
        self._slots = slots = Slots(
            1,
            lambda: jobs.pop() if jobs else None,
            self._handle,
            lambda _, result: done.set_result(result),
            timeout=self._options.timeout_s,
            cancellable=self._handler.cancellable,
            name="pulsar-encore handler",
        )
        try:
            slots.wake()
            return await done
        finally:
            await slots.close(asyncio.get_running_loop().time())

    async def _handle(self, job: Job) -> None:
        message = self._message
        self._context = context = HandlerContext(self, job)
        context.consumer = _RecordingConsumer(self)
        set_handler_context(message, context)
        try:
            value = decoded_with(message, self._options.schema)
            result = await self._handler.call(value, message, context.add_result)
        finally:
            set_handler_context(message, None)
        context.add_result(result)

    # The verbs of the message

    def settled(self) -> None:
        self._is_settled = True

    def note_verdict(self, job: Job, error: BaseException | str | None) -> None:
        """Do nothing: one call makes no series of rejections."""

    def nack_delay_s(self, job: Job) -> float:
        return 0.0

    def extend(self, job: Job, seconds: float) -> None:
        if self._slots is not None:
            self._slots.extend(job, seconds)

    def detach(self, job: Job, lease: float) -> DetachedMessage:
        self._is_settled = True
        return _DetachedMessage(f"{job.message.message_id()!r} for {lease:g} s")


class _RecordingConsumer:
    """Stands for the consumer of the message: it notes that the handler settled the message."""

    def __init__(self, call: _SingleCall) -> None:
        self._call = call
        self._done = cast("Settling", Done(asyncio.get_running_loop()))

    def acknowledge(self, message: Message[Any]) -> Settling:
        self._call.settled()
        return self._done

    def negative_acknowledge(
        self,
        message: Message[Any],
        delay: float | timedelta | None = None,
        *,
        error: BaseException | str | None = None,
    ) -> Settling:
        self._call.settled()
        return self._done

    async def reject(
        self, message: Message[Any], reason: BaseException | str, *, keep: bool = False
    ) -> None:
        self._call.settled()

    def extend(self, message: Message[Any], seconds: float | timedelta) -> Settling:
        context = handler_context_of(message)
        if context is not None:
            context.extend(seconds)
        return self._done

    def attempts_by_letters(self, message: Message[Any]) -> int:
        return 0


class _DetachedMessage:
    def __init__(self, handle: str) -> None:
        self.handle: str = handle

    async def ack(self) -> None:
        """Do nothing."""

    async def nack(
        self, delay: float | timedelta | None = None, *, error: BaseException | str | None = None
    ) -> None:
        """Do nothing."""

    async def extend(self, seconds: float | timedelta) -> None:
        """Do nothing."""
