"""Codecs as the schema of consumers, readers and producers, over the transport in memory."""

from __future__ import annotations

import copy
import pickle
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pulsar.schema
import pydantic
import pytest

import pulsar_encore as encore
from pulsar_encore.testing import MemoryTransport


@dataclass
class Order:
    id: int
    note: str | None = None


class Letters:
    """A codec of an application."""

    def encode(self, value: str) -> bytes:
        return value.upper().encode("ascii")

    def decode(self, data: bytes) -> str:
        return data.decode("ascii").lower()


@pytest.fixture
async def client() -> AsyncIterator[encore.Client]:
    async with encore.Client("pulsar://memory", transport=MemoryTransport()) as made:
        yield made


async def test_a_value_is_read_as_it_was_sent(client: encore.Client) -> None:
    consumer = await client.subscribe("orders", "s", schema=encore.Json(Order))
    producer = await client.create_producer("orders", schema=encore.Json(Order))
    await producer.send(Order(7, "now"))
    message = await consumer.receive()
    assert message.value() == Order(7, "now")
    assert message.int_schema_version() == 0
    async with client.create_reader(
        "orders", encore.MessageId.earliest, schema=encore.Json(Order)
    ) as reader:
        assert (await reader.read_next()).value() == Order(7, "now")


async def test_a_consumer_of_a_changed_class_reads_on(client: encore.Client) -> None:
    """Without `register` the broker does not compare the schema of a consumer."""
    await client.create_producer("orders", schema=encore.schema.StringSchema())
    await client.subscribe("orders", "s", schema=encore.Json(Order))
    with pytest.raises(encore.IncompatibleSchema):
        await client.subscribe("orders", "s2", schema=encore.Json(Order, register=True))
    with pytest.raises(encore.IncompatibleSchema):
        await client.create_producer("orders", schema=encore.Json(Order))


async def test_a_payload_that_does_not_decode_is_a_decode_error(client: encore.Client) -> None:
    consumer = await client.subscribe("orders", "s", schema=encore.Json(Order))
    producer = await client.create_producer("orders")
    await producer.send(b'{"note": "x"}')
    message = await consumer.receive()
    with pytest.raises(encore.DecodeError, match="field id") as caught:
        message.value()
    assert message.data() == b'{"note": "x"}'
    assert isinstance(caught.value, encore.EncoreError)
    for same in (pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
        assert (same.field, same.schema, same.payload) == ("id", "Json(Order)", message.data())
        assert str(same) == str(caught.value)
    await consumer.acknowledge(message)


async def test_a_message_without_a_value_is_a_decode_error_unless_null(
    client: encore.Client,
) -> None:
    strict = await client.subscribe("orders", "strict", schema=encore.Json(Order))
    lenient = await client.subscribe("orders", "lenient", schema=encore.Json(Order, null=True))
    async with client.create_producer("orders", schema=encore.Json(Order)) as producer:
        await producer.send(None)
    with pytest.raises(encore.DecodeError, match=r"no value.*null=True"):
        (await strict.receive()).value()
    assert (await lenient.receive()).value() is None


async def test_a_codec_of_the_application_needs_two_methods(client: encore.Client) -> None:
    consumer = await client.subscribe("words", "s", schema=Letters())
    producer = await client.create_producer("words", schema=Letters())
    await producer.send("abc")
    message = await consumer.receive()
    assert (message.data(), message.value()) == (b"ABC", "abc")
    assert message.int_schema_version() == -1, "nothing was registered"
    with pytest.raises(encore.ContentError, match="fit Letters: "):
        await producer.send("ä")
    async with client.create_producer("words") as plain:
        await plain.send(b"\xff")
        await plain.send(None)
    with pytest.raises(encore.DecodeError, match=r"as Letters: .*ascii") as caught:
        (await consumer.receive()).value()
    assert isinstance(caught.value.__cause__, UnicodeDecodeError)
    with pytest.raises(encore.DecodeError, match="no value"):
        (await consumer.receive()).value()


async def test_a_codec_of_the_application_may_register_a_schema(client: encore.Client) -> None:
    class Described(Letters):
        null = True

        def schema_info(self) -> encore.SchemaInfo:
            return encore.SchemaInfo("STRING", name="words", properties={"a": "b"})

    consumer = await client.subscribe("words", "s", schema=Described())
    async with client.create_producer("words", schema=Described()) as producer:
        await producer.send("abc")
        await producer.send(None)
    message = await consumer.receive()
    assert (message.value(), message.int_schema_version()) == ("abc", 0)
    assert (await consumer.receive()).value() is None


class Model(pydantic.BaseModel):
    id: int

    @classmethod
    def schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
        """Return a definition, as the deprecated method of pydantic does."""
        return {}


@pytest.mark.parametrize("name", ["JsonSchema", "AvroSchema"])
@pytest.mark.parametrize("model", [Model, Order, dict])
def test_a_schema_of_a_class_that_is_no_record_is_refused(name: str, model: type) -> None:
    with pytest.raises(encore.ConfigurationError, match=rf"encore\.Json\({model.__name__}\)"):
        getattr(encore.schema, name)(model)


@pytest.mark.parametrize("name", ["JsonSchema", "AvroSchema"])
def test_a_schema_of_an_object_is_refused(name: str) -> None:
    class Box(encore.schema.Record):  # type: ignore[misc]
        width = encore.schema.Integer()

    schema = getattr(encore.schema, name)
    for wrong, advice in ((Box(), rf"write {name}\(Box\)"), (5, "got 5")):
        with pytest.raises(encore.ConfigurationError, match=advice):
            schema(wrong)
    assert schema(Box).decode(schema(Box).encode(Box(width=1))).width == 1


def test_an_avro_schema_of_a_definition_needs_no_class() -> None:
    definition = {"type": "record", "name": "Box", "fields": [{"name": "width", "type": "int"}]}
    schema = encore.schema.AvroSchema(None, definition)
    assert schema.decode(schema.encode({"width": 1})) == {"width": 1}


@pytest.mark.parametrize("name", ["JsonSchema", "AvroSchema"])
async def test_a_schema_of_pulsar_client_for_a_class_that_is_no_record_is_refused(
    client: encore.Client, name: str
) -> None:
    refused = getattr(pulsar.schema, name)(Model)
    for call in (
        client.subscribe("orders", "s", schema=refused),
        client.create_producer("orders", schema=refused),
        client.create_reader("orders", encore.MessageId.earliest, schema=refused),
    ):
        with pytest.raises(encore.ConfigurationError, match=r"encore\.Json\(Model\)"):
            await call


async def test_a_class_is_no_schema(client: encore.Client) -> None:
    for kind, text in ((Order, r"write encore\.Json\(Order\)"), (Letters, r"write Letters\(\.")):
        with pytest.raises(encore.ConfigurationError, match=text):
            await client.subscribe("orders", "s", schema=kind)


async def test_a_wrong_definition_is_refused_before_anything_is_sent(
    client: encore.Client,
) -> None:
    codec = encore.Json(dict[str, Any])
    with pytest.raises(encore.ConfigurationError, match="definition="):
        await client.create_producer("orders", schema=codec)
    await client.subscribe("orders", "s", schema=codec)
