"""Begin a transaction, or join one of another process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ....eventloop.shielded_work import shielded
from ....values.message_id import MessageId
from ....values.transaction_id import TxnId
from ..connection.pool import ConnectionPool
from .coordinators import Coordinators
from .native_transaction import MARGIN_S, NativeTransaction


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
        deadline_s = asked_s + timeout_s - min(MARGIN_S, timeout_s / 10)
        return NativeTransaction(coordinators, pool, txn_id, deadline_s, timeout_s, is_visible)

    try:
        await shielded(beginning)
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
    deadline_s = pool.loop.time() + timeout_s - MARGIN_S
    return NativeTransaction(coordinators, pool, txn_id, deadline_s, timeout_s, is_visible)


def _abort_begun(
    beginning: asyncio.Task[tuple[TxnId, float]], make: Callable[[], NativeTransaction]
) -> None:
    if not beginning.cancelled() and beginning.exception() is None:
        make().abandon()
