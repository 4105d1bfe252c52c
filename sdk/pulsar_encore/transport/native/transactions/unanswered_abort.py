"""Asks for an abort until the coordinator has answered.

When a coordinator has lost its broker, its timeouts run again only after a client has connected to
it. Until then the readers of the transaction's topics wait (Pulsar 4.2.4).
"""

from __future__ import annotations

import logging
from typing import Final

from ....errors import ClosedError, EncoreError, TransactionNotFound
from ....values.transaction_id import TxnId
from ....wire import pulsar_pb2 as pb
from ..connection.pool import ConnectionPool
from ..connection.reconnect_backoff import ReconnectBackoff
from .coordinators import Coordinators, EndAnswer

_FIRST_DELAY_S: Final = 0.1

# A coordinator that is connected to after the timeout aborts the transaction, unless its broker is
# lost again at once. If it does not answer after two connections and this time, something else
# keeps it from that, such as a terminated topic. Each further request would be one more that Pulsar
# repeats every second.
_CONNECTIONS: Final = 2
_GIVEN_UP_AFTER_S: Final = 60.0


def why_not_again(
    error: BaseException, coordinators: Coordinators, pool: ConnectionPool
) -> str | None:
    """Return why a request for an end that failed with `error` can get no answer any more.

    None if it may. It outlasts a refused login and a missing permission, as consumers do.
    """
    if pool.closed:
        return "its client was closed before the coordinator answered"
    if coordinators.service is not pool.service:
        return "its client has moved to another cluster"
    # TransactionNotFound is raised if the cluster has no such coordinator.
    if not isinstance(error, EncoreError) or isinstance(error, (ClosedError, TransactionNotFound)):
        return str(error) or type(error).__name__
    return None


def log_left_open(log: logging.Logger, txn_id: TxnId, reason: str) -> None:
    log.warning("transaction %s ends by its timeout: %s", txn_id, reason)


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
    delays = ReconnectBackoff(_FIRST_DELAY_S, pool.settings.max_backoff_s, pool.rng)
    connections: set[float] = set()
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
        connected_s = coordinators.connected_s(txn_id)
        if connected_s > timed_out_s:
            connections.add(connected_s)
        if (
            len(connections) >= _CONNECTIONS
            and pool.loop.time() - min(connections) >= _GIVEN_UP_AFTER_S
        ):
            log.warning(
                "transaction %s has timed out, and its coordinator was reached twice since without "
                "an answer: it has ended, or one of its topics keeps it open "
                "(`pulsar-encore txn explain` tells)",
                txn_id,
            )
            return None
        await pool.rest(delays.next())
