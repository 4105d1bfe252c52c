"""Interrupted ends of transactions: each has ended, or an error or a log line names it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from pulsar_encore import (
    Client,
    ClosedError,
    MessageId,
    Transaction,
    TransactionAbortedError,
    TransactionOutcomeUnknown,
    TransactionStateError,
    TransportError,
    TxnState,
)
from pulsar_encore.exceptions import AuthenticationError, UnknownError
from pulsar_encore.testing import Fault, FaultPlan, MemoryTransport, run
from pulsar_encore.transaction import need_transport_transaction
from pulsar_encore.transport.native.transactions.coordinator import Coordinator, CoordinatorRefusal

URL = "pulsar://memory:6650"


def client_of(*faults: Fault) -> Client:
    transport = MemoryTransport(faults=FaultPlan(list(faults)))
    return Client(URL, transport=transport)


def lost_ends() -> Fault:
    return Fault(kind="drop", command="END_TXN", times=100)


async def given_up(call: Awaitable[None]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await call


async def cancelled_commit(txn: Transaction) -> None:
    await given_up(txn.commit())


async def cancelled_abort(txn: Transaction) -> None:
    await given_up(txn.abort())


async def time_is_over(txn: Transaction) -> None:
    await asyncio.sleep(10)


async def two_commits(txn: Transaction) -> None:
    await asyncio.gather(txn.commit(), txn.commit())


each_end = pytest.mark.parametrize(
    "end", [cancelled_commit, cancelled_abort, time_is_over, two_commits]
)


@each_end
@pytest.mark.parametrize(
    "fault", [Fault(kind="delay", command="END_TXN", delay_ms=500), lost_ends()], ids=["slow", "no"]
)
def test_the_client_forgets_a_transaction_that_has_ended(
    end: Callable[[Transaction], Awaitable[None]], fault: Fault
) -> None:
    async def main() -> None:
        async with client_of(fault) as client:
            txn = await client.transaction(timeout=5)
            assert "1 open" in repr(client)
            with contextlib.suppress(TransactionOutcomeUnknown):
                await end(txn)
            await asyncio.sleep(200)
            assert txn.state is not TxnState.OPEN
            assert "0 open" in repr(client)

    run(main())


@pytest.mark.parametrize("end", [cancelled_abort, time_is_over])
def test_an_abort_without_an_answer_is_logged(
    end: Callable[[Transaction], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with client_of(lost_ends()) as client:
            txn = await client.transaction(timeout=5)
            await end(txn)
            await asyncio.sleep(200)
            assert caplog.text.count(f"transaction {txn.id} is not aborted yet") == 1
            assert (
                caplog.text.count(f"transaction {txn.id} has timed out, and its coordinator") == 1
            )

    run(main())


def test_a_failed_abort_after_a_cancelled_begin_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        slow = Fault(kind="delay", command="NEW_TXN_RESPONSE", delay_ms=500)
        async with client_of(slow, lost_ends()) as client:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.transaction()
            await asyncio.sleep(200)
            assert "transaction (0,0) is not aborted yet" in caplog.text

    run(main())


@pytest.mark.parametrize("end", ["close", "shutdown"])
def test_a_block_whose_client_was_closed_does_not_end_as_if_it_had_committed(end: str) -> None:
    async def main() -> None:
        client = client_of()
        producer = await client.create_producer("t")
        with pytest.raises((TransactionAbortedError, ClosedError)):
            async with client.transaction() as txn:
                await producer.send(b"x", txn=txn)
                if end == "close":
                    await client.close()
                else:
                    client.shutdown()
        assert txn.state in (TxnState.ABORTED, TxnState.ABORTING)

    run(main())


@pytest.mark.parametrize("own_end", ["commit", "abort"])
def test_a_block_that_has_seen_the_outcome_does_not_raise_it_again(own_end: str) -> None:
    async def main() -> None:
        async with client_of() as client, client.transaction() as txn:
            await getattr(txn, own_end)()
        async with client_of() as client:
            producer = await client.create_producer("t", max_pending_messages=1)
            async with client.transaction() as txn:
                with pytest.raises((TransactionAbortedError, ExceptionGroup)):
                    for _ in range(3):
                        producer.send_async(b"x", None, txn=txn)
                    await txn.commit()
            assert txn.state is TxnState.ABORTED

    run(main())


def test_a_shutdown_names_the_transactions_that_it_leaves_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        client = client_of()
        txn = await client.transaction()
        client.shutdown()
        await asyncio.sleep(1)
        assert f"transaction {txn.id} is left to its timeout: " in caplog.text
        with pytest.raises((ClosedError, TransactionStateError)):
            await txn.commit()
        with pytest.raises((ClosedError, TransportError)):
            await txn.abort()

    run(main())


@pytest.mark.parametrize("end", ["close", "shutdown"])
@pytest.mark.parametrize("sends", [True, False])
def test_a_commit_ends_if_the_client_is_closed_meanwhile(end: str, sends: bool) -> None:
    async def main() -> None:
        client = client_of(lost_ends())
        producer = await client.create_producer("t")
        txn = await client.transaction(timeout=5)
        if sends:
            await producer.send(b"x", txn=txn)
        committing = asyncio.ensure_future(txn.commit())
        await asyncio.sleep(0.5)
        if end == "close":
            await client.close()
        else:
            client.shutdown()
        async with asyncio.timeout(150):
            with pytest.raises((TransactionOutcomeUnknown, TransactionAbortedError)) as caught:
                await committing
            with pytest.raises((TransactionOutcomeUnknown, TransactionAbortedError)):
                await txn.commit()
        assert str(txn.id) in str(caught.value)
        assert "0 open" in repr(client) or "closed" in repr(client)

    run(main())


def test_an_abort_without_an_answer_is_asked_for_again_until_there_is_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The timeout of 10 minutes would hide the plain message for so long."""

    async def main() -> None:
        lost = Fault(kind="drop", command="END_TXN", times=4)
        async with client_of(lost) as client, client.create_producer("t") as producer:
            txn = await client.transaction(timeout=600)
            await producer.send(b"never", txn=txn)
            await producer.send(b"plain")
            with pytest.raises(TransportError, match="no answer"):
                await txn.abort()
            assert txn.state is TxnState.ABORTING
            async with client.create_reader("t", MessageId.earliest) as reader:
                async with asyncio.timeout(300):
                    assert (await reader.read_next()).data() == b"plain"
            assert txn.state is TxnState.ABORTED
            assert caplog.text.count("is not aborted yet") == 1
            assert "is left to its timeout" not in caplog.text

    run(main())


def test_a_coordinator_that_never_answers_is_asked_until_its_timeout_has_run() -> None:
    async def main() -> None:
        transport = MemoryTransport(faults=FaultPlan([lost_ends()]))
        async with Client(URL, transport=transport) as client:
            txn = await client.transaction(timeout=5)
            ends = ends_of(txn)
            with pytest.raises(TransportError):
                await txn.abort()
            await asyncio.sleep(200)
            asked = len(transport.recorded("END_TXN"))
            await asyncio.sleep(1000)
            assert len(transport.recorded("END_TXN")) == asked
            assert ends == [False]

    run(main())


def ends_of(txn: Transaction) -> list[bool]:
    """Return a list that gets what the client tells consumers: True if all acks took effect."""
    ends: list[bool] = []
    need_transport_transaction(txn).when_ended(ends.append)
    return ends


@pytest.mark.parametrize("end", [cancelled_abort, cancelled_commit])
def test_consumers_are_not_told_of_an_end_before_the_coordinator_answers(
    end: Callable[[Transaction], Awaitable[None]],
) -> None:
    """At a coordinator that has lost its broker, the timeout comes late."""

    async def main() -> None:
        lost = Fault(kind="drop", command="END_TXN", times=3)  # one request in 30 s
        async with client_of(lost) as client, client.create_producer("t") as producer:
            txn = await client.transaction(timeout=5)
            ends = ends_of(txn)
            await producer.send(b"x", txn=txn)
            await end(txn)
            await asyncio.sleep(60)
            assert ends == []
            await asyncio.sleep(60)
            assert ends == [False]

    run(main())


@pytest.mark.parametrize("again", [True, False], ids=["abort again", "once"])
def test_an_abort_without_an_answer_finds_a_commit_by_id(again: bool) -> None:
    async def main() -> None:
        lost = Fault(kind="drop", command="END_TXN", times=3)
        async with client_of(lost) as client, client.create_producer("t") as producer:
            txn = await client.transaction(timeout=600)
            ends = ends_of(txn)
            await producer.send(b"x", txn=txn)
            with pytest.raises(TransportError):
                await txn.abort()
            await asyncio.sleep(1)  # the third one is lost
            await client.commit_transaction(txn.id)
            if again:
                with pytest.raises(TransactionStateError, match="committed by its id"):
                    await txn.abort()
            await asyncio.sleep(60)
            assert txn.state is TxnState.COMMITTED
            assert ends == [False]  # acks may have come after the commit

    run(main())


def test_an_abort_that_is_called_again_takes_an_earlier_one_for_its_own() -> None:
    async def main() -> None:
        lost = Fault(kind="drop", command="END_TXN_RESPONSE", times=3)
        async with client_of(lost) as client, client.create_producer("t") as producer:
            txn = await client.transaction(timeout=600)
            await producer.send(b"x", txn=txn)
            with pytest.raises(TransportError):
                await txn.abort()
            await asyncio.gather(txn.abort(), txn.abort())
            await asyncio.sleep(60)
            assert txn.state is TxnState.ABORTED

    run(main())


def test_a_refused_login_does_not_end_the_requests_for_an_abort() -> None:
    async def main() -> None:
        refused = Fault(
            kind="refuse", command="CONNECT", nth=2, times=8, error="AuthenticationError"
        )
        transport = MemoryTransport(faults=FaultPlan([refused]))
        async with Client(URL, transport=transport) as client:
            txn = await client.transaction(timeout=600)
            transport.disconnect()
            transport.reconnect()
            with pytest.raises(AuthenticationError):
                await txn.abort()
            await asyncio.sleep(120)
            assert txn.state is TxnState.ABORTED

    run(main())


def test_a_commit_that_took_effect_in_part_stays_unknown() -> None:
    async def main() -> None:
        lost = Fault(kind="drop", command="END_TXN", nth=2, times=3)
        async with client_of(lost) as client, client.create_producer("t") as producer:
            txn = await client.transaction(timeout=30)
            ends = ends_of(txn)
            await producer.send(b"x", txn=txn)
            await client.commit_transaction(txn.id)
            await producer.send(b"late", txn=txn)
            with pytest.raises(TransactionOutcomeUnknown):
                await txn.commit()
            await asyncio.sleep(300)
            assert txn.state is TxnState.UNKNOWN
            assert ends == [False]

    run(main())


def refused_end(monkeypatch: pytest.MonkeyPatch, error: TransportError) -> None:
    """Have each request for an end refused on a connection that stays."""

    async def refuse(self: Coordinator, make: object, purpose: str, deadline: float) -> None:
        await asyncio.sleep(0.001)
        self.reached_s = asyncio.get_running_loop().time()
        raise CoordinatorRefusal(error, False)

    monkeypatch.setattr(Coordinator, "request", refuse)


def test_a_refusal_that_stays_ends_the_requests_for_an_abort(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with client_of() as client:
            txn = await client.transaction(timeout=30)
            ends = ends_of(txn)
            refused_end(monkeypatch, UnknownError("the topic is terminated"))
            with pytest.raises(UnknownError):
                await txn.abort()
            await asyncio.sleep(30)
            assert ends == []
            await asyncio.sleep(300)
            assert ends == [False]

    run(main())


@pytest.mark.parametrize("end", ["close", "shutdown"])
def test_a_client_that_is_closed_ends_the_requests_for_an_abort(
    end: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        client = client_of(lost_ends())
        txn = await client.transaction(timeout=600)
        with pytest.raises(TransportError):
            await txn.abort()
        await asyncio.sleep(200)
        if end == "close":
            await client.close()
        else:
            client.shutdown()
        await asyncio.sleep(0.1)
        assert caplog.text.count("closed before the coordinator answered") == 1
        assert not [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]

    run(main())
