"""One transaction of the native transport: its deadline and its end.

Nothing leaves after the local deadline, and an end is requested when every send and ack has its
answer or its error (`TransactionWork`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from ....errors import (
    EncoreError,
    TransactionAbortedError,
    TransactionOutcomeUnknown,
    TransactionStateError,
)
from ....eventloop.process import in_background
from ....eventloop.shielded_work import seen, shielded
from ....values.message_id import MessageId
from ....values.transaction_id import TxnId
from ....values.transaction_state import TxnState
from ....wire import pulsar_pb2 as pb
from ..connection.pool import ConnectionPool
from .commit_decision import Decision, decide
from .coordinators import Coordinators, EndAnswer
from .stored_messages import StoredMessages
from .transaction_work import TransactionWork
from .unanswered_abort import ask_until_answered, log_left_open, why_not_again

LOG_NAME: Final = "pulsar_encore.transaction"

# The local deadline is so much before the coordinator's, but at most a tenth of the timeout.
MARGIN_S: Final = 1.0

# A coordinator that moves during a commit starts the rest of it again after 1 s, and then it may
# not find the transaction that it has committed.
_COORDINATOR_RETRY_S: Final = 0.9

_STATES: Final = {Decision.COMMITTED: TxnState.COMMITTED, Decision.ABORTED: TxnState.ABORTED}


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


class NativeTransaction:
    """An open transaction (`TransportTransaction`). Made by `begin_transaction`.

    Attributes:
        pool: Of the client and the event loop that it belongs to.
        work: Its registrations, sends and acks.
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
        self._loop = pool.loop
        self._log = pool.settings.logger_of(LOG_NAME)
        self.deadline_s: float = deadline_s
        self._timeout_s = timeout_s
        self._stored = StoredMessages(
            txn_id,
            is_visible,
            lambda: coordinators.service is pool.service,  # without the transaction: no cycle
            self._log,
        )
        self.work: TransactionWork = TransactionWork(coordinators, txn_id, self._loop, self._stored)
        self._senders: dict[TransactionSender, None] = {}
        self._pending_at_deadline = 0
        self._on_ended: list[Callable[[bool], None]] = []
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

    def spoil(
        self,
        error: BaseException,
        operation: str,
        is_seen: Callable[[], bool] | None = None,
    ) -> None:
        """Have `commit` abort instead (see `TransportTransaction.spoil`)."""
        self.work.spoil(error, operation, is_seen)

    # The end

    def _on_deadline(self) -> None:
        self.timed_out = True
        self._pending_at_deadline = self.work.pending
        if self.state is TxnState.OPEN:
            self._log.warning(
                "transaction %s has timed out after %g s, and is aborted; sends and acks without "
                "an answer: %d",
                self._id,
                self._timeout_s,
                self.work.pending,
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
        await shielded(self._committing)

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
        await shielded(self._aborting)

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
        failure = self.work.find_failure()
        self.timed_out |= self._loop.time() >= self.deadline_s
        if failure is not None or self.timed_out:
            self.state = TxnState.ABORTING
            try:
                await self._abort()
            except (TransactionStateError, TransactionOutcomeUnknown):
                raise  # it was ended by its id
            except EncoreError:
                pass  # logged there
            raise self._aborted_error() from (None if failure is None else failure.error)
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
        decision = decide(answer, stored=bool(self._stored), in_time=in_time)
        if decision is Decision.ASK_TOPIC:
            decision = await self._stored.find_outcome()
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
        if answer is EndAnswer.DONE or not (self.work.has_acked or self._stored):
            return TxnState.ABORTED
        # An earlier request or the timeout has ended it, or another client has by its id.
        if self._stored:
            decision = await self._stored.find_outcome()
            if decision is not Decision.UNKNOWN:
                return _STATES[decision]
        has_asked = self._has_asked_to_abort or answer is EndAnswer.NOT_FOUND_ON_RETRY
        has_timed_out = self._loop.time() >= self.deadline_s + MARGIN_S  # at the coordinator
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
        over_s = self.deadline_s + 2 * MARGIN_S
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
            timed_out_s = self.deadline_s + MARGIN_S
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
        self.work.cancel_registrations()
        error = self._aborted_error()
        for sender in list(self._senders):
            sender.discard(self, error)

    async def _wait_for_answers(self) -> None:
        """Wait until every send and ack has its answer or its error, and none is on its way."""
        await self.work.until_registered()
        on_their_way = [each for sender in list(self._senders) for each in sender.flush_of(self)]
        if on_their_way:
            await asyncio.wait(on_their_way)
        await self.work.until_answered()

    async def _is_whole(self, by_id: bool) -> bool:
        """Return True if a commit that made the first message visible included everything.

        Args:
            by_id: Another client has committed for certain, perhaps too early. The broker answers
                later acks as usual, and no question tells when an ack came.
        """
        return not (by_id and self.work.has_acked) and await self._stored.are_complete()

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
        failure = self.work.failure
        if self.timed_out:
            reason = f"it has timed out after {self._timeout_s:g} s"
            if self._pending_at_deadline:
                reason += f" (sends and acks without an answer: {self._pending_at_deadline})"
            reason += ". Do less in one transaction, or give it a longer timeout"
            if self._pending_at_deadline:
                reason += "; the log tells if one of its topics is away"
        elif failure is not None:
            cause = str(failure.error) or type(failure.error).__name__  # a cancelled one is silent
            reason = f"{failure.operation} has failed: {cause}"
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
