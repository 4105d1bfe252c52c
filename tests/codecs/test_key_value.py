"""`KeyValue`: inline and separated pairs, nulls, errors, schemas."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Json, KeyValue
from pulsar_encore.schema import AvroSchema, BytesSchema, StringSchema
from pulsar_encore.testing import MemoryTransport


@dataclass
class Key:
    id: int


@dataclass
class Row:
    name: str


def inline() -> KeyValue[tuple[Key, Row]]:
    return KeyValue(Json(Key), Json(Row))


def separated() -> KeyValue[tuple[Key, Row | None]]:
    return KeyValue(Json(Key), Json(Row, null=True), encoding="separated")


@pytest.fixture
async def client() -> AsyncIterator[encore.Client]:
    async with encore.Client("pulsar://memory", transport=MemoryTransport()) as made:
        yield made


async def sent(client: encore.Client, schema: Any, *values: Any, reads: Any = None) -> list[Any]:
    """Publish values, and return the messages that a consumer receives."""
    consumer = await client.subscribe("rows", "s", schema=reads or schema)
    async with client.create_producer("rows", schema=schema) as producer:
        for value in values:
            await producer.send(value)
    return [await consumer.receive(timeout=5) for _ in values]


async def test_an_inline_pair_is_in_the_payload(client: encore.Client) -> None:
    [message] = await sent(client, inline(), (Key(1), Row("a")))
    assert message.value() == (Key(1), Row("a"))
    key, value = b'{"id":1}', b'{"name":"a"}'
    assert message.data() == b"".join(struct.pack(">i", len(each)) + each for each in (key, value))
    assert message.partition_key() == ""


async def test_a_separated_key_is_the_partition_key(client: encore.Client) -> None:
    [message] = await sent(client, separated(), (Key(1), Row("a")))
    assert message.value() == (Key(1), Row("a"))
    assert message.data() == b'{"name":"a"}'
    assert message.partition_key_bytes() == b'{"id":1}'


async def test_a_deleted_row_is_a_key_without_a_value(client: encore.Client) -> None:
    [message] = await sent(client, separated(), (Key(1), None))
    assert message.has_null_value()
    assert message.value() == (Key(1), None)


async def test_a_null_is_a_decode_error_unless_its_codec_allows_it(client: encore.Client) -> None:
    strict = KeyValue(Json(Key), Json(Row), encoding="separated")
    tombstone, keyless = await sent(
        client, separated(), (Key(1), None), (None, Row("a")), reads=strict
    )
    for message, field in ((tombstone, "value"), (keyless, "key")):
        with pytest.raises(encore.DecodeError, match="null=True") as caught:
            message.value()
        assert caught.value.field == field


async def test_nulls_of_an_inline_pair(client: encore.Client) -> None:
    lenient = KeyValue(Json(Key, null=True), Json(Row, null=True))
    pairs: list[Any] = [(None, Row("a")), (Key(1), None), (None, None)]
    *messages, nothing = await sent(client, lenient, *pairs, None)
    assert [each.value() for each in messages] == pairs
    assert nothing.value() == (None, None)


async def test_schema_classes_of_pulsar_client_are_parts(client: encore.Client) -> None:
    pairs = KeyValue(StringSchema(), BytesSchema(), encoding="separated")
    got = await sent(client, pairs, ("k", b"\xff"), ("k", None))
    assert [each.value() for each in got] == [("k", b"\xff"), ("k", None)]


@pytest.mark.parametrize("encoding", ["inline", "separated"])
async def test_avro_parts_are_read_with_the_schema_they_were_written_with(
    client: encore.Client, encoding: Any
) -> None:
    def avro(*fields: str) -> Any:
        names = [{"name": each, "type": "int"} for each in fields]
        return AvroSchema(None, {"type": "record", "name": "Box", "fields": names})

    reads = KeyValue(avro("width", "height"), avro("width", "height"), encoding=encoding)
    writes = KeyValue(avro("height", "width"), avro("height", "width"), encoding=encoding)
    box = {"width": 1, "height": 2}
    got = await sent(client, writes, (box, box), (box, None), reads=reads)
    assert [each.value() for each in got] == [(box, box), (box, None)]


async def test_the_error_names_the_part_and_its_field(client: encore.Client) -> None:
    other = KeyValue(Json(dict[str, str], definition={"type": "map"}), StringSchema())
    wrong_key, wrong_value = await sent(
        client, other, ({"id": "x"}, '{"name": "a"}'), ({}, "["), reads=inline()
    )
    with pytest.raises(encore.DecodeError) as caught:
        wrong_key.value()
    assert (caught.value.field, caught.value.payload) == ("key.id", b'{"id":"x"}')
    assert caught.value.schema == "KeyValue(Json(Key), Json(Row))"
    lenient = KeyValue(Json(dict[str, Any]), Json(Row))
    with pytest.raises(encore.DecodeError) as caught:
        lenient.decode(wrong_value.data())
    assert caught.value.field == "value"


@pytest.mark.parametrize(
    "data", [b"", b"\0\0", b"\0\0\0\x09x", b"\xff\xff\xff\xfe", b"\0\0\0\0\0\0\0\0left"]
)
async def test_bytes_that_are_no_pair_are_a_decode_error(
    client: encore.Client, data: bytes
) -> None:
    consumer = await client.subscribe("rows", "s", schema=inline())
    async with client.create_producer("rows") as producer:
        await producer.send(data)
    with pytest.raises(encore.DecodeError, match="no inline pair"):
        (await consumer.receive()).value()


async def test_content_that_is_no_pair_is_refused(client: encore.Client) -> None:
    producer = await client.create_producer("rows", schema=separated())
    with pytest.raises(encore.ContentError, match="a tuple of key and value"):
        await producer.send(Row("a"))  # type: ignore[arg-type]
    with pytest.raises(encore.ContentError, match="it must be Row"):
        await producer.send((Key(1), Key(2)))  # type: ignore[arg-type]
    with pytest.raises(encore.ContentError, match="the key of the pair is the partition key"):
        await producer.send((Key(1), Row("a")), partition_key="k")
    async with client.create_producer("inline", schema=inline()) as keyed:
        await keyed.send((Key(1), Row("a")), partition_key="k")


def test_the_schema_has_the_form_of_java() -> None:
    info = separated().schema_info()
    assert (info.kind, info.name) == ("KEY_VALUE", "KeyValue")
    assert info.properties == {
        "kv.encoding.type": "SEPARATED",
        "key.schema.name": "JSON",
        "key.schema.type": "JSON",
        "key.schema.properties": "{}",
        "value.schema.name": "JSON",
        "value.schema.type": "JSON",
        "value.schema.properties": "{}",
    }
    (size,) = struct.unpack_from(">i", info.definition)
    assert json.loads(info.definition[4 : 4 + size])["name"] == "Key"
    assert json.loads(info.definition[8 + size :])["name"] == "Row"
    plain = KeyValue(StringSchema(), BytesSchema()).schema_info()
    assert plain.properties["kv.encoding.type"] == "INLINE"
    assert plain.properties["key.schema.type"] == "STRING"
    assert plain.definition == bytes(8)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(encore.ConfigurationError, match='"inline" or "separated"'):
        KeyValue(Json(Key), Json(Row), encoding="both")  # type: ignore[arg-type]
    with pytest.raises(encore.ConfigurationError, match="register must be"):
        KeyValue(Json(Key), Json(Row), register=1)  # type: ignore[arg-type]
    for part in (None, Key, 3, inline(), encore.AutoConsume()):
        with pytest.raises(encore.ConfigurationError):
            KeyValue(part, Json(Row))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="only a producer"):
        separated().encode((Key(1), Row("a")))
    with pytest.raises(ValueError, match="only a consumer"):
        separated().decode(b"")
    assert inline().decode(inline().encode((Key(1), Row("a")))) == (Key(1), Row("a"))
