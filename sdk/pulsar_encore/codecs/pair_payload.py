"""Key-value pairs on the wire, and their schemas, in the form of Java's `KeyValueSchema`."""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from typing import Final

from ..errors import UnreadableError
from .bound_codec import Payload
from .codec import SchemaInfo

INLINE: Final = "inline"
SEPARATED: Final = "separated"
_ENCODING: Final = "kv.encoding.type"
_SIZE: Final = struct.Struct(">i")
_NULL: Final = -1


def joined(key: bytes | None, value: bytes | None) -> bytes:
    """Return an inline pair: each part after its length, which is -1 for null."""
    return b"".join(
        _SIZE.pack(_NULL) if part is None else _SIZE.pack(len(part)) + part for part in (key, value)
    )


def parts_of(data: bytes) -> tuple[bytes | None, bytes | None]:
    """Return key and value of an inline pair.

    Raises:
        ValueError: if the bytes are no pair.
    """
    key, at = _part(data, 0)
    value, at = _part(data, at)
    if at != len(data):
        raise ValueError("the payload is no inline pair of key and value: bytes are left over")
    return key, value


def _part(data: bytes, at: int) -> tuple[bytes | None, int]:
    if at + _SIZE.size > len(data):
        raise ValueError("the payload is no inline pair of key and value: it is too short")
    (size,) = _SIZE.unpack_from(data, at)
    at += _SIZE.size
    if size == _NULL:
        return None, at
    if not 0 <= size <= len(data) - at:
        raise ValueError(
            f"the payload is no inline pair of key and value: a part has length {size}"
        )
    return data[at : at + size], at + size


def split(raw: Payload, *, separated: bool) -> tuple[bytes | None, bytes | None]:
    """Return the bytes of key and value of a message.

    Raises:
        ValueError: if an inline payload is no pair.
    """
    if separated:
        return _key_of(raw), None if raw.has_null_value() else raw.data()
    return (None, None) if raw.has_null_value() else parts_of(raw.data())


def _key_of(raw: Payload) -> bytes | None:
    try:
        return raw.partition_key_bytes()
    except UnreadableError:
        # The stock transport shows a key of bytes as base64, which every producer of separated
        # pairs but the C++ client sends.
        text = raw.partition_key()
        try:
            return b64decode(text, validate=True)
        except (Base64Error, ValueError):
            return text.encode()


def pair_info(key: SchemaInfo, value: SchemaInfo, *, separated: bool) -> SchemaInfo:
    """Return the KEY_VALUE schema of two schemas."""
    properties = {_ENCODING: (SEPARATED if separated else INLINE).upper()}
    for name, part in (("key", key), ("value", value)):
        properties[f"{name}.schema.name"] = part.name
        properties[f"{name}.schema.type"] = part.kind
        properties[f"{name}.schema.properties"] = json.dumps(dict(part.properties))
    return SchemaInfo("KEY_VALUE", joined(key.definition, value.definition), "KeyValue", properties)


def infos_of(pair: SchemaInfo) -> tuple[SchemaInfo, SchemaInfo, bool]:
    """Return the schemas of key and value of a KEY_VALUE schema, and whether it is separated.

    Raises:
        ValueError: if the schema is malformed.
    """
    key, value = parts_of(pair.definition)
    separated = pair.properties.get(_ENCODING, "INLINE").upper() == SEPARATED.upper()
    infos = (
        SchemaInfo(
            pair.properties.get(f"{name}.schema.type", "BYTES"),
            definition or b"",
            pair.properties.get(f"{name}.schema.name", ""),
            _properties(pair.properties.get(f"{name}.schema.properties")),
        )
        for name, definition in (("key", key), ("value", value))
    )
    return next(infos), next(infos), separated


def _properties(text: str | None) -> Mapping[str, str]:
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}
