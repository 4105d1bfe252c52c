"""Values of a schema that is known at run time only, as `AutoConsume` reads them."""

from __future__ import annotations

import datetime as dt
import json
import struct
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import Any, Final, TypeAlias

from .codec import SchemaInfo, normalized

Decode: TypeAlias = Callable[[bytes], Any]

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY: Final = dt.date(1970, 1, 1)
_NS_PER_US: Final = 1000


class GenericRecord(Mapping[str, Any]):
    """A record of a schema that the program does not know: a mapping of field names to values.

    Records inside it are dicts.

    Attributes:
        schema: The schema that the message was written with.
    """

    __slots__ = ("_values", "schema")

    def __init__(self, values: Mapping[str, Any], schema: SchemaInfo) -> None:
        self._values = values
        self.schema: SchemaInfo = schema

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"GenericRecord({self._values!r})"


def generic_decoder(schema: SchemaInfo) -> Decode:
    """Return the decoder of a schema that is not of key-value pairs.

    Raises:
        ValueError: if values of the schema cannot be decoded.
    """
    kind = normalized(schema.kind)
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    if kind == "json":
        return lambda data: _record(json.loads(data), schema)
    if kind == "avro":
        return _avro(schema)
    if kind == "protobufnative":
        return _protobuf(schema)
    raise ValueError(
        f"AutoConsume does not read the schema type {schema.kind}; data() has the bytes"
    )


def _record(value: Any, schema: SchemaInfo) -> Any:
    return GenericRecord(value, schema) if isinstance(value, dict) else value


def _avro(schema: SchemaInfo) -> Decode:
    try:
        import fastavro
    except ImportError as error:
        raise ValueError(
            "Avro needs fastavro: install pulsar-encore with the extra avro"
        ) from error
    parsed = fastavro.parse_schema(json.loads(schema.definition))

    def decode(data: bytes) -> Any:
        buffer = BytesIO(data)
        value = fastavro.schemaless_reader(buffer, parsed, None)
        if buffer.tell() != len(data):
            raise ValueError("bytes are left over after the Avro value")
        return _record(value, schema)

    return decode


def _protobuf(schema: SchemaInfo) -> Decode:
    """Return the decoder of PROTOBUF_NATIVE. Its definition has the descriptors."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    definition = json.loads(schema.definition)
    files = descriptor_pb2.FileDescriptorSet.FromString(b64decode(definition["fileDescriptorSet"]))
    pool = descriptor_pool.DescriptorPool()
    waiting = {each.name: each for each in files.file}

    def add(name: str) -> None:
        file = waiting.pop(name, None)
        if file is not None:
            for needed in file.dependency:
                add(needed)
            pool.Add(file)

    for name in list(waiting):
        add(name)
    found = pool.FindMessageTypeByName(definition["rootMessageTypeName"])
    message_class = message_factory.GetMessageClass(found)
    return lambda data: message_class.FromString(data)


def _unpack(form: str) -> Decode:
    packed = struct.Struct(form)

    def unpack(data: bytes) -> Any:
        values = packed.unpack(data)
        return values[0] if len(values) == 1 else values

    return unpack


_long: Final = _unpack(">q")
_pair: Final = _unpack(">qq")
_instant: Final = _unpack(">qi")


def _timestamp(data: bytes) -> dt.datetime:
    return _EPOCH + dt.timedelta(milliseconds=_long(data))


def _instant_value(data: bytes) -> dt.datetime:
    seconds, nanos = _instant(data)
    return _EPOCH + dt.timedelta(seconds=seconds, microseconds=nanos // _NS_PER_US)


def _time_of_day(nanos: int) -> dt.time:
    return (_EPOCH + dt.timedelta(microseconds=nanos // _NS_PER_US)).time()


def _local_datetime(data: bytes) -> dt.datetime:
    days, nanos = _pair(data)
    return dt.datetime.combine(_EPOCH_DAY + dt.timedelta(days=days), _time_of_day(nanos))


#: Decoders by the normalized type, as Java's primitive schemas write them.
_PRIMITIVES: Final[dict[str, Decode]] = {
    "none": lambda data: data,
    "bytes": lambda data: data,
    "string": lambda data: data.decode(),
    "bool": _unpack(">?"),
    "int8": _unpack(">b"),
    "int16": _unpack(">h"),
    "int32": _unpack(">i"),
    "int64": _long,
    "float": _unpack(">f"),
    "double": _unpack(">d"),
    "date": _timestamp,
    "time": lambda data: _timestamp(data).time(),
    "timestamp": _timestamp,
    "instant": _instant_value,
    "localdate": lambda data: _EPOCH_DAY + dt.timedelta(days=_long(data)),
    "localtime": lambda data: _time_of_day(_long(data)),
    "localdatetime": _local_datetime,
}
