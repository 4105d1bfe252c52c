"""Gives each sent message's future its id or its error. Cancelled futures are skipped."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable
from typing import Final

from ....errors import ClosedError, NotConnected, TransactionAbortedError
from ....values.message_id import MessageId
from ....values.outgoing_message import MessageTransaction
from ....wire import pulsar_pb2 as pb
from ...interface import OnPosted
from ..transactions.transaction_work import TransactionWork
from .unconfirmed_frames import SendFrame, Waiter

#: Sends that fail in one step of the loop: about 2 ms.
FAILURES_PER_STEP: Final = 500

U63: Final = 1 << 63  # larger numbers are negative ids; -1 is unknown


def set_stored(frame: SendFrame, place: pb.MessageIdData, topic: str, partition: int) -> None:
    """Set the ids of an entry that the broker has stored.

    Both numbers of `place` are -1 if the broker had the entry before and does not say where.
    """
    ledger, entry = place.ledgerId, place.entryId
    if ledger >= U63:
        for waiter in frame.waiters:
            if not waiter.done():
                waiter.set_result(MessageId(partition, topic=topic))
        return
    frame.stored = (ledger, entry)
    if frame.batched:
        size = len(frame.waiters)
        for index, waiter in enumerate(frame.waiters):
            if not waiter.done():
                waiter.set_result(
                    MessageId(partition, ledger, entry, index, batch_size=size, topic=topic)
                )
        return
    for waiter in frame.waiters:
        if not waiter.done():
            begin = frame.first_chunk and frame.first_chunk.stored
            first = MessageId(partition, *begin, topic=topic) if begin else None
            waiter.set_result(MessageId(partition, ledger, entry, topic=topic, first_chunk=first))


def set_failed(waiters: Iterable[Waiter], error: Exception) -> None:
    """Set a copy of the error for each message, so that each is raised with its own traceback."""
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(copy.copy(error))


class PostedSend(asyncio.Future[MessageId]):
    """The waiter of a posted message. It reports its outcome at once.

    A done callback would run in a later iteration of the loop, and cost a handle for each message.
    """

    __slots__ = ("_on_done",)

    def __init__(self, loop: asyncio.AbstractEventLoop, on_done: OnPosted) -> None:
        super().__init__(loop=loop)
        self._on_done = on_done

    def set_result(self, result: MessageId) -> None:
        super().set_result(result)
        self._report(None)

    def set_exception(self, exception: type[BaseException] | BaseException) -> None:
        super().set_exception(exception)
        self._report(self.exception())  # asking marks it as retrieved

    def _report(self, error: BaseException | None) -> None:
        # The producer has more to do for this entry, so an error of the callback may not reach it.
        try:
            if error is None or isinstance(error, Exception):
                self._on_done(error)
        except Exception as failure:
            self.get_loop().call_exception_handler(
                {"message": "the outcome of a posted message was not handled", "exception": failure}
            )


class TransactionalSend(asyncio.Future[MessageId]):
    """The waiter of a message in a transaction, which it tells its outcome at once.

    A caller that gives up does not know whether the message is stored, so for the transaction it
    has failed.
    """

    __slots__ = ("_work",)

    def __init__(self, loop: asyncio.AbstractEventLoop, work: TransactionWork) -> None:
        super().__init__(loop=loop)
        self._work = work
        work.on_send()

    def set_result(self, result: MessageId) -> None:
        super().set_result(result)
        self._work.on_stored(result)

    def set_exception(self, exception: type[BaseException] | BaseException) -> None:
        super().set_exception(exception)
        error = self.exception()  # asking marks it as retrieved: the commit reports it
        assert error is not None
        self._work.on_failed(error)

    def cancel(self, msg: object = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled:
            self._work.on_failed(asyncio.CancelledError("the call of send was cancelled"))
        return cancelled


def closed_error() -> ClosedError:
    return ClosedError("the producer was closed before the send ended")


def deleted_error(topic: str) -> NotConnected:
    return NotConnected(f"{topic} was deleted before it had this message of a transaction")


def ended_error(txn: MessageTransaction) -> TransactionAbortedError:
    return TransactionAbortedError(
        f"transaction {txn.id} ended before the message was sent", txn_id=txn.id
    )
