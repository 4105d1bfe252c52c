"""The consumer: stock's methods, and the right behaviour behind them.

Owns `Consumer`, the object an application holds, and the wiring of its parts: `Intake` (what the
transport says), `ReceiveQueue` (what arrived), `Settlement` (whose is it, settle it), `AckSender`
(when acks leave), `Redelivery` (what comes back and when). All of it runs on one event loop;
nothing here blocks it or starts a thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from ..awaiting import Acted, ActedLast, Acting, Handed, Refused, settles
from ..backoff import to_ms
from ..core.in_flight import InFlight
from ..errors import ClosedError, ConfigurationError, EncoreError
from ..exceptions import (
    CumulativeAcknowledgementNotAllowedError,
    InvalidConfiguration,
    OperationNotSupported,
)
from ..ids import MessageId
from ..letters.evidence import check_error
from ..loops import Place, get_ident, running_loop
from ..mailbox import Mailbox
from ..message import Message
from ..options import BatchReceivePolicy, ConsumerOptions
from ..options.checks import integer
from ..transport.base import ConsumerLink
from ..turn import Turn
from ..version import VERSION
from .ack_sender import AckSender
from .batch_receiver import BatchReceiver
from .forwarder import Forwarder
from .intake import Intake
from .letter_desk import LetterDesk
from .letter_topics import LetterTopics
from .listener import Listener, in_callback
from .receive_queue import ReceiveQueue
from .redelivery import Redelivery
from .settlement import Settleable, Settlement
from .statistics import Statistics, snapshot
from .window import Window

logger: logging.Logger = logging.getLogger(__name__)

# Longest wait of `close` for a connection that acks need, and how often it looks.
_LONG: Final = 500  # a list that may take longer than a turn of the loop
_CLOSE_S: Final = 5.0
_CLOSE_RETRY_S: Final = 0.1

_T = TypeVar("_T")


class Consumer:
    """A subscription, made by `Client.subscribe`.

    Every await can be cancelled or timed out at any point without losing a message. `async with`
    closes it; `async for` receives until it is closed. It belongs to the event loop it was made on:
    a call from another one raises `WrongLoopError`, in a forked child `ForkedError`.
    """

    def __init__(
        self,
        link: ConsumerLink,
        options: ConsumerOptions,
        *,
        letters: LetterTopics | None = None,
        on_closed: Callable[[Consumer], None] | None = None,
    ) -> None:
        self._link = link
        self._options = options
        self._on_closed = on_closed
        self.place: Place = Place("consumer")
        self._loop = loop = self.place.loop
        self._turn = Turn(loop)
        self._acted = Acted(loop)
        self._acted_last = ActedLast(self._turn)
        self._listener: Listener | None = None
        self._closing: asyncio.Task[None] | None = None
        self._refusal: Exception | None = None  # what every call gets once closed, or dead
        self._homes: dict[int, InFlight] = {}
        self._queue = ReceiveQueue(options.schema, link.consumed, self._turn, self._failed)
        self._acks = AckSender(link, self._homes, options, loop, self._queue)
        self._redelivery = Redelivery(
            link, self._homes, options, loop, self._acks, self._queue, Random()
        )
        if options.unacked_messages_timeout_ms is not None:
            self._queue.handed_over = self._redelivery.handed_over
        self._window = Window(link, self._homes, options.max_unacked_messages)
        self._intake = Intake(
            self,
            link,
            self._homes,
            self._queue,
            self._acks,
            self._window,
            self._redelivery,
            options,
            counts_attempts=options.dead_letter_policy is not None,
        )
        self._settlement = Settlement(self, link, self._intake.home, self._acks, self._redelivery)
        self._forwarder: Forwarder | None = None
        if letters is not None:
            self._open_letters(letters)
        policy = options.batch_receive_policy or BatchReceivePolicy()
        most = max(1, options.receiver_queue_size)
        self._batches = BatchReceiver(self._queue, policy, most, self._turn)
        self._background: set[asyncio.Task[Any]] = set()
        self._handed = Mailbox(loop)  # calls of other threads
        self._lists: dict[asyncio.Task[None], deque[Settleable]] = {}  # long ones, being acked
        self._cut_off = False  # nothing can be sent any more, and need not be waited for
        link.start(self._intake)
        if options.message_listener is not None:
            self._listener = Listener(self, self._queue, options.message_listener, self._turn)

    def __repr__(self) -> str:
        return (
            f"<Consumer of {self.topic()}, subscription {self.subscription_name()!r}, "
            f"{self._options.consumer_type.name}, {self._state()}>"
        )

    def _state(self) -> str:
        if self._closing is not None or isinstance(self._refusal, ClosedError):
            return "closed"
        if self._refusal is not None:
            return "failed"
        return "connected" if self.is_connected() else "not connected"

    def _open_letters(self, topics: LetterTopics) -> None:
        options = self._options
        forwarder = Forwarder(topics, self._settlement, self.consumer_name(), VERSION)
        desk = LetterDesk(options, forwarder, self._queue, self._redelivery, self._window)
        self._forwarder = forwarder
        self._settlement.desk = self._intake.desk = self._desk = desk

    # Receiving

    async def receive(
        self, timeout_millis: int | None = None, *, timeout: float | timedelta | None = None
    ) -> Message:
        """The next message, waiting for one.

        Args:
            timeout_millis: Longest wait in ms (the synchronous stock client's name for it).
            timeout: Longest wait in seconds or as a timedelta.

        Raises:
            ReceiveTimeout: Nothing came in time. No message was taken.
            ClosedError: The consumer was closed.
            ConfigurationError: With a `message_listener`, which does the receiving.
        """
        if self.place.runner._thread_id != get_ident():
            self.place.check()
        if self._listener is not None:
            self._check_receiver()
        if timeout_millis is None and timeout is None:
            turn = self._turn
            if turn.clock() >= turn.ends:
                await turn.end()
            turn.checked = True
            return self._queue.take() or await self._queue.get(None)
        if timeout is None:
            wait_ms = integer(timeout_millis, "timeout_millis", low=0, unit="ms")
        elif timeout_millis is None:
            wait_ms = to_ms(timeout, "timeout")
        else:
            raise ConfigurationError("give timeout or timeout_millis, not both")
        return await self._queue.get(wait_ms / 1000)

    async def batch_receive(self) -> list[Message]:
        """Several messages at once, as the subscription's `batch_receive_policy` says.

        Returns:
            At least one message, or none when the policy's time ran out.
        """
        self.place.check()
        self._check_receiver()
        return await self._batches.receive()

    def _check_receiver(self) -> None:
        if self._listener is not None:
            raise InvalidConfiguration("the message_listener receives; do not receive beside it")

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive()
        except ClosedError:
            raise StopAsyncIteration from None

    # Settling

    @settles
    def acknowledge(self, message: Settleable | Sequence[Settleable]) -> Coroutine[Any, Any, None]:
        """The message, or each of a list, is done and need not come again.

        Done when the call returns; awaiting the result lets the event loop run when it is time, and
        raises what there is to raise. (In a listener's callback the call itself does.) Called in a
        thread without an event loop, it is done on this consumer's. Sent with others within
        `ack_group_time_ms`; kept while disconnected. Acking twice is harmless, acking a nacked
        message cancels its nack, and an id without index is its entry's.

        Raises:
            MessageNotHeldError: Another consumer's, of no topic read here, or part of a batch that
                this consumer does not hold. Nothing was acked but what precedes it in the list.
            WrongLoopError: Called on another event loop.
        """
        if self.place.runner._thread_id != get_ident():
            whole = tuple(message) if isinstance(message, list) else message
            return self._elsewhere(self.acknowledge, whole)
        if type(message) is Message and self._refusal is None:
            # What nearly every call is; the rules are `Settlement.ack`'s.
            entry = message._entry
            if entry is not None and entry.live and entry.home.owner is self:
                unsent = entry.home.ack(entry, message._index)
                if unsent:
                    self._acks.added(entry.home, unsent)
                turn: Turn = self._turn
                done: Coroutine[Any, Any, None] = self._acted
                if turn.checked:
                    turn.checked = False
                elif turn.clock() >= turn.ends:
                    done = self._acted_last
                return done
        if isinstance(message, (list, tuple)) and len(message) > _LONG:
            rest = deque(message)  # the caller's own list may change
            task = self._in_background(self._acknowledge_all(rest))
            self._lists[task] = rest
            task.add_done_callback(self._lists.pop)
            return Acting(task)
        return self._act(self._acknowledge, message)

    def _acknowledge(self, message: Settleable | Sequence[Settleable]) -> None:
        if isinstance(message, (list, tuple)):
            for each in message:
                self._settlement.ack(each)
        else:
            self._settlement.ack(message)  # type: ignore[arg-type]  # refuses other sequences

    def _act(self, step: Callable[..., None], *args: Any) -> Coroutine[Any, Any, None]:
        """Take a step now. What it raises is raised where it is awaited; in a listener's callback
        here, for that has failed then, and nobody may be awaiting it."""
        try:
            self._refuse_closed()
            step(*args)
        except EncoreError as error:
            if in_callback():
                raise
            return Refused(error, self._loop)
        return self._end_turn()

    def _end_turn(self) -> Coroutine[Any, Any, None]:
        """What a call that has acted returns: for the loop to run, when the turn is over."""
        turn = self._turn
        over = turn.clock() >= turn.ends
        return self._acted_last if over else self._acted

    def _elsewhere(
        self, call: Callable[..., Coroutine[Any, Any, None]], *args: Any
    ) -> Coroutine[Any, Any, None]:
        """The call, made where the consumer's loop does not run."""
        self.place.check_process()
        if running_loop() is not None or self.place.over:
            self.place.check()
        outcome: concurrent.futures.Future[None] = concurrent.futures.Future()
        if not self._handed.post(_make, outcome, call, *args):
            self.place.check()
        return Handed(outcome)

    async def _acknowledge_all(self, rest: deque[Settleable]) -> None:
        """A long list, in several turns of the loop."""
        while rest:
            self._refuse_closed()
            self._settlement.ack(rest[0])
            rest.popleft()
            await self._end_turn()

    def _settle_now(self) -> None:
        """What was called for and is not done yet, before something that ends or outdates it."""
        self._handed.take_all()
        for rest in self._lists.values():
            with contextlib.suppress(EncoreError):  # its own task meets it as well, and says so
                while rest:
                    self._settlement.ack(rest[0])
                    rest.popleft()

    @settles
    def acknowledge_cumulative(self, message: Settleable) -> Coroutine[Any, Any, None]:
        """The message and all before it, of its topic or partition, are done.

        Done when the call returns, as `acknowledge` is.

        Raises:
            ConfigurationError: On Shared and Key_Shared, where other consumers hold the rest.
        """
        if self.place.runner._thread_id != get_ident():
            return self._elsewhere(self.acknowledge_cumulative, message)
        return self._act(self._acknowledge_cumulative, message)

    def _acknowledge_cumulative(self, message: Settleable) -> None:
        self._check_cumulative("acknowledge_cumulative")
        self._settlement.ack_cumulative(message)

    def _check_cumulative(self, call: str) -> None:
        if self._options.shared:
            raise CumulativeAcknowledgementNotAllowedError(
                f"{call} needs an Exclusive or Failover consumer; this one is "
                f"{self._options.consumer_type.name}: settle the messages one by one"
            )

    @settles
    def negative_acknowledge(
        self,
        message: Settleable,
        delay: float | timedelta | None = None,
        *,
        error: BaseException | str | None = None,
    ) -> Coroutine[Any, Any, None]:
        """The message failed: it comes again after `delay`.

        Done when the call returns, as `acknowledge` is.
        Per message, also inside a batch: siblings that are acked or still held do not come with it.
        Nacking again moves it; acking cancels it. On Exclusive and Failover the broker can only
        rewind: when the delay is over everything unacked of the topic comes again, in order.

        Args:
            message: A message of this consumer, or an id.
            delay: Seconds or timedelta until it comes again; None for the subscription's
                `negative_ack_redelivery_backoff`, else `negative_ack_redelivery_delay_ms`.
            error: Why; kept as evidence for the day the message is dead-lettered.

        Raises:
            ConfigurationError: A delay below 0, or an `error` of another kind; nothing was done.
            MessageNotHeldError: Another consumer's, or of no topic read here.
        """
        if self.place.runner._thread_id != get_ident():
            return self._elsewhere(partial(self.negative_acknowledge, error=error), message, delay)
        return self._act(self._negative_acknowledge, message, delay, error)

    def _negative_acknowledge(
        self,
        message: Settleable,
        delay: float | timedelta | None,
        error: BaseException | str | None,
    ) -> None:
        check_error(error)
        self._settlement.nack(message, delay, error)
        self._window.watch()

    async def reconsume_later(
        self,
        message: Message | Sequence[Message],
        delay: float | timedelta = 0,
        properties: Mapping[str, str] | None = None,
        *,
        error: BaseException | str | None = None,
    ) -> None:
        """The message comes again through the retry-letter topic, after `delay`.

        It is copied there and then acked, so it does not count against the broker's unacked window
        while it waits, and its count survives everything (RECONSUMETIMES). With its retries used up
        it goes to the dead-letter topic. If the copy fails, the message comes back by redelivery. A
        cancelled call is finished in the background.

        Args:
            message: Held by this consumer; or a list, all sent side by side.
            delay: Seconds or timedelta.
            properties: Added to the letter's; not the names that letters use (`letters.RESERVED`).
            error: Why; kept as evidence on the letter.

        Raises:
            ConfigurationError: Without retry_enable, or a bad argument; nothing was sent.
            MessageNotHeldError: Settled already, or another consumer's; nothing was sent.
            TransportError: The copy is not known to be persisted.
            ExceptionGroup: For a list, with the error of every message that failed.
        """
        forwarder = self._need_retry()
        check_error(error)
        if isinstance(message, Message):
            await forwarder.reconsume(message, delay, properties, error)
            return
        if not isinstance(message, (list, tuple)):
            raise ConfigurationError(
                "reconsume_later needs the received message, or a list of them, got "
                f"{type(message).__name__}: it is copied"
            )
        await forwarder.reconsume_each(message, delay, properties, error)

    async def reconsume_later_cumulative(
        self,
        message: Message,
        delay: float | timedelta = 0,
        properties: Mapping[str, str] | None = None,
        *,
        error: BaseException | str | None = None,
    ) -> None:
        """`reconsume_later` for this message; all before it, of its topic, are acked.

        Raises as that does, and ConfigurationError on Shared and Key_Shared.
        """
        forwarder = self._need_retry()
        check_error(error)
        self._check_cumulative("reconsume_later_cumulative")
        await forwarder.reconsume(message, delay, properties, error, cumulative=True)

    def _need_retry(self) -> Forwarder:
        self._check_open()
        if self._forwarder is None or not self._options.retry_enable:
            raise ConfigurationError("reconsume_later needs subscribe(..., retry_enable=True)")
        return self._forwarder

    def redeliver_unacknowledged_messages(self) -> None:
        """Everything this consumer has and did not ack comes again now, pending nacks included."""
        self._check_open()
        self._settle_now()
        self._redelivery.redeliver_all()

    # Position and life

    async def seek(self, messageid: Settleable | int) -> None:
        """Continue from a message id or a publish time in ms since the epoch.

        From after the id, or from it with `start_message_id_inclusive=True`, as stock does.

        What was received before is void: pending nacks are dropped, acks made so far are sent
        first.
        """
        self._check_open()
        if isinstance(messageid, int):
            position: MessageId | int = integer(messageid, "seek's time", low=0, high=2**63 - 1)
        else:
            position = _position(messageid)
        self._settle_now()
        self._acks.flush()
        await self._finish(self._link.seek(position))

    async def get_last_message_id(self) -> MessageId:
        """Id of the last message in the topic.

        Raises:
            OperationNotSupported: Of several topics or partitions, on the stock transport.
        """
        self._check_open()
        try:
            return await self._link.last_message_id()
        except OperationNotSupported as error:
            raise OperationNotSupported(
                "get_last_message_id is for one topic without partitions on this transport: ask "
                "a consumer of each topic or partition"
            ) from error

    async def unsubscribe(self) -> None:
        """Delete the subscription, with what it holds, and close."""
        self._check_open()
        self._settle_now()
        self._acks.flush()
        await self._finish(self._unsubscribe())

    async def _unsubscribe(self) -> None:
        await self._link.unsubscribe()
        self._cut_off = True
        await self.close()

    def pause_message_listener(self) -> None:
        """The listener gets nothing more until resumed; the call under way ends first."""
        self._need_listener().pause()

    def resume_message_listener(self) -> None:
        self._need_listener().resume()

    def _need_listener(self) -> Listener:
        if self._listener is None:
            raise ConfigurationError("this consumer has no message_listener")
        self._check_open()
        return self._listener

    def topic(self) -> str:
        return self._link.topic

    def subscription_name(self) -> str:
        return self._link.subscription_name

    def consumer_name(self) -> str:
        return self._link.consumer_name

    def is_connected(self) -> bool:
        return self._refusal is None and self._link.is_connected()

    def statistics(self) -> Statistics:
        """Counts of what is here and waits, and how full the broker's unacked window is."""
        return snapshot(self._homes.values(), self._acks.unsent, self._window, self.is_connected())

    async def close(self) -> None:
        """Send the acks made, give everything else back to the broker. Idempotent.

        A `message_listener` that is under way may end first and settle its message; after 5 s it is
        cancelled, and the message comes again.
        """
        if self.place.runner._thread_id != get_ident():
            if self.place.over:  # and with it all that could be sent or waited for
                self.abandon()
                return
            self.place.check()
        if self._closing is None:
            self._settle_now()
            if self._listener is None:
                self._refusal = _closed()
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            if self._listener is not None:
                await self._listener.close()
                self._settle_now()  # what its last callback has called for
                self._refusal = _closed()
            if self._forwarder is not None:
                self._desk.close()
                await self._forwarder.close()
        finally:  # whatever failed there, the subscription is given back
            try:
                self._end_receiving(_closed())
                await self._send_acks()
            finally:
                self._acks.close()
                self._queue.drop()
                try:
                    await self._link.close()
                finally:
                    self._forget()

    def _end_receiving(self, why: ClosedError) -> None:
        self._refusal = why
        self._redelivery.close()
        self._link.stop_flow()
        self._queue.drop()
        self._queue.fail(why)

    async def _send_acks(self) -> None:
        """What was acked while disconnected waits for the reconnect, within a limit."""
        deadline = self._loop.time() + _CLOSE_S
        while not ((self._acks.flush() and not self._acks.in_doubt) or self._cut_off):
            if self._loop.time() >= deadline:
                logger.warning(
                    "%s/%s was closed while disconnected: acks of %d entries were not sent, those "
                    "of %d may be lost with the connection, and their messages come again",
                    self.topic(),
                    self.subscription_name(),
                    self._acks.unsent,
                    self._acks.in_doubt,
                )
                return
            await asyncio.sleep(_CLOSE_RETRY_S)

    def abandon(self) -> None:
        """Every call fails from now on, nothing is sent; for the client, which was shut down."""
        self._cut_off = True
        self._end_receiving(ClosedError("the client was shut down"))
        self._acks.close()
        self._forget()

    def _forget(self) -> None:
        on_closed, self._on_closed = self._on_closed, None
        if on_closed is not None:
            on_closed(self)

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self.place.runner._thread_id != get_ident():
            self.place.check()
        self._refuse_closed()

    def _refuse_closed(self) -> None:
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)

    def _failed(self, error: Exception) -> None:
        """The link is dead for good, or closed."""
        if self._closing is None:
            self._refusal = error
            if self._listener is not None:
                self._listener.failed(error)

    async def _finish(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Await `work`, which goes on to its end even when the caller is cancelled."""
        task = self._in_background(work)
        task.add_done_callback(_retrieve)
        return await asyncio.shield(task)

    def _in_background(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _make(
    outcome: concurrent.futures.Future[None],
    call: Callable[..., Coroutine[Any, Any, None]],
    *args: Any,
) -> None:
    """Make another thread's call on the loop, and tell it what came of it."""
    try:
        acted = call(*args)
    except Exception as error:
        outcome.set_exception(error)
        return
    if isinstance(acted, Refused):
        outcome.set_exception(acted.exception())
    elif isinstance(acted, Acting):
        acted.task.add_done_callback(partial(_pass_on, outcome))
    else:
        outcome.set_result(None)


def _pass_on(outcome: concurrent.futures.Future[None], task: asyncio.Task[None]) -> None:
    if task.cancelled():
        outcome.cancel()
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(None)


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.debug("background call failed: %r", task.exception())


def _position(messageid: Any) -> MessageId:
    try:
        return MessageId.wrap(messageid)
    except ConfigurationError as error:
        raise ConfigurationError(
            "seek needs a MessageId, or a publish time in ms since the epoch as an int, got "
            f"{type(messageid).__name__}"
        ) from error


def _closed() -> ClosedError:
    return ClosedError("the consumer was closed")
