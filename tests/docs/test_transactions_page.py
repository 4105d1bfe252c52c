"""The Python blocks of `docs/transactions.md` run."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client, MessageId, TransactionNotFound, TxnId
from tests.harness.pages import blocks_of, run_block

TWO_TOPICS, READ_AND_SEND, NOT_AWAITED, LETTER, POLICY, BY_ID = blocks_of("transactions.md")


async def visible(client: Client, topic: str) -> list[bytes]:
    async with client.create_reader(topic, MessageId.earliest) as reader:
        found = []
        while await reader.has_message_available():
            found.append((await reader.read_next()).data())
        return found


async def test_messages_of_two_topics_are_in_one_transaction(client: Client) -> None:
    async with (
        client.create_producer("orders") as orders,
        client.create_producer("invoices") as invoices,
    ):
        await run_block(TWO_TOPICS, {"client": client, "orders": orders, "invoices": invoices})
    assert await visible(client, "orders") == await visible(client, "invoices") == [b"42"]


async def test_the_input_is_acked_with_the_output(client: Client) -> None:
    async with (
        client.create_producer("in") as source,
        client.create_producer("out") as producer,
        client.subscribe("in", "s", initial_position=encore.InitialPosition.Earliest) as consumer,
    ):
        for number in range(5):
            await source.send(b"%d" % number)
        names: dict[str, Any] = {
            "client": client,
            "consumer": consumer,
            "convert": bytes,
            "encore": encore,
            "log": logging.getLogger(__name__),
            "producer": producer,
        }
        await run_block(READ_AND_SEND, names)
        running = asyncio.create_task(names["convert_all"]())
        while len(await visible(client, "out")) < 5:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait((running,))
    assert await visible(client, "out") == [b"%d" % number for number in range(5)]
    async with client.subscribe("in", "s") as consumer:
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout_millis=100)


async def test_a_failed_message_has_a_letter_in_its_transaction(client: Client) -> None:
    def convert(data: bytes) -> bytes:
        if data == b"1":
            raise ValueError(data)
        return data

    async with (
        client.create_producer("orders") as source,
        client.create_producer("out") as producer,
        client.subscribe(
            "orders",
            "billing",
            encore.ConsumerType.Shared,
            initial_position=encore.InitialPosition.Earliest,
            retry_enable=True,
        ) as consumer,
    ):
        for number in range(3):
            await source.send(b"%d" % number)
        names = {"client": client, "consumer": consumer, "producer": producer, "convert": convert}
        running = asyncio.create_task(run_block(LETTER, names))
        while len(await visible(client, "out")) < 2:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait((running,))
    assert await visible(client, "out") == [b"0", b"2"]
    assert await visible(client, "orders-billing-RETRY") == [b"1"]


async def test_a_transactional_policy_writes_one_letter(client: Client) -> None:
    names: dict[str, Any] = {"client": client, "encore": encore}
    await run_block(POLICY, names)
    async with names["consumer"] as consumer, client.create_producer("orders") as source:
        await source.send(b"42")
        await consumer.reject(await consumer.receive(timeout_millis=5_000), "bad")
    assert await visible(client, "orders-billing-DLQ") == [b"42"]


async def test_sends_may_be_left_to_the_commit(client: Client) -> None:
    lines = [b"%d" % number for number in range(2500)]  # more than the queue of the producer
    await run_block(NOT_AWAITED, {"client": client, "lines": lines})
    assert await visible(client, "lines") == lines


async def test_a_transaction_is_aborted_by_its_id(client: Client) -> None:
    txn = await client.transaction()
    names: dict[str, Any] = {"client": client, "encore": encore, "txn": txn}
    await run_block(BY_ID, names)
    assert TxnId.parse(names["text"]) == txn.id
    with pytest.raises(TransactionNotFound):
        await client.abort_transaction(txn.id)
    await txn.close()
