"""Schema objects as the protocol has them.

Owns `wire_schema`. Any object that tells of its schema as stock's do will do, and one that has the
protocol's own; nothing of the C++ library is imported for it.
"""

from __future__ import annotations

from typing import Any

from ...errors import ConfigurationError
from ...wire import pulsar_pb2 as pb

# What stock calls otherwise; the rest differs in upper and lower case and in underscores alone.
_WITHOUT_SCHEMA = ("BYTES", "NONE", "AUTO_CONSUME", "AUTO_PUBLISH")


def wire_schema(schema: Any) -> pb.Schema | None:
    """What a broker is told of a schema; None for bytes, which have no schema there.

    Args:
        schema: An object with `schema_info()`, or None.

    Raises:
        ConfigurationError: It is of a type that the protocol does not know.
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
