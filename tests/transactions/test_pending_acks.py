"""Acks in transactions, in virtual time on the development broker: ends, faults, random histories.

`integration/transactions` has the same cases on Pulsar.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import replace
from typing import Any

import pytest

from pulsar_encore import (
    Client,
    Consumer,
    ConsumerType,
    EncoreError,
    InitialPosition,
    Message,
    MessageId,
    MessageNotHeldError,
    TransactionAbortedError,
    TransactionConflict,
    TransactionNotEnabledError,
    TransactionOutcomeUnknown,
    TransactionStateError,
    TransportError,
    TxnState,
)
from pulsar_encore.testing import Fault, FaultPlan, MemoryTransport, run
from tests.harness.transfers.transfer_network import Network, Process

URL = "pulsar://memory:6650"
KINDS = [
    ConsumerType.Shared,
    ConsumerType.KeyShared,
    ConsumerType.Failover,
    ConsumerType.Exclusive,
]
SHARED = KINDS[:2]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
each_shape = pytest.mark.parametrize("batching", [True, False], ids=["batches", "unbatched"])


def client_of(*faults: Fault, transport: MemoryTransport | None = None) -> Client:
    plan = FaultPlan(list(faults)) if faults else None
    return Client(URL, transport=transport or MemoryTransport(faults=plan))


async def fill(client: Client, count: int, *, batching: bool = False, start: int = 0) -> None:
    async with client.create_producer("t", batching_enabled=batching) as producer:
        values = range(start, start + count)
        await asyncio.gather(*(producer.send(b"%d" % each) for each in values))


def subscribe(client: Client, kind: ConsumerType, **options: Any) -> Any:
    return client.subscribe("t", "s", kind, initial_position=InitialPosition.Earliest, **options)


async def take(consumer: Consumer, count: int) -> list[Message]:
    return [await consumer.receive(timeout_millis=60_000) for _ in range(count)]


async def rest(consumer: Consumer) -> list[int]:
    """Receive and ack all other messages."""
    found = []
    with contextlib.suppress(TimeoutError):
        while True:
            message = await consumer.receive(timeout_millis=60_000)
            found.append(int(message.data()))
            await consumer.acknowledge(message)
    return found


async def left(client: Client) -> list[int]:
    """Return the messages that another consumer of the subscription gets afterwards."""
    async with subscribe(client, ConsumerType.Shared) as consumer:
        return await rest(consumer)


@each_kind
@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("acks", ["one by one", "as a list", "in a transaction", "whole by id"])
def test_the_rest_of_a_batch_is_acked_without_what_another_process_has_pending(
    kind: ConsumerType, end: str, acks: str
) -> None:
    """A process dies with half of a batch acked in an open transaction."""

    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport=transport) as client:
            async with subscribe(client, kind) as first:
                await fill(client, 10, batching=True)
                messages = await take(first, 10)
                txn = await client.transaction(timeout=600)
                await first.acknowledge(messages[2:7], txn=txn)
            async with subscribe(client, kind, ack_receipt_enabled=True) as second:
                others = await take(second, 5)
                assert sorted(int(each.data()) for each in others) == [0, 1, 7, 8, 9]
                async with client.transaction() as own:
                    await second.acknowledge(others.pop(), txn=own)
                if acks == "one by one":
                    for each in others:
                        await second.acknowledge(each)
                elif acks == "as a list":
                    await second.acknowledge(others)
                elif acks == "whole by id":
                    whole = others[0].message_id()
                    await second.acknowledge(
                        MessageId(whole.partition(), whole.ledger_id(), whole.entry_id())
                    )
                else:
                    async with client.transaction() as own:
                        await second.acknowledge(others, txn=own)
                if end == "commit":
                    await client.commit_transaction(txn.id)
                else:
                    await client.abort_transaction(txn.id)
                again = await rest(second)
            again += await left(client)
            assert sorted(again) == ([] if end == "commit" else [2, 3, 4, 5, 6])

    run(main())


@pytest.mark.parametrize("kind", SHARED, ids=lambda kind: kind.name)
def test_an_ack_of_the_rest_that_waits_covers_no_message_that_comes_back_meanwhile(
    kind: ConsumerType,
) -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport=transport) as client:
            async with subscribe(client, kind) as first:
                await fill(client, 10, batching=True)
                messages = await take(first, 10)
                txn = await client.transaction(timeout=600)
                await first.acknowledge(messages[2:7], txn=txn)
            async with subscribe(client, kind, ack_group_time_ms=60_000) as second:
                one, *others = await take(second, 5)
                async with client.transaction() as own:
                    await second.acknowledge(one, txn=own)
                await second.acknowledge(others)
                await client.abort_transaction(txn.id)
                again = await take(second, 5)
                await second.flush()
                assert sorted(int(each.data()) for each in again) == [2, 3, 4, 5, 6]
            assert sorted(await left(client)) == [2, 3, 4, 5, 6], "they were not acked"

    run(main())


@each_kind
@each_shape
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_end_settles_each_message_once(kind: ConsumerType, batching: bool, end: str) -> None:
    async def main() -> None:
        async with client_of() as client:
            await fill(client, 20, batching=batching)
            async with subscribe(client, kind) as consumer:
                messages = await take(consumer, 12)
                txn = await client.transaction()
                await consumer.acknowledge(messages[:3], txn=txn)
                await asyncio.gather(
                    *(consumer.acknowledge(each, txn=txn) for each in messages[3:6])
                )
                await consumer.negative_acknowledge(messages[0])  # changes nothing
                await getattr(txn, end)()
                first = 6 if end == "commit" else 0
                if kind in SHARED:
                    await consumer.acknowledge(messages[6:])
                    again = await take(consumer, 8 + (6 - first))
                else:
                    if end == "commit":
                        await consumer.acknowledge(messages[6:])
                        first = 12
                    again = await take(consumer, 20 - first)
                    assert [int(each.data()) for each in again] == list(range(first, 20))
                assert {each.attempt for each in again} == {1}
                await consumer.acknowledge(again)
                assert await rest(consumer) == []
                assert consumer.statistics().unacked == 0
            assert await left(client) == []

    run(main())


@each_shape
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_cumulative_acks(batching: bool, end: str) -> None:
    async def main() -> None:
        async with client_of() as client:
            await fill(client, 12, batching=batching)
            async with subscribe(client, ConsumerType.Exclusive) as consumer:
                messages = await take(consumer, 8)
                txn = await client.transaction()
                await consumer.acknowledge_cumulative(messages[2], txn=txn)
                await consumer.acknowledge_cumulative(messages[5], txn=txn)
                with pytest.raises(TransactionConflict):
                    await consumer.acknowledge(messages[6], txn=txn)
                await getattr(txn, end)()
                if end == "commit":
                    await consumer.acknowledge(messages[6:])
                assert await rest(consumer) == list(range(8 if end == "commit" else 0, 12))
            assert await left(client) == []

    run(main())


@each_kind
@pytest.mark.parametrize("kind_of_fault", ["close_before", "close_after"])
@pytest.mark.parametrize("command", ["ACK", "ACK_RESPONSE"])
def test_an_ack_without_an_answer_is_not_sent_again(
    kind: ConsumerType, kind_of_fault: Any, command: str
) -> None:
    async def main() -> None:
        cut = Fault(kind=kind_of_fault, command=command)
        transport = MemoryTransport(faults=FaultPlan([cut]))
        async with client_of(transport=transport) as client:
            await fill(client, 4)
            async with subscribe(client, kind) as consumer:
                messages = await take(consumer, 4)
                txn = await client.transaction()
                if kind_of_fault == "close_after":
                    await consumer.acknowledge(messages, txn=txn)  # the answer came
                    await txn.commit()
                    assert await rest(consumer) == []
                    return
                with pytest.raises(TransportError):
                    await consumer.acknowledge(messages, txn=txn)
                with pytest.raises(TransactionAbortedError, match="an ack has failed"):
                    await txn.commit()
                assert sorted(await rest(consumer)) == [0, 1, 2, 3]
            assert await left(client) == []

    run(main())


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="close_before", command="END_TXN"),
        Fault(kind="close_before", command="END_TXN_RESPONSE"),
        Fault(kind="drop", command="END_TXN_RESPONSE"),
        Fault(kind="close_before", command="ADD_SUBSCRIPTION_TO_TXN"),
        Fault(kind="drop", command="ADD_SUBSCRIPTION_TO_TXN_RESPONSE"),
        Fault(kind="close_after", command="NEW_TXN"),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.command}",
)
@each_kind
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_lost_answer_changes_nothing(fault: Fault, kind: ConsumerType, end: str) -> None:
    """A transaction with acks alone: no message tells how it has ended."""

    async def main() -> None:
        async with client_of(fault) as client:
            await fill(client, 3)
            async with subscribe(client, kind) as consumer:
                messages = await take(consumer, 3)
                txn = await client.transaction(timeout=600)
                acking = asyncio.ensure_future(consumer.acknowledge(messages, txn=txn))
                outcomes = await asyncio.gather(acking, return_exceptions=True)
                try:
                    await getattr(txn, end)()
                except TransactionAbortedError:
                    assert outcomes != [None]
                committed = txn.state is TxnState.COMMITTED
                assert committed is (end == "commit" and outcomes == [None])
                assert sorted(await rest(consumer)) == ([] if committed else [0, 1, 2])
            assert await left(client) == []

    run(main())


@each_kind
@pytest.mark.parametrize("steps", range(12))
@pytest.mark.parametrize("call", ["acknowledge", "commit", "abort"])
def test_a_cancelled_call_leaves_no_message_behind(
    kind: ConsumerType, steps: int, call: str
) -> None:
    async def main() -> None:
        async with client_of() as client:
            await fill(client, 3)
            async with subscribe(client, kind) as consumer:
                messages = await take(consumer, 3)
                txn = await client.transaction()
                if call == "acknowledge":
                    calling = asyncio.ensure_future(consumer.acknowledge(messages, txn=txn))
                else:
                    consumer.acknowledge(messages, txn=txn)
                    calling = asyncio.ensure_future(getattr(txn, call)())
                for _ in range(steps):
                    await asyncio.sleep(0)
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)
                with contextlib.suppress(TransactionStateError):
                    await (txn.abort() if call == "abort" else txn.commit())
                committed = txn.state is TxnState.COMMITTED
                assert committed or txn.state is TxnState.ABORTED
                assert sorted(await rest(consumer)) == ([] if committed else [0, 1, 2])
            assert await left(client) == []

    run(main())


@each_kind
def test_the_timeout_of_a_transaction_brings_its_messages_again(kind: ConsumerType) -> None:
    async def main() -> None:
        async with client_of() as client:
            await fill(client, 3)
            async with subscribe(client, kind) as consumer:
                messages = await take(consumer, 3)
                txn = await client.transaction(timeout=5)
                await consumer.acknowledge(messages[:2], txn=txn)
                if kind in SHARED:
                    await consumer.acknowledge(messages[2])
                again = await take(consumer, 2)
                assert sorted(int(each.data()) for each in again) == [0, 1]
                with pytest.raises(TransactionStateError):
                    await consumer.acknowledge(again, txn=txn)
                await consumer.acknowledge(again)
                assert await rest(consumer) == ([] if kind in SHARED else [2])
            assert await left(client) == []

    run(main())


@each_kind
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_closed_consumer_leaves_its_acks_to_the_transaction(kind: ConsumerType, end: str) -> None:
    async def main() -> None:
        async with client_of() as client:
            await fill(client, 3)
            txn = await client.transaction()
            async with subscribe(client, kind) as consumer:
                consumer.acknowledge(await take(consumer, 3), txn=txn)  # without an await
            await getattr(txn, end)()
            assert sorted(await left(client)) == ([] if end == "commit" else [0, 1, 2])

    run(main())


def test_a_closed_client_aborts_and_the_messages_come_again() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport=transport) as client:
            await fill(client, 3)
            async with client_of(transport=transport) as other:
                consumer = await subscribe(other, ConsumerType.Shared)
                txn = await other.transaction()
                await consumer.acknowledge(await take(consumer, 3), txn=txn)
            assert sorted(await left(client)) == [0, 1, 2]

    run(main())


def test_messages_that_are_not_held_are_refused() -> None:
    async def main() -> None:
        async with client_of() as client:
            await fill(client, 3)
            async with subscribe(client, ConsumerType.Shared) as consumer:
                one, two, three = await take(consumer, 3)
                await consumer.acknowledge(one)
                await consumer.negative_acknowledge(two)
                txn = await client.transaction()
                for message in (one, two):
                    with pytest.raises(MessageNotHeldError):
                        await consumer.acknowledge([three, message], txn=txn)
                other = await client.transaction()
                await consumer.acknowledge(three.message_id(), txn=other)
                with pytest.raises(TransactionConflict):
                    await consumer.acknowledge(three, txn=txn)
                await txn.commit()  # it has no part in the refused calls
                await other.commit()
                await consumer.seek(0)
                with pytest.raises(MessageNotHeldError):
                    await consumer.acknowledge(three, txn=await client.transaction())

    run(main())


@pytest.mark.parametrize("kind", KINDS[2:], ids=lambda kind: kind.name)
@each_shape
def test_after_a_seek_and_an_abort_the_messages_are_in_order(
    kind: ConsumerType, batching: bool
) -> None:
    """The broker withholds a pending message from the seek, and redelivers it at the abort."""

    async def main() -> list[int]:
        async with client_of() as client:
            await fill(client, 4, batching=batching)
            async with subscribe(client, kind) as consumer:
                messages = await take(consumer, 4)
                txn = await client.transaction()
                await consumer.acknowledge(messages[1], txn=txn)
                await consumer.seek(0)
                await take(consumer, 2)
                await txn.abort()
                return await rest(consumer)

    assert run(main()) == [0, 1, 2, 3]


@pytest.mark.parametrize("cumulative", [True, False])
def test_acks_before_a_seek_exclude_the_other_kind_until_their_transaction_ends(
    cumulative: bool,
) -> None:
    """The broker still has them pending, and would lose the other acks."""

    async def main() -> None:
        async with client_of() as client:
            await fill(client, 4)
            async with subscribe(client, ConsumerType.Exclusive) as consumer:
                messages = await take(consumer, 4)
                first, second = await client.transaction(), await client.transaction()
                if cumulative:
                    await consumer.acknowledge_cumulative(messages[1], txn=first)
                else:
                    await consumer.acknowledge(messages[1], txn=first)
                await consumer.seek(0)
                last = messages[1]
                while last.data() != b"3":
                    (last,) = await take(consumer, 1)

                async def ack() -> None:
                    if cumulative:
                        await consumer.acknowledge(last, txn=second)
                    else:
                        await consumer.acknowledge_cumulative(last, txn=second)

                with pytest.raises(TransactionConflict):
                    await ack()
                await first.commit()
                await ack()
                await second.commit()

    run(main())


@each_kind
def test_a_pending_message_of_a_batch_comes_to_the_next_consumer(kind: ConsumerType) -> None:
    """The first consumer has left, as after a crash, and its transaction is aborted later."""

    async def main() -> list[int]:
        async with client_of() as client:
            await fill(client, 2, batching=True)
            txn = await client.transaction()
            async with subscribe(client, kind) as consumer:
                first, _ = await take(consumer, 2)
                await consumer.acknowledge(first, txn=txn)
            async with subscribe(client, kind) as consumer:
                (second,) = await take(consumer, 1)
                assert second.data() == b"1"
                await txn.abort()
                return await rest(consumer)

    assert 0 in run(main())


@pytest.mark.parametrize("how", ["single", "list", "cumulative", "of a closed consumer"])
def test_a_refused_ack_that_nobody_awaits_makes_the_commit_abort(how: str) -> None:
    """Otherwise the message is handled twice: it comes again, and its result is visible."""

    async def main() -> None:
        async with client_of() as client:
            await fill(client, 2)
            consumer = await subscribe(client, ConsumerType.Exclusive)
            one, two = await take(consumer, 2)
            txn = await client.transaction()
            async with client.create_producer("results", batching_enabled=False) as producer:
                producer.send_async(b"result", None, txn=txn)
                consumer.redeliver_unacknowledged_messages()
                if how == "single":
                    consumer.acknowledge(one, txn=txn)
                elif how == "list":
                    consumer.acknowledge([one, two], txn=txn)
                elif how == "cumulative":
                    await consumer.acknowledge_cumulative((await take(consumer, 1))[0])
                    consumer.acknowledge_cumulative(one, txn=txn)
                else:
                    await consumer.close()
                    consumer.acknowledge(one, txn=txn)
                with pytest.raises(TransactionAbortedError, match="nobody awaited has failed"):
                    await txn.commit()
            await consumer.close()
            assert await left(client) == ([1] if how == "cumulative" else [0, 1])

    run(main())


@each_shape
@pytest.mark.parametrize("late", [True, False], ids=["an abort meanwhile", "an abort afterwards"])
def test_a_refused_list_keeps_no_other_message_back(batching: bool, late: bool) -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport=transport) as client:
            await fill(client, 6, batching=batching)
            async with (
                subscribe(client, ConsumerType.Shared) as consumer,
                subscribe(client, ConsumerType.Shared) as other,
            ):
                messages = []
                for each in (consumer, other):
                    with contextlib.suppress(TimeoutError):
                        while True:
                            messages.append((each, await each.receive(timeout_millis=1_000)))
                # All of one consumer, which the broker gave the most.
                held = [message for each, message in messages if each is consumer]
                rest_of = [message for each, message in messages if each is other]
                one, two = (consumer, other) if len(held) > len(rest_of) else (other, consumer)
                mine = held if one is consumer else rest_of
                await two.acknowledge(mine[1].message_id())  # as after a lost connection
                await two.acknowledge(rest_of if one is consumer else held)
                await two.flush()
                if late:
                    slow = Fault(kind="delay", command="ACK_RESPONSE", delay_ms=500)
                    transport.faults = FaultPlan([slow])
                txn = await client.transaction()
                acking = asyncio.ensure_future(one.acknowledge(mine, txn=txn))
                if late:
                    await asyncio.sleep(0.1)
                else:
                    with pytest.raises(TransactionConflict):
                        await acking
                await txn.abort()
                await asyncio.gather(acking, return_exceptions=True)
                found = await asyncio.gather(rest(one), rest(two))
                expected = sorted(int(each.data()) for each in (*mine[:1], *mine[2:]))
                assert sorted([*found[0], *found[1]]) == expected
            assert await left(client) == []

    run(main())


def test_an_abort_of_acks_that_were_committed_by_id_is_unknown() -> None:
    async def main() -> None:
        async with client_of() as client:
            await fill(client, 2)
            async with subscribe(client, ConsumerType.Shared) as consumer:
                txn = await client.transaction(timeout=30)
                await consumer.acknowledge(await take(consumer, 2), txn=txn)
                await client.commit_transaction(txn.id)
                for _ in range(2):
                    with pytest.raises(TransactionOutcomeUnknown):
                        await txn.abort()
                assert txn.state is TxnState.UNKNOWN
                assert await rest(consumer) == []
            assert await left(client) == []

    run(main())


@pytest.mark.parametrize("late", [True, False], ids=["late", "in time"])
def test_a_commit_of_acks_that_were_committed_by_id_is_unknown(late: bool) -> None:
    """The output is visible, and an ack after the commit has no effect."""

    async def main() -> None:
        async with client_of() as client, client.create_producer("out") as producer:
            await fill(client, 2)
            async with subscribe(client, ConsumerType.Shared) as consumer:
                txn = await client.transaction(timeout=30)
                one, two = await take(consumer, 2)
                await producer.send(b"x", txn=txn)
                await consumer.acknowledge(one if late else [one, two], txn=txn)
                await client.commit_transaction(txn.id)
                if late:
                    await consumer.acknowledge(two, txn=txn)
                with pytest.raises(TransactionOutcomeUnknown):
                    await txn.commit()

    run(main())


@pytest.mark.parametrize("by_id", [True, False], ids=["id", "message"])
def test_a_cumulative_ack_from_before_an_abort_covers_no_message_that_comes_again(
    by_id: bool,
) -> None:
    async def main() -> None:
        async with client_of() as client:
            await fill(client, 6)
            async with subscribe(client, ConsumerType.Failover) as consumer:
                messages = await take(consumer, 6)
                first = await client.transaction()
                await consumer.acknowledge_cumulative(messages[2], txn=first)
                await first.abort()
                async with client.transaction() as second:
                    last = messages[5]
                    with pytest.raises(MessageNotHeldError, match="receive"):
                        await consumer.acknowledge_cumulative(
                            last.message_id() if by_id else last, txn=second
                        )
                    await second.abort()
                assert await rest(consumer) == list(range(6))

    run(main())


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "no answer"])
def test_a_late_cumulative_ack_loses_no_message(answered: bool) -> None:
    """Another client has committed by the id, so the late ack has no effect at the broker."""

    async def main() -> None:
        lost = Fault(kind="drop", command="END_TXN", nth=2, times=3)
        async with (
            client_of(*([] if answered else [lost])) as client,
            client.create_producer("out") as producer,
        ):
            await fill(client, 3)
            async with subscribe(client, ConsumerType.Failover) as consumer:
                messages = await take(consumer, 3)
                txn = await client.transaction(timeout=600)
                await producer.send(b"x", txn=txn)
                await consumer.acknowledge_cumulative(messages[0], txn=txn)
                await client.commit_transaction(txn.id)
                await consumer.acknowledge_cumulative(messages[1], txn=txn)
                with pytest.raises(TransactionStateError if answered else TransportError):
                    await txn.abort()
                await asyncio.sleep(200)
                assert txn.state is TxnState.COMMITTED
                assert await rest(consumer) == [1, 2]

    run(main())


def test_an_end_by_id_before_the_timeout_is_not_taken_for_the_timeout() -> None:
    async def main() -> None:
        async with client_of() as client:
            await fill(client, 1)
            async with subscribe(client, ConsumerType.Shared) as consumer:
                txn = await client.transaction(timeout=30)
                await consumer.acknowledge(await take(consumer, 1), txn=txn)
                await client.commit_transaction(txn.id)
                await asyncio.sleep(29.5)  # after the client's deadline
                with pytest.raises(TransactionOutcomeUnknown):
                    await txn.commit()
            assert await left(client) == []

    run(main())


def test_messages_come_again_after_an_operator_has_turned_transactions_off() -> None:
    async def main() -> None:
        network = Network(seed=1, rewinds_overtaken=0)
        async with Process(network, operation_timeout_s=5, name="client").client as client:
            await fill(client, 1)
            async with subscribe(client, ConsumerType.Shared) as consumer:
                txn = await client.transaction(timeout=30)
                await consumer.acknowledge(await take(consumer, 1), txn=txn)
                network.service.settings = replace(network.service.settings, transactions=False)
                await network.kill_broker(1)
                with pytest.raises(TransactionNotEnabledError, match="has no transactions"):
                    await txn.abort()
                assert await rest(consumer) == [0]

    run(main())


def test_a_long_commit_does_not_exclude_the_next_transaction() -> None:
    """It is acked here in several steps of the event loop."""

    async def main() -> None:
        async with client_of() as client:
            for start in range(0, 3_500, 500):
                await fill(client, 500, start=start)
            async with subscribe(
                client, ConsumerType.Exclusive, receiver_queue_size=4_000
            ) as consumer:
                messages = await take(consumer, 3_500)
                async with client.transaction() as txn:
                    await consumer.acknowledge(messages[:-1], txn=txn)
                async with client.transaction() as txn:
                    await consumer.acknowledge_cumulative(messages[-1], txn=txn)
                await asyncio.sleep(1)
                assert consumer.statistics().unacked == 0
            assert await left(client) == []

    run(main())


def test_a_position_that_is_acked_is_not_acked_again() -> None:
    async def main() -> None:
        async with client_of() as client:
            await fill(client, 4)
            async with subscribe(client, ConsumerType.Exclusive) as consumer:
                messages = await take(consumer, 4)
                await consumer.acknowledge_cumulative(messages[2])
                async with client.transaction() as txn:
                    with pytest.raises(MessageNotHeldError):
                        await consumer.acknowledge_cumulative(messages[1], txn=txn)
                    await consumer.acknowledge_cumulative(messages[3], txn=txn)
            assert await left(client) == []

    run(main())


SEEDS = range(12)
MESSAGES = 30


@each_kind
@each_shape
@pytest.mark.parametrize("seed", SEEDS)
def test_random_histories(kind: ConsumerType, batching: bool, seed: int) -> None:
    """Each message is acked at the end, and none comes again after an ack that was committed."""

    async def main() -> None:
        rng = random.Random(seed)
        transport = MemoryTransport()
        async with client_of(transport=transport) as client:
            for start in range(0, MESSAGES, 10):
                await fill(client, 10, batching=batching, start=start)
            done: set[int] = set()
            async with subscribe(
                client,
                kind,
                receiver_queue_size=rng.choice([1, 5, 100]),
                negative_ack_redelivery_delay_ms=rng.choice([100, 5_000]),
                unacked_messages_timeout_ms=rng.choice([None, 60_000]),
            ) as consumer:
                for _ in range(300):
                    if len(done) < MESSAGES:
                        await step(client, consumer, transport, rng, done)
                assert len(done) == MESSAGES, "some messages do not come again"
                assert await rest(consumer) == []
                assert consumer.statistics().unacked == 0
            assert await left(client) == []

    async def step(
        client: Client,
        consumer: Consumer,
        transport: MemoryTransport,
        rng: random.Random,
        done: set[int],
    ) -> None:
        held: list[Message] = []
        with contextlib.suppress(TimeoutError):
            for _ in range(rng.randint(1, 8)):
                held += [await consumer.receive(timeout_millis=20_000)]
        values = {id(each): int(each.data()) for each in held}
        assert done.isdisjoint(values.values()), "it was acked for good"
        txn = await client.transaction(timeout=rng.choice([5, 60]))
        chosen = [each for each in held if rng.random() < 0.7]
        calls: list[tuple[list[Message], asyncio.Future[None]]] = []
        for part in (chosen[::2], chosen[1::2]):
            calls.append((part, asyncio.ensure_future(consumer.acknowledge(part, txn=txn))))
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice([0, 0.001, 1, 6]))
            if rng.random() < 0.15:
                transport.disconnect()
                transport.reconnect()
            if rng.random() < 0.1:
                consumer.redeliver_unacknowledged_messages()
            if held and rng.random() < 0.3:
                await consumer.negative_acknowledge(rng.choice(held))
        end = rng.choice([txn.commit, txn.commit, txn.abort])
        with contextlib.suppress(EncoreError):
            await end()
        await asyncio.gather(*(call for _, call in calls), return_exceptions=True)
        assert txn.state in (TxnState.COMMITTED, TxnState.ABORTED)
        for part, call in calls:
            if txn.state is TxnState.COMMITTED and call.exception() is None:
                done |= {values[id(each)] for each in part}
        for each in held:
            if each not in chosen and rng.random() < 0.5:
                await consumer.negative_acknowledge(each)
            elif each not in chosen and consumer.holds(each):
                await consumer.acknowledge(each)
                done.add(values[id(each)])

    run(main())
