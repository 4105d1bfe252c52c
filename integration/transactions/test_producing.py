"""Sends in transactions on a real Pulsar: the view of readers, and the cost of each fault."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

import pulsar_encore
from pulsar_encore import (
    Client,
    Message,
    MessageId,
    TransactionAbortedError,
    TransactionNotFound,
    TransactionStateError,
    TransportError,
    TxnId,
    TxnState,
)
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Broker


@pytest.fixture
async def client(transactional: Broker) -> AsyncIterator[Client]:
    async with Client(transactional.service_url, transport="native") as found:
        yield found


async def visible(client: Client, topic: str) -> list[str]:
    """Return the values that a reader finds in a topic now."""
    async with client.create_reader(topic, MessageId.earliest) as reader:
        found: list[str] = []
        while await reader.has_message_available():
            message: Message = await reader.read_next()
            found.append(message.data().decode())
        return found


@pytest.mark.parametrize("batching", [True, False], ids=["batches", "unbatched"])
async def test_messages_of_two_topics_appear_at_the_commit(
    client: Client, topic: str, batching: bool
) -> None:
    async with (
        client.create_producer(topic, batching_enabled=batching) as one,
        client.create_producer(f"{topic}-b", batching_enabled=batching) as two,
    ):
        async with client.transaction() as txn:
            await asyncio.gather(
                *(one.send(b"a%d" % number, txn=txn) for number in range(20)),
                *(two.send(b"b%d" % number, txn=txn) for number in range(20)),
            )
            assert await visible(client, topic) == []
            assert txn.state is TxnState.OPEN
        assert txn.state is TxnState.COMMITTED
        assert await visible(client, topic) == [f"a{number}" for number in range(20)]
        assert await visible(client, f"{topic}-b") == [f"b{number}" for number in range(20)]


async def test_an_exception_in_the_block_aborts(client: Client, topic: str) -> None:
    async with client.create_producer(topic) as producer:
        with pytest.raises(KeyError):
            async with client.transaction() as txn:
                await producer.send(b"never", txn=txn)
                raise KeyError
        assert txn.state is TxnState.ABORTED
        await producer.send(b"plain")
    assert await visible(client, topic) == ["plain"]


async def test_sends_that_nobody_awaits_are_in_the_commit(client: Client, topic: str) -> None:
    async with client.create_producer(topic, batching_max_publish_delay_ms=10_000) as producer:
        async with client.transaction() as txn:
            for number in range(100):
                producer.send_async(b"%d" % number, None, txn=txn)
        assert await visible(client, topic) == [str(number) for number in range(100)]


async def test_plain_and_transactional_messages_share_no_batch(client: Client, topic: str) -> None:
    async with client.create_producer(topic) as producer:
        txn = await client.transaction()
        sends = []
        for number in range(10):
            sends.append(producer.send(b"plain%d" % number))
            sends.append(producer.send(b"txn%d" % number, txn=txn))
        await asyncio.gather(*sends)
        await txn.abort()
    assert await visible(client, topic) == [f"plain{number}" for number in range(10)]


@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_partitions_keys_delays_chunks_and_properties(
    client: Client, topic: str, end: str, transactional: Broker
) -> None:
    await asyncio.to_thread(Admin(transactional.admin_url).create_partitioned_topic, topic, 3)
    async with (
        client.subscribe(
            topic,
            "s",
            pulsar_encore.ConsumerType.Shared,
            initial_position=pulsar_encore.InitialPosition.Earliest,
        ) as consumer,
        client.create_producer(
            topic, chunking_enabled=True, batching_enabled=False, max_pending_messages=0
        ) as chunker,
        client.create_producer(topic) as producer,
    ):
        large = b"x" * (12 << 20)
        txn = await client.transaction()
        await asyncio.gather(
            chunker.send(large, txn=txn),
            producer.send(
                b"late", deliver_after=timedelta(seconds=1), properties={"p": "1"}, txn=txn
            ),
            *(
                producer.send(b"%d" % number, partition_key=f"k{number % 5}", txn=txn)
                for number in range(60)
            ),
        )
        await getattr(txn, end)()
        got: list[bytes] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(6 if end == "commit" else 2):
                while len(got) < 62:
                    message: Message[Any] = await consumer.receive()
                    got.append(message.data())
                    await consumer.acknowledge(message)
        if end == "abort":
            assert got == []
        else:
            assert sorted(got) == sorted([large, b"late", *(b"%d" % n for n in range(60))])


async def test_a_transaction_ends_by_its_id_from_another_client(
    client: Client, topic: str, transactional: Broker
) -> None:
    async with client.create_producer(topic) as producer:
        ids = []
        for number in range(2):
            txn = await client.transaction()
            await producer.send(b"%d" % number, txn=txn)
            ids.append(txn)
        async with Client(transactional.service_url, transport="native") as other:
            await other.commit_transaction(TxnId.parse(str(ids[0].id)))
            await other.abort_transaction(ids[1].id)
            for each in ids:
                with pytest.raises(TransactionNotFound):
                    await other.abort_transaction(each.id)
        await producer.send(b"behind")
        await ids[0].commit()  # finds out that it was committed
        assert ids[0].state is TxnState.COMMITTED
        with pytest.raises(TransactionAbortedError):
            await ids[1].commit()
    assert await visible(client, topic) == ["0", "behind"]


async def test_a_transaction_times_out(client: Client, topic: str) -> None:
    async with client.create_producer(topic) as producer:
        with pytest.raises(TransactionAbortedError, match="timed out after 1 s"):
            async with client.transaction(timeout=1) as txn:
                await producer.send(b"never", txn=txn)
                await asyncio.sleep(1.5)
                with pytest.raises(TransactionStateError, match="timed out"):
                    await producer.send(b"later", txn=txn)
        await producer.send(b"plain")
    assert await visible(client, topic) == ["plain"]


async def test_an_abort_that_a_killed_broker_did_not_answer_is_done_when_it_is_back(
    topic: str, transactional: Broker
) -> None:
    """A broker loads a coordinator only when a client connects to it. Until then, and so for longer
    than the timeout, readers would wait."""
    url = transactional.service_url
    async with (
        Client(url, operation_timeout_seconds=4) as client,
        client.create_producer(topic) as producer,
    ):
        txn = await client.transaction(timeout=20)
        await producer.send(b"never", txn=txn)
        await asyncio.to_thread(transactional.kill)
        with pytest.raises(TransportError):
            await txn.abort()
        await asyncio.to_thread(transactional.start)
        async with Client(url) as other, other.create_producer(topic) as plain:
            await plain.send(b"plain")
            async with asyncio.timeout(60):
                while await visible(other, topic) != ["plain"]:  # noqa: ASYNC110 - of the broker
                    await asyncio.sleep(0.5)
        assert txn.state is TxnState.ABORTED


async def test_an_open_transaction_survives_a_killed_broker(
    client: Client, topic: str, transactional: Broker
) -> None:
    async with client.create_producer(topic) as producer:
        async with client.transaction(timeout=300) as txn:
            await producer.send(b"before", txn=txn)
            await asyncio.to_thread(transactional.kill)
            await asyncio.to_thread(transactional.start)
            await producer.send(b"after", txn=txn)
    assert await visible(client, topic) == ["before", "after"]
