"""The schema classes of `pulsar-client`, and the schema information for the C++ client."""

from __future__ import annotations

from typing import Any

import _pulsar
from pulsar import schema as classes

from ...codecs.bound_codec import BoundCodec
from ...codecs.codec import SchemaInfo
from ...errors import NotSupportedError


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
    if kind is None or info.properties:
        raise NotSupportedError(
            f"{schema}: the stock transport cannot register a schema of type {info.kind}, because "
            "pulsar-client has no properties of schemas and not every type: use transport='native'"
        )
    return _pulsar.SchemaInfo(kind, info.name, info.definition.decode())


def known_info(info: Any) -> SchemaInfo:
    """Return a schema that the broker has.

    Raises:
        NotSupportedError: if `pulsar-client` does not show the whole of it.
    """
    kind = info.schema_type()
    if kind == _pulsar.SchemaType.KEY_VALUE:
        raise NotSupportedError(
            "pulsar-client does not show which schemas key and value have: read the pairs with "
            "encore.KeyValue, or use transport='native'"
        )
    if kind not in _pulsar.SchemaType.__members__.values():
        raise NotSupportedError(
            f"pulsar-client has no name for this schema type ({int(kind)}): use transport='native'"
        )
    return SchemaInfo(kind.name, info.schema().encode(), info.name())


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
