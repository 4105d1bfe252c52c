"""The codec that reads every schema: `AutoConsume`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import ConfigurationError
from .bound_codec import Payload
from .codec import SchemaInfo, normalized
from .generic_values import generic_decoder
from .pair_payload import infos_of, split


class AutoConsume:
    """Reads messages of any schema, each with the schema version that it was written with.

    A value is a `GenericRecord` for JSON and AVRO (which needs the extra ``avro``), a protobuf
    message for PROTOBUF_NATIVE, a tuple of key and value for KEY_VALUE, a Python object for the
    primitive types (a datetime, date or time for those of Java), bytes for a message without a
    schema, and None for a message without a value. For consumers and readers only.

    The stock transport does not read KEY_VALUE with this codec, because `pulsar-client` has no
    properties of schemas: use `KeyValue` there.

    Example:
        ```python
        consumer = await client.subscribe("orders", "audit", schema=pulsar_encore.AutoConsume())
        record = (await consumer.receive()).value()
        print(record["id"], record.schema.kind)
        ```
    """

    null: bool = True
    needs_writer: bool = True

    def __repr__(self) -> str:
        return "AutoConsume()"

    def check_use(self, *, reads: bool) -> None:
        if not reads:
            raise ConfigurationError(
                "AutoConsume only reads: pass the schema of the values to create_producer, such as "
                "encore.Json(Order), or no schema to send bytes"
            )

    def encode(self, value: Any, /) -> NoReturn:
        """Raise ConfigurationError: this codec only reads."""
        self.check_use(reads=False)
        raise AssertionError

    def decode(self, data: bytes, /) -> Any:
        """Return bytes as they are, because their schema is not known."""
        return data

    def written_decoder(self, writer: SchemaInfo | None) -> Callable[[Payload], Any]:
        """Return the decoder of messages that were written with a schema."""
        if writer is None:
            return lambda raw: None if raw.has_null_value() else raw.data()
        if normalized(writer.kind) == "keyvalue":
            return _pair_decoder(writer)
        decode = generic_decoder(writer)
        return lambda raw: None if raw.has_null_value() else decode(raw.data())


def _pair_decoder(writer: SchemaInfo) -> Callable[[Payload], Any]:
    if not writer.properties:
        raise ValueError(
            "the stock transport does not show which schemas key and value have: read the pairs "
            "with encore.KeyValue, or use transport='native'"
        )
    key_schema, value_schema, separated = infos_of(writer)
    decode_key, decode_value = generic_decoder(key_schema), generic_decoder(value_schema)

    def decode(raw: Payload) -> tuple[Any, Any] | None:
        if raw.has_null_value() and not separated:
            return None
        key, value = split(raw, separated=separated)
        return (
            None if key is None else decode_key(key),
            None if value is None else decode_value(value),
        )

    return decode
