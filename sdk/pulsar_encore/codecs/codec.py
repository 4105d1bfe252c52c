"""The interface of codecs, and schemas as brokers store them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ..values.type_variables import T


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """A schema as brokers store it.

    Attributes:
        kind: The schema type in Pulsar's spelling, such as ``"JSON"``, ``"AVRO"`` or
            ``"KEY_VALUE"``.
        definition: The definition; for JSON and AVRO an Avro schema in JSON.
        name: The name of the schema; brokers do not compare it.
        properties: Further data, such as the encoding of a KEY_VALUE schema.
    """

    kind: str
    definition: bytes = b""
    name: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


def normalized(kind: str) -> str:
    """Return a schema type in one spelling: "keyvalue" for ``KEY_VALUE`` and ``KeyValue``."""
    return kind.replace("_", "").lower().replace("boolean", "bool")


class Codec(Protocol[T]):
    """Encodes the objects of an application as payloads, and decodes them again.

    Any object with these two methods can be the `schema=` of a producer, a consumer or a reader.
    Three more attributes are optional:

    - `schema_info()` returns the `SchemaInfo` that producers register. Without it, messages have no
      schema for the broker.
    - `register`, a bool: True if consumers and readers register the schema, too.
    - `null`, a bool: True if a message without a value is the value None. Otherwise it is a
      `DecodeError`.

    An exception of `decode` is raised by `Message.value` as a `DecodeError`.

    Example:
        ```python
        class OrderCodec:
            def encode(self, value: Order) -> bytes:
                return value.SerializeToString()

            def decode(self, data: bytes) -> Order:
                return Order.FromString(data)

        consumer = await client.subscribe("orders", "billing", schema=OrderCodec())
        ```
    """

    def encode(self, value: T, /) -> bytes:
        """Return the payload of a value."""

    def decode(self, data: bytes, /) -> T:
        """Return the value of a payload, or raise an exception."""
