"""Sends and acks of many messages in one transaction, and the fate of their messages.

A group can fail at two points. Before its acks left, no message has noticed: this client still
holds all of them, and may try again. From then on they belong to the broker, which delivers them
again after an abort.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeVar

from .errors import (
    EncoreError,
    InvalidTxnStatusError,
    TransactionAbortedError,
    TransactionConflict,
    TransactionCoordinatorNotFoundError,
    TransactionNotEnabledError,
    TransactionNotFound,
    TransactionOutcomeUnknown,
    TransactionStateError,
)
from .eventloop.shielded_work import seen, shielded


class GroupEnd(Enum):
    """The fate of the messages of a group.

    Attributes:
        COMMITTED: All of it took effect.
        STILL_HELD: Nothing of it ever takes effect, and no ack has left.
        COMES_AGAIN: Nothing of it ever takes effect. The broker delivers the messages again.
        UNKNOWN: Committed, or as `COMES_AGAIN`.
    """

    COMMITTED = "committed"
    STILL_HELD = "still held"
    COMES_AGAIN = "comes again"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GroupResult:
    end: GroupEnd
    error: Exception | None = None


class GroupTransaction(Protocol):
    async def commit(self) -> None: ...
    async def abort(self) -> None: ...
    def abandon(self) -> None: ...


_T = TypeVar("_T", bound=GroupTransaction)
_COMMITTED: Final = GroupResult(GroupEnd.COMMITTED)
_OF_TRANSACTION: Final = (
    InvalidTxnStatusError,
    TransactionAbortedError,
    TransactionConflict,
    TransactionCoordinatorNotFoundError,
    TransactionNotEnabledError,
    TransactionNotFound,
    TransactionStateError,
)


def leaves_producer(error: Exception) -> bool:
    """Return True if a send in a transaction failed, and its producer can go on.

    After a lost connection the producer attaches again, but repeats no message of a transaction.
    """
    return isinstance(error, _OF_TRANSACTION) or bool(getattr(error, "retryable", False))


async def commit_group(
    begin: Callable[[], Awaitable[_T]],
    send: Callable[[_T], Awaitable[None]],
    ack: Callable[[_T], None],
) -> GroupResult:
    """Begin a transaction, send, ack when every send has its receipt, and commit.

    A cancelled call aborts if no ack has left. Otherwise the commit goes on, and its outcome is
    not seen by the caller.

    Args:
        send: Sends everything and waits for all receipts; raises the first error.
        ack: Acks everything at the call, or raises and acks nothing. The commit waits for the
            broker's answers.

    Returns:
        The end of the group, with the error if it was not committed.
    """
    try:
        txn = await begin()
    except EncoreError as error:
        return GroupResult(GroupEnd.STILL_HELD, error)
    try:
        await send(txn)
        ack(txn)
    except Exception as error:
        await _abort(txn)
        return GroupResult(GroupEnd.STILL_HELD, error)
    except BaseException:
        txn.abandon()
        raise
    try:
        await txn.commit()
    except TransactionOutcomeUnknown as error:
        return GroupResult(GroupEnd.UNKNOWN, error)
    except EncoreError as error:
        return GroupResult(GroupEnd.COMES_AGAIN, error)
    return _COMMITTED


async def _abort(txn: GroupTransaction) -> None:
    """Abort, and wait for the answer: until then readers see nothing behind the group."""
    aborting = seen(asyncio.ensure_future(txn.abort()))
    try:
        await shielded(aborting)
    except EncoreError:
        return  # the transport logs it, and asks again if that can help
