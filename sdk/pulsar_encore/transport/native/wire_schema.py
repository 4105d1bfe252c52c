"""Schema objects, converted for the protocol."""

from __future__ import annotations

import re
from typing import Any

from ...codecs.codec import SchemaInfo, normalized
from ...errors import ConfigurationError
from ...wire import pulsar_pb2 as pb

_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
# Types that are sent without a schema.
_WITHOUT_SCHEMA = ("BYTES", "NONE", "AUTO_CONSUME", "AUTO_PUBLISH")


def wire_schema(schema: Any) -> pb.Schema | None:
    """Return the schema to send to a broker; None for bytes, which have no schema there.

    Args:
        schema: An object with the `schema_info()` of `pulsar-client`, or with one that returns a
            `SchemaInfo`, a `pb.Schema`, or None for no schema.
    """
    if schema is None:
        return None
    info = schema.schema_info()
    if info is None or isinstance(info, pb.Schema):
        return info
    if not isinstance(info, SchemaInfo):
        info = SchemaInfo(info.schema_type().name, info.schema().encode(), info.name())
    if info.kind in _WITHOUT_SCHEMA:
        return None
    number = _NUMBERS.get(normalized(info.kind))
    if number is None:
        raise ConfigurationError(f"schema of type {info.kind}: the protocol has no such type")
    wire = pb.Schema(name=info.name, type=number, schema_data=info.definition)
    for key, value in info.properties.items():
        wire.properties.add(key=key, value=value)
    return wire


def known_info(schema: pb.Schema) -> SchemaInfo:
    """Return a schema of the protocol as a `SchemaInfo`."""
    properties = {each.key: each.value for each in schema.properties}
    # "KeyValue" is KEY_VALUE in the other interfaces of Pulsar, and "Bool" is BOOLEAN.
    kind = _CAPITAL.sub("_", pb.Schema.Type.Name(schema.type)).upper()
    kind = {"BOOL": "BOOLEAN"}.get(kind, kind)
    return SchemaInfo(kind, schema.schema_data, schema.name, properties)


_NUMBERS = {
    normalized(name): pb.Schema.Type.ValueType(number) for name, number in pb.Schema.Type.items()
}
