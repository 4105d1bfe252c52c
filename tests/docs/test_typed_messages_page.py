"""The Python blocks of `docs/typed-messages.md` run, and its statements hold."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, make_dataclass
from decimal import Decimal
from typing import Any

import pydantic
import pytest

import pulsar_encore as encore
from pulsar_encore import Client
from tests.harness.pages import Block, blocks_of, run_block, text_of

PAGE = text_of("typed-messages.md")
BLOCKS = blocks_of("typed-messages.md")


@dataclass
class Order:
    id: int
    total: Decimal
    note: str | None = None


@dataclass
class Customer:
    name: str


@dataclass
class RowKey:
    id: int


@dataclass
class Row:
    item: str


def block(title: str) -> Block:
    (found,) = (each for each in BLOCKS if each.title == title)
    return found


@pytest.fixture
def names(client: Client) -> Iterator[dict[str, Any]]:
    yield {
        "__name__": __name__,  # where annotations of classes in blocks are looked up
        "Customer": Customer,
        "Decimal": Decimal,
        "Order": Order,
        "Row": Row,
        "RowKey": RowKey,
        "client": client,
        "dataclass": dataclass,
        "encore": encore,
        "pydantic": pydantic,
    }


def test_every_block_has_a_test() -> None:
    assert len({each.title for each in BLOCKS}) == len(BLOCKS) == 7


async def run_with_message(
    title: str, names: dict[str, Any], topic: str, content: bytes | None, **options: Any
) -> None:
    """Run a block that subscribes and receives. The message is sent when it waits for it."""
    running = asyncio.ensure_future(run_block(block(title), names))
    await asyncio.sleep(1)
    async with names["client"].create_producer(topic) as producer:
        await producer.send(content, **options)
    await running


async def test_an_order_is_read_as_an_order(names: dict[str, Any]) -> None:
    await run_block(block("Typed messages"), names)
    assert names["order"] == names["Order"](1, Decimal("9.90"), None)


async def test_a_pydantic_model_keeps_its_names_and_validators(names: dict[str, Any]) -> None:
    await run_block(block("JSON"), names)
    async with names["client"].create_producer("parcels") as producer:
        for payload in (b'{"orderId": 7, "weight_kg": 1}', b'{"orderId": 7, "weight_kg": 0}'):
            await producer.send(payload)
    good, bad = [await names["parcels"].receive() for _ in range(2)]
    assert good.value() == names["Parcel"](orderId=7, weight_kg=1)
    with pytest.raises(encore.DecodeError, match="weight_kg"):
        bad.value()


async def test_a_payload_that_does_not_decode_is_nacked_with_its_reason(
    names: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    names["consumer"] = await names["client"].subscribe(
        "orders", "billing", encore.ConsumerType.Shared, schema=encore.Json(Order)
    )
    async with names["client"].create_producer("orders") as producer:
        await producer.send(b'{"id": 1}')
    await run_block(block("Payloads that do not decode"), names)
    assert capsys.readouterr().out == "total it is missing\n"
    assert (await names["consumer"].receive()).redelivery_count() == 1


async def test_a_tombstone_removes_its_row(names: dict[str, Any]) -> None:
    names["cache"] = {"c-7": Customer("Ada")}
    content = encore.Json(Customer).encode(Customer("Ada"))
    title = "Messages without a value"
    await run_with_message(title, names, "customers", content, partition_key="c-7")
    assert names["customer"] == Customer("Ada")
    assert names["cache"]
    await names["rows"].acknowledge(names["message"])
    await names["rows"].close()
    await run_with_message(title, names, "customers", None, partition_key="c-7")
    assert names["customer"] is None
    assert names["cache"] == {}


async def test_a_deleted_row_is_a_key_without_a_value(names: dict[str, Any]) -> None:
    await run_block(block("Pairs"), names)
    assert (names["key"], names["row"]) == (RowKey(7), Row("lamp"))
    assert (await names["consumer"].receive()).value() == (RowKey(7), None)


async def test_any_schema_is_read_as_a_record(
    names: dict[str, Any], client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    running = asyncio.ensure_future(run_block(block("Any schema"), names))
    await asyncio.sleep(1)
    async with client.create_producer("orders", schema=encore.Json(Order)) as producer:
        await producer.send(Order(1, Decimal(9)))
    await running
    assert capsys.readouterr().out == "1 JSON\n"


async def test_a_codec_needs_two_methods(names: dict[str, Any], client: Client) -> None:
    await run_block(block("Your own codec"), names)
    async with client.create_producer("lines", schema=names["Csv"]()) as producer:
        await producer.send(["a", "b"])
        with pytest.raises(encore.ContentError):
            await producer.send([1])
        message = await names["consumer"].receive()
        assert message.value() == ["a", "b"]
        assert message.int_schema_version() == -1, "nothing was registered"
    async with client.create_producer("lines") as producer:
        await producer.send(b"\xff")
    with pytest.raises(encore.DecodeError):
        (await names["consumer"].receive()).value()


async def test_a_worker_dead_letters_a_payload_that_does_not_decode(client: Client) -> None:
    called: list[Order] = []
    letters = await client.subscribe("orders-billing-DLQ", "test")
    worker = encore.Worker(client, "orders", "billing", called.append, schema=encore.Json(Order))
    async with worker, client.create_producer("orders") as producer:
        await producer.send(b"{}")
        letter = await letters.receive()
        await asyncio.sleep(1)
        assert worker.report().rejected == 1
    assert called == []
    assert letter.data() == b"{}"
    assert "DecodeError" in str(letter.properties())


#: Rows of the table of changes: the fields of the changed class, and an old payload for consumers.
_OLD = [("id", int), ("item", str)]
_CHANGES = {
    "new text": [*_OLD, ("note", str)],
    "new number with a default": [*_OLD, ("count", int, field(default=0))],
    "removed text": [("id", int)],
    "renamed text": [("id", int), ("article", str)],
}


@pytest.mark.parametrize("change", _CHANGES)
async def test_what_a_consumer_with_the_old_class_reads(client: Client, change: str) -> None:
    """The broker's part of the table was seen on Pulsar 4.2.4."""
    old, new = make_dataclass("Order", _OLD), make_dataclass("Order", _CHANGES[change])
    consumer = await client.subscribe("orders", "billing", schema=encore.Json(old))
    async with client.create_producer("orders", schema=encore.Json(new)) as producer:
        values = {each: 5 if each in ("id", "count") else "lamp" for each in new.__annotations__}
        await producer.send(new(**values))
    message = await consumer.receive()
    if change.startswith("new"):
        assert message.value() == old(5, "lamp")
    else:
        with pytest.raises(encore.DecodeError, match="field item"):
            message.value()


async def test_a_consumer_registers_its_schema_only_if_told_to(client: Client) -> None:
    """With a schema of another type, because the development broker compares types only."""
    await client.create_producer("orders", schema=encore.schema.StringSchema())
    await client.subscribe("orders", "billing", schema=encore.Json(Order))
    with pytest.raises(encore.IncompatibleSchema):
        await client.subscribe("orders", "other", schema=encore.Json(Order, register=True))
    with pytest.raises(encore.IncompatibleSchema):
        await client.create_producer("orders", schema=encore.Json(Order))


def test_the_table_of_json_has_every_parameter() -> None:
    section = PAGE.partition("## JSON")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", section, flags=re.MULTILINE))
    parameters = inspect.signature(encore.Json.__init__).parameters
    defaults = {name: str(each.default) for name, each in parameters.items()}
    del rows["Json"], defaults["self"], defaults["model"]
    assert rows == defaults
