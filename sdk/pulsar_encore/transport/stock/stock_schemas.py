"""The schema classes of `pulsar-client`, and the schema information for the C++ client."""

from __future__ import annotations

from typing import Any

from pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    Bytes,
    BytesSchema,
    CustomEnum,
    Double,
    Field,
    Float,
    Integer,
    JsonSchema,
    Long,
    Map,
    Null,
    ProtobufNativeSchema,
    Record,
    Schema,
    String,
    StringSchema,
)


def schema_info(schema: Any) -> Any:
    return BytesSchema().schema_info() if schema is None else schema.schema_info()


def attach(schema: Any, native_client: Any) -> None:
    """Attach the client to a schema that can fetch older versions of itself."""
    if schema is not None and hasattr(schema, "attach_client"):
        schema.attach_client(native_client)


__all__ = [
    "Array",
    "AvroSchema",
    "Boolean",
    "Bytes",
    "BytesSchema",
    "CustomEnum",
    "Double",
    "Field",
    "Float",
    "Integer",
    "JsonSchema",
    "Long",
    "Map",
    "Null",
    "ProtobufNativeSchema",
    "Record",
    "Schema",
    "String",
    "StringSchema",
    "attach",
    "schema_info",
]
