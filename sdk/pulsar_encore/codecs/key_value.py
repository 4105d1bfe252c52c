"""The codec for key-value pairs: `KeyValue`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

from .. import stock
from ..errors import ConfigurationError, DecodeError
from ..values.type_variables import T
from .bound_codec import Payload, bind
from .codec import Codec, SchemaInfo, normalized
from .decode_errors import codec_name, decode_error
from .pair_payload import INLINE, SEPARATED, infos_of, joined, pair_info, parts_of, split

_K = TypeVar("_K")
_V = TypeVar("_V")

#: Decodes the bytes of one part.
_Decode = Callable[[bytes], Any]


class KeyValue(Generic[T]):
    """Pairs of a key and a value, Pulsar's schema type KEY_VALUE. A value is a tuple of both.

    Connectors such as Debezium write change events as separated pairs, and a deleted row as a key
    without a value.

    Args:
        key: The codec of the key, such as `Json`, `schema.StringSchema()` or `schema.AvroSchema`.
        value: The codec of the value. With ``null=True``, and with the schema classes of
            `pulsar-client`, a null value becomes None; otherwise it is a `DecodeError`. The same
            holds for the key.
        encoding: "inline" has both in the payload, as Java's default. "separated" has the key as
            the partition key of the message, and the value as its payload.
        register: Consumers and readers also register the schema, so that the broker refuses them if
            it is incompatible.

    The stock transport reads pairs, unless a part is in Avro, and cannot write them, because
    `pulsar-client` has no schemas with properties.

    Example:
        ```python
        rows = pulsar_encore.KeyValue(
            pulsar_encore.Json(RowKey), pulsar_encore.Json(Change, null=True), encoding="separated"
        )
        consumer = await client.subscribe("inventory.products", "copy", schema=rows)
        key, change = (await consumer.receive()).value()
        ```
    """

    def __init__(
        self: KeyValue[tuple[_K, _V]],
        key: Codec[_K],
        value: Codec[_V],
        *,
        encoding: Literal["inline", "separated"] = "inline",
        register: bool = False,
    ) -> None:
        if encoding not in (INLINE, SEPARATED):
            raise ConfigurationError(
                f'KeyValue: encoding must be "inline" or "separated", got {encoding!r}'
            )
        if not isinstance(register, bool):
            raise ConfigurationError(f"KeyValue: register must be True or False, got {register!r}")
        for name, part in (("key", key), ("value", value)):
            _check_part(name, part)
        self._key = key
        self._value = value
        self._separated = encoding == SEPARATED
        self.register: bool = register
        #: True if a part is Avro, which needs the schema that it was written with.
        self.needs_writer: bool = _is_avro(key) or _is_avro(value)
        #: True if the stock transport cannot read the values.
        self.native_only: bool = self.needs_writer

    def __repr__(self) -> str:
        encoding = ", encoding='separated'" if self._separated else ""
        return f"KeyValue({_name(self._key)}, {_name(self._value)}{encoding})"

    def encode(self, value: T, /) -> bytes:
        """Return an inline pair as bytes.

        Raises:
            ValueError: with encoding="separated", where the payload is only a half.
        """
        payload, key = self.encode_with_key(value)
        if key is not None or payload is None:
            raise ValueError(f"{self} has its key outside the payload: only a producer sends it")
        return payload

    def decode(self, data: bytes, /) -> T:
        """Return an inline pair.

        Raises:
            DecodeError: if the bytes are no pair, or a part does not decode.
            ValueError: with encoding="separated", where the payload is only a half.
        """
        if self._separated:
            raise ValueError(f"{self} has its key outside the payload: only a consumer reads it")
        return self._pair(data, parts_of(data), _decoder(self._key), _decoder(self._value))

    def encode_with_key(self, pair: Any) -> tuple[bytes | None, bytes | None]:
        """Return the payload, None for a tombstone, and the partition key; None to leave it."""
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(f"it must be a tuple of key and value, not {type(pair).__name__}")
        key, value = _encoded(self._key, pair[0]), _encoded(self._value, pair[1])
        return (value, key) if self._separated else (joined(key, value), None)

    def decode_payload(self, raw: Payload) -> T:
        parts = split(raw, separated=self._separated)
        return self._pair(raw.data(), parts, _decoder(self._key), _decoder(self._value))

    def written_decoder(self, writer: SchemaInfo | None) -> Callable[[Payload], T]:
        """Return the decoder of messages that were written with a schema."""
        if writer is None:
            return self.decode_payload
        if normalized(writer.kind) != "keyvalue":
            raise ValueError(f"the message was written with the schema type {writer.kind}")
        key_writer, value_writer, separated = infos_of(writer)
        key, value = _decoder(self._key, key_writer), _decoder(self._value, value_writer)

        def decode(raw: Payload) -> T:
            return self._pair(raw.data(), split(raw, separated=separated), key, value)

        return decode

    def schema_info(self) -> SchemaInfo:
        """Return the schema to register."""
        return pair_info(_info(self._key), _info(self._value), separated=self._separated)

    def _pair(
        self,
        data: bytes,
        parts: tuple[bytes | None, bytes | None],
        decode_key: _Decode,
        decode_value: _Decode,
    ) -> T:
        key, value = parts
        pair: Any = (
            self._part("key", self._key, key, decode_key, data),
            self._part("value", self._value, value, decode_value, data),
        )
        decoded: T = pair
        return decoded

    def _part(self, name: str, codec: Any, part: bytes | None, decode: _Decode, data: bytes) -> Any:
        if part is None:
            if _allows_null(codec):
                return None
            raise decode_error(
                self,
                data,
                f"there is no {name}. Pass null=True to the codec of the {name} to get None for it",
                name,
            )
        try:
            return decode(part)
        except DecodeError as error:
            field = f"{name}.{error.field}" if error.field else name
            raise decode_error(self, part, error.reason, field) from error
        except MemoryError:
            raise
        except Exception as error:
            raise decode_error(self, part, str(error) or type(error).__name__, name) from error


def _check_part(name: str, part: Any) -> None:
    """Check a codec, also one of `pulsar-client`, as `subscribe` does."""
    if part is None:
        raise ConfigurationError(
            f"KeyValue: {name} must be a codec, got None: use schema.BytesSchema() for bytes"
        )
    bind(part, reads=True)
    if not callable(getattr(part, "decode", None)):
        raise ConfigurationError(f"KeyValue: {type(part).__name__} has no decode()")
    if hasattr(part, "written_decoder"):
        raise ConfigurationError(f"KeyValue: {name} cannot be {part!r}")


def _is_avro(codec: Any) -> bool:
    return stock.is_one(codec, "pulsar.schema.AvroSchema")


def _encoded(codec: Any, value: Any) -> bytes | None:
    return None if value is None else codec.encode(value)


def _decoder(codec: Any, writer: SchemaInfo | None = None) -> _Decode:
    if writer is not None and _is_avro(codec) and normalized(writer.kind) == "avro":
        written = json.loads(writer.definition)
        return lambda data: codec._decode_bytes(data, written)
    decode: _Decode = codec.decode
    return decode


def _allows_null(codec: Any) -> bool:
    return hasattr(codec, "decode_message") or bool(getattr(codec, "null", False))


def _info(codec: Any) -> SchemaInfo:
    describe = getattr(codec, "schema_info", None)
    info = None if describe is None else describe()
    if info is None:
        return SchemaInfo("BYTES")
    if isinstance(info, SchemaInfo):
        return info
    kind = info.schema_type().name
    # `pulsar-client` has the definition "null" for primitive types. Java leaves it out.
    is_structure = kind in ("JSON", "AVRO", "PROTOBUF", "PROTOBUF_NATIVE")
    return SchemaInfo(kind, info.schema().encode() if is_structure else b"", info.name())


def _name(codec: Any) -> str:
    return type(codec).__name__ if hasattr(codec, "decode_message") else codec_name(codec)
