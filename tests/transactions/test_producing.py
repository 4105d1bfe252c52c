"""Sends in transactions, in virtual time on the development broker: visibility, faults, the end.

`integration/transactions` has the same cases on Pulsar.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Mapping
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from pulsar_encore import (
    Client,
    ClosedError,
    CompressionType,
    ConfigurationError,
    CryptoKeyReader,
    MessageId,
    MessageTooBig,
    NotSupportedError,
    Producer,
    TransactionAbortedError,
    TransactionNotEnabledError,
    TransactionNotFound,
    TransactionOutcomeUnknown,
    TransactionStateError,
    TransportError,
    TxnId,
    TxnState,
)
from pulsar_encore.client import transport_of
from pulsar_encore.options import ProducerOptions
from pulsar_encore.producer import begin_sends, prepared
from pulsar_encore.testing import BrokerSettings, Fault, FaultPlan, MemoryTransport, run
from pulsar_encore.values.outgoing_message import OutgoingMessage

URL = "pulsar://memory:6650"
TOPIC = "persistent://public/default/t"


def client_of(*faults: Fault, transport: MemoryTransport | None = None) -> Client:
    plan = FaultPlan(list(faults)) if faults else None
    return Client(URL, transport=transport or MemoryTransport(faults=plan))


async def visible(client: Client, topic: str = TOPIC) -> list[str]:
    """Return the values that a reader finds in a topic now."""
    async with client.create_reader(topic, MessageId.earliest) as reader:
        found: list[str] = []
        while await reader.has_message_available():
            found.append((await reader.read_next()).data().decode())
        return found


@pytest.mark.parametrize("batching", [True, False])
def test_messages_of_two_topics_appear_at_the_commit(batching: bool) -> None:
    async def main() -> None:
        async with (
            client_of() as client,
            client.create_producer("a", batching_enabled=batching) as one,
            client.create_producer("b", batching_enabled=batching) as two,
        ):
            async with client.transaction() as txn:
                await asyncio.gather(
                    *(one.send(b"a%d" % number, txn=txn) for number in range(20)),
                    *(two.send(b"b%d" % number, txn=txn) for number in range(20)),
                )
                assert await visible(client, "a") == await visible(client, "b") == []
                assert txn.state is TxnState.OPEN
            assert txn.state is TxnState.COMMITTED
            assert await visible(client, "a") == [f"a{number}" for number in range(20)]
            assert await visible(client, "b") == [f"b{number}" for number in range(20)]

    run(main())


@pytest.mark.parametrize("error", [KeyError, asyncio.CancelledError])
def test_a_block_that_does_not_reach_its_end_aborts(error: type[BaseException]) -> None:
    async def main() -> None:
        async with client_of() as client, client.create_producer("t") as producer:
            with pytest.raises(error):
                async with client.transaction() as txn:
                    await producer.send(b"never", txn=txn)
                    raise error
            assert txn.state is TxnState.ABORTED
            await producer.send(b"plain")
            assert await visible(client) == ["plain"]

    run(main())


def test_plain_messages_behind_an_open_transaction_wait_for_its_end() -> None:
    async def main() -> None:
        async with client_of() as client, client.create_producer("t") as producer:
            first, second = await client.transaction(), await client.transaction()
            await producer.send(b"0")
            await producer.send(b"1", txn=first)
            await producer.send(b"2")
            await producer.send(b"3", txn=second)
            await producer.send(b"4")
            assert await visible(client) == ["0"]
            await second.commit()
            assert await visible(client) == ["0"]
            await first.abort()
            assert await visible(client) == ["0", "2", "3", "4"]

    run(main())


def test_sends_that_nobody_awaits_are_in_the_commit() -> None:
    async def main() -> None:
        async with (
            client_of() as client,
            client.create_producer("t", batching_max_publish_delay_ms=10_000) as producer,
        ):
            began = asyncio.get_running_loop().time()
            async with client.transaction() as txn:
                for number in range(100):
                    producer.send_async(b"%d" % number, None, txn=txn)
            assert asyncio.get_running_loop().time() - began < 5  # not the delay of the batch
            assert await visible(client) == [str(number) for number in range(100)]

    run(main())


def test_a_batch_belongs_to_one_transaction_or_to_none() -> None:
    async def main() -> None:
        async with client_of() as client, client.create_producer("t") as producer:
            one, two = await client.transaction(), await client.transaction()
            await asyncio.gather(
                *(
                    producer.send(b"%s%d" % (name, number), txn=txn)
                    for number in range(5)
                    for name, txn in ((b"p", None), (b"a", one), (b"b", two))
                )
            )
            await one.abort()
            await two.commit()
            got = await visible(client)
            assert sorted(got) == sorted([f"p{n}" for n in range(5)] + [f"b{n}" for n in range(5)])
            assert [each for each in got if each[0] == "b"] == [f"b{n}" for n in range(5)]

    run(main())


def test_sends_keep_their_order_while_the_topic_is_registered() -> None:
    async def main() -> None:
        slow = Fault(kind="delay", command="ADD_PARTITION_TO_TXN_RESPONSE", delay_ms=50)
        async with (
            client_of(slow) as client,
            client.create_producer("t", batching_enabled=False) as producer,
        ):
            async with client.transaction() as txn:
                sends = []
                for number in range(30):
                    sends.append(asyncio.ensure_future(producer.send(b"%d" % number, txn=txn)))
                    await asyncio.sleep(0.005)
                await asyncio.gather(*sends)
            assert await visible(client) == [str(number) for number in range(30)]

    run(main())


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_end_waits_for_messages_on_their_way(end: str) -> None:
    async def main() -> None:
        slow = Fault(kind="delay", command="SEND_RECEIPT", delay_ms=500)
        async with client_of(slow) as client, client.create_producer("t") as producer:
            txn = await client.transaction()
            sending = asyncio.ensure_future(producer.send(b"x", txn=txn))
            await asyncio.sleep(0.1)
            began = asyncio.get_running_loop().time()
            await getattr(txn, end)()
            assert asyncio.get_running_loop().time() - began >= 0.3
            assert sending.done()
            assert await visible(client) == (["x"] if end == "commit" else [])

    run(main())


def test_a_failed_send_makes_the_commit_abort() -> None:
    async def main() -> None:
        refused = Fault(kind="refuse", command="SEND", nth=2, error="NotAllowedError")
        async with (
            client_of(refused) as client,
            client.create_producer("t", batching_enabled=False) as producer,
        ):
            txn = await client.transaction()
            await producer.send(b"good", txn=txn)
            producer.send_async(b"bad", lambda *_: None, txn=txn)
            with pytest.raises(TransactionAbortedError, match="a send has failed") as caught:
                await txn.commit()
            assert caught.value.txn_id == txn.id
            assert isinstance(caught.value.__cause__, TransportError)
            assert txn.state is TxnState.ABORTED
            await producer.send(b"plain")
            assert await visible(client) == ["plain"]

    run(main())


def test_a_cancelled_send_makes_the_commit_abort() -> None:
    async def main() -> None:
        async with (
            client_of() as client,
            client.create_producer("t", batching_max_publish_delay_ms=1000) as producer,
        ):
            txn = await client.transaction()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await producer.send(b"x", txn=txn)
            with pytest.raises(TransactionAbortedError):
                await txn.commit()
            await producer.send(b"plain")
            assert await visible(client) == ["plain"]

    run(main())


def test_a_lost_connection_is_not_a_reason_to_send_again() -> None:
    """Without deduplication the transaction would have the message twice."""

    async def main() -> None:
        cut = Fault(kind="close_before", command="SEND_RECEIPT")
        async with client_of(cut) as client, client.create_producer("t") as producer:
            txn = await client.transaction()
            with pytest.raises(TransportError, match="only on topics that deduplicate"):
                await producer.send(b"x", txn=txn)
            with pytest.raises(TransactionAbortedError):
                await txn.commit()
            await producer.send(b"plain")
            assert await visible(client) == ["plain"]

    run(main())


def test_messages_that_have_not_left_survive_a_lost_connection() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with (
            client_of(transport=transport) as client,
            client.create_producer("t") as producer,
        ):
            async with client.transaction() as txn:
                await producer.send(b"0", txn=txn)
                transport.disconnect()
                sending = asyncio.ensure_future(producer.send(b"1", txn=txn))
                await asyncio.sleep(1)
                transport.reconnect()
                await sending
            assert await visible(client) == ["0", "1"]

    run(main())


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="close_before", command="END_TXN"),
        Fault(kind="close_before", command="END_TXN_RESPONSE"),
        Fault(kind="drop", command="END_TXN"),
        Fault(kind="drop", command="END_TXN_RESPONSE"),
        Fault(kind="close_before", command="END_TXN_RESPONSE", times=3),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.command}-{fault.times}",
)
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_lost_answer_to_the_end_changes_nothing(fault: Fault, end: str) -> None:
    async def main() -> None:
        async with client_of(fault) as client, client.create_producer("t") as producer:
            txn = await client.transaction(timeout=300)
            await producer.send(b"x", txn=txn)
            await producer.send(b"behind")
            await getattr(txn, end)()
            expected = ["x", "behind"] if end == "commit" else ["behind"]
            assert await visible(client) == expected
            assert txn.state is (TxnState.COMMITTED if end == "commit" else TxnState.ABORTED)

    run(main())


@pytest.mark.parametrize(
    "command", ["NEW_TXN", "ADD_PARTITION_TO_TXN", "TC_CLIENT_CONNECT_REQUEST"]
)
@pytest.mark.parametrize("kind", ["close_before", "close_after"])
def test_a_cut_around_another_command_costs_time_only(command: str, kind: Any) -> None:
    async def main() -> None:
        fault = Fault(kind=kind, command=command)
        async with client_of(fault) as client, client.create_producer("t") as producer:
            async with client.transaction(timeout=300) as txn:
                await producer.send(b"x", txn=txn)
            assert await visible(client) == ["x"]

    run(main())


def test_a_transaction_times_out_before_the_cluster_ends_it() -> None:
    async def main() -> None:
        async with client_of() as client, client.create_producer("t") as producer:
            with pytest.raises(TransactionAbortedError, match="timed out after 10 s"):
                async with client.transaction(timeout=10) as txn:
                    await producer.send(b"never", txn=txn)
                    await asyncio.sleep(9.5)
                    with pytest.raises(TransactionStateError, match="timed out after 10 s"):
                        await producer.send(b"late", txn=txn)
                    await producer.send(b"plain")
                    # The readers do not wait for the cluster's own timeout.
                    assert await visible(client) == ["plain"]
            assert txn.state is TxnState.ABORTED

    run(main())


def test_no_message_leaves_after_the_deadline() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with (
            client_of(transport=transport) as client,
            client.create_producer("t", send_timeout_millis=0) as producer,
        ):
            txn = await client.transaction(timeout=10)
            await producer.send(b"0", txn=txn)
            transport.disconnect()
            waiting = [asyncio.ensure_future(producer.send(b"1", txn=txn)) for _ in range(3)]
            await asyncio.sleep(9.5)
            for each in waiting:
                with pytest.raises(TransactionAbortedError, match="timed out"):
                    await each
            transport.reconnect()
            await asyncio.sleep(5)
            await producer.send(b"plain")
            assert await visible(client) == ["plain"]
            with pytest.raises(TransactionAbortedError, match="timed out"):
                await txn.commit()

    run(main())


def test_a_transaction_that_was_handed_over_is_ended_by_its_id_only() -> None:
    async def main() -> None:
        async with client_of() as client:
            transport = transport_of(client)
            producer = await transport.create_producer(ProducerOptions(topic=TOPIC))
            txn = await transport.begin_transaction(10)
            await producer.publish(OutgoingMessage(payload=b"1", txn=txn))
            txn.hand_over()
            await asyncio.sleep(9.5)  # after the client's deadline, before the cluster's
            with pytest.raises(TransactionStateError, match="ended by another process"):
                await producer.publish(OutgoingMessage(payload=b"late", txn=txn))
            await client.commit_transaction(txn.id)
            assert await visible(client) == ["1"]

    run(main())


def test_another_client_sends_in_a_transaction_that_it_joined_by_its_id() -> None:
    async def main() -> None:
        shared = MemoryTransport()
        async with client_of(transport=shared) as owner, client_of(transport=shared) as other:
            txn = await owner.transaction()
            transport = transport_of(other)
            producer = await transport.create_producer(ProducerOptions(topic=TOPIC))
            joined = await transport.join_transaction(txn.id, 10)
            await producer.publish(OutgoingMessage(payload=b"1", txn=joined))
            joined.hand_over()
            async with owner.create_producer(TOPIC) as own:
                await own.send(b"2", txn=txn)
            assert await visible(owner) == []
            await txn.commit()
            assert await visible(owner) == ["1", "2"]
            late = await transport.join_transaction(txn.id, 10)
            with pytest.raises(TransactionNotFound):
                await producer.publish(OutgoingMessage(payload=b"late", txn=late))
            assert await visible(owner) == ["1", "2"]

    run(main())


def test_an_abort_of_a_joined_transaction_ends_it_for_all() -> None:
    async def main() -> None:
        shared = MemoryTransport()
        async with client_of(transport=shared) as owner, client_of(transport=shared) as other:
            txn = await owner.transaction()
            joined = await transport_of(other).join_transaction(txn.id, 10)
            async with owner.create_producer(TOPIC) as own:
                await own.send(b"1", txn=txn)
                await joined.abort()
                await own.send(b"plain")
            assert await visible(owner) == ["plain"]
            with pytest.raises(TransactionAbortedError):
                await txn.commit()

    run(main())


def test_messages_in_an_open_batch_are_discarded_by_an_abort() -> None:
    async def main() -> None:
        async with (
            client_of() as client,
            client.create_producer("t", batching_max_publish_delay_ms=5000) as producer,
        ):
            txn = await client.transaction()
            sending = asyncio.ensure_future(producer.send(b"x", txn=txn))
            plain = asyncio.ensure_future(producer.send(b"plain"))
            last = asyncio.ensure_future(producer.send(b"y", txn=txn))
            await asyncio.sleep(0.1)
            await txn.abort()
            assert isinstance(last.exception(), TransactionAbortedError)
            await plain
            assert sending.done()
            assert await visible(client) == ["plain"]

    run(main())


def test_ends_are_repeated_without_effect_and_the_other_end_is_refused() -> None:
    async def main() -> None:
        async with client_of() as client, client.create_producer("t") as producer:
            txn = await client.transaction()
            await producer.send(b"x", txn=txn)
            await asyncio.gather(txn.commit(), txn.commit())
            await txn.commit()
            with pytest.raises(TransactionStateError, match="is committed"):
                await txn.abort()
            with pytest.raises(TransactionStateError, match="is committed"):
                await producer.send(b"late", txn=txn)
            other = await client.transaction()
            await other.abort()
            await other.abort()
            with pytest.raises(TransactionStateError, match="is aborted"):
                await other.commit()

    run(main())


def test_a_cancelled_commit_runs_to_its_end() -> None:
    async def main() -> None:
        slow = Fault(kind="delay", command="END_TXN", delay_ms=500)
        async with client_of(slow) as client, client.create_producer("t") as producer:
            txn = await client.transaction()
            await producer.send(b"x", txn=txn)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await txn.commit()
            assert txn.state is TxnState.COMMITTING
            await txn.commit()
            assert await visible(client) == ["x"]

    run(main())


def test_a_cancelled_begin_leaves_no_transaction_open() -> None:
    async def main() -> None:
        slow = Fault(kind="delay", command="NEW_TXN_RESPONSE", delay_ms=500)
        transport = MemoryTransport(faults=FaultPlan([slow]))
        async with client_of(transport=transport) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.transaction()
            await asyncio.sleep(2)
            with pytest.raises(TransactionNotFound):
                await client.abort_transaction(TxnId(0, 0))

    run(main())


def test_a_client_aborts_its_open_transactions_when_it_is_closed() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        client = client_of(transport=transport)
        producer = await client.create_producer("t")
        txn = await client.transaction(timeout=3600)
        await producer.send(b"never", txn=txn)
        await client.close()
        async with (
            client_of(transport=transport) as other,
            other.create_producer("t") as producer,
        ):
            await producer.send(b"plain")
            assert await visible(other) == ["plain"]
        with pytest.raises((ClosedError, TransactionStateError)):
            await txn.commit()

    run(main())


def test_a_transaction_ends_by_its_id_from_another_client() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with (
            client_of(transport=transport) as client,
            client_of(transport=transport) as other,
            client.create_producer("t") as producer,
        ):
            one, two = await client.transaction(), await client.transaction()
            await producer.send(b"1", txn=one)
            await producer.send(b"2", txn=two)
            await other.commit_transaction(TxnId.parse(str(one.id)))
            await other.abort_transaction(two.id)
            with pytest.raises(TransactionNotFound, match="has ended"):
                await other.commit_transaction(one.id)
            await producer.send(b"behind")
            await one.commit()  # finds its message, so it was committed
            assert one.state is TxnState.COMMITTED
            with pytest.raises(TransactionAbortedError):
                await two.commit()
            assert await visible(client) == ["1", "behind"]

    run(main())


def test_an_unknown_outcome_is_neither_success_nor_failure() -> None:
    """Nothing follows the message of an aborted transaction, so the topic tells nothing."""

    async def main() -> None:
        transport = MemoryTransport()
        async with (
            client_of(transport=transport) as client,
            client_of(transport=transport) as other,
            client.create_producer("t") as producer,
        ):
            txn = await client.transaction()
            await producer.send(b"x", txn=txn)
            await other.abort_transaction(txn.id)
            with pytest.raises(TransactionOutcomeUnknown) as caught:
                await txn.commit()
            assert caught.value.txn_id == txn.id
            assert txn.state is TxnState.UNKNOWN

    run(main())


def test_a_message_that_comes_after_the_end_is_refused_before_it_is_sent() -> None:
    async def main() -> None:
        async with client_of() as client, client.create_producer("t") as producer:
            async with client.transaction() as txn:
                pass
            with pytest.raises(TransactionStateError, match="begin another"):
                await producer.send(b"late", txn=txn)
            await producer.send(b"plain")
            assert await visible(client) == ["plain"]

    run(main())


def test_wrong_arguments_are_refused_before_anything_is_sent() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport=transport) as client, client_of() as foreign:
            txn = await client.transaction()
            async with foreign.create_producer("t") as other:
                with pytest.raises(TransactionStateError, match="another client"):
                    await other.send(b"x", txn=txn)
            async with client.create_producer("non-persistent://public/default/n") as producer:
                with pytest.raises(ConfigurationError, match="not persistent"):
                    await producer.send(b"x", txn=txn)
            async with client.create_producer("t") as producer:
                with pytest.raises(ConfigurationError, match="must be a Transaction"):
                    await producer.send(b"x", txn=txn.id)  # type: ignore[arg-type]
            with pytest.raises(ConfigurationError, match="timeout must be from 1"):
                await client.transaction(timeout=0.5)
            with pytest.raises(ConfigurationError, match=r"TxnId\.parse"):
                await client.commit_transaction("(0,1)")  # type: ignore[arg-type]
            await txn.commit()

    run(main())


def test_a_cluster_without_transactions_is_named_with_its_setting() -> None:
    async def main() -> None:
        settings = BrokerSettings(namespaces=None, transactions=False)
        async with client_of(transport=MemoryTransport(settings)) as client:
            with pytest.raises(TransactionNotEnabledError, match="transactionCoordinatorEnabled"):
                await client.transaction()

    run(main())


def test_the_stock_transport_refuses_transactions() -> None:
    async def main() -> None:
        async with Client("pulsar://localhost:1", transport="stock") as client:
            with pytest.raises(NotSupportedError, match="transport='native'"):
                await client.transaction()

    asyncio.run(main())


def test_an_abort_after_a_failed_commit_has_no_effect() -> None:
    """Java's programs do so."""

    async def main() -> None:
        refused = Fault(kind="refuse", command="SEND", error="NotAllowedError")
        async with client_of(refused) as client, client.create_producer("t") as producer:
            txn = await client.transaction()
            producer.send_async(b"bad", lambda *_: None, txn=txn)
            with pytest.raises(TransactionAbortedError):
                await txn.commit()
            await txn.abort()
            assert txn.state is TxnState.ABORTED

    run(main())


def test_an_abort_without_an_answer_can_be_repeated() -> None:
    async def main() -> None:
        silent = Fault(kind="drop", command="END_TXN", times=2)
        async with client_of(silent) as client, client.create_producer("t") as producer:
            txn = await client.transaction(timeout=600)
            await producer.send(b"x", txn=txn)
            with pytest.raises(TransportError):
                await txn.abort()
            assert txn.state is TxnState.ABORTING
            await txn.abort()
            assert txn.state is TxnState.ABORTED

    run(main())


def test_a_transaction_that_was_committed_by_its_id_is_no_failure_after_its_time() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with (
            client_of(transport=transport) as client,
            client_of(transport=transport) as other,
            client.create_producer("t") as producer,
        ):
            txn = await client.transaction(timeout=10)
            await producer.send(b"x", txn=txn)
            await other.commit_transaction(txn.id)
            await asyncio.sleep(20)
            await txn.commit()
            assert txn.state is TxnState.COMMITTED
            assert await visible(client) == ["x"]

    run(main())


@pytest.mark.parametrize("topics", [("t", "t"), ("t", "u")], ids=["one topic", "two topics"])
def test_a_commit_by_its_id_that_was_too_early_is_no_success(topics: tuple[str, str]) -> None:
    """The broker stores the second message, and no reader ever gets it."""

    async def main() -> None:
        transport = MemoryTransport()
        async with (
            client_of(transport=transport) as client,
            client_of(transport=transport) as other,
            client.create_producer(topics[0], batching_enabled=False) as one,
            client.create_producer(topics[1], batching_enabled=False) as two,
        ):
            txn = await client.transaction()
            await one.send(b"x", txn=txn)
            await two.send(b"y", txn=txn)
            await other.commit_transaction(txn.id)
            await two.send(b"late", txn=txn)
            with pytest.raises(TransactionOutcomeUnknown):
                await txn.commit()
            assert txn.state is TxnState.UNKNOWN
            async with other.transaction() as sweep, other.create_producer(topics[1]) as third:
                await third.send(b"next", txn=sweep)
            expected = ["x", "y", "next"] if topics[0] == topics[1] else ["y", "next"]
            assert await visible(other, TOPIC[:-1] + topics[1]) == expected

    run(main())


def test_an_end_does_not_wait_for_the_messages_of_others() -> None:
    async def main() -> None:
        slow = Fault(kind="drop", command="SEND_RECEIPT", nth=2)
        async with (
            client_of(slow) as client,
            client.create_producer("a") as mine,
            client.create_producer("b", batching_enabled=False) as others,
        ):
            async with client.transaction() as other:
                async with client.transaction() as txn:
                    await others.send(b"x", txn=txn)
                    others.send_async(b"without an answer", lambda *_: None)
                    await asyncio.sleep(0.1)
                    began = asyncio.get_running_loop().time()
                assert asyncio.get_running_loop().time() - began < 1
                await mine.send(b"y", txn=other)
            assert await visible(client, "a") == ["y"]

    run(main())


def test_a_begin_that_takes_longer_than_the_timeout_has_the_whole_time() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with (
            client_of(transport=transport) as client,
            client.create_producer("t") as producer,
        ):
            transport.disconnect()
            beginning = asyncio.ensure_future(client.transaction(timeout=5))
            await asyncio.sleep(8)
            transport.reconnect()
            async with await beginning as txn:
                await producer.send(b"x", txn=txn)
            assert await visible(client) == ["x"]

    run(main())


def test_a_block_that_fails_does_not_wait_long_for_an_absent_cluster() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport=transport) as client:
            with pytest.raises(KeyError):
                async with client.transaction(timeout=3600):
                    transport.disconnect()
                    began = asyncio.get_running_loop().time()
                    raise KeyError
            assert asyncio.get_running_loop().time() - began <= 11
            transport.reconnect()

    run(main())


def test_a_block_waits_for_a_commit_whose_caller_gave_up() -> None:
    async def main() -> None:
        slow = Fault(kind="delay", command="END_TXN", delay_ms=500)
        async with client_of(slow) as client, client.create_producer("t") as producer:
            async with client.transaction() as txn:
                await producer.send(b"x", txn=txn)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await txn.commit()
            assert txn.state is TxnState.COMMITTED
            assert await visible(client) == ["x"]

    run(main())


def test_a_commit_ends_if_the_topic_is_created_again_without_partitions() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        transport.catalogue.create_partitioned("t", 2)
        async with (
            client_of(transport=transport) as client,
            client.create_producer("t") as producer,
        ):
            txn = await client.transaction(timeout=600)
            await producer.send(b"0", txn=txn)
            transport.faults = FaultPlan([Fault(kind="drop", command="SEND_RECEIPT", times=100)])
            producer.send_async(b"1", lambda *_: None, txn=txn)
            await asyncio.sleep(0.1)
            committing = asyncio.ensure_future(txn.commit())
            await asyncio.sleep(0.1)
            transport.disconnect()
            transport.catalogue.delete(TOPIC)
            transport.put("t", b"now without partitions")
            transport.reconnect()
            async with asyncio.timeout(25):  # before the timeout of the send
                with pytest.raises(TransactionAbortedError):
                    await committing

    run(main())


class Keys(CryptoKeyReader):
    """Keys of one recipient, in memory."""

    def __init__(self) -> None:
        super().__init__("public", "private")
        self._private = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def public_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        return self._private.public_key().public_bytes(
            Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
        )

    def private_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        return self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize("batching", [True, False])
def test_compressed_and_encrypted_messages(batching: bool) -> None:
    async def main() -> None:
        keys = Keys()
        async with (
            client_of() as client,
            client.create_producer(
                "t",
                compression_type=CompressionType.ZLib,
                encryption_key="k",
                crypto_key_reader=keys,
                batching_enabled=batching,
            ) as producer,
            client.create_reader("t", MessageId.earliest, crypto_key_reader=keys) as reader,
        ):
            aborted, committed = await client.transaction(), await client.transaction()
            for txn, letter in ((aborted, b"a"), (committed, b"c")):
                await asyncio.gather(*(producer.send(letter * 5000, txn=txn) for _ in range(3)))
            await aborted.abort()
            assert not await reader.has_message_available()
            await committed.commit()
            got = [(await reader.read_next()).data() for _ in range(3)]
            assert got == [b"c" * 5000] * 3
            assert not await reader.has_message_available()

    run(main())


def refused_at_once(producer: Producer[bytes], value: bytes, properties: dict[str, str]) -> bool:
    try:
        prepared(producer, value, properties, None)
    except MessageTooBig:
        return True
    return False


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batching_enabled": False},
        {"batching_enabled": False, "chunking_enabled": True},
        {"compression_type": CompressionType.LZ4},
        {"compression_type": CompressionType.LZ4, "batching_enabled": False},
    ],
    ids=str,
)
def test_a_message_is_refused_at_once_if_its_send_would_be_refused(
    options: dict[str, Any], partitions: int
) -> None:
    limit = 100_000
    noise = random.Random(1).randbytes(limit + 20_000)
    cases: list[tuple[bytes, dict[str, str]]] = [
        *((noise[:size], {}) for size in (1, limit - 20_000, limit - 1, limit, limit + 1)),
        *((bytes(size), {}) for size in (limit, limit + 1)),
        *((b"", {"a": "x" * size}) for size in (1, limit, limit + 10_000, limit + 11_000)),
        *((noise[:limit], {"a": "x" * size}) for size in (1, 9_000, 9_900, 11_000)),
    ]

    async def main() -> None:
        settings = BrokerSettings(namespaces=None, max_message_size=limit)
        transport = MemoryTransport(settings)
        async with client_of(transport=transport) as client:
            if partitions:
                transport.catalogue.create_partitioned(TOPIC, partitions)
            async with client.create_producer(TOPIC, **options) as producer:
                refused = 0
                for value, properties in cases:
                    is_refused = refused_at_once(producer, value, properties)
                    refused += is_refused
                    async with client.transaction() as txn:
                        (send,) = begin_sends(
                            producer, [OutgoingMessage(payload=value, properties=properties)], txn
                        )
                        error = (await asyncio.gather(send, return_exceptions=True))[0]
                        assert isinstance(error, MessageTooBig) == is_refused, len(value)
                        await txn.abort()
                assert 0 < refused < len(cases)

    run(main())


def test_a_partition_whose_limit_is_not_known_may_take_the_message() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        transport.catalogue.create_partitioned(TOPIC, 2)
        async with (
            client_of(transport=transport) as client,
            client.create_producer(TOPIC, lazy_start_partitioned_producers=True) as producer,
        ):
            assert not refused_at_once(producer, bytes(6_000_000), {})
            for _ in range(2):
                await producer.send(b"attaches this partition")
            assert refused_at_once(producer, bytes(6_000_000), {})

    run(main())


def test_an_abort_does_not_log_each_message_that_it_drops(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with client_of() as client, client.create_producer("t") as producer:
            txn = await client.transaction()
            for number in range(100):
                producer.send_async(b"%d" % number, None, txn=txn)
            await txn.abort()
            await producer.flush()

    with caplog.at_level(logging.INFO):
        run(main())
    assert "send_async" not in caplog.text
