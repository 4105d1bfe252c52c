"""The schema classes of `pulsar-client`, and the schema information for the C++ client."""

from __future__ import annotations

from typing import Any, Final

import _pulsar
from pulsar import schema as classes

from ...codecs.bound_codec import BoundCodec
from ...codecs.codec import SchemaInfo
from ...errors import NotSupportedError

#: Numbers of schema types for which `pulsar-client` has no name.
_UNNAMED_TYPES: Final = {
    5: "BOOLEAN",
    12: "DATE",
    13: "TIME",
    14: "TIMESTAMP",
    16: "INSTANT",
    17: "LOCAL_DATE",
    18: "LOCAL_TIME",
    19: "LOCAL_DATE_TIME",
}


def schema_info(schema: Any) -> Any:
    """Return the `_pulsar.SchemaInfo` of a schema object; that of bytes for no schema.

    Raises:
        NotSupportedError: if the C++ client cannot pass the schema on.
    """
    info = None if schema is None else schema.schema_info()
    if info is None:
        return classes.BytesSchema().schema_info()
    if not isinstance(info, SchemaInfo):
        return info
    kind = _pulsar.SchemaType.__members__.get(info.kind)
    # The C++ client ends the process at a KEY_VALUE schema without properties.
    if kind is None or kind == _pulsar.SchemaType.KEY_VALUE or info.properties:
        raise NotSupportedError(
            f"{schema}: the stock transport cannot register a schema of type {info.kind}, because "
            "pulsar-client has no properties of schemas and not every type: use transport='native'"
        )
    return _pulsar.SchemaInfo(kind, info.name, info.definition.decode())


def known_info(info: Any) -> SchemaInfo:
    """Return a schema that the broker has; that of pairs has neither definition nor properties."""
    kind = info.schema_type()
    if kind == _pulsar.SchemaType.KEY_VALUE:
        # The definition is not UTF-8, so `schema()` fails, and the binding has no properties.
        return SchemaInfo(kind.name, name=info.name())
    label = _UNNAMED_TYPES.get(int(kind), kind.name)
    return SchemaInfo(label, info.schema().encode(), info.name())


def check_readable(schema: Any) -> None:
    """Raise NotSupportedError if values of a codec cannot be read on this transport."""
    if isinstance(schema, BoundCodec) and schema.native_only:
        raise NotSupportedError(
            f"{schema}: the stock transport cannot read Avro in key-value pairs, because "
            "pulsar-client does not show their schemas: use transport='native'"
        )


def attach(schema: Any, native_client: Any) -> None:
    """Attach the client to a schema that can fetch older versions of itself."""
    if schema is not None and hasattr(schema, "attach_client"):
        schema.attach_client(native_client)
