"""Commit or abort a transaction by its id."""

from __future__ import annotations

from ....errors import InvalidTxnStatusError, TransactionNotFound, TransactionOutcomeUnknown
from ....values.transaction_id import TxnId
from ....wire import pulsar_pb2 as pb
from ..connection.pool import ConnectionPool
from .coordinators import Coordinators, EndAnswer


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
