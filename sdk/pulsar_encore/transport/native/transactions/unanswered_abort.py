"""Asks for an abort until the coordinator has answered.

When a coordinator has lost its broker, its timeouts run again only after a client has connected to
it. Until then the readers of the transaction's topics wait (Pulsar 4.2.4).
"""

from __future__ import annotations

import logging
from typing import Final

from ....errors import (
    ClosedError,
    EncoreError,
    TransactionNotEnabledError,
    TransactionNotFound,
)
from ....values.transaction_id import TxnId
from ....wire import pulsar_pb2 as pb
from ..connection.pool import ConnectionPool
from ..connection.reconnect_backoff import ReconnectBackoff
from .coordinators import Coordinators, EndAnswer

_FIRST_DELAY_S: Final = 0.1
# Readers wait while the coordinator is back and the client has not asked yet.
_LONGEST_DELAY_S: Final = 10.0

# A coordinator that is reached after the timeout aborts the transaction, unless its broker is lost
# again at once. If the client reaches it again after this time without an answer, there is another
# cause, such as a terminated topic. Pulsar would repeat each further request every second.
_GIVEN_UP_AFTER_S: Final = 60.0

_FINAL: Final = (
    ClosedError,
    TransactionNotEnabledError,  # transactions were turned off, and no coordinator is left
    TransactionNotFound,  # raised if the cluster has no such coordinator
)


def why_not_again(
    error: BaseException, coordinators: Coordinators, pool: ConnectionPool
) -> str | None:
    """Return why the client should not repeat a failed request for an end; None if it should.

    A refused login or a missing permission may pass.
    """
    if pool.closed:
        return "its client was closed before the coordinator answered"
    if coordinators.service is not pool.service:
        return "its client has moved to another cluster"
    if not isinstance(error, EncoreError) or isinstance(error, _FINAL):
        return str(error) or type(error).__name__
    return None


def log_left_open(log: logging.Logger, txn_id: TxnId, reason: str) -> None:
    log.warning("transaction %s is left to its timeout: %s", txn_id, reason)


async def ask_until_answered(
    coordinators: Coordinators,
    pool: ConnectionPool,
    txn_id: TxnId,
    timed_out_s: float,
    log: logging.Logger,
) -> EndAnswer | None:
    """Request the abort of a transaction until it is answered. Return None if it never will be.

    Args:
        timed_out_s: Loop time by which the transaction has timed out at the coordinator.
    """
    longest_s = min(_LONGEST_DELAY_S, pool.settings.max_backoff_s)
    delays = ReconnectBackoff(_FIRST_DELAY_S, longest_s, pool.rng)
    first_reached_s: float | None = None
    while True:
        until_s = pool.loop.time() + pool.settings.operation_timeout_s
        try:
            answer = await coordinators.end(txn_id, pb.TxnAction.ABORT, until_s)
        except EncoreError as error:
            if (reason := why_not_again(error, coordinators, pool)) is not None:
                log_left_open(log, txn_id, reason)
                return None
        else:
            log.info("transaction %s: the coordinator answered at last: %s", txn_id, answer.value)
            return answer
        reached_s = coordinators.reached_s(txn_id)
        if reached_s > timed_out_s:
            if first_reached_s is None:
                first_reached_s = reached_s
            elif reached_s - first_reached_s >= _GIVEN_UP_AFTER_S:
                log.warning(
                    "transaction %s has timed out, and its coordinator was reached since, but has "
                    "not aborted it: perhaps one of its topics was terminated "
                    "(`pulsar-encore txn explain` tells)",
                    txn_id,
                )
                return None
        await pool.rest(delays.next())
