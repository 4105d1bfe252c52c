"""Codecs: values that one transport writes and another reads, changed classes, tombstones."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import pydantic
import pytest

import pulsar_encore as encore
from pulsar_encore import Json, KeyValue
from pulsar_encore.schema import AvroSchema, StringSchema

from .cluster import ENGINES, Cluster, Engine
from .contract_kit import publish, subscribe, take


class Colour(Enum):
    RED = "RED"
    BLUE = "BLUE"


@dataclass
class Line:
    sku: str
    count: encore.Int32 = 1


@dataclass
class Order:
    id: int
    name: str
    lines: list[Line]
    by_sku: dict[str, Line]
    colours: list[Colour]
    paid: bool = False


@dataclass
class Key:
    id: int


class Changed(pydantic.BaseModel):
    """The class `Order` after a deployment that added fields."""

    id: int
    name: str
    lines: list[Line]
    by_sku: dict[str, Line]
    colours: list[Colour]
    paid: bool = False
    note: str | None = None
    weight: float = 0.5


@dataclass
class Other:
    """A class that is incompatible with `Order`."""

    id: str
    later: list[int] = field(default_factory=list)


LINE = Line("x", 2)
ORDER = Order(1, "Ada", [LINE], {"x": LINE}, [Colour.BLUE])
CHANGED = Changed(id=2, name="Bo", lines=[], by_sku={}, colours=[Colour.RED], note="n")


@pytest.fixture(params=ENGINES, ids=lambda engine: f"by {engine.name}")
def writer(request: pytest.FixtureRequest) -> Engine:
    """The transport that publishes; `engine` reads."""
    made: Engine = request.param
    return made


@pytest.mark.parametrize("batch", [0, 2])
async def test_an_object_is_read_as_written(
    cluster: Cluster, engine: Engine, writer: Engine, topic: str, batch: int
) -> None:
    async with engine.client(cluster.url) as reading, writer.client(cluster.url) as writing:
        consumer = await subscribe(reading, topic, schema=Json(Order))
        await publish(writing, topic, [ORDER, ORDER], schema=Json(Order), batch=batch)
        got = await take(consumer, 2)
        assert [message.value() for message in got] == [ORDER, ORDER]
        assert {message.int_schema_version() for message in got} == {0}
        start = encore.MessageId.earliest
        async with await reading.create_reader(topic, start, schema=Json(Order)) as reader:
            assert (await reader.read_next(timeout=5)).value() == ORDER


async def test_a_consumer_reads_on_when_the_class_of_the_producer_changes(
    cluster: Cluster, engine: Engine, writer: Engine, topic: str
) -> None:
    async with engine.client(cluster.url) as reading, writer.client(cluster.url) as writing:
        consumer = await subscribe(reading, topic, schema=Json(Order))
        await publish(writing, topic, [ORDER], schema=Json(Order))
        await publish(writing, topic, [CHANGED], schema=Json(Changed))
        old, new = await take(consumer, 2)
        assert (old.value(), new.value()) == (ORDER, Order(2, "Bo", [], {}, [Colour.RED]))
        assert [each.int_schema_version() for each in (old, new)] == [0, 1]
        await consumer.acknowledge([old, new])
        await consumer.close()
        deployed = await reading.subscribe(
            topic,
            "deployed",
            schema=Json(Changed),
            initial_position=encore.InitialPosition.Earliest,
        )
        values = [message.value() for message in await take(deployed, 2)]
        assert [(each.id, each.note, each.weight) for each in values] == [
            (1, None, 0.5),
            (2, "n", 0.5),
        ]


async def test_a_consumer_of_another_class_attaches_and_registers_nothing(
    client: encore.Client, topic: str
) -> None:
    await publish(client, topic, [ORDER], schema=Json(Order))
    consumer = await subscribe(client, topic, schema=Json(Other))
    [message] = await take(consumer, 1)
    with pytest.raises(encore.DecodeError) as caught:
        message.value()
    assert caught.value.field == "id"
    assert message.data() == Json(Order).encode(ORDER)
    await consumer.acknowledge(message)
    await publish(client, topic, [ORDER], schema=Json(Order))
    assert [each.int_schema_version() for each in await take(consumer, 1)] == [0]


async def test_register_lets_the_broker_refuse_a_consumer(
    client: encore.Client, topic: str
) -> None:
    await publish(client, topic, ["text"], schema=StringSchema())
    with pytest.raises(encore.IncompatibleSchema):
        await subscribe(client, topic, schema=Json(Order, register=True))
    with pytest.raises(encore.IncompatibleSchema):
        await client.create_producer(topic, schema=Json(Order))
    await subscribe(client, topic, schema=Json(Order))


async def test_a_tombstone_is_none_with_null_and_a_decode_error_without(
    client: encore.Client, topic: str
) -> None:
    await publish(client, topic, [ORDER, None], schema=Json(Order))
    consumer = await subscribe(client, topic, schema=Json(Order))
    _, tombstone = await take(consumer, 2)
    with pytest.raises(encore.DecodeError, match="null=True"):
        tombstone.value()
    async with client.create_reader(
        topic, encore.MessageId.earliest, schema=Json(Order, null=True)
    ) as reader:
        values = [(await reader.read_next(timeout=5)).value() for _ in range(2)]
    assert values == [ORDER, None]


@pytest.mark.parametrize("encoding", ["inline", "separated"])
async def test_a_pair_is_read_as_written(
    cluster: Cluster,
    engine: Engine,
    writer: Engine,
    topic: str,
    encoding: Literal["inline", "separated"],
) -> None:
    schema = KeyValue(Json(Key), Json(Order, null=True), encoding=encoding)
    pairs = [(Key(1), ORDER), (Key(2), None)]
    async with engine.client(cluster.url) as reading, writer.client(cluster.url) as writing:
        if not writer.all_schemas:
            with pytest.raises(encore.NotSupportedError, match="KEY_VALUE"):
                await writing.create_producer(topic, schema=schema)
            return
        await publish(writing, topic, pairs, schema=schema)
        consumer = await subscribe(reading, topic, schema=schema)
        got = await take(consumer, 2)
        assert [message.value() for message in got] == pairs
        assert [message.int_schema_version() for message in got] == [0, 0]
        generic = await reading.subscribe(
            topic,
            "generic",
            schema=encore.AutoConsume(),
            initial_position=encore.InitialPosition.Earliest,
        )
        first, second = await take(generic, 2)
        if engine.all_schemas:
            key, record = first.value()
            assert (key, record["name"]) == ({"id": 1}, "Ada")
            assert second.value() == ({"id": 2}, None)
        else:
            with pytest.raises(encore.DecodeError, match="transport='native'"):
                first.value()


async def test_avro_parts_of_a_pair_need_a_transport_with_all_schemas(
    engine: Engine, client: encore.Client, topic: str
) -> None:
    box = AvroSchema(
        None, {"type": "record", "name": "Box", "fields": [{"name": "width", "type": "int"}]}
    )
    schema = KeyValue(StringSchema(), box, encoding="separated")
    if not engine.all_schemas:
        with pytest.raises(encore.NotSupportedError, match="Avro in key-value pairs"):
            await subscribe(client, topic, schema=schema)
        return
    await publish(client, topic, [("k", {"width": 3})], schema=schema)
    [message] = await take(await subscribe(client, topic, schema=schema), 1)
    assert message.value() == ("k", {"width": 3})


async def test_auto_consume_reads_each_version_of_a_topic(
    cluster: Cluster, engine: Engine, writer: Engine, topic: str
) -> None:
    def box(*names: str) -> Any:
        fields = [{"name": name, "type": "int", "default": 0} for name in names]
        return AvroSchema(None, {"type": "record", "name": "Box", "fields": fields})

    async with engine.client(cluster.url) as reading, writer.client(cluster.url) as writing:
        consumer = await subscribe(reading, topic, schema=encore.AutoConsume())
        for names in (("a",), ("a", "b"), ("a",)):
            await publish(writing, topic, [dict.fromkeys(names, 1)], schema=box(*names))
        await publish(writing, topic, [b"no schema", None])
        values = [message.value() for message in await take(consumer, 5)]
        assert values == [{"a": 1}, {"a": 1, "b": 1}, {"a": 1}, b"no schema", None]
        assert values[0].schema.kind == "AVRO"


async def test_auto_consume_reads_json(client: encore.Client, topic: str) -> None:
    await publish(client, topic, [ORDER], schema=Json(Order))
    consumer = await subscribe(client, topic, schema=encore.AutoConsume())
    [message] = await take(consumer, 1)
    record = message.value()
    assert record["lines"] == [{"sku": "x", "count": 2}]
    assert record["by_sku"] == {"x": {"sku": "x", "count": 2}}
    assert record["colours"] == ["BLUE"]
    assert record.schema.kind == "JSON"
