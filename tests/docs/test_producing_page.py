"""The Python blocks of `docs/producing.md` run, and its tables agree with the code."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import Block, blocks_of, run_block, text_of

PAGE = text_of("producing.md")
BLOCKS = {each.code.partition("\n")[0]: each for each in blocks_of("producing.md")}


@dataclass
class Order:
    id: int
    item: str


def block(words: str) -> Block:
    """Return the only block of the page that contains these words."""
    (found,) = (each for each in BLOCKS.values() if words in each.code)
    return found


def names(client: Client, **others: Any) -> dict[str, Any]:
    return {
        "Order": Order,
        "asyncio": asyncio,
        "client": client,
        "encore": encore,
        "orders": [Order(number, "chair") for number in range(1200)],
        "timedelta": timedelta,
        **others,
    }


async def received(client: Client, topic: str, count: int, **options: Any) -> list[Any]:
    earliest = encore.InitialPosition.Earliest
    async with client.subscribe(topic, "test", initial_position=earliest, **options) as consumer:
        return [await consumer.receive(timeout_millis=1000) for _ in range(count)]


def test_no_block_is_without_a_test() -> None:
    tested = ("Order(1", "range(0, len", "on_stored", "KeyBased", "async for row", "importer-1")
    assert len(BLOCKS) == len(blocks_of("producing.md")) == len((*tested, "scans", "remind"))
    for words in (*tested, "scans", "remind"):
        block(words)


async def test_sends_that_are_awaited_together_are_one_batch(client: Client) -> None:
    space = names(client, orders=[Order(2, "chair"), Order(3, "table")])
    await run_block(block("Order(1"), space)
    assert space["message_id"].ledger_id() >= 0
    schema = encore.Json(Order)
    first, second, third = await received(client, "orders", 3, schema=schema)
    assert (first.value(), first.partition_key()) == (Order(1, "lamp"), "customer-7")
    assert [second.value().id, third.value().id] == [2, 3]
    assert second.message_id().entry_id() == third.message_id().entry_id()


async def test_pieces_of_500_do_not_fill_the_queue(client: Client) -> None:
    schema = encore.Json(Order)
    async with client.create_producer("orders", schema=schema) as producer:
        await run_block(block("range(0, len"), names(client, producer=producer))
    found = await received(client, "orders", 1200, schema=schema)
    assert [each.value().id for each in found] == list(range(1200))


async def test_one_send_after_the_other_waits_for_each_batch(client: Client) -> None:
    loop = asyncio.get_running_loop()
    async with client.create_producer("orders") as producer:
        begin = loop.time()
        for _ in range(10):
            await producer.send(b"x")
        assert loop.time() - begin == pytest.approx(10 * 0.01)


async def test_flush_waits_for_the_callbacks_of_send_async(client: Client) -> None:
    failed: list[encore.Result] = []
    async with client.create_producer("orders", schema=encore.Json(Order)) as producer:
        some = [Order(number, "chair") for number in range(10)]
        await run_block(
            block("on_stored"), names(client, producer=producer, failed=failed, orders=some)
        )
        assert failed == []
        assert producer.last_sequence_id() == 9
    assert len(await received(client, "orders", 10)) == 10


async def test_close_fails_the_sends_without_an_answer(client: Client) -> None:
    producer = await client.create_producer("orders")
    results: list[Any] = []
    producer.send_async(b"x", lambda result, _: results.append(result))
    await producer.close()
    await asyncio.sleep(0)
    assert results == [encore.Result.AlreadyClosed]


async def test_batches_by_key_have_one_key_each(client: Client, transport: MemoryTransport) -> None:
    space = names(client)
    await run_block(block("KeyBased"), space)
    producer = space["producer"]
    before = len(transport.recorded("SEND"))
    await asyncio.gather(*(producer.send(b"x", partition_key=f"k{n % 3}") for n in range(30)))
    assert len(transport.recorded("SEND")) - before == 3


async def test_a_delayed_message_is_an_entry_of_its_own(
    client: Client, transport: MemoryTransport
) -> None:
    producer = await client.create_producer("orders")
    delay = timedelta(hours=1)
    await asyncio.gather(*(producer.send(b"x", deliver_after=delay) for _ in range(5)))
    assert len(transport.recorded("SEND")) == 5


async def test_a_program_that_awaits_its_sends_keeps_few_of_them(client: Client) -> None:
    async def rows() -> AsyncIterator[bytes]:
        for number in range(5000):
            yield str(number).encode()
            assert len(space.get("pending", ())) <= 2000

    space = names(client, rows=rows(), stored=[])
    await run_block(block("async for row"), space)
    assert len(set(space["stored"])) == 5000
    found = await received(client, "orders", 5000)
    assert [each.data() for each in found] == [str(number).encode() for number in range(5000)]


async def test_a_full_queue_is_an_error_by_default(client: Client) -> None:
    producer = await client.create_producer("orders")
    sends = [producer.send(b"x") for _ in range(1001)]
    results = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(results[-1], encore.ProducerQueueIsFull)
    assert not any(isinstance(each, Exception) for each in results[:-1])


async def test_sends_wait_for_the_connection_until_their_timeout(
    client: Client, transport: MemoryTransport
) -> None:
    producer = await client.create_producer("orders", send_timeout_millis=2000)
    transport.disconnect()
    with pytest.raises(encore.TransportTimeout, match="the last attempt failed"):
        await producer.send(b"0")
    sends = [asyncio.ensure_future(producer.send(b"%d" % number)) for number in (1, 2, 3)]
    await asyncio.sleep(1)
    transport.reconnect()
    await asyncio.gather(*sends)
    found = await received(client, "orders", 3)
    assert [each.data() for each in found] == [b"1", b"2", b"3"]


async def test_an_import_continues_behind_its_last_sequence_id(client: Client) -> None:
    lines = [b"a", b"b", b"c"]
    space = names(client, lines=lines[:2])
    await run_block(block("importer-1"), space)
    assert space["source"].last_sequence_id() == 1
    await space["source"].close()
    await run_block(block("importer-1"), names(Deduplicating(client), lines=lines))  # type: ignore[arg-type]
    found = await received(client, "orders", 3)
    assert [each.data() for each in found] == lines


class Deduplicating:
    """Names the last sequence id, as a broker that deduplicates does. Ours does not."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create_producer(self, topic: str, name: str) -> encore.Producer[bytes]:
        return await self._client.create_producer(topic, name, initial_sequence_id=1)


async def test_a_chunked_message_is_one_message_for_a_consumer(client: Client) -> None:
    await run_block(block("scans"), names(client))
    (message,) = await received(client, "scans", 1)
    assert len(message.data()) == 12_000_000
    async with client.create_producer("scans") as producer:
        with pytest.raises(encore.MessageTooBig, match="5242880"):
            await producer.send(b"x" * 12_000_000)


async def test_only_shared_subscriptions_wait_for_a_delayed_message(client: Client) -> None:
    loop = asyncio.get_running_loop()
    at_once = await client.subscribe("orders", "exclusive")
    shared = await client.subscribe("orders", "shared", encore.ConsumerType.Shared)
    begin = loop.time()
    async with client.create_producer("orders") as producer:
        await run_block(block("remind"), names(client, producer=producer))
    await at_once.receive()
    assert loop.time() - begin < 1
    await shared.receive()
    assert loop.time() - begin == pytest.approx(3600, abs=5)


def test_the_defaults_of_the_table_are_those_of_the_signature() -> None:
    parameters = inspect.signature(Client.create_producer).parameters
    section = PAGE.partition("## Batches")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([\w.]+) \|", section, flags=re.MULTILINE)
    assert len(rows) == 6
    for name, default in rows:
        value = parameters[name].default
        assert default == (value.name if hasattr(value, "name") else str(value)), name


def test_the_errors_of_the_table_exist() -> None:
    section = PAGE.partition("## Errors")[2]
    kinds = re.findall(r"^\| `(\w+)`", section, flags=re.MULTILINE)
    assert len(kinds) == 9
    for kind in kinds:
        assert issubclass(getattr(encore, kind), encore.EncoreError), kind
