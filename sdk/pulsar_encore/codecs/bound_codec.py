"""Schemas of options: a codec as producers, messages and transports use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .. import stock
from ..errors import ConfigurationError, DecodeError
from .codec import SchemaInfo
from .decode_errors import codec_name, decode_error

_SCHEMA_METHODS = ("encode", "decode_message", "schema_info")
_CODEC_METHODS = ("encode", "decode")


class Payload(Protocol):
    """The part of a `RawMessage` that codecs read."""

    def data(self) -> bytes: ...
    def has_null_value(self) -> bool: ...
    def partition_key(self) -> str: ...
    def partition_key_bytes(self) -> bytes | None: ...


class BoundCodec:
    """A codec in the form of the schema classes of `pulsar-client`.

    Args:
        registers: The broker gets the schema of the codec.
    """

    def __init__(self, codec: Any, *, registers: bool) -> None:
        self._codec = codec
        self._null: bool = getattr(codec, "null", False)
        self._decode_payload = getattr(codec, "decode_payload", None)
        self._info: Any = None
        #: Returns payload and partition key of a value, for a codec that sets the key; else None.
        self.encode_with_key: Any = getattr(codec, "encode_with_key", None)
        #: True if values need the schema that they were written with (`written_decoder`).
        self.needs_writer: bool = getattr(codec, "needs_writer", False)
        #: True if the stock transport cannot read the values.
        self.native_only: bool = getattr(codec, "native_only", False)
        describe = getattr(codec, "schema_info", None)
        if registers and describe is not None:
            self._info = describe()

    def __repr__(self) -> str:
        return codec_name(self._codec)

    def schema_info(self) -> Any:
        """Return the schema for the broker; None to send none."""
        return self._info

    def encode(self, value: Any) -> bytes:
        encoded: bytes = self._codec.encode(value)
        return encoded

    def decode_message(self, raw: Payload) -> Any:
        """Return the value of a message that has one.

        Raises:
            DecodeError: if the payload does not decode.
        """
        try:
            if self._decode_payload is not None:
                return self._decode_payload(raw)
            return self._codec.decode(raw.data())
        except (DecodeError, MemoryError):
            raise
        except Exception as error:
            raise self._error(raw, error) from error

    def _error(self, raw: Payload, error: Exception) -> DecodeError:
        return decode_error(self._codec, raw.data(), str(error) or type(error).__name__)

    def decode_null(self, raw: Payload) -> Any:
        """Return the value of a message without a payload.

        Raises:
            DecodeError: if the codec has no value for that.
        """
        versioned = getattr(raw, "value", None)
        if versioned is not None:
            return versioned()
        if self._decode_payload is not None:
            return self.decode_message(raw)
        if self._null:
            return None
        raise decode_error(
            self._codec,
            b"",
            "the message has no value (a tombstone). Pass null=True to the codec, or set its "
            "attribute null, to get None for it",
        )

    def written_decoder(self, writer: SchemaInfo | None) -> Callable[[Payload], Any]:
        """Return the decoder of messages that were written with a schema, also without a value.

        Args:
            writer: The schema; None for messages without one.
        """
        try:
            decode: Callable[[Payload], Any] = self._codec.written_decoder(writer)
        except Exception as error:
            cause = error

            def fail(raw: Payload) -> Any:
                raise self._error(raw, cause) from cause

            return fail

        def decode_written(raw: Payload) -> Any:
            try:
                return decode(raw)
            except (DecodeError, MemoryError):
                raise
            except Exception as error:
                raise self._error(raw, error) from error

        return decode_written


def bind(schema: Any, *, reads: bool) -> Any:
    """Return the schema of an option in the form of `pulsar-client`, or None.

    Args:
        schema: A codec, a schema class of `pulsar-client` or one of the same form.
        reads: For a consumer or a reader, which registers only if the codec has `register`.

    Raises:
        ConfigurationError: if it is neither a codec nor a schema.
    """
    if schema is None or isinstance(schema, BoundCodec):
        return schema
    if isinstance(schema, type):
        raise _class_error(schema)
    if all(callable(getattr(schema, each, None)) for each in _SCHEMA_METHODS):
        # An object of `pulsar-client` was made without this check.
        for kind in ("JsonSchema", "AvroSchema"):
            if stock.is_one(schema, f"pulsar.schema.{kind}"):
                check_record(kind, getattr(schema, "_record_cls", None))
        return schema
    for method in _CODEC_METHODS:
        if not callable(getattr(schema, method, None)):
            raise ConfigurationError(
                "schema must be a codec such as encore.Json(Order), with the methods encode and "
                f"decode, or a schema object such as StringSchema(); {type(schema).__name__} has "
                f"no {method}()"
            )
    check = getattr(schema, "check_use", None)
    if check is not None:
        check(reads=reads)
    return BoundCodec(schema, registers=not reads or bool(getattr(schema, "register", False)))


def _class_error(schema: type) -> ConfigurationError:
    name = schema.__name__
    if all(hasattr(schema, each) for each in _SCHEMA_METHODS) or (
        all(hasattr(schema, each) for each in _CODEC_METHODS)
    ):
        return ConfigurationError(f"schema must be an instance: write {name}(...), not {name}")
    return ConfigurationError(
        "schema must be a codec such as encore.Json(Order) or a schema object such as "
        f"StringSchema(), got the class {name}, which is no schema: write encore.Json({name}) for "
        "JSON"
    )


def check_record(schema: str, model: Any) -> None:
    """Raise ConfigurationError if a schema of `pulsar-client` gets a class that is no `Record`.

    Args:
        schema: "JsonSchema" or "AvroSchema".
        model: The class; None for an `AvroSchema` with a definition.
    """
    if stock.is_subclass(model, "pulsar.schema.Record"):
        return
    if model is None and schema == "AvroSchema":
        return
    needs = f"{schema} needs a class derived from pulsar_encore.schema.Record"
    if not isinstance(model, type):
        kind = type(model).__name__
        raise ConfigurationError(
            f"{needs}, got an object of the class {kind}: write {schema}({kind})"
            if stock.is_one(model, "pulsar.schema.Record")
            else f"{needs}, got {model!r}: write {schema}(Order)"
        )
    name = model.__name__
    way_out = f"use encore.Json({name})"
    if schema == "AvroSchema":
        way_out += " for JSON, declare a Record, or write a codec with encode and decode"
    raise ConfigurationError(f"{needs}, and {name} is not one: {way_out}")
