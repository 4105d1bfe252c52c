"""Transaction coordinators of a real Pulsar: begin, register, end, and errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random

import pytest

from pulsar_encore.errors import (
    InvalidTxnStatusError,
    TransactionNotEnabledError,
    TransactionNotFound,
)
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.connection.cluster_service import ClusterService
from pulsar_encore.transport.native.connection.pool import ConnectionPool
from pulsar_encore.transport.native.connection.sockets import Sockets
from pulsar_encore.transport.native.connection.tls_context import TlsContext
from pulsar_encore.transport.native.lookup.lookup import Lookup
from pulsar_encore.transport.native.transactions.coordinators import Coordinators, EndAnswer
from pulsar_encore.values.transaction_id import TxnId
from pulsar_encore.wire import pulsar_pb2 as pb
from tests.harness.pulsar_server import Broker

from ..conftest import OwnPulsar

COMMIT, ABORT = pb.TxnAction.COMMIT, pb.TxnAction.ABORT
MINUTE_MS = 60_000


@contextlib.asynccontextmanager
async def coordinators_at(url: str) -> AsyncIterator[Coordinators]:
    tls = TlsContext()
    pool = ConnectionPool(
        ClusterService.at(url, Sockets(tls), None, tls), ClientSettings(), Random(1)
    )
    try:
        yield Coordinators(Lookup(pool))
    finally:
        pool.shutdown()
        await pool.gone()


@pytest.fixture
async def coordinators(transactional: Broker) -> AsyncIterator[Coordinators]:
    async with coordinators_at(transactional.service_url) as found:
        yield found


def deadline(within_s: float = 30.0) -> float:
    return asyncio.get_running_loop().time() + within_s


@pytest.mark.parametrize("action", [COMMIT, ABORT])
async def test_a_transaction_ends_once(
    coordinators: Coordinators, topic: str, action: pb.TxnAction.ValueType
) -> None:
    txn = (await coordinators.begin(MINUTE_MS))[0]
    await coordinators.add_partitions(txn, [topic, f"{topic}-b"])
    await coordinators.add_subscriptions(txn, [(topic, "s")])
    assert await coordinators.end(txn, action, deadline()) is EndAnswer.DONE
    for again in (COMMIT, ABORT):
        assert await coordinators.end(txn, again, deadline()) is EndAnswer.NOT_FOUND


async def test_ids_count_up_and_another_client_can_end_a_transaction(
    coordinators: Coordinators, transactional: Broker
) -> None:
    first, second = (
        (await coordinators.begin(MINUTE_MS))[0],
        (await coordinators.begin(MINUTE_MS))[0],
    )
    assert second == TxnId(first.most, first.least + 1)  # a standalone has one coordinator
    async with coordinators_at(transactional.service_url) as other:
        for txn in (first, second):
            assert await other.end(TxnId.parse(str(txn)), ABORT, deadline()) is EndAnswer.DONE
    assert await coordinators.end(first, COMMIT, deadline()) is EndAnswer.NOT_FOUND


async def test_the_coordinator_aborts_after_the_timeout(coordinators: Coordinators) -> None:
    txn = (await coordinators.begin(1_000))[0]
    assert await coordinators.end((await coordinators.begin(1_000))[0], COMMIT, deadline()) is (
        EndAnswer.DONE
    )
    assert await has_ended(coordinators, txn)
    assert await coordinators.end(txn, COMMIT, deadline()) is EndAnswer.NOT_FOUND


async def has_ended(coordinators: Coordinators, txn: TxnId, within_s: float = 30.0) -> bool:
    """Return True as soon as the coordinator does not know the transaction any more."""
    until = deadline(within_s)
    while deadline(0) < until:
        try:
            await coordinators.add_partitions(txn, ["persistent://public/default/any"])
        except TransactionNotFound:
            return True
        except InvalidTxnStatusError:
            pass  # it is being aborted
        await asyncio.sleep(0.2)
    return False


async def test_an_open_transaction_survives_a_killed_broker(
    coordinators: Coordinators, transactional: Broker, topic: str
) -> None:
    txn = (await coordinators.begin(10 * MINUTE_MS))[0]
    await coordinators.add_partitions(txn, [topic])
    await asyncio.to_thread(transactional.kill)
    ending = asyncio.ensure_future(coordinators.end(txn, COMMIT, deadline(120)))
    await asyncio.to_thread(transactional.start)
    assert await ending is EndAnswer.DONE


async def test_a_broker_without_transactions_is_named(own_pulsar: OwnPulsar) -> None:
    broker = await asyncio.to_thread(own_pulsar, transactionCoordinatorEnabled=False)
    async with coordinators_at(broker.service_url) as without:
        with pytest.raises(TransactionNotEnabledError, match="transactionCoordinatorEnabled=true"):
            await without.begin(MINUTE_MS)
