"""The public `Worker`: a subscription, its handler, and everything between them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from datetime import timedelta
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self

from ..client import logger_of, observers_of, transport_of
from ..codecs.codec import Codec
from ..consumer.events import BecameActive, BecameInactive, ConsumerEvent, Disconnected, Failed
from ..errors import ConfigurationError
from ..message import Message
from ..options import InitialPosition, RocksState
from ..options.checks import topic_name
from ..values.topic_names import full_name
from ..values.type_variables import T
from .breaker import Breaker
from .commit_queue import Transactional
from .drain_deadline import DrainDeadline
from .handler_call import HandlerCall, HandlerKind
from .health import Health, Report
from .outbox import PublishTo
from .outcome import Outcome
from .retry_policy import RetryPolicy
from .scheduler import Order
from .single_call import call_once
from .standby import Standby
from .start_log import start_log_of
from .subscribe_options import SubscribeOptions, explains_misplaced_options
from .worker_options import DEFAULT_MAX_BYTES, WorkerOptions
from .worker_session import Session
from .worker_start import wait_until_made

if TYPE_CHECKING:
    from ..client import Client
    from ..consumer.consumer import Consumer
    from ..consumer.pending_messages import PendingMessage


class Worker(Generic[T]):
    """A handler that processes the messages of a subscription, until it is stopped.

    The worker subscribes, runs up to `concurrency` handlers at once, and settles every message by
    the result of its handler: a return acks the message, `Reject` dead-letters it, and any other
    error is retried after a backoff, until the attempts of `retry` are used up. `encore.run` runs
    workers and drains them at SIGTERM and SIGINT. `async with worker:` runs one in the background.

    Args:
        client: The client that subscribes and publishes. The worker does not close it.
        topics: A topic, a list of topics, an `re.Pattern`, or a dict of topic to priority, where
            messages of topics with a higher priority start first. One start in ten goes to the
            topic that waited longest.
        subscription: Name of the subscription.
        handler: An `async def`, an async generator function or a plain function with one or two
            required parameters: the value, and the `Message`. A plain function runs in a thread.
        schema: As for `Client.subscribe`, such as `Json(Order)`.
        concurrency: Most handlers at once.
        max_bytes: Most payload bytes of messages in this process. One larger message runs alone.
        order: "none" (Shared), "key" (Key_Shared: one message of a key at a time) or "partition"
            (Failover: one message of a partition at a time). With an order, a failed message waits
            here and is tried again before the messages behind it.
        timeout: Longest run of a handler, in seconds or as a timedelta. Then it is cancelled, which
            is a failed attempt. None for no limit. A plain function cannot be interrupted.
        drain: Seconds from the signal to the return of `run`. Handlers get 3 s less.
        prefetch: Most messages that wait here for a free slot; None for twice `concurrency`.
        retry: Attempts, backoff and dead letters.
        breaker: Pauses the worker while a dependency is away, without using up attempts.
        reject_limit: After so many rejections in a row the worker takes one message each 30 s,
            because one bad deployment could dead-letter a whole backlog. None for no limit.
        initial_position: Where a new subscription begins. With Latest, messages that were published
            before the first start are skipped.
        state: A `RocksState`, so that attempts survive a process that a message kills.
        publish: The topic of results, or a `PublishTo` with a schema. Results are stored before the
            message is acked; an error is a failed attempt. Without it, results are ignored,
            and an `Out` is an error.
        transactional: Exactly once: the results of a handler and the ack of its message take effect
            together, in transactions of many messages (native transport). True, or `Transactional`
            for other limits than 1,000 messages, 4 MiB, 50 ms and a timeout of 10 s. Readers of the
            results wait for an open transaction. Effects of the handler itself may be doubled. See
            `docs/transactions.md`.
        name: Name in logs and reports; None for "topics/subscription".
        on_failure: "raise", or "terminate" to also send SIGTERM to this process if the worker
            fails. An ASGI server needs that: it goes on serving after its lifespan task has ended.
        start_retry: Wait for a broker that is away, for a subscription that another process still
            holds, and 30 s for a namespace. False to fail at once.
        options: Further options of `Client.subscribe`.

    Raises:
        ConfigurationError: if a parameter is wrong, or if two of them contradict each other.

    Example:
        ```python
        async def bill(order: Order) -> None:
            if order.total < 0:
                raise pulsar_encore.Reject("negative total")
            await gateway.charge(order)


        async with pulsar_encore.Client("pulsar://localhost:6650") as client:
            worker = pulsar_encore.Worker(
                client,
                "orders",
                "billing",
                bill,
                schema=pulsar_encore.Json(Order),
                order="key",
                initial_position=pulsar_encore.InitialPosition.Earliest,
            )
            await pulsar_encore.run(worker)
        ```
    """

    _session_type: ClassVar[type[Session]] = Session
    _handler_type: ClassVar[type[HandlerCall]] = HandlerCall

    @explains_misplaced_options
    def __init__(
        self,
        client: Client,
        topics: str | Sequence[str] | re.Pattern[str] | Mapping[str, int],
        subscription: str,
        handler: Callable[[T], Any] | Callable[[T, Message[T]], Any],
        *,
        schema: Codec[T] | None = None,
        concurrency: int = 16,
        max_bytes: int = DEFAULT_MAX_BYTES,
        order: Order | Literal["none", "key", "partition"] = Order.NONE,
        timeout: float | timedelta | None = None,
        drain: float | timedelta = 20.0,
        prefetch: int | None = None,
        retry: RetryPolicy | None = None,
        breaker: Breaker | None = None,
        reject_limit: int | None = 20,
        initial_position: InitialPosition = InitialPosition.Latest,
        state: RocksState | None = None,
        publish: str | PublishTo | None = None,
        transactional: bool | Transactional = False,
        name: str | None = None,
        on_failure: Literal["raise", "terminate"] = "raise",
        start_retry: bool = True,
        options: SubscribeOptions | None = None,
    ) -> None:
        checked = WorkerOptions(
            topics=topics,
            subscription=subscription,
            schema=schema,
            concurrency=concurrency,
            max_bytes=max_bytes,
            order=order,
            timeout=timeout,
            drain=drain,
            prefetch=prefetch,
            retry=RetryPolicy() if retry is None else retry,
            breaker=breaker,
            reject_limit=reject_limit,
            initial_position=initial_position,
            state=state,
            publish=PublishTo(publish) if isinstance(publish, str) else publish,
            transactional=transactional,
            name=name,
            on_failure=on_failure,
            start_retry=start_retry,
            options=options,
        )
        self._set_up(client, checked, handler)

    def _set_up(self, client: Client, options: WorkerOptions, handler: Callable[..., Any]) -> None:
        if not callable(getattr(client, "subscribe", None)):
            raise ConfigurationError(
                f"client must be a Client, got {type(client).__name__}: write "
                f'{type(self).__name__}(Client("pulsar://localhost:6650"), ...)'
            )
        self._options = options
        self.client: Client = client
        self._log = logger_of(client)(__name__)
        self._handler = self._handler_type(handler)
        if self._handler.kind is HandlerKind.GENERATOR and options.publish is None:
            raise ConfigurationError(
                "the handler is an async generator, and nothing is done with its values: give the "
                f'topic of its results, as in {type(self).__name__}(..., publish="invoices")'
            )
        self.name: str = options.name or f"{self._topics_text()}/{options.subscription}"
        self.drain: float = options.drain_s
        self.on_failure: Literal["raise", "terminate"] = options.on_failure
        self._on_outcome: Callable[[Outcome], None] | None = None
        self._state = "new"
        self._error: BaseException | None = None
        self._paused = False
        # The calls with a topic before the start: True for `pause`, by full name, the latest last.
        self._early_pauses: dict[str, bool] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_requested = False
        self._deadline: DrainDeadline | None = None
        self._stopping: asyncio.Event | None = None
        self._ended: asyncio.Future[None] | None = None
        self._started: asyncio.Event | None = None
        self._session: Session | None = None
        self._standby: Standby[Message] | None = None
        self._background: asyncio.Task[Report] | None = None
        self._waits_for = ""  # at the start
        self._parent: asyncio.Task[Any] | None = None
        self._parent_requests = 0  # to cancel the parent, before the worker started
        self._has_cancelled_parent = False

    def _topics_text(self) -> str:
        pattern = self._options.pattern
        return ",".join(self._options.topic_names) if pattern is None else pattern.pattern

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, {self._state}>"

    # Running

    async def run(self, *, drain: float | timedelta | None = None) -> Report:
        """Call `pulsar_encore.run` with this worker."""
        from .run import run  # lazy: `run` is above this file

        return await run(self, drain=drain)

    async def serve(self, deadline: DrainDeadline | None = None) -> Report:
        """Process messages until `stop` is called, and drain. Installs no signal handlers.

        Cancelling the call closes the worker at once; its unfinished messages are redelivered.

        Raises:
            ConfigurationError: if the worker has already run. Make a new one.
            EncoreError: if the subscription is refused or ends for good.
        """
        if self._state != "new":
            raise self._used_error()
        loop = asyncio.get_running_loop()
        if deadline is None:
            deadline = DrainDeadline(self.drain, loop.time)
        self._loop, self._deadline = loop, deadline
        self._stopping = asyncio.Event()
        if self._started is None:
            self._started = asyncio.Event()
        self._ended = loop.create_future()
        self._state = "starting"
        if self._stop_requested:
            self._begin_stop()
        self._observe("worker_started")
        failure: BaseException | None = None
        try:
            await self._serve(deadline)
            self._state = "ended"
        except BaseException as error:
            self._state = "failed"
            self._error = error
            failure = None if isinstance(error, asyncio.CancelledError) else error
            raise
        finally:
            self._started.set()
            self._observe("worker_ended", failure)
        return self.report()

    def _observe(self, method: str, *arguments: Any) -> None:
        """Call a method of the client's observers, if one overrides it."""
        observers = observers_of(self.client)
        if observers is not None and (hook := getattr(observers, method)) is not None:
            hook(self, *arguments)

    async def _serve(self, deadline: DrainDeadline) -> None:
        assert self._stopping is not None
        assert self._ended is not None
        assert self._started is not None
        consumer = await self._subscribe(self._stopping)
        if consumer is None:
            return
        self._session = session = self._make_session(
            self.client,
            consumer,
            self._options,
            self._handler,
            self.name,
            self._stopping,
            self._fail,
        )
        session.on_outcome = self._on_outcome
        session.standby = self._standby
        try:
            if self._paused:
                session.core.pause()
            for topic, is_pause in self._early_pauses.items():
                if is_pause:
                    session.pause_topic(topic)
                else:
                    session.resume_topic(topic)
            session.start()
            self._state = "running"
            self._started.set()
            await self._ended
        finally:
            self._state = "draining"
            self._stopping.set()
            deadline.begin()
            self._observe("drain_began")
            try:
                if not _is_cancelled():
                    await session.drain(deadline)
            finally:
                try:
                    await session.close(deadline)
                finally:
                    self._observe("drain_ended")

    def _make_session(self, *args: Any) -> Session:
        if self._options.transactions is None:
            return self._session_type(*args)
        from .transactional_session import TransactionalSession  # lazy: few workers need it

        return TransactionalSession(*args)

    async def _subscribe(self, stopping: asyncio.Event) -> Consumer | None:
        options = self._options
        made: Consumer | None = None

        async def subscribe() -> Consumer:
            nonlocal made
            # Before the first event, which may come before there is a session.
            self._standby = self._new_standby()
            if options.transactions is not None:
                # So that a cluster without transactions is noticed before the first message.
                await (await self.client.transaction(options.transactions.timeout)).abort()
            consumer: Consumer | None = None
            try:
                # Before the first message: messages of aborted transactions are redelivered first.
                async with self._owned_after_aborts():
                    consumer = await self.client.subscribe(
                        **options.subscribe_keywords(self._on_event)
                    )
                if options.retry.dead_letters:
                    await consumer.create_letter_subscriptions()
            except asyncio.CancelledError:
                if consumer is not None:
                    consumer.close_soon()
                raise
            except BaseException:
                if consumer is not None:
                    await consumer.close()
                raise
            made = consumer
            return consumer

        if not options.start_retry:
            return await subscribe()
        try:
            log = start_log_of(self.client)
            return await wait_until_made(
                subscribe, self.name, stopping, Random(), log, self._note_wait
            )
        except asyncio.CancelledError:
            if made is not None:  # at the same moment
                made.close_soon()
            raise

    def _owned_after_aborts(self) -> AbstractAsyncContextManager[None]:
        options = self._options
        if options.transactions is None or options.state is None:
            return nullcontext()
        # Lazy: only a transactional worker has a journal.
        from .transaction_journal import owned_after_aborts

        return owned_after_aborts(
            options.state, self.client.abort_transaction, self.name, self._log
        )

    def _note_wait(self, reason: str) -> None:
        self._waits_for = reason

    def _on_event(self, event: ConsumerEvent) -> None:
        if isinstance(event, BecameActive | BecameInactive | Disconnected):
            self._on_change(event)
        elif isinstance(event, Failed) and event.component == "consumer":
            self._fail(event.error)
        keywords = {} if self._options.options is None else self._options.options.keywords
        listener = keywords.get("event_listener")
        if listener is not None:
            listener(event)

    def _new_standby(self) -> Standby[Message] | None:
        is_told = transport_of(self.client).capabilities.active_changes
        return Standby() if is_told and self._options.order == Order.PARTITION else None

    def _on_change(self, event: BecameActive | BecameInactive | Disconnected) -> None:
        """Note which consumer of a Failover subscription gets the messages of a topic."""
        session, standby = self._session, self._standby
        if isinstance(event, BecameInactive):
            if standby is not None:
                standby.became_inactive(event.topic)
            if session is not None:
                session.lose_topic(event.topic)
        elif standby is not None and isinstance(event, BecameActive):
            early = standby.became_active(event.topic)
            # Messages that came too early may also wait in the consumer.
            if session is not None and (early or not session.has_jobs_of(event.topic)):
                session.lose_topic(event.topic)
        elif standby is not None and isinstance(event, Disconnected):
            for topic in event.topics:
                standby.disconnected(topic)

    def _fail(self, error: BaseException) -> None:
        if self._ended is not None and not self._ended.done():
            self._log.error("worker %s failed: %s", self.name, error)
            self._ended.set_exception(error)

    async def handle(self, message: Message[T]) -> Outcome:
        """Call the handler for one message by all rules, and return the outcome. For tests.

        The worker need not run, and nothing is sent: published messages are in the outcome. The
        breaker and the reject limit see only this call. The handler of a `BatchWorker` gets a list
        of one message.

        Args:
            message: A message of `pulsar_encore.testing.message`. A payload that it was made from
                is decoded with the schema of the worker.

        Raises:
            ConfigurationError: if `message` is no message.
        """
        return await call_once(self._options, self._handler, message)

    def watch_outcomes(self, on_outcome: Callable[[Outcome], None]) -> None:
        """Call a function with the outcome of each handler call. For tests; call it before `run`.

        The outcomes name no published messages.
        """
        self._on_outcome = on_outcome

    def _used_error(self) -> ConfigurationError:
        return ConfigurationError(
            f"worker {self.name} {self._state_text()}, and a worker runs once: make a new one"
        )

    def _state_text(self) -> str:
        return f"{'has' if self._state in ('ended', 'failed') else 'is'} {self._state}"

    # Control

    def stop(self) -> None:
        """Begin the drain. Can be called more than once, and from any thread."""
        self._stop_requested = True
        loop = self._loop
        if loop is None:
            return
        with suppress(RuntimeError):  # the loop is closed, so the worker has ended
            loop.call_soon_threadsafe(self._begin_stop)

    def _begin_stop(self) -> None:
        if self._stopping is None or self._ended is None or self._deadline is None:
            return
        self._deadline.begin()
        self._stopping.set()
        if not self._ended.done():
            self._ended.set_result(None)

    def pause(self, topic: str | None = None) -> None:
        """Start no further handler, or none of a topic, until `resume`. Running handlers go on.

        Call it on the event loop of the worker. Without effect after its end.

        Args:
            topic: As for `Consumer.pause`. A topic that is paused before the start is checked
                then.

        Raises:
            ConfigurationError: if the worker does not read the topic.
        """
        if topic is not None:
            if self._session is None:
                self._note_early_pause(topic, True)
            elif not self._has_ended():
                self._session.pause_topic(topic)
            return
        self._paused = True
        if self._session is not None:
            self._session.core.pause()

    def resume(self, topic: str | None = None) -> None:
        """Go on after `pause`. Call it on the worker's event loop. Without effect after its end.

        A topic that was paused by its name goes on after `resume` with this name, and after
        `resume` without a name, which ends every pause.
        """
        if topic is not None:
            if self._session is None:
                self._note_early_pause(topic, False)
            elif not self._has_ended():
                self._session.resume_topic(topic)
            return
        self._paused = False
        self._early_pauses.clear()
        if self._session is not None and not self._has_ended():
            self._session.core.resume()
            self._session.resume_topic(None)

    def _note_early_pause(self, topic: str, is_pause: bool) -> None:
        name = full_name(topic_name(topic, "topic"))
        self._early_pauses.pop(name, None)
        self._early_pauses[name] = is_pause

    def _has_ended(self) -> bool:
        return self._state in ("ended", "failed")

    def pending(self, *, limit: int = 500) -> list[PendingMessage]:
        """Return the messages that were delivered to this worker and are not settled.

        As `Consumer.pending`, with the states "ready", "running", "waiting" (for its next call, at
        `due`), "blocked" (behind another message of its key or partition) and "settling". `attempt`
        is the number of the running or the next call. A worker that has not started has no
        messages.
        """
        return [] if self._session is None else self._session.pending(limit)

    @property
    def consumer(self) -> Consumer:
        """The consumer, for `Consumer.lease` and `Consumer.statistics`.

        Raises:
            ConfigurationError: if the worker has not started.
        """
        if self._session is None:
            raise ConfigurationError(f"worker {self.name} has not started, so it has no consumer")
        return self._session.consumer

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that the worker runs on, or ran on; None before its start."""
        return self._loop

    @property
    def state(self) -> str:
        """One of "new", "starting", "running", "draining", "ended" and "failed"."""
        return self._state

    @property
    def is_reject_limit_reached(self) -> bool:
        """True while the worker takes one message each 30 s, because the others were rejected."""
        return self._session is not None and self._session.core.is_reject_limit_reached

    @property
    def held(self) -> int:
        """How many messages this worker has that are ready, running, waiting or being settled."""
        return 0 if self._session is None else len(self._session.core)

    # In the background

    async def __aenter__(self) -> Self:
        """Start the worker in a task, and wait until it has subscribed.

        If the worker fails later, the task that entered the context is cancelled, and the `async
        with` statement raises the worker's error. A cancellation from elsewhere, such as by
        `asyncio.timeout` around the statement, is raised as it is, after the drain. A cancellation
        during the drain closes the worker at once; its unfinished messages are redelivered.

        Raises:
            ConfigurationError: if the worker has already run. Make a new one.
        """
        if self._state != "new" or self._background is not None:
            raise self._used_error()
        self._parent = parent = asyncio.current_task()
        self._parent_requests = 0 if parent is None else parent.cancelling()
        self._started = asyncio.Event()
        self._background = asyncio.ensure_future(self.serve())
        self._background.add_done_callback(self._background_ended)
        try:
            await self._started.wait()
        except BaseException:
            self._parent = None
            self._background.cancel()
            await self._join_background()
            raise
        if self._error is not None:
            self._parent = None
            await self._background  # raises the error
        return self

    def _background_ended(self, task: asyncio.Task[Report]) -> None:
        if task.cancelled() or task.exception() is None:
            return
        if self.on_failure == "terminate":
            from .run import terminate_process  # lazy: `run` is above this file

            terminate_process(self, task.exception())
        if self._parent is not None:
            self._has_cancelled_parent = self._parent.cancel()

    async def _join_background(self) -> asyncio.CancelledError | None:
        """Wait for the end of the background task. A cancellation closes the worker at once.

        Returns:
            The cancellation. The caller raises it.
        """
        assert self._background is not None
        cancelled: asyncio.CancelledError | None = None
        while not self._background.done():
            try:
                await asyncio.wait((self._background,))
            except asyncio.CancelledError as error:
                cancelled = error
                self._background.cancel()
        return cancelled

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._background is not None
        parent, self._parent = self._parent, None
        cancelled = error if isinstance(error, asyncio.CancelledError) else None
        if self._has_cancelled_parent and parent is not None:
            # As in `asyncio.TaskGroup`: only the worker's own request is taken back.
            if parent.uncancel() <= self._parent_requests:
                cancelled = None
        self.stop()
        cancelled = await self._join_background() or cancelled
        failure = None if self._background.cancelled() else self._background.exception()
        if cancelled is None and (error is None or isinstance(error, asyncio.CancelledError)):
            if failure is not None:
                raise failure
            return
        if failure is not None:  # nobody raises it
            self._log.error("worker %s failed as well", self.name, exc_info=failure)
        if cancelled is not None and cancelled is not error:
            raise cancelled

    # What is seen from outside

    def health(self) -> Health:
        """Return the state of the worker, for a readiness probe.

        Call it on the event loop of the worker. `encore.health.serve` answers from other threads.
        """
        session = self._session
        if session is None or self._state not in ("running", "draining"):
            reason = f"the worker {self._state_text()}"
            if self._error is not None:
                reason += f": {self._error}"
            elif self._state == "starting" and self._waits_for:
                reason += f": {self._waits_for}"
            return Health(ready=False, reasons=(reason,), state=self._state)
        return session.health(
            "paused" if self._paused and self._state == "running" else self._state
        )

    def unfinished(self) -> int:
        """Return how many handlers on the event loop were left behind and still run."""
        return 0 if self._session is None else self._session.unfinished()

    def report(self) -> Report:
        """Return the counts since the start."""
        return Report(name=self.name) if self._session is None else self._session.report()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
