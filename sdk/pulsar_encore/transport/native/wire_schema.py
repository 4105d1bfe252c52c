"""Schema objects, converted for the protocol."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigurationError
from ...wire import pulsar_pb2 as pb

# Types that are sent without a schema.
_WITHOUT_SCHEMA = ("BYTES", "NONE", "AUTO_CONSUME", "AUTO_PUBLISH")


def wire_schema(schema: Any) -> pb.Schema | None:
    """Return the schema to send to a broker; None for bytes, which have no schema there.

    Args:
        schema: An object with the `schema_info()` of `pulsar-client`, or with one that returns a
            `pb.Schema`.
    """
    if schema is None:
        return None
    info = schema.schema_info()
    if isinstance(info, pb.Schema):
        return info
    label = str(info.schema_type().name)
    if label in _WITHOUT_SCHEMA:
        return None
    number = _NUMBERS.get(_normalized(label))
    if number is None:
        raise ConfigurationError(f"schema of type {label}: the protocol has no such type")
    return pb.Schema(name=info.name(), type=number, schema_data=info.schema().encode())


def _normalized(label: str) -> str:
    return label.replace("_", "").lower()


_NUMBERS = {
    _normalized(name): pb.Schema.Type.ValueType(number) for name, number in pb.Schema.Type.items()
}
