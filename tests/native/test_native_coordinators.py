"""Requests to transaction coordinators: retries, lost answers, and the ids on the wire (PIP-31)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from brokers_kit import HANG_UP, Brokers, Double, lookup_answer, welcome
from google.protobuf.message import Message
from native_kit import run

from pulsar_encore.errors import (
    NotConnected,
    TransactionNotEnabledError,
    TransactionNotFound,
    TransportTimeout,
    UnknownError,
)
from pulsar_encore.transport.native.connection.cluster_service import ClusterService
from pulsar_encore.transport.native.lookup.lookup import Lookup
from pulsar_encore.transport.native.transactions.coordinators import Coordinators, EndAnswer
from pulsar_encore.values.transaction_id import TxnId
from pulsar_encore.wire import pb

COMMIT, ABORT = pb.TxnAction.COMMIT, pb.TxnAction.ABORT
Answers = list[Message] | bytes


class Cluster:
    """A broker at ``a:6650`` with transaction coordinators.

    Attributes:
        partitions: The number of coordinators.
        connects: Answers to TC_CLIENT_CONNECT_REQUEST, in order: an error number, 0 for success.
            Success when they are used up.
        complete_after: The number of coordinators is 0 until so many were answered.
        ends: Answers to END_TXN, in order: an error number, 0 for success, or None, which ends the
            connection without an answer. Success when they are used up.
        begins: Refusals of NEW_TXN as UnknownError, in order, as texts.
        silent: True if NEW_TXN gets no answer.
    """

    def __init__(self, partitions: int = 1) -> None:
        self.partitions = partitions
        self.connects: list[int] = []
        self.complete_after = 0
        self.ends: list[int | None] = []
        self.begins: list[str] = []
        self.silent = False
        self.began = 0
        self.network = Brokers()
        self.double = self.network.doubles["a:6650"] = Double(self.answer)

    def coordinators(self) -> Coordinators:
        return Coordinators(Lookup(self.network.pool("pulsar://a")))

    def sent(self, kind: int) -> list[Any]:
        return [each for each in self.double.received if each.type == kind]

    def answer(self, command: pb.BaseCommand) -> Answers:
        kind = pb.BaseCommand
        body: Any
        if command.type == kind.PARTITIONED_METADATA:
            body = command.partitionMetadata
            return [
                pb.CommandPartitionedTopicMetadataResponse(
                    request_id=body.request_id,
                    partitions=0 if self.complete_after else self.partitions,
                    response=pb.CommandPartitionedTopicMetadataResponse.Success,
                )
            ]
        if command.type == kind.LOOKUP:
            return [lookup_answer(command, brokerServiceUrl="pulsar://a:6650", authoritative=True)]
        if command.type == kind.TC_CLIENT_CONNECT_REQUEST:
            body = command.tcClientConnectRequest
            self.complete_after = max(0, self.complete_after - 1)
            error = self.connects.pop(0) if self.connects else 0
            return [
                pb.CommandTcClientConnectResponse(
                    request_id=body.request_id, error=pb.ServerError.Name(error) if error else None
                )
            ]
        if command.type == kind.NEW_TXN:
            body = command.newTxn
            self.began += 1
            if self.silent:
                return []
            if self.begins:
                return [
                    pb.CommandNewTxnResponse(
                        request_id=body.request_id, error="UnknownError", message=self.begins.pop(0)
                    )
                ]
            return [
                pb.CommandNewTxnResponse(
                    request_id=body.request_id,
                    txnid_most_bits=body.tc_id,
                    txnid_least_bits=self.began - 1,
                )
            ]
        if command.type == kind.ADD_PARTITION_TO_TXN:
            body = command.addPartitionToTxn
            return [pb.CommandAddPartitionToTxnResponse(request_id=body.request_id)]
        if command.type == kind.ADD_SUBSCRIPTION_TO_TXN:
            body = command.addSubscriptionToTxn
            return [pb.CommandAddSubscriptionToTxnResponse(request_id=body.request_id)]
        if command.type == kind.END_TXN:
            return self._end(command.endTxn.request_id)
        return welcome(command)

    def _end(self, request_id: int) -> Answers:
        result = self.ends.pop(0) if self.ends else 0
        if result is None:
            return HANG_UP
        error = pb.ServerError.Name(result) if result else None
        return [pb.CommandEndTxnResponse(request_id=request_id, error=error)]


def soon(within_s: float = 30.0) -> float:
    return asyncio.get_running_loop().time() + within_s


NOT_FOUND, INVALID = pb.TransactionNotFound, pb.InvalidTxnStatus
MOVED = pb.TransactionCoordinatorNotFound


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([], EndAnswer.DONE),
        ([NOT_FOUND], EndAnswer.NOT_FOUND),
        ([INVALID], EndAnswer.OTHER_WAY),
        ([None], EndAnswer.DONE),
        ([None, NOT_FOUND], EndAnswer.NOT_FOUND_ON_RETRY),
        # A coordinator that moves during a commit gives this refusal, and commits nevertheless.
        ([MOVED, NOT_FOUND], EndAnswer.NOT_FOUND_ON_RETRY),
        ([None, MOVED, NOT_FOUND], EndAnswer.NOT_FOUND_ON_RETRY),
        ([pb.ServiceNotReady, MOVED], EndAnswer.DONE),
        # That refusal does not say that nothing was done.
        ([pb.ServiceNotReady, NOT_FOUND], EndAnswer.NOT_FOUND_ON_RETRY),
    ],
)
def test_an_end_is_repeated_until_its_answer_comes(
    ends: list[int | None], expected: EndAnswer
) -> None:
    async def main() -> None:
        cluster = Cluster()
        coordinators = cluster.coordinators()
        txn = (await coordinators.begin(60_000))[0]
        cluster.ends = list(ends)
        assert await coordinators.end(txn, COMMIT, soon()) is expected
        assert len(cluster.sent(pb.BaseCommand.END_TXN)) == max(1, len(ends)) + (
            ends in ([None], [pb.ServiceNotReady, MOVED])
        )

    run(main())


def test_the_commands_have_both_halves_of_an_id_and_a_time_in_milliseconds() -> None:
    async def main() -> None:
        cluster = Cluster()
        coordinators = cluster.coordinators()
        txn = (await coordinators.begin(60_000))[0]
        assert txn == (0, 0)
        await coordinators.add_partitions(txn, ["persistent://a/b/c"])
        await coordinators.add_subscriptions(txn, [("persistent://a/b/c", "s")])
        await coordinators.end(txn, ABORT, soon())
        kinds = pb.BaseCommand
        (new,) = cluster.sent(kinds.NEW_TXN)
        assert new.newTxn.txn_ttl_seconds == 60_000
        (partition,) = cluster.sent(kinds.ADD_PARTITION_TO_TXN)
        (subscription,) = cluster.sent(kinds.ADD_SUBSCRIPTION_TO_TXN)
        (end,) = cluster.sent(kinds.END_TXN)
        for body in (
            partition.addPartitionToTxn,
            subscription.addSubscriptionToTxn,
            end.endTxn,
        ):
            assert body.HasField("txnid_most_bits"), "a broker takes its absence for no transaction"
            assert body.HasField("txnid_least_bits")
        assert end.endTxn.txn_action == ABORT

    run(main())


def test_coordinators_are_used_in_turn_and_loaded_once() -> None:
    async def main() -> None:
        cluster = Cluster(partitions=3)
        coordinators = cluster.coordinators()
        used = [((await coordinators.begin(60_000))[0]).most for _ in range(6)]
        assert sorted(used[:3]) == [0, 1, 2]
        assert used[3:] == used[:3]
        loaded = cluster.sent(pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST)
        assert sorted(each.tcClientConnectRequest.tc_id for each in loaded) == [0, 1, 2]

    run(main())


def test_a_coordinator_that_was_added_later_is_found() -> None:
    async def main() -> None:
        cluster = Cluster()
        coordinators = cluster.coordinators()
        (await coordinators.begin(60_000))[0]
        cluster.partitions = 2
        assert await coordinators.end(TxnId(1, 5), ABORT, soon()) is EndAnswer.DONE
        with pytest.raises(TransactionNotFound, match="has 2 coordinators"):
            await coordinators.end(TxnId(2, 5), ABORT, soon())

    run(main())


def test_a_broker_without_transactions_is_named_with_its_setting() -> None:
    async def main() -> None:
        cluster = Cluster(partitions=0)
        cluster.connects = [pb.NotAllowedError]
        with pytest.raises(TransactionNotEnabledError, match="transactionCoordinatorEnabled=true"):
            (await cluster.coordinators().begin(60_000))[0]

    run(main())


def test_a_begin_waits_for_the_coordinators_of_a_cluster_that_starts() -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.connects = [MOVED] * 3
        cluster.complete_after = 3
        assert (await cluster.coordinators().begin(60_000))[0] == TxnId(0, 0)

    run(main())


def test_a_cluster_without_coordinators_is_named_with_the_command_that_makes_them() -> None:
    async def main() -> None:
        cluster = Cluster(partitions=0)
        cluster.connects = [MOVED] * 1000
        with pytest.raises(TransactionNotEnabledError, match="initialize-transaction-coordinator"):
            (await cluster.coordinators().begin(60_000))[0]

    run(main())


def test_a_begin_waits_while_a_broker_unloads_its_coordinator() -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.begins = [
            "Managed ledger was already closed",
            "Task T[Not completed] rejected from java.util.concurrent.ScheduledThreadPoolExecutor",
        ]
        txn, _ = await cluster.coordinators().begin(1000)
        assert txn == TxnId(0, 2)

    run(main())


def test_a_begin_that_is_refused_for_another_reason_fails_at_once() -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.begins = ["no space left on device"]
        with pytest.raises(UnknownError, match="no space left"):
            await cluster.coordinators().begin(1000)
        assert cluster.began == 1

    run(main())


def test_a_begin_without_an_answer_names_the_limit() -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.silent = True
        coordinators = cluster.coordinators()
        with pytest.raises(TransportTimeout, match="maxActiveTransactionsPerCoordinator"):
            (await coordinators.begin(60_000))[0]

    run(main())


def test_an_end_without_an_answer_stops_at_its_deadline() -> None:
    async def main() -> None:
        cluster = Cluster()
        coordinators = cluster.coordinators()
        txn = (await coordinators.begin(60_000))[0]
        cluster.ends = [None] * 1000
        began = asyncio.get_running_loop().time()
        with pytest.raises(TransportTimeout, match=r"commit transaction \(0,0\)"):
            await coordinators.end(txn, COMMIT, soon(90))
        assert 80 < asyncio.get_running_loop().time() - began <= 90

    run(main())


def test_no_request_goes_to_another_cluster() -> None:
    """The same id is another transaction there."""

    async def main() -> None:
        first, second = Cluster(), Cluster()
        first.network.doubles["b:6650"] = second.double
        pool = first.network.pool("pulsar://a")
        coordinators = Coordinators(Lookup(pool))
        txn = (await coordinators.begin(60_000))[0]
        pool.move(ClusterService.at("pulsar://b", first.network, None))
        with pytest.raises(NotConnected, match="another cluster"):
            await coordinators.end(txn, COMMIT, soon())
        assert second.sent(pb.BaseCommand.END_TXN) == []

    run(main())


@pytest.mark.parametrize("txn", [TxnId(0, 0), TxnId(15, 48), TxnId(2**64 - 1, 2**64 - 1)])
def test_the_text_of_an_id_is_read_again(txn: TxnId) -> None:
    assert TxnId.parse(str(txn)) == txn
    assert TxnId.parse(f"({txn.most}, {txn.least})") == txn


@pytest.mark.parametrize(
    "text", ["", "0,1", "(0,1", "(0,-1)", "(a,b)", "(0,1,2)", "(0 1,2)", f"(0,{2**64})"]
)
def test_a_text_that_is_no_id_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="transaction id"):
        TxnId.parse(text)
