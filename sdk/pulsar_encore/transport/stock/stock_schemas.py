"""The stock package's schema objects, and the schema information the library is given.

Owns the default: no schema means bytes.
"""

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
    """The `_pulsar.SchemaInfo` of a schema object; that of bytes for None."""
    return BytesSchema().schema_info() if schema is None else schema.schema_info()


def attach(schema: Any, native_client: Any) -> None:
    """Let a schema fetch older versions of itself through the client, where it can."""
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
