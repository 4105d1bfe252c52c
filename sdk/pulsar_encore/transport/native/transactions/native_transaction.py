"""One transaction of the native transport: its sends and acks, its deadline, and its end.

Brokers check neither at SEND and ACK nor at the end whether a message still belongs to an open
transaction. So a topic is registered before the first message, and a subscription before the first
ack. Nothing leaves after the local deadline, and an end is requested when every send and ack has
its answer or its error (`docs/notes/wire-protocol.md#transactions`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from ....errors import (
    EncoreError,
    InvalidTxnStatusError,
    TransactionAbortedError,
    TransactionNotFound,
    TransactionOutcomeUnknown,
    TransactionStateError,
)
from ....eventloop.close_once import seen
from ....eventloop.process import in_background
from ....values.message_id import MessageId
from ....values.transaction_id import TxnId
from ....values.transaction_state import TxnState
from ....wire import pulsar_pb2 as pb
from ..connection.pool import ConnectionPool
from .commit_decision import Decision, decide
from .coordinators import Coordinators, EndAnswer
from .unanswered_abort import ask_until_answered, log_left_open, why_not_again

LOG_NAME: Final = "pulsar_encore.transaction"

# The local deadline is so much before the coordinator's, but at most a tenth of the timeout.
_MARGIN_S: Final = 1.0

# A coordinator that moves during a commit starts the rest of it again after 1 s, and then it may
# not find the transaction that it has committed.
_COORDINATOR_RETRY_S: Final = 0.9

_STATES: Final = {Decision.COMMITTED: TxnState.COMMITTED, Decision.ABORTED: TxnState.ABORTED}

_Registration: TypeAlias = str | tuple[str, str]
"""A topic that gets messages, or a topic and a subscription whose messages are acked."""


class TransactionSender(Protocol):
    """A producer that sends messages of a transaction, or a consumer that sends its acks."""

    def discard(self, txn: NativeTransaction, error: Exception) -> None:
        """Fail each message or ack of the transaction that is not on its way to the broker."""

    def flush_of(self, txn: NativeTransaction) -> Sequence[asyncio.Future[Any]]:
        """Send the open batches. Return futures for messages and acks that are on their way."""


def own_transaction(txn: object, pool: ConnectionPool, what: str) -> NativeTransaction:
    """Return a transaction of this client and event loop.

    Args:
        what: Who wants to use it, such as "producer".
    """
    if not isinstance(txn, NativeTransaction) or txn.pool is not pool:
        raise TransactionStateError(
            f"the transaction belongs to another client or event loop than the {what}: begin it "
            f"with the {what}'s client, on its event loop"
        )
    return txn


async def begin_transaction(
    coordinators: Coordinators,
    pool: ConnectionPool,
    timeout_s: float,
    is_visible: Callable[[MessageId], Awaitable[bool | None]],
) -> NativeTransaction:
    """Begin a transaction. If the call is cancelled, it is aborted as soon as its id is known.

    Args:
        timeout_s: The coordinator aborts it after this time, from 1 s.
        is_visible: Returns whether a message of an ended transaction is visible, or None if that
            cannot be found out.
    """
    beginning = pool.loop.create_task(coordinators.begin(round(timeout_s * 1000)))

    def make() -> NativeTransaction:
        txn_id, asked_s = beginning.result()
        # From before the request: the coordinator's own time begins later.
        deadline_s = asked_s + timeout_s - min(_MARGIN_S, timeout_s / 10)
        return NativeTransaction(coordinators, pool, txn_id, deadline_s, timeout_s, is_visible)

    try:
        await asyncio.shield(seen(beginning))
    except asyncio.CancelledError:
        if not beginning.done():
            beginning.add_done_callback(lambda done: _abort_begun(done, make))
        elif not beginning.cancelled() and beginning.exception() is None:
            make().abandon()
        raise
    return make()


def join_transaction(
    coordinators: Coordinators,
    pool: ConnectionPool,
    txn_id: TxnId,
    timeout_s: float,
    is_visible: Callable[[MessageId], Awaitable[bool | None]],
) -> NativeTransaction:
    """Return a transaction that another process has begun, to send in it.

    Args:
        timeout_s: The time that is left of its timeout.
        is_visible: As for `begin_transaction`.
    """
    deadline_s = pool.loop.time() + timeout_s - _MARGIN_S
    return NativeTransaction(coordinators, pool, txn_id, deadline_s, timeout_s, is_visible)


async def end_by_id(
    coordinators: Coordinators, pool: ConnectionPool, txn_id: TxnId, *, commit: bool
) -> None:
    """Commit or abort a transaction that perhaps another process has begun.

    Raises:
        TransactionNotFound: if it has ended before, or belongs to another role.
        InvalidTxnStatusError: if it is ending the other way.
        TransactionOutcomeUnknown: if an answer was lost, and it has ended by then.
    """
    action = pb.TxnAction.COMMIT if commit else pb.TxnAction.ABORT
    until_s = pool.loop.time() + pool.settings.operation_timeout_s
    answer = await coordinators.end(txn_id, action, until_s)
    if answer is EndAnswer.NOT_FOUND:
        raise TransactionNotFound(
            f"transaction {txn_id} has ended, timed out, or belongs to another role"
        )
    if answer is EndAnswer.OTHER_WAY:
        raise InvalidTxnStatusError(
            f"transaction {txn_id} is being {'aborted' if commit else 'committed'}"
        )
    if answer is EndAnswer.NOT_FOUND_ON_RETRY:
        raise TransactionOutcomeUnknown(
            f"transaction {txn_id} has ended: by this call, whose first answer was lost, or before",
            txn_id=txn_id,
        )


def _abort_begun(
    beginning: asyncio.Task[tuple[TxnId, float]], make: Callable[[], NativeTransaction]
) -> None:
    if not beginning.cancelled() and beginning.exception() is None:
        make().abandon()


class _Failure(NamedTuple):
    """A failed operation that makes the commit abort."""

    error: BaseException
    operation: str
    is_seen: Callable[[], bool] = lambda: False


def _in_one_entry(one: MessageId, other: MessageId) -> bool:
    return (one.topic, one.ledger_id(), one.entry_id()) == (
        other.topic,
        other.ledger_id(),
        other.entry_id(),
    )


class NativeTransaction:
    """An open transaction (`TransportTransaction`). Made by `begin_transaction`.

    Attributes:
        pool: Of the client and the event loop that it belongs to.
        timed_out: It is aborted because its time was over.
        deadline_s: Loop time from which on nothing of it may leave.
    """

    def __init__(
        self,
        coordinators: Coordinators,
        pool: ConnectionPool,
        txn_id: TxnId,
        deadline_s: float,
        timeout_s: float,
        is_visible: Callable[[MessageId], Awaitable[bool | None]],
    ) -> None:
        self._id = txn_id
        self.pool: ConnectionPool = pool
        self.state: TxnState = TxnState.OPEN
        self._may_send = True
        self._handed_over = False
        self.timed_out: bool = False
        self._coordinators = coordinators
        self._is_visible = is_visible
        self._loop = pool.loop
        self._log = pool.settings.logger_of(LOG_NAME)
        self.deadline_s: float = deadline_s
        self._timeout_s = timeout_s
        self._registered: set[_Registration] = set()
        self._registering: dict[_Registration, asyncio.Task[None]] = {}
        self._senders: dict[TransactionSender, None] = {}
        self._pending = 0  # sends and acks without an answer
        self._pending_at_deadline = 0
        self._on_ended: list[Callable[[bool], None]] = []
        self._all_done: asyncio.Future[None] | None = None
        self._failure: _Failure | None = None
        self._refusals: list[_Failure] = []  # each counts unless a caller has seen it
        self._has_acked = False
        self._stored: MessageId | None = None  # of the first message
        self._last_stored: dict[str, MessageId] = {}  # by topic or partition
        self._committing: asyncio.Task[None] | None = None
        self._aborting: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None  # again for an abort that had no answer
        self._has_asked_to_abort = False  # without an answer
        self._timer = self._loop.call_at(deadline_s, self._on_deadline)

    @property
    def id(self) -> TxnId:
        return self._id

    @property
    def may_send(self) -> bool:
        """False as soon as no message of it may leave any more.

        In another cluster its id is another transaction.
        """
        return (  # the same as `may_finish`, in one call for each message
            self._may_send
            and self._loop.time() < self.deadline_s
            and self._coordinators.service is self.pool.service
        )

    @property
    def may_finish(self) -> bool:
        """True if the rest of an ack that was sent before may leave: the end waits for it."""
        in_time = self._loop.time() < self.deadline_s  # the timer may be late
        return in_time and self._is_here

    @property
    def _is_here(self) -> bool:
        """True if the client is connected to the cluster of the transaction."""
        return self._coordinators.service is self.pool.service

    def __repr__(self) -> str:
        return f"<NativeTransaction {self._id}, {self.state.value}>"

    # Sends and acks

    def check_open(self, action: str = "send in it") -> None:
        """Raise `TransactionStateError` if no more messages can be sent or acked in it."""
        if self.state is TxnState.OPEN and self.may_send:
            return
        if self.state is not TxnState.OPEN:
            raise self._state_error(action)
        if self._handed_over:
            raise TransactionStateError(
                f"transaction {self._id} is ended by another process, so you cannot {action}"
            )
        if not self._is_here:
            raise TransactionStateError(
                f"transaction {self._id} belongs to the cluster that the client was connected to "
                "before: begin another"
            )
        if not self.may_send:
            self._timer.cancel()
            self._on_deadline()
            raise self._state_error(action)

    def add_sender(self, sender: TransactionSender) -> None:
        """Have the commit flush `sender`, and an abort discard what waits in it."""
        self._senders[sender] = None

    def when_ended(self, callback: Callable[[bool], None]) -> None:
        """Call back once (see `TransportTransaction.when_ended`)."""
        self._on_ended.append(callback)

    def register(self, topic: str) -> asyncio.Future[None] | None:
        """Return None if messages for a topic or partition may leave, else the future for that."""
        return self._register(topic)

    def register_subscription(self, topic: str, name: str) -> asyncio.Future[None] | None:
        """Return None if acks of a subscription may leave, else the future for that."""
        return self._register((topic, name))

    def _register(self, registration: _Registration) -> asyncio.Future[None] | None:
        if registration in self._registered:
            return None
        task = self._registering.get(registration)
        if task is None:
            task = self._registering[registration] = seen(
                self._loop.create_task(self._add(registration))
            )
            task.add_done_callback(lambda _: self._registering.pop(registration))
        return task

    async def _add(self, registration: _Registration) -> None:
        if isinstance(registration, str):
            await self._coordinators.add_partitions(self._id, [registration])
        else:
            await self._coordinators.add_subscriptions(self._id, [registration])
        self._registered.add(registration)

    def on_send(self) -> None:
        self._pending += 1

    def on_ack(self) -> None:
        self._pending += 1

    def on_stored(self, message_id: MessageId) -> None:
        if message_id.ledger_id() >= 0:  # -1 of a message that was dropped as a duplicate
            if self._stored is None:
                self._stored = message_id
            last = self._last_stored.get(message_id.topic)
            if last is None or message_id > last:  # receipts of two producers may be in any order
                self._last_stored[message_id.topic] = message_id
        self._on_answered()

    def on_acked(self) -> None:
        self._has_acked = True
        self._on_answered()

    def on_failed(self, error: BaseException, operation: str = "a send") -> None:
        self.spoil(error, operation)
        self._on_answered()

    def spoil(
        self,
        error: BaseException,
        operation: str,
        is_seen: Callable[[], bool] | None = None,
    ) -> None:
        """Have `commit` abort instead (see `TransportTransaction.spoil`)."""
        if is_seen is not None:
            self._refusals.append(_Failure(error, operation, is_seen))
        elif self._failure is None:
            self._failure = _Failure(error, operation)

    def _find_failure(self) -> BaseException | None:
        """Return the error that makes the commit abort."""
        if self._failure is None:
            self._failure = next((each for each in self._refusals if not each.is_seen()), None)
        return None if self._failure is None else self._failure.error

    def _on_answered(self) -> None:
        self._pending -= 1
        if not self._pending and self._all_done is not None and not self._all_done.done():
            self._all_done.set_result(None)

    # The end

    def _on_deadline(self) -> None:
        self.timed_out = True
        self._pending_at_deadline = self._pending
        if self.state is TxnState.OPEN:
            self._log.warning(
                "transaction %s has timed out after %g s, and is aborted; sends and acks without "
                "an answer: %d",
                self._id,
                self._timeout_s,
                self._pending,
            )
            self._begin_abort()
        else:  # a commit that still waits for sends: it aborts when they have failed
            self._discard()

    async def commit(self) -> None:
        """Commit. Later calls wait for the same outcome.

        Raises:
            TransactionAbortedError: if it was aborted instead: a send failed, or it timed out.
            TransactionOutcomeUnknown: if it cannot be found out whether it was committed.
            TransactionStateError: if `abort` was called before.
        """
        if self._committing is None:
            if self.timed_out:
                await self.ended()
                if self.state is TxnState.COMMITTED:
                    return  # by its id
                if self.state is TxnState.UNKNOWN:
                    raise self._unknown("commit", None)
                raise self._aborted_error()
            if self.state is not TxnState.OPEN:
                raise self._state_error("commit it")
            self.state = TxnState.COMMITTING
            self._committing = self._in_task(self._commit())
        await asyncio.shield(self._committing)

    async def abort(self) -> None:
        """Abort. Later calls wait for the same outcome, or ask again after a missing answer. No
        effect on a transaction that was aborted.

        Raises:
            TransactionStateError: if `commit` was called before, or it was committed by its id.
            TransactionOutcomeUnknown: if another client ended it by its id, and the client cannot
                find out how.
            TransportError: if the coordinator did not answer: the client asks again in the
                background.
        """
        if self.state is TxnState.ABORTING and self._committing is not None:
            await asyncio.wait((self._committing,))  # after a failure it requests the abort
        if self.state is TxnState.ABORTED:
            return
        if self.state is TxnState.UNKNOWN:
            raise self._unknown("abort", None)
        if self.state not in (TxnState.OPEN, TxnState.ABORTING):
            raise self._state_error("abort it")
        if self._aborting is None or self._aborting.done():
            self._begin_abort()
        assert self._aborting is not None
        await asyncio.shield(self._aborting)

    def abandon(self) -> None:
        """Abort an open transaction in the background."""
        if self.state is TxnState.OPEN:
            if self._loop.is_closed() or self.pool.closed:
                self.state = TxnState.ABORTING  # by its timeout
                self._may_send = False
                self._timer.cancel()
                reason = "its client or event loop was closed before it was aborted"
                log_left_open(self._log, self._id, reason)
            else:
                self._begin_abort()

    def hand_over(self) -> None:
        """Leave the end to another process, which has its id. Nothing more leaves in it."""
        self._handed_over = True
        self._stop_sends()

    async def ended(self) -> None:
        """Wait for the end of a commit or abort that has begun."""
        task = self._committing or self._aborting
        if task is not None:
            await asyncio.wait((task,))

    def _begin_abort(self) -> None:
        self.state = TxnState.ABORTING
        self._aborting = self._in_task(self._abort())

    def _in_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return seen(in_background(self._loop, work))

    async def _commit(self) -> None:
        await self._wait_for_answers()
        failure = self._find_failure()
        self.timed_out |= self._loop.time() >= self.deadline_s
        if failure is not None or self.timed_out:
            self.state = TxnState.ABORTING
            try:
                await self._abort()
            except (TransactionStateError, TransactionOutcomeUnknown):
                raise  # it was ended by its id
            except EncoreError:
                pass  # logged there
            raise self._aborted_error() from failure
        self._stop_sends()
        answer: EndAnswer | None = None
        lost: EncoreError | None = None
        asked_s = self._loop.time()
        until_s = max(asked_s, self.deadline_s) + self._answer_s
        try:
            answer = await self._coordinators.end(self._id, pb.TxnAction.COMMIT, until_s)
        except EncoreError as error:
            lost = error
        answered_s = self._loop.time()
        in_time = answered_s < self.deadline_s
        decision = decide(answer, stored=self._stored is not None, in_time=in_time)
        if decision is Decision.ASK_TOPIC:
            decision = await self._ask_topic()
            at_once = answered_s - asked_s < _COORDINATOR_RETRY_S
            by_id = at_once and answer is EndAnswer.NOT_FOUND
            if decision is Decision.COMMITTED and not await self._is_whole(by_id):
                decision = Decision.UNKNOWN
        if decision is Decision.COMMITTED:
            self._end_as(TxnState.COMMITTED)
        elif decision is Decision.ABORTED:
            self._end_as(TxnState.ABORTED)
            raise TransactionAbortedError(
                f"transaction {self._id} was aborted before it was committed: by its timeout of "
                f"{self._timeout_s:g} s, or by its id",
                txn_id=self._id,
            )
        else:
            raise self._unknown("commit", lost) from lost

    async def _abort(self) -> None:
        if self._asking is not None:
            self._asking.cancel()  # only one of the two decides
            self._asking = None
        self._stop_sends()
        self._discard()
        await self._wait_for_answers()
        until_s = self._loop.time() + 2 * self._answer_s  # enough for a second request
        try:
            answer = await self._coordinators.end(self._id, pb.TxnAction.ABORT, until_s)
        except BaseException as error:
            self._has_asked_to_abort = True
            self._call_back_after_timeout()
            # Perhaps no caller sees the error: the last one was cancelled, or there was none.
            reason = why_not_again(error, self._coordinators, self.pool)
            if reason is not None:
                log_left_open(self._log, self._id, reason)
            else:
                self._log.warning(
                    "transaction %s is not aborted yet, and the client asks again: %s",
                    self._id,
                    str(error),  # a record with the error would keep the transaction in memory
                )
                self._ask_again()
            raise
        self._call_back_after_abort()
        self.state = state = await self._state_after(answer)
        if state is TxnState.UNKNOWN:
            raise self._unknown("abort", None)
        if state is TxnState.COMMITTED:
            raise TransactionStateError(
                f"transaction {self._id} was committed by its id, so it cannot be aborted"
            )

    async def _state_after(self, answer: EndAnswer) -> TxnState:
        """Return how the transaction has ended, after an answer to an abort."""
        if answer is EndAnswer.OTHER_WAY:
            return TxnState.COMMITTED
        if answer is EndAnswer.DONE or not (self._has_acked or self._stored is not None):
            return TxnState.ABORTED
        # An earlier request or the timeout has ended it, or another client has by its id.
        if self._stored is not None:
            decision = await self._ask_topic()
            if decision is not Decision.UNKNOWN:
                return _STATES[decision]
        has_asked = self._has_asked_to_abort or answer is EndAnswer.NOT_FOUND_ON_RETRY
        has_timed_out = self._loop.time() >= self.deadline_s + _MARGIN_S  # at the coordinator
        return TxnState.ABORTED if has_asked or has_timed_out else TxnState.UNKNOWN

    def _end_as(self, state: TxnState) -> None:
        self.state = state
        self._call_back(committed=state is TxnState.COMMITTED)

    def _call_back_after_abort(self) -> None:
        """Call back as soon as a request for the abort is answered: then it has ended.

        If it was committed, another client did that by its id, perhaps before the last acks came.
        So consumers ask for all of its messages again. A message that was acked does not come.
        """
        self._call_back(committed=False)

    def _call_back_after_timeout(self) -> None:
        """Call back when the timeout is over at the coordinator, unless it ends before."""
        over_s = self.deadline_s + 2 * _MARGIN_S
        self._loop.call_at(max(self._loop.time(), over_s), self._on_timeout_over)

    def _on_timeout_over(self) -> None:
        """Call back, unless the client still asks: a coordinator that has lost its broker aborts
        later than its timeout."""
        for task in (self._asking, self._aborting):
            if task is not None and not task.done():
                return  # its end calls back, or calls this method again
        self._call_back(False)

    def _ask_again(self) -> None:
        self._asking = self._in_task(self._ask_until_answered())
        self._asking.add_done_callback(lambda _: self._call_back_after_timeout())

    async def _ask_until_answered(self) -> None:
        try:
            timed_out_s = self.deadline_s + _MARGIN_S
            answer = await ask_until_answered(
                self._coordinators, self.pool, self._id, timed_out_s, self._log
            )
            if answer is None:
                return
            self._call_back_after_abort()
            if self.state is not TxnState.UNKNOWN:  # callers know that one already
                self.state = await self._state_after(answer)
        except Exception:  # no caller waits for it
            self._log.exception("transaction %s: its end could not be found out", self._id)

    def _call_back(self, committed: bool) -> None:
        """Tell consumers. After False they ask for its messages again, whatever has happened."""
        callbacks, self._on_ended = self._on_ended, []
        for each in callbacks:
            try:
                each(committed)
            except Exception:  # of one topic; the others have to know too
                self._log.exception("transaction %s: its end could not be processed", self._id)

    @property
    def _answer_s(self) -> float:
        return self.pool.settings.operation_timeout_s

    def _stop_sends(self) -> None:
        self._may_send = False
        self._timer.cancel()

    def _discard(self) -> None:
        self._may_send = False
        for task in self._registering.values():
            task.cancel()
        error = self._aborted_error()
        for sender in list(self._senders):
            sender.discard(self, error)

    async def _wait_for_answers(self) -> None:
        """Wait until every send and ack has its answer or its error, and none is on its way."""
        if self._registering:
            await asyncio.wait(list(self._registering.values()))
        on_their_way = [each for sender in list(self._senders) for each in sender.flush_of(self)]
        if on_their_way:
            await asyncio.wait(on_their_way)
        if self._pending:
            self._all_done = self._loop.create_future()
            await self._all_done

    async def _ask_topic(self) -> Decision:
        assert self._stored is not None
        visible = await self._find(self._stored)
        if visible is None:
            return Decision.UNKNOWN
        return Decision.COMMITTED if visible else Decision.ABORTED

    async def _is_whole(self, by_id: bool) -> bool:
        """Return True if a commit that made the first message visible included everything.

        Another client may have committed by the id too early. The broker answers later messages and
        acks as usual, although they have no effect. No question tells when an ack came.

        Args:
            by_id: Another client has committed for certain.
        """
        if by_id and self._has_acked:
            return False
        assert self._stored is not None
        last = [
            each for each in self._last_stored.values() if not _in_one_entry(each, self._stored)
        ]
        return all(await asyncio.gather(*(self._find(each) for each in last)))

    async def _find(self, message_id: MessageId) -> bool | None:
        """Return whether a stored message is visible, or None if that cannot be found out."""
        try:
            visible = await self._is_visible(message_id)
        except Exception as error:
            self._log.warning("cannot find out how transaction %s ended: %s", self._id, error)
            return None
        return visible if self._is_here else None  # another cluster has other messages

    # Errors

    def _unknown(self, action: str, lost: Exception | None) -> TransactionOutcomeUnknown:
        if self.state is not TxnState.UNKNOWN:
            self.state = TxnState.UNKNOWN
            self._call_back_after_timeout()
            # A commit that has begun goes on all the same: the coordinator refuses the abort.
            if lost is not None and not why_not_again(lost, self._coordinators, self.pool):
                self._ask_again()
        reason = f"; the last error: {lost}" if lost is not None else ""
        return TransactionOutcomeUnknown(
            f"{action} transaction {self._id}: it has ended or will end, and it cannot be found "
            f"out how{reason}",
            txn_id=self._id,
        )

    def _aborted_error(self) -> TransactionAbortedError:
        if self.timed_out:
            reason = f"it has timed out after {self._timeout_s:g} s"
            if self._pending_at_deadline:
                reason += f" (sends and acks without an answer: {self._pending_at_deadline})"
            reason += ". Do less in one transaction, or give it a longer timeout"
            if self._pending_at_deadline:
                reason += "; the log tells if one of its topics is away"
        elif self._failure is not None:
            error = self._failure.error
            cause = str(error) or type(error).__name__  # a cancelled one is silent
            reason = f"{self._failure.operation} has failed: {cause}"
        else:
            reason = "abort() was called before the message or ack was sent"
        return TransactionAbortedError(
            f"transaction {self._id} was aborted: {reason}", txn_id=self._id
        )

    def _state_error(self, action: str) -> TransactionStateError:
        reason = f" (timed out after {self._timeout_s:g} s)" if self.timed_out else ""
        return TransactionStateError(
            f"transaction {self._id} is {self.state.value}{reason}, so you cannot {action}: begin "
            "another"
        )
