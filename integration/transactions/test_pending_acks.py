"""Acks in transactions on a real Pulsar: effects of a commit, an abort and a lost connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pulsar_encore import (
    Client,
    ConfigurationError,
    Consumer,
    ConsumerType,
    DeadLetterPolicy,
    InitialPosition,
    Message,
    MessageId,
    MessageNotHeldError,
    Transaction,
    TransactionAbortedError,
    TransactionConflict,
    TransactionStateError,
    TransportError,
    TxnState,
)
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Broker

SHARED = [ConsumerType.Shared, ConsumerType.KeyShared]
ORDERED = [ConsumerType.Exclusive, ConsumerType.Failover]
BATCHES = pytest.mark.parametrize("batching", [True, False], ids=["batches", "unbatched"])
#: Long enough for a message that the broker should not send.
QUIET_S = 0.4


@pytest.fixture
async def client(transactional: Broker) -> AsyncIterator[Client]:
    async with Client(transactional.service_url, transport="native") as found:
        yield found


async def fill(client: Client, topic: str, count: int, *, batching: bool) -> None:
    async with client.create_producer(
        topic, batching_enabled=batching, batching_max_publish_delay_ms=5
    ) as producer:
        await asyncio.gather(*(producer.send(b"%d" % number) for number in range(count)))


def subscribe(client: Client, topic: str, kind: ConsumerType, **options: Any) -> Any:
    return client.subscribe(topic, "s", kind, initial_position=InitialPosition.Earliest, **options)


async def take(consumer: Consumer, count: int) -> list[Message]:
    return [await consumer.receive(timeout_millis=10_000) for _ in range(count)]


async def rest(consumer: Consumer) -> list[str]:
    """Receive and ack all other messages."""
    found = []
    try:
        while True:
            message = await consumer.receive(timeout_millis=int(QUIET_S * 1000))
            found.append(message.data().decode())
            await consumer.acknowledge(message)
    except TimeoutError:
        return found


def values(messages: list[Message]) -> list[str]:
    return [message.data().decode() for message in messages]


def numbers(*those: int) -> list[str]:
    return [str(number) for number in those]


def backlog(broker: Broker, topic: str) -> int:
    stats = Admin(broker.admin_url).subscription_stats(topic, "s")
    return int(stats["msgBacklog"])


@BATCHES
@pytest.mark.parametrize("kind", SHARED + ORDERED)
async def test_a_commit_acks_and_nothing_comes_again(
    client: Client, topic: str, transactional: Broker, kind: ConsumerType, batching: bool
) -> None:
    await fill(client, topic, 20, batching=batching)
    async with subscribe(client, topic, kind) as consumer:
        messages = await take(consumer, 20)
        async with client.transaction() as txn:
            await consumer.acknowledge(messages[:5], txn=txn)
            await asyncio.gather(*(consumer.acknowledge(each, txn=txn) for each in messages[5:15]))
        await consumer.acknowledge(messages[15:])
        assert await rest(consumer) == []
    async with subscribe(client, topic, kind) as consumer:
        assert await rest(consumer) == []
    assert await asyncio.to_thread(backlog, transactional, topic) <= 1  # a marker


@BATCHES
@pytest.mark.parametrize("kind", SHARED)
async def test_an_abort_on_shared_redelivers_each_message_once(
    client: Client, topic: str, kind: ConsumerType, batching: bool
) -> None:
    await fill(client, topic, 10, batching=batching)
    async with subscribe(client, topic, kind) as consumer:
        messages = await take(consumer, 10)
        txn = await client.transaction()
        await consumer.acknowledge(messages[2:6], txn=txn)
        await consumer.acknowledge([*messages[:2], *messages[6:8]])
        await txn.abort()
        found = await take(consumer, 4)
        assert sorted(values(found)) == numbers(2, 3, 4, 5)
        assert [each.attempt for each in found] == [1] * 4, "an abort is no failed attempt"
        await consumer.acknowledge([*found, *messages[8:]])
        assert await rest(consumer) == []
    async with subscribe(client, topic, kind) as consumer:
        assert await rest(consumer) == []


@BATCHES
@pytest.mark.parametrize("kind", ORDERED)
async def test_an_abort_on_an_ordered_subscription_brings_everything_unacked_in_order(
    client: Client, topic: str, kind: ConsumerType, batching: bool
) -> None:
    await fill(client, topic, 12, batching=batching)
    async with subscribe(client, topic, kind) as consumer:
        messages = await take(consumer, 6)  # the others wait in the queue
        txn = await client.transaction()
        await consumer.acknowledge(messages[:4], txn=txn)
        await txn.abort()
        found = await take(consumer, 12)
        assert values(found) == numbers(*range(12))
        await consumer.acknowledge(found)
        assert await rest(consumer) == []
    async with subscribe(client, topic, kind) as consumer:
        assert await rest(consumer) == []


@BATCHES
@pytest.mark.parametrize("kind", ORDERED)
@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_cumulative_acks(
    client: Client, topic: str, kind: ConsumerType, batching: bool, end: str
) -> None:
    await fill(client, topic, 12, batching=batching)
    async with subscribe(client, topic, kind) as consumer:
        messages = await take(consumer, 8)
        txn = await client.transaction()
        await consumer.acknowledge_cumulative(messages[2], txn=txn)
        await consumer.acknowledge_cumulative(messages[5], txn=txn)
        await (txn.commit() if end == "commit" else txn.abort())
        first = 8 if end == "commit" else 0
        found = await take(consumer, 12 - first)
        assert values(found) == numbers(*range(first, 12))
        await consumer.acknowledge([*found, *(messages[6:8] if end == "commit" else ())])
        assert await rest(consumer) == []
    async with subscribe(client, topic, kind) as consumer:
        assert await rest(consumer) == []


@BATCHES
async def test_a_cumulative_commit_leaves_the_rest_of_its_batch(
    client: Client, topic: str, batching: bool
) -> None:
    await fill(client, topic, 10, batching=batching)
    async with subscribe(client, topic, ConsumerType.Exclusive) as consumer:
        messages = await take(consumer, 10)
        async with client.transaction() as txn:
            await consumer.acknowledge_cumulative(messages[3], txn=txn)
    async with subscribe(client, topic, ConsumerType.Exclusive) as consumer:
        assert await rest(consumer) == numbers(4, 5, 6, 7, 8, 9)


@BATCHES
@pytest.mark.parametrize("kind", SHARED + ORDERED)
@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_nacks_timeouts_and_reconnects_leave_pending_messages_alone(
    client: Client,
    topic: str,
    transactional: Broker,
    kind: ConsumerType,
    batching: bool,
    end: str,
) -> None:
    await fill(client, topic, 6, batching=batching)
    async with subscribe(
        client,
        topic,
        kind,
        negative_ack_redelivery_delay_ms=100,
        unacked_messages_timeout_ms=10_000,
    ) as consumer:
        messages = await take(consumer, 6)
        txn = await client.transaction(timeout=60)
        await consumer.acknowledge(messages[:3], txn=txn)
        await consumer.negative_acknowledge(messages[0])
        await asyncio.to_thread(Admin(transactional.admin_url).unload, topic)
        await asyncio.sleep(QUIET_S)
        await consumer.negative_acknowledge(messages[3])
        again = numbers(3) if kind in SHARED else numbers(3, 4, 5)
        found = await take(consumer, len(again))
        found += [message async for message in stream(consumer)]
        assert values(found) == again
        await consumer.acknowledge(found)
        if kind in SHARED:
            await consumer.acknowledge(messages[4:])
        await (txn.commit() if end == "commit" else txn.abort())
        expected = [] if end == "commit" else numbers(0, 1, 2)
        assert sorted(await rest(consumer)) == expected
    async with subscribe(client, topic, kind) as consumer:
        assert await rest(consumer) == []


async def stream(consumer: Consumer) -> AsyncIterator[Message]:
    try:
        while True:
            yield await consumer.receive(timeout_millis=int(3 * QUIET_S * 1000))
    except TimeoutError:
        return


@BATCHES
async def test_a_plain_ack_wins(client: Client, topic: str, batching: bool) -> None:
    await fill(client, topic, 3, batching=batching)
    async with subscribe(client, topic, ConsumerType.Shared) as consumer:
        messages = await take(consumer, 3)
        txn = await client.transaction()
        await consumer.acknowledge(messages, txn=txn)
        await consumer.acknowledge(messages[1])
        await asyncio.sleep(QUIET_S)  # until it is sent; for batches the broker does not answer
        await txn.abort()
        assert sorted(await rest(consumer)) == numbers(0, 2)
    async with subscribe(client, topic, ConsumerType.Shared) as consumer:
        assert await rest(consumer) == []


async def test_a_message_acked_twice_in_one_transaction_is_acked_once(
    client: Client, topic: str
) -> None:
    await fill(client, topic, 2, batching=False)
    async with subscribe(client, topic, ConsumerType.Shared) as consumer:
        messages = await take(consumer, 2)
        async with client.transaction() as txn:
            await consumer.acknowledge(messages[0], txn=txn)
            await consumer.acknowledge(messages, txn=txn)
            await consumer.acknowledge(messages[1].message_id(), txn=txn)
        assert txn.state is TxnState.COMMITTED
        assert await rest(consumer) == []


async def test_two_transactions_cannot_ack_one_message(client: Client, topic: str) -> None:
    await fill(client, topic, 2, batching=False)
    async with subscribe(client, topic, ConsumerType.Shared) as consumer:
        one, two = await take(consumer, 2)
        first, second = await client.transaction(), await client.transaction()
        await consumer.acknowledge(one, txn=first)
        with pytest.raises(TransactionConflict):
            await consumer.acknowledge([two, one], txn=second)
        await second.commit()  # nothing of the list was acked, so nothing failed
        await first.commit()
        await consumer.acknowledge(one)  # harmless
        with pytest.raises(MessageNotHeldError):
            async with client.transaction() as third:
                await consumer.acknowledge(one, txn=third)
        await consumer.negative_acknowledge(two)
        with pytest.raises(MessageNotHeldError):
            async with client.transaction() as fourth:
                await consumer.acknowledge(two, txn=fourth)


@BATCHES
async def test_a_conflict_keeps_no_other_message_of_the_list_back(
    client: Client, topic: str, batching: bool
) -> None:
    """One message of a list is acked elsewhere. The others come again, though not it."""
    await fill(client, topic, 7, batching=batching)
    async with subscribe(client, topic, ConsumerType.Shared) as consumer:
        messages = await take(consumer, 7)
        async with subscribe(client, topic, ConsumerType.Shared) as other:
            await other.acknowledge(messages[4].message_id())  # as after a lost connection
            await consumer.acknowledge(messages[6])  # a batch may go to the other consumer
            await asyncio.gather(consumer.flush(), other.flush())
            txn = await client.transaction()
            with pytest.raises(TransactionConflict):
                await consumer.acknowledge(messages[:6], txn=txn)
            with pytest.raises(TransactionAbortedError):
                await txn.commit()
            found = await asyncio.gather(rest(consumer), rest(other))
            assert sorted([*found[0], *found[1]]) == numbers(0, 1, 2, 3, 5)
    async with subscribe(client, topic, ConsumerType.Shared) as consumer:
        assert await rest(consumer) == []


async def test_input_and_output_are_there_once_or_both_not(client: Client, topic: str) -> None:
    await fill(client, topic, 30, batching=False)
    async with (
        subscribe(client, topic, ConsumerType.Shared) as consumer,
        client.create_producer(f"{topic}-out") as producer,
    ):
        done: list[str] = []
        seen: set[bytes] = set()
        while len(done) < 30:
            message = await consumer.receive(timeout_millis=10_000)
            try:
                async with client.transaction() as txn:
                    await producer.send(message.data(), txn=txn)
                    await consumer.acknowledge(message, txn=txn)
                    if message.attempt == 1 and len(done) % 3 == 0 and message.data() not in seen:
                        seen.add(message.data())
                        raise ValueError
            except ValueError:
                continue
            done.append(message.data().decode())
        assert sorted(done, key=int) == numbers(*range(30))
        assert await rest(consumer) == []
        async with client.subscribe(
            f"{topic}-out", "check", initial_position=InitialPosition.Earliest
        ) as check:
            assert sorted(await rest(check), key=int) == numbers(*range(30))


async def test_the_timeout_of_a_transaction_brings_its_messages_again(
    client: Client, topic: str
) -> None:
    await fill(client, topic, 2, batching=False)
    async with subscribe(client, topic, ConsumerType.Shared) as consumer:
        messages = await take(consumer, 2)
        txn = await client.transaction(timeout=1.5)
        await consumer.acknowledge(messages, txn=txn)
        found = await take(consumer, 2)
        assert txn.state in (TxnState.ABORTING, TxnState.ABORTED)
        assert sorted(values(found)) == numbers(0, 1)
        with pytest.raises(TransactionStateError):
            await consumer.acknowledge(found, txn=txn)
        await consumer.acknowledge(found)


async def test_a_chunked_message_is_acked_whole_or_not(client: Client, topic: str) -> None:
    large = b"x" * (12 << 20)
    async with (
        client.create_producer(topic, chunking_enabled=True, batching_enabled=False) as producer,
        subscribe(client, topic, ConsumerType.Shared) as consumer,
    ):
        await producer.send(large)
        (message,) = await take(consumer, 1)
        txn = await client.transaction()
        await consumer.acknowledge(message, txn=txn)
        await txn.abort()
        (message,) = await take(consumer, 1)
        assert message.data() == large
        async with client.transaction() as txn:
            await consumer.acknowledge(message, txn=txn)
        assert await rest(consumer) == []
    async with subscribe(client, topic, ConsumerType.Shared) as consumer:
        assert await rest(consumer) == []


async def test_aborts_lead_no_message_to_the_dead_letter_topic(client: Client, topic: str) -> None:
    await fill(client, topic, 1, batching=False)
    policy = DeadLetterPolicy(max_redeliver_count=2, dead_letter_topic=f"{topic}-dead")
    async with subscribe(client, topic, ConsumerType.Shared, dead_letter_policy=policy) as consumer:
        for _ in range(6):
            (message,) = await take(consumer, 1)
            assert message.attempt == 1
            txn = await client.transaction()
            await consumer.acknowledge(message, txn=txn)
            await txn.abort()
        (message,) = await take(consumer, 1)
        await consumer.acknowledge(message)


async def test_cumulative_and_single_acks_of_open_transactions_do_not_meet(
    client: Client, topic: str
) -> None:
    await fill(client, topic, 4, batching=False)
    async with subscribe(client, topic, ConsumerType.Exclusive) as consumer:
        messages = await take(consumer, 4)
        one, two = await client.transaction(), await client.transaction()
        await consumer.acknowledge_cumulative(messages[0], txn=one)
        with pytest.raises(TransactionConflict):
            await consumer.acknowledge(messages[2], txn=two)
        with pytest.raises(TransactionConflict):
            await consumer.acknowledge_cumulative(messages[2], txn=two)
        await one.commit()
        await consumer.acknowledge(messages[2], txn=two)
        await two.commit()
        await consumer.acknowledge([messages[1], messages[3]])
    async with subscribe(client, topic, ConsumerType.Exclusive) as consumer:
        assert await rest(consumer) == []


async def test_acks_wait_for_the_connection(
    client: Client, topic: str, transactional: Broker
) -> None:
    await fill(client, topic, 3, batching=False)
    async with subscribe(client, topic, ConsumerType.Shared) as consumer:
        messages = await take(consumer, 3)
        txn = await client.transaction(timeout=60)
        await asyncio.to_thread(transactional.kill)
        await asyncio.to_thread(transactional.start)
        await consumer.acknowledge(messages, txn=txn)
        await txn.commit()
        assert await rest(consumer) == []
    async with subscribe(client, topic, ConsumerType.Shared) as consumer:
        assert await rest(consumer) == []


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.Failover])
async def test_an_abort_that_a_killed_broker_does_not_answer_ends_after_its_restart(
    transactional: Broker, topic: str, kind: ConsumerType
) -> None:
    """Its timeout has passed by then. No other client connects to the coordinator."""
    async with (
        Client(
            transactional.service_url, transport="native", operation_timeout_seconds=5
        ) as client,
        subscribe(client, topic, kind) as consumer,
        client.create_producer(f"{topic}-out") as producer,
    ):
        await fill(client, topic, 6, batching=False)
        messages = await take(consumer, 6)
        txn = await client.transaction(timeout=5)
        await producer.send(b"never", txn=txn)
        await consumer.acknowledge(messages[:3], txn=txn)
        await asyncio.to_thread(transactional.kill)
        with pytest.raises(TransportError):
            await txn.abort()
        await asyncio.sleep(5)
        await asyncio.to_thread(transactional.start)
        expected = numbers(*range(3 if kind is ConsumerType.Shared else 6))  # others are held
        again: dict[str, None] = {}
        while len(again) < len(expected):
            message = await consumer.receive(timeout_millis=90_000)
            again[message.data().decode()] = None
            await consumer.acknowledge(message)
        assert sorted(again) == expected
        if kind is ConsumerType.Failover:
            assert list(again) == expected
        async with asyncio.timeout(30):
            await until_aborted(txn)
        await producer.send(b"plain")
        async with client.create_reader(f"{topic}-out", MessageId.earliest) as reader:
            async with asyncio.timeout(30):
                assert (await reader.read_next()).data() == b"plain"


async def until_aborted(txn: Transaction) -> None:
    while True:
        if txn.state is TxnState.ABORTED:
            return
        await asyncio.sleep(0.1)


async def test_a_closed_consumer_leaves_its_acks_to_the_transaction(
    client: Client, topic: str
) -> None:
    await fill(client, topic, 4, batching=False)
    for end in ("abort", "commit"):
        async with client.transaction() as txn:
            async with subscribe(client, topic, ConsumerType.Shared) as consumer:
                messages = await take(consumer, 4)
                consumer.acknowledge(messages, txn=txn)  # without an await
            if end == "abort":
                await txn.abort()
    async with subscribe(client, topic, ConsumerType.Shared) as consumer:
        assert await rest(consumer) == []


@pytest.mark.parametrize("kind", [*SHARED, *ORDERED], ids=lambda kind: kind.name)
@pytest.mark.parametrize("in_transaction", [True, False], ids=["transaction", "plain"])
async def test_the_rest_of_a_batch_is_acked_without_what_another_process_has_pending(
    client: Client, transactional: Broker, topic: str, kind: ConsumerType, in_transaction: bool
) -> None:
    """A process dies with half of a batch acked in an open transaction."""
    async with Client(transactional.service_url, transport="native") as successor:
        async with subscribe(client, topic, kind) as first:
            await fill(client, topic, 10, batching=True)
            messages = await take(first, 10)
            txn = await client.transaction(timeout=60)
            await first.acknowledge(messages[2:7], txn=txn)
        async with subscribe(successor, topic, kind, ack_receipt_enabled=True) as second:
            others = await take(second, 5)
            assert sorted(values(others)) == numbers(0, 1, 7, 8, 9)
            async with successor.transaction() as own:
                await second.acknowledge(others if in_transaction else others.pop(), txn=own)
            if not in_transaction:
                await asyncio.gather(*map(second.acknowledge, others))
            await client.abort_transaction(txn.id)
            again = await rest(second)
        if kind in ORDERED:  # the broker delivers them to the next consumer
            async with subscribe(successor, topic, kind) as third:
                again += await rest(third)
        assert sorted(again) == numbers(2, 3, 4, 5, 6)
        assert backlog(transactional, topic) == 0


async def test_ordered_leases_and_topics_that_are_not_persistent_are_refused(
    client: Client, topic: str
) -> None:
    await fill(client, topic, 1, batching=False)
    async with (
        client.transaction() as txn,
        subscribe(client, topic, ConsumerType.KeyShared, ordered_leases=True) as consumer,
    ):
        message = (await consumer.pop(1, lease=30))[0]
        with pytest.raises(ConfigurationError, match="ordered_leases"):
            await consumer.acknowledge(message, txn=txn)
    volatile = f"non-persistent://public/default/{topic.rpartition('/')[2]}"
    async with (
        client.subscribe(volatile, "s", ConsumerType.Shared) as consumer,
        client.create_producer(volatile) as producer,
    ):
        await producer.send(b"1")
        (message,) = await take(consumer, 1)
        async with client.transaction() as txn:
            with pytest.raises(ConfigurationError, match="persistent"):
                await consumer.acknowledge(message, txn=txn)
