"""Schema objects are translated to the protocol's schema with the broker's type numbers."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_encore.errors import ConfigurationError
from pulsar_encore.schema import (
    AvroSchema,
    BytesSchema,
    Integer,
    JsonSchema,
    Record,
    String,
    StringSchema,
)
from pulsar_encore.transport.native.wire_schema import wire_schema
from pulsar_encore.wire import pulsar_pb2 as pb


class Order(Record):  # type: ignore[misc]
    name = String()
    count = Integer()


def schema_of(label: str) -> Any:
    info = SimpleNamespace(
        schema_type=lambda: SimpleNamespace(name=label), name=lambda: "n", schema=lambda: "s"
    )
    return SimpleNamespace(schema_info=lambda: info)


@pytest.mark.parametrize("schema", [None, BytesSchema(), schema_of("AUTO_PUBLISH")])
def test_bytes_have_no_schema(schema: Any) -> None:
    assert wire_schema(schema) is None


@pytest.mark.parametrize(
    ("schema", "number"),
    [
        (StringSchema(), pb.Schema.String),
        (JsonSchema(Order), pb.Schema.Json),
        (AvroSchema(Order), pb.Schema.Avro),
    ],
)
def test_schema_objects_of_the_cpp_client_are_translated(schema: Any, number: int) -> None:
    made = wire_schema(schema)
    assert made is not None
    assert (made.type, made.name) == (number, schema.schema_info().name())
    schema_data = json.loads(made.schema_data)
    assert schema_data == json.loads(schema.schema_info().schema())
    assert schema_data is None or schema_data["name"] == "Order"


@pytest.mark.parametrize(
    ("label", "number"), [("INT8", 6), ("KEY_VALUE", 15), ("PROTOBUF_NATIVE", 20), ("DOUBLE", 11)]
)
def test_every_type_has_the_protocols_number(label: str, number: int) -> None:
    made = wire_schema(schema_of(label))
    assert made == pb.Schema(name="n", type=number, schema_data=b"s")  # type: ignore[arg-type]


def test_a_schema_in_the_protocols_form_is_unchanged() -> None:
    own = pb.Schema(name="n", type=pb.Schema.Json, schema_data=b"{}")
    assert wire_schema(SimpleNamespace(schema_info=lambda: own)) is own


def test_an_unknown_type_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigurationError, match="TELEPATHY"):
        wire_schema(schema_of("TELEPATHY"))
