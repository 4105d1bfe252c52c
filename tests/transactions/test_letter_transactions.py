"""Letters in transactions, in virtual time on the development broker.

`integration/transactions` has the main cases on Pulsar.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from pulsar_encore import (
    Client,
    ConfigurationError,
    Consumer,
    ConsumerType,
    DeadLetterPolicy,
    EncoreError,
    InitialPosition,
    Message,
    MessageId,
    MessageNotHeldError,
    NotSupportedError,
    Transaction,
    TransactionAbortedError,
    TransactionConflict,
    TransactionNotEnabledError,
    TransactionStateError,
    TransportError,
    TxnState,
)
from pulsar_encore.devbroker import BrokerSettings
from pulsar_encore.testing import Fault, FaultPlan, MemoryTransport, run
from pulsar_encore.transaction import need_transport_transaction

URL = "pulsar://memory:6650"
TOPIC = "persistent://public/default/t"
RETRY = f"{TOPIC}-s-RETRY"
DEAD = f"{TOPIC}-s-DLQ"
KINDS = [ConsumerType.Shared, ConsumerType.Failover]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
each_shape = pytest.mark.parametrize("batching", [True, False], ids=["batches", "unbatched"])

NOT_TRANSACTIONAL = DeadLetterPolicy(2)
TRANSACTIONAL = DeadLetterPolicy(2, transactional=True)


def client_of(transport: MemoryTransport) -> Client:
    return Client(URL, transport=transport)


async def fill(client: Client, count: int, *, batching: bool = False, start: int = 0) -> None:
    async with client.create_producer(TOPIC, batching_enabled=batching) as producer:
        values = range(start, start + count)
        await asyncio.gather(*(producer.send(b"%d" % each) for each in values))


def subscribe(client: Client, kind: ConsumerType = ConsumerType.Shared, **options: Any) -> Any:
    options.setdefault("dead_letter_policy", TRANSACTIONAL)
    options.setdefault("negative_ack_redelivery_delay_ms", 100)
    options.setdefault("retry_enable", True)
    return client.subscribe(TOPIC, "s", kind, initial_position=InitialPosition.Earliest, **options)


async def take(consumer: Consumer, count: int) -> list[Message]:
    return [await consumer.receive(timeout_millis=60_000) for _ in range(count)]


async def rest(consumer: Consumer) -> list[int]:
    """Receive and ack all other messages."""
    found = []
    with contextlib.suppress(TimeoutError):
        while True:
            message = await consumer.receive(timeout_millis=120_000)
            found.append(int(message.data()))
            await consumer.acknowledge(message)
    return found


async def letters(client: Client, topic: str = DEAD) -> list[int]:
    """Return the visible letters of a topic."""
    found = []
    async with client.create_reader(topic, MessageId.earliest) as reader:
        while await reader.has_message_available():
            found.append(int((await reader.read_next(timeout_millis=60_000)).data()))
    return found


async def left(client: Client, **options: Any) -> list[int]:
    """Return the messages that another consumer of the subscription gets afterwards."""
    async with subscribe(client, dead_letter_policy=NOT_TRANSACTIONAL, **options) as consumer:
        return await rest(consumer)


# `reconsume_later` in the caller's transaction


@each_kind
@each_shape
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_letter_and_its_ack_take_effect_with_the_commit(
    kind: ConsumerType, batching: bool, end: str
) -> None:
    async def main() -> None:
        async with client_of(MemoryTransport()) as client:
            await fill(client, 4, batching=batching)
            async with subscribe(client, kind, dead_letter_policy=NOT_TRANSACTIONAL) as consumer:
                messages = await take(consumer, 4)
                txn = await client.transaction()
                await consumer.reconsume_later(messages[0], 1, txn=txn)
                await consumer.reconsume_later(messages[1:3], 1, txn=txn)
                assert consumer.counters().retry_letters == 0
                assert await letters(client, RETRY) == []
                await getattr(txn, end)()
                committed = end == "commit"
                assert consumer.counters().retry_letters == (3 if committed else 0)
                assert await letters(client, RETRY) == ([0, 1, 2] if committed else [])
                if kind is ConsumerType.Shared or committed:
                    await consumer.acknowledge(messages[3])
                    again = await take(consumer, 3)
                else:
                    again = await take(consumer, 4)
                    await consumer.acknowledge(again.pop())
                assert sorted(int(each.data()) for each in again) == [0, 1, 2]
                assert {each.topic_name() for each in again} == {RETRY if committed else TOPIC}
                assert {each.attempt for each in again} == {2 if committed else 1}
                await consumer.acknowledge(again)
                assert await rest(consumer) == []
                assert consumer.statistics().unacked == 0
                assert consumer.counters().acked == 4
            assert await left(client) == []

    run(main())


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_message_without_a_retry_is_dead_lettered_in_the_transaction(end: str) -> None:
    async def main() -> None:
        async with client_of(MemoryTransport()) as client:
            await fill(client, 1)
            policy = DeadLetterPolicy(1)
            async with subscribe(client, dead_letter_policy=policy) as consumer:
                await consumer.reconsume_later(await consumer.receive())
                txn = await client.transaction()
                await consumer.reconsume_later(await consumer.receive(), txn=txn, error="bad")
                await getattr(txn, end)()
                committed = end == "commit"
                assert consumer.counters().dead_letters == int(committed)
                assert await letters(client) == ([0] if committed else [])
                assert await rest(consumer) == ([] if committed else [0])

    run(main())


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_cumulative_letter(end: str) -> None:
    async def main() -> None:
        async with client_of(MemoryTransport()) as client:
            await fill(client, 4)
            async with subscribe(
                client, ConsumerType.Failover, dead_letter_policy=NOT_TRANSACTIONAL
            ) as consumer:
                messages = await take(consumer, 4)
                txn = await client.transaction()
                await consumer.reconsume_later_cumulative(messages[2], txn=txn)
                with pytest.raises(TransactionConflict):
                    await consumer.reconsume_later(messages[3], txn=txn)
                await getattr(txn, end)()
                if end == "commit":
                    await consumer.acknowledge(messages[3])
                    assert await rest(consumer) == [2]
                else:
                    assert await rest(consumer) == [0, 1, 2, 3]
                assert consumer.counters().retry_letters == (end == "commit")
            assert await left(client) == []

    run(main())


@pytest.mark.parametrize("fault", ["close_before", "close_after"])
@pytest.mark.parametrize("batching", [True, False], ids=["batches", "unbatched"])
def test_a_letter_that_is_not_stored_makes_the_commit_abort(fault: Any, batching: bool) -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            await fill(client, 2, batching=batching)
            async with subscribe(client, dead_letter_policy=NOT_TRANSACTIONAL) as consumer:
                messages = await take(consumer, 2)
                command = "SEND" if fault == "close_before" else "SEND_RECEIPT"
                kind = "close_before"
                transport.faults = FaultPlan([Fault(kind=kind, command=command)])
                txn = await client.transaction()
                with pytest.raises(TransportError):
                    await consumer.reconsume_later(messages[0], txn=txn)
                with pytest.raises(TransactionAbortedError):
                    await txn.commit()
                await consumer.acknowledge(messages[1])
                assert await rest(consumer) == [0]
                assert consumer.counters().retry_letters == 0
                assert await letters(client, RETRY) == []
            assert await left(client) == []

    run(main())


def test_an_ack_that_is_refused_makes_the_commit_abort() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            await fill(client, 2)
            async with subscribe(client, dead_letter_policy=NOT_TRANSACTIONAL) as consumer:
                messages = await take(consumer, 2)
                async with subscribe(client, dead_letter_policy=NOT_TRANSACTIONAL) as other:
                    await other.acknowledge(messages[0].message_id())
                txn = await client.transaction()
                with pytest.raises(TransactionConflict):
                    await consumer.reconsume_later(messages[0], txn=txn)
                with pytest.raises(TransactionAbortedError):
                    await txn.commit()
                assert await letters(client, RETRY) == []
                await consumer.acknowledge(messages[1])
                assert await rest(consumer) == []

    run(main())


def test_a_letter_that_its_producer_did_not_accept_makes_the_commit_abort() -> None:
    async def main() -> None:
        async with client_of(MemoryTransport()) as client:
            txn = await client.transaction()
            need_transport_transaction(txn).spoil(ValueError("too late"), "a letter")
            with pytest.raises(TransactionAbortedError, match="a letter has failed: too late"):
                await txn.commit()

    run(main())


def test_a_refused_call_changes_nothing() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            await fill(client, 3)
            async with subscribe(client, dead_letter_policy=NOT_TRANSACTIONAL) as consumer:
                one, two, three = await take(consumer, 3)
                await consumer.acknowledge(two)
                txn = await client.transaction()
                for refused in ([one, two], [one, three, one]):
                    with pytest.raises(MessageNotHeldError):
                        await consumer.reconsume_later(refused, txn=txn)
                with pytest.raises(ConfigurationError, match="not an id"):
                    await consumer.reconsume_later([one, three.message_id()], txn=txn)
                with pytest.raises(ConfigurationError, match="must be a Transaction"):
                    await consumer.reconsume_later(one, txn="txn")  # type: ignore[arg-type]
                await consumer.reconsume_later(one, txn=txn)
                with pytest.raises(MessageNotHeldError):
                    await consumer.reconsume_later(one, txn=txn)
                await txn.commit()
                with pytest.raises(TransactionStateError):
                    await consumer.reconsume_later(three, txn=txn)
                assert consumer.holds(three)
                await consumer.acknowledge(three)
                assert await letters(client, RETRY) == [0]
                assert await rest(consumer) == [0]

    run(main())


def test_a_letter_topic_that_is_not_persistent_is_refused() -> None:
    async def main() -> None:
        async with client_of(MemoryTransport()) as client:
            await fill(client, 1)
            policy = DeadLetterPolicy(1, retry_letter_topic="non-persistent://public/default/r")
            async with subscribe(client, dead_letter_policy=policy) as consumer:
                message = await consumer.receive()
                async with client.transaction() as txn:
                    with pytest.raises(ConfigurationError, match="not persistent"):
                        await consumer.reconsume_later(message, txn=txn)
                assert await consumer.acknowledge(message) is None

    run(main())


@each_kind
@pytest.mark.parametrize("steps", range(0, 60, 3))
def test_a_cancelled_letter_of_a_transaction_is_whole_or_not_there(
    kind: ConsumerType, steps: int
) -> None:
    async def main() -> None:
        async with client_of(MemoryTransport()) as client:
            await fill(client, 2)
            async with subscribe(client, kind, dead_letter_policy=NOT_TRANSACTIONAL) as consumer:
                messages = await take(consumer, 2)
                txn = await client.transaction()
                calling = asyncio.ensure_future(consumer.reconsume_later(messages, txn=txn))
                for _ in range(steps):
                    await asyncio.sleep(0)
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)
                await txn.commit()
                in_letters = await letters(client, RETRY)
                if not in_letters:
                    assert all(map(consumer.holds, messages))
                    await consumer.acknowledge(messages)
                assert in_letters in ([], [0, 1])
                assert await rest(consumer) == in_letters
            assert await left(client) == []

    run(main())


def test_a_commit_before_the_letter_is_sent_leaves_the_message_held() -> None:
    """The letter topic is not connected yet, so the transaction does not know of the letter."""

    async def main() -> None:
        async with client_of(MemoryTransport()) as client:
            await fill(client, 1)
            async with subscribe(client, dead_letter_policy=NOT_TRANSACTIONAL) as consumer:
                message = await consumer.receive()
                txn = await client.transaction()
                calling = asyncio.ensure_future(consumer.reconsume_later(message, txn=txn))
                await asyncio.sleep(0)
                await txn.commit()
                with pytest.raises(TransactionStateError):
                    await calling
                assert consumer.holds(message)
                await consumer.acknowledge(message)
                assert await letters(client, RETRY) == []

    run(main())


def test_the_commit_waits_for_a_letter_that_is_on_its_way() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            await fill(client, 2)
            async with subscribe(client, dead_letter_policy=NOT_TRANSACTIONAL) as consumer:
                messages = await take(consumer, 2)
                txn = await client.transaction()
                await consumer.reconsume_later(messages[0], txn=txn)
                slow = Fault(kind="delay", command="SEND_RECEIPT", delay_ms=2_000)
                transport.faults = FaultPlan([slow])
                began = asyncio.get_running_loop().time()
                calling = asyncio.ensure_future(consumer.reconsume_later(messages[1], txn=txn))
                await asyncio.sleep(0)
                await txn.commit()
                assert asyncio.get_running_loop().time() - began >= 2
                await calling
                assert await letters(client, RETRY) == [0, 1]

    run(main())


# A transactional policy


async def dead_letter(consumer: Consumer, message: Message, way: str) -> None:
    match way:
        case "reject":
            await consumer.reject(message, "bad")
        case "nack":
            await consumer.negative_acknowledge(message)
        case "reconsume":
            await consumer.reconsume_later(message)
        case "retry topic":
            await consumer.send_to_retry_topic(message, 0.1, error="bad")


WAYS = ["reject", "nack", "reconsume", "retry topic"]


async def dead_letter_all(
    consumer: Consumer, way: str | None = None, rng: random.Random | None = None
) -> Counter[int]:
    """Do one thing with every message until nothing comes; how often each was seen."""
    seen: Counter[int] = Counter()
    calls: list[asyncio.Task[None]] = []
    with contextlib.suppress(TimeoutError):
        while True:
            message = await consumer.receive(timeout_millis=180_000)
            seen[int(message.data())] += 1
            chosen = way or (rng or random).choice(WAYS)
            calls.append(asyncio.ensure_future(dead_letter(consumer, message, chosen)))
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert outcome is None or isinstance(outcome, EncoreError), outcome
    return seen


@each_kind
@each_shape
@pytest.mark.parametrize("way", WAYS)
def test_each_message_has_one_dead_letter(kind: ConsumerType, batching: bool, way: str) -> None:
    async def main() -> None:
        async with client_of(MemoryTransport()) as client:
            await fill(client, 20, batching=batching)
            async with subscribe(client, kind) as consumer:
                seen = await dead_letter_all(consumer, way)
                assert seen == dict.fromkeys(range(20), 1 if way == "reject" else 3)
                counters = consumer.counters()
                assert counters.dead_letters == 20
                assert counters.rejected == (20 if way == "reject" else 0)
                expected = {"reconsume": 40, "retry topic": 60}
                assert counters.retry_letters == expected.get(way, 0)
                assert counters.acked == 0
                assert consumer.statistics().unacked == 0
            assert sorted(await letters(client)) == list(range(20))
            assert await left(client) == []

    run(main())


def test_letters_of_one_moment_share_a_transaction() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            for start in range(0, 2_500, 500):
                await fill(client, 500, start=start)
            async with subscribe(client, receiver_queue_size=3_000) as consumer:
                messages = await take(consumer, 2_500)
                await consumer.reject(messages[0], "bad")  # connects to the letter topic
                await asyncio.gather(*(consumer.reject(each, "bad") for each in messages[1:]))
                assert len(transport.recorded("NEW_TXN")) == 1 + 3
                assert len(transport.recorded("END_TXN")) == 1 + 3
                assert consumer.statistics().unacked == 0
            assert await letters(client) == list(range(2_500))

    run(main())


def test_letters_that_wait_for_their_topic_are_all_written() -> None:
    """More than the producer admits in one turn of the event loop."""

    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            await fill(client, 1_000, batching=True)
            async with subscribe(client) as consumer:
                messages = await take(consumer, 1_000)
                transport.faults = FaultPlan(
                    [Fault(kind="refuse", command="PRODUCER", error="ServiceNotReady")]
                )
                await asyncio.gather(*(consumer.reject(each, "bad") for each in messages))
            assert sorted(await letters(client)) == list(range(1_000))

    run(main())


def test_large_letters_share_fewer() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            async with client.create_producer(TOPIC, batching_enabled=False) as producer:
                for _ in range(10):
                    await producer.send(bytes(1_500_000))
            async with subscribe(client) as consumer:
                messages = await take(consumer, 10)
                await asyncio.gather(*(consumer.reject(each, "bad") for each in messages))
                assert len(transport.recorded("NEW_TXN")) == 5

    run(main())


def test_letters_that_come_meanwhile_share_the_next_transaction() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            await fill(client, 7)
            async with subscribe(client) as consumer:
                messages = await take(consumer, 7)
                await consumer.reject(messages[0], "bad")
                slow = Fault(kind="delay", command="SEND_RECEIPT", delay_ms=1_000)
                transport.faults = FaultPlan([slow])
                began = asyncio.get_running_loop().time()
                calls = [asyncio.ensure_future(consumer.reject(messages[1], "bad"))]
                await asyncio.sleep(0.1)
                calls += [
                    asyncio.ensure_future(consumer.reject(each, "bad")) for each in messages[2:]
                ]
                await asyncio.gather(*calls)
                assert asyncio.get_running_loop().time() - began < 1.1
                assert len(transport.recorded("NEW_TXN")) == 3
            assert await letters(client) == list(range(7))

    run(main())


COMMANDS = [
    "NEW_TXN",
    "NEW_TXN_RESPONSE",
    "ADD_PARTITION_TO_TXN",
    "ADD_PARTITION_TO_TXN_RESPONSE",
    "SEND",
    "SEND_RECEIPT",
    "ADD_SUBSCRIPTION_TO_TXN",
    "ADD_SUBSCRIPTION_TO_TXN_RESPONSE",
    "ACK",
    "ACK_RESPONSE",
    "END_TXN",
    "END_TXN_RESPONSE",
]


@each_kind
@each_shape
@pytest.mark.parametrize("cut", ["close_before", "close_after"])
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("way", ["reject", "nack"])
def test_a_cut_doubles_no_letter_and_loses_none(
    kind: ConsumerType, batching: bool, cut: Any, command: str, way: str
) -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            await fill(client, 9, batching=batching)
            async with subscribe(client, kind) as consumer:
                transport.faults = plan = FaultPlan(
                    [Fault(kind=cut, command=command, nth=nth) for nth in (1, 3)]
                )
                seen = await dead_letter_all(consumer, way)
                assert plan.fired
                assert set(seen) == set(range(9))
                if way == "nack":
                    assert max(seen.values()) <= 3
                assert consumer.statistics().unacked == 0
            assert sorted(await letters(client)) == list(range(9))
            assert await left(client) == []

    run(main())


@each_kind
@pytest.mark.parametrize("command", ["END_TXN", "END_TXN_RESPONSE", "ACK_RESPONSE", "NEW_TXN"])
def test_a_lost_command_doubles_no_letter(kind: ConsumerType, command: str) -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            await fill(client, 5)
            async with subscribe(client, kind) as consumer:
                transport.faults = FaultPlan([Fault(kind="drop", command=command)])
                seen = await dead_letter_all(consumer, "nack")
                assert set(seen) == set(range(5))
                assert consumer.statistics().unacked == 0
            assert sorted(await letters(client)) == list(range(5))
            assert await left(client) == []

    run(main())


@each_kind
@each_shape
def test_an_aborted_dead_letter_is_not_delivered_again(kind: ConsumerType, batching: bool) -> None:
    """It has used up its attempts before, so the redelivered message is dead-lettered at once."""

    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            await fill(client, 3, batching=batching)
            policy = DeadLetterPolicy(1, transactional=True)
            async with subscribe(client, kind, dead_letter_policy=policy) as consumer:
                await consumer.negative_acknowledge((await take(consumer, 3))[0])
                if kind is ConsumerType.Shared:
                    message = await consumer.receive()
                else:
                    message = (await take(consumer, 3))[0]
                assert int(message.data()) == 0
                transport.faults = FaultPlan([Fault(kind="close_before", command="ACK_RESPONSE")])
                await consumer.negative_acknowledge(message)
                await asyncio.sleep(60)
                assert transport.faults.fired
                assert consumer.counters().dead_letters == 1
            assert await letters(client) == [0]
            assert sorted(await left(client)) == [1, 2]

    run(main())


def test_a_letter_that_cannot_be_stored_fails_alone() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        broken = "persistent://public/default/broken"
        async with client_of(transport) as client:
            await fill(client, 4)
            async with client.create_producer(f"{TOPIC}2", batching_enabled=False) as producer:
                for each in range(4, 8):
                    await producer.send(b"%d" % each)
            policy = DeadLetterPolicy(
                2,
                transactional=True,
                dead_letter_topic=lambda topic: broken if topic.endswith("2") else DEAD,
            )
            async with client.subscribe(
                [TOPIC, f"{TOPIC}2"],
                "s",
                ConsumerType.Shared,
                initial_position=InitialPosition.Earliest,
                dead_letter_policy=policy,
            ) as consumer:
                messages = sorted(await take(consumer, 8), key=lambda each: int(each.data()))
                await asyncio.gather(*(consumer.reject(each, "") for each in messages[::4]))
                refusing = Fault(
                    kind="refuse", command="SEND", error="NotAllowedError", topic=broken, times=99
                )
                transport.faults = FaultPlan([refusing])
                outcomes = await asyncio.gather(
                    *(consumer.reject(each, "") for each in messages if messages.index(each) % 4),
                    return_exceptions=True,
                )
                assert outcomes[:3] == [None] * 3
                assert all(isinstance(each, TransportError) for each in outcomes[3:])
                assert len(transport.recorded("NEW_TXN")) <= 4
                transport.faults = None
                again = await take(consumer, 3)
                assert sorted(int(each.data()) for each in again) == [5, 6, 7]
                await asyncio.gather(*(consumer.reject(each, "") for each in again))
            assert sorted(await letters(client)) == [0, 1, 2, 3]
            assert sorted(await letters(client, broken)) == [4, 5, 6, 7]

    run(main())


def test_without_transactions_each_letter_fails_with_a_backoff() -> None:
    async def main() -> None:
        settings = BrokerSettings(namespaces=None, rewind_overtaken=0, transactions=False)
        async with client_of(MemoryTransport(settings)) as client:
            await fill(client, 50)
            async with subscribe(client) as consumer:
                messages = await take(consumer, 50)
                outcomes = await asyncio.gather(
                    *(consumer.reject(each, "bad") for each in messages), return_exceptions=True
                )
                assert {type(each) for each in outcomes} == {TransactionNotEnabledError}
                again = await take(consumer, 50)
                with pytest.raises(TransactionNotEnabledError):
                    await consumer.reject(again[0], "bad", keep=True)
                assert consumer.holds(again[0])
                assert sorted(await rest(consumer)) == []
                await consumer.acknowledge(again)
            assert await letters(client) == []

    run(main())


def test_a_coordinator_without_an_answer_fails_each_letter() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            await fill(client, 50)
            async with subscribe(client) as consumer:
                messages = await take(consumer, 50)
                transport.faults = FaultPlan([Fault(kind="drop", command="NEW_TXN", times=10)])
                began = asyncio.get_running_loop().time()
                outcomes = await asyncio.gather(
                    *(consumer.reject(each, "bad") for each in messages), return_exceptions=True
                )
                assert all(isinstance(each, TransportError) for each in outcomes)
                assert asyncio.get_running_loop().time() - began < 70
                transport.faults = None
                await dead_letter_all(consumer, "reject")
            assert sorted(await letters(client)) == list(range(50))

    run(main())


def test_a_mistake_leaves_no_message_behind() -> None:
    class Mistaken(MemoryTransport):
        async def begin_transaction(self, timeout_s: float) -> Any:
            raise ZeroDivisionError

    async def main() -> None:
        async with client_of(Mistaken()) as client:
            await fill(client, 2)
            async with subscribe(client) as consumer:
                with pytest.raises(TransportError, match="ZeroDivisionError"):
                    await consumer.reject((await take(consumer, 2))[0], "bad")
                assert int((await consumer.receive()).data()) == 0

    run(main())


def test_the_error_of_a_transaction_keeps_the_producer() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            await fill(client, 2)
            async with subscribe(client) as consumer:
                one, two = await take(consumer, 2)
                transport.faults = FaultPlan(
                    [Fault(kind="drop", command="ADD_PARTITION_TO_TXN", times=3)]
                )
                producers = len(transport.recorded("PRODUCER"))
                with pytest.raises(EncoreError):
                    await consumer.reject(one, "bad")
                transport.faults = None
                await consumer.reject(two, "bad")
                await dead_letter_all(consumer, "reject")
                assert len(transport.recorded("PRODUCER")) == producers + 1
            assert sorted(await letters(client)) == [0, 1]

    run(main())


def test_a_letter_topic_without_an_answer_delays_no_other_letter() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        slow = "persistent://public/default/slow"
        async with client_of(transport) as client:
            await fill(client, 2)
            names = iter([slow, DEAD])
            policy = DeadLetterPolicy(
                2, transactional=True, dead_letter_topic=lambda _: next(names)
            )
            async with client.create_producer(f"{TOPIC}2") as producer:
                await producer.send(b"2")
            async with client.subscribe(
                [TOPIC, f"{TOPIC}2"],
                "s",
                ConsumerType.Shared,
                initial_position=InitialPosition.Earliest,
                dead_letter_policy=policy,
            ) as consumer:
                messages = sorted(await take(consumer, 3), key=lambda each: int(each.data()))
                transport.faults = FaultPlan([Fault(kind="drop", command="PRODUCER", topic=slow)])
                waiting = asyncio.ensure_future(consumer.reject(messages[0], "bad"))
                await asyncio.sleep(0.1)
                began = asyncio.get_running_loop().time()
                await consumer.reject(messages[2], "bad")
                assert asyncio.get_running_loop().time() - began < 1
                await asyncio.gather(waiting, return_exceptions=True)

    run(main())


@each_kind
def test_an_ack_of_a_message_that_is_being_forwarded_wins(kind: ConsumerType) -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            await fill(client, 2)
            async with subscribe(client, kind) as consumer:
                one, two = await take(consumer, 2)
                calls = [asyncio.ensure_future(consumer.reject(each, "bad")) for each in (one, two)]
                await asyncio.sleep(0)
                await consumer.acknowledge(one)
                await asyncio.gather(*calls)
                assert consumer.counters().dead_letters == 2
                assert consumer.statistics().unacked == 0
            assert await letters(client) == [0, 1]
            assert await left(client) == []

    run(main())


@each_shape
@pytest.mark.parametrize("count", [4, 1_200])  # many are acked in one step
def test_a_cumulative_ack_past_a_message_keeps_its_letter(batching: bool, count: int) -> None:
    async def main() -> None:
        async with client_of(MemoryTransport()) as client:
            for start in range(0, count, 600):
                await fill(client, min(600, count), batching=batching, start=start)
            async with subscribe(client, ConsumerType.Failover) as consumer:
                messages = await take(consumer, count)
                calls = [
                    asyncio.ensure_future(consumer.reject(each, "bad")) for each in messages[:2]
                ]
                await asyncio.sleep(0)
                await consumer.acknowledge_cumulative(messages[-1])
                await asyncio.gather(*calls)
                assert consumer.statistics().unacked == 0
            assert await letters(client) == [0, 1]
            assert await left(client) == []

    run(main())


@each_kind
def test_a_seek_drops_the_letters_of_messages_that_come_again(kind: ConsumerType) -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            await fill(client, 3)
            async with subscribe(client, kind) as consumer:
                messages = await take(consumer, 3)
                await consumer.reject(messages[0], "bad")
                slow = Fault(kind="delay", command="NEW_TXN_RESPONSE", delay_ms=1_000)
                transport.faults = FaultPlan([slow])
                calls = [asyncio.ensure_future(consumer.reject(each, "")) for each in messages[1:]]
                await asyncio.sleep(0.1)
                await consumer.seek(messages[0].message_id())
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
                assert [type(each) for each in outcomes] == [MessageNotHeldError] * 2
                again = await take(consumer, 2)
                assert [int(each.data()) for each in again] == [1, 2]
                await asyncio.gather(*(consumer.reject(each, "bad") for each in again))
            assert await letters(client) == [0, 1, 2]

    run(main())


@each_kind
@pytest.mark.parametrize("steps", range(0, 80, 4))
@pytest.mark.parametrize("what", ["call", "close"])
def test_a_cancelled_caller_and_a_close_leave_one_letter(
    kind: ConsumerType, steps: int, what: str
) -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            await fill(client, 3)
            async with subscribe(client, kind) as consumer:
                calls = [
                    asyncio.ensure_future(consumer.reject(each, "bad"))
                    for each in await take(consumer, 3)
                ]
                for _ in range(steps):
                    await asyncio.sleep(0)
                if what == "call":
                    for call in calls:
                        call.cancel()
                    await asyncio.gather(*calls, return_exceptions=True)
                    if steps == 0:  # none has begun
                        consumer.redeliver_unacknowledged_messages()
                    await dead_letter_all(consumer, "reject")
            await asyncio.gather(*calls, return_exceptions=True)
            found = await letters(client)
            assert sorted([*found, *await left(client)]) == [0, 1, 2]

    run(main())


def test_close_waits_for_letters_and_gives_up_in_the_end() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            await fill(client, 3)
            async with subscribe(client) as consumer:
                messages = await take(consumer, 3)
                await consumer.reject(messages[0], "bad")
                transport.faults = FaultPlan([Fault(kind="drop", command="NEW_TXN", times=5)])
                calls = [asyncio.ensure_future(consumer.reject(each, "")) for each in messages[1:]]
                await asyncio.sleep(0)
                began = asyncio.get_running_loop().time()
            assert 9 < asyncio.get_running_loop().time() - began < 12
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(each, EncoreError) for each in outcomes)
            transport.faults = None
            assert await letters(client) == [0]
            assert sorted(await left(client)) == [1, 2]

    run(main())


def test_a_cumulative_letter_acks_the_messages_before_it() -> None:
    async def main() -> None:
        async with client_of(MemoryTransport()) as client:
            await fill(client, 4)
            async with subscribe(client, ConsumerType.Failover) as consumer:
                messages = await take(consumer, 4)
                await consumer.reconsume_later_cumulative(messages[2])
                txn = await client.transaction()
                with pytest.raises(ConfigurationError, match="transactional=True"):
                    await consumer.acknowledge_cumulative(messages[3], txn=txn)
                await consumer.acknowledge(messages[3], txn=txn)
                await txn.commit()
                assert await rest(consumer) == [2]
                assert consumer.statistics().unacked == 0
            assert await left(client) == []

    run(main())


def test_an_overflowed_nack_is_in_a_transaction() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            await fill(client, 4)
            async with subscribe(
                client, nack_overflow="retry_letter", nack_overflow_delay=1
            ) as consumer:
                transport.faults = FaultPlan([Fault(kind="close_before", command="ACK")])
                for message in await take(consumer, 4):
                    await consumer.negative_acknowledge(message, delay=5)
                done = 0
                while done < 4:
                    message = await consumer.receive(timeout_millis=60_000)
                    if message.topic_name() == RETRY:
                        await consumer.acknowledge(message)
                        done += 1
                    else:  # its transaction was aborted
                        await consumer.negative_acknowledge(message, delay=5)
                assert transport.faults.fired
                assert await rest(consumer) == []
            assert sorted(await letters(client, RETRY)) == [0, 1, 2, 3]

    run(main())


# Options


def test_what_has_no_transactions_is_refused_at_subscribe() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with client_of(transport) as client:
            with pytest.raises(ConfigurationError, match="ordered_leases"):
                await client.subscribe(
                    TOPIC,
                    "s",
                    ConsumerType.KeyShared,
                    ordered_leases=True,
                    dead_letter_policy=TRANSACTIONAL,
                )
            with pytest.raises(ConfigurationError, match="not persistent"):
                await client.subscribe(
                    "non-persistent://public/default/t", "s", dead_letter_policy=TRANSACTIONAL
                )
            policy = replace(TRANSACTIONAL, dead_letter_topic="non-persistent://public/default/d")
            with pytest.raises(ConfigurationError, match="not persistent"):
                await subscribe(client, dead_letter_policy=policy)
            transport.capabilities = replace(transport.capabilities, transactions=False)
            with pytest.raises(NotSupportedError, match="no transactions"):
                await subscribe(client)
        with pytest.raises(ConfigurationError, match="transactional"):
            DeadLetterPolicy(1, transactional=1)  # type: ignore[arg-type]

    run(main())


# Random histories


async def take_present(consumer: Consumer, most: int) -> list[Message]:
    found: list[Message] = []
    with contextlib.suppress(TimeoutError):
        while len(found) < most:
            found += [await consumer.receive(timeout_millis=10)]
    return found


async def act(
    client: Client, consumer: Consumer, messages: list[Message], rng: random.Random
) -> None:
    """Dead-letter some messages in some way, also in a transaction of the application."""
    if rng.random() < 0.6:
        calls = [dead_letter(consumer, each, rng.choice(WAYS)) for each in messages]
        await asyncio.gather(*calls, return_exceptions=True)
        return
    txn: Transaction | None = None
    try:
        txn = await client.transaction(timeout=rng.choice([5, 60]))
        await consumer.reconsume_later(messages, txn=txn)
        await rng.choice([txn.commit, txn.commit, txn.abort])()
    except EncoreError:
        if txn is not None:
            with contextlib.suppress(EncoreError):
                await txn.abort()
        for each in messages:
            if consumer.holds(each):
                await consumer.negative_acknowledge(each)
    assert txn is None or txn.state in (TxnState.COMMITTED, TxnState.ABORTED, TxnState.UNKNOWN)


@each_kind
@each_shape
@pytest.mark.parametrize("seed", range(12))
def test_random_histories(kind: ConsumerType, batching: bool, seed: int) -> None:
    """Each message has one dead letter at the end."""

    async def main() -> None:
        rng = random.Random(seed)
        transport = MemoryTransport()
        async with client_of(transport) as client:
            for start in range(0, 30, 10):
                await fill(client, 10, batching=batching, start=start)
            async with subscribe(
                client, kind, receiver_queue_size=rng.choice([1, 5, 100])
            ) as consumer:
                faults = [
                    Fault(
                        kind=rng.choice(["close_before", "close_after"]),
                        command=rng.choice(COMMANDS),
                        nth=rng.randint(1, 12),
                    )
                    for _ in range(8)
                ]
                transport.faults = FaultPlan(faults)
                acting: list[asyncio.Task[None]] = []
                with contextlib.suppress(TimeoutError):
                    while True:
                        messages = [await consumer.receive(timeout_millis=300_000)]
                        messages += await take_present(consumer, rng.randint(0, 6))
                        acting.append(asyncio.ensure_future(act(client, consumer, messages, rng)))
                await asyncio.gather(*acting)
                assert consumer.statistics().unacked == 0
            assert sorted(await letters(client)) == list(range(30))
            assert await left(client) == []

    run(main())
