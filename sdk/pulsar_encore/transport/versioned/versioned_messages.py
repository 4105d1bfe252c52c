"""Messages that decode their value with the schema they were written with.

This is for codecs that need it, and for the Avro schemas of `pulsar-client`, which accept a
writer's schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeGuard

from ... import stock
from ...codecs.bound_codec import BoundCodec
from ...errors import SchemaVersionError
from ...message import RawMessage
from ...values.crypto_keys import ContextFields
from ...values.message_id import MessageId
from ...values.topic_names import base_name
from .writer_schemas import Version, WriterSchemas


def has_versions(schema: Any) -> bool:
    """Return True if values of `schema` can only be decoded with their writer's version.

    False for a subclass with its own `decode_message`, which finds the schema itself.
    """
    return needs_writer(schema) or (
        stock.is_one(schema, "pulsar.schema.AvroSchema")
        and type(schema).decode_message.__qualname__ == "AvroSchema.decode_message"
    )


def needs_writer(schema: Any) -> TypeGuard[BoundCodec]:
    return isinstance(schema, BoundCodec) and schema.needs_writer


class SchemaVersions:
    """Decodes values of any schema version with one reader's schema."""

    def __init__(self, schema: Any, writers: WriterSchemas) -> None:
        self._schema = schema
        self._codec: BoundCodec | None = schema if needs_writer(schema) else None
        self._writers = writers
        self._parsed: dict[Version, dict[str, Any]] = {}
        self._decoders: dict[Version | None, Callable[[RawMessage], Any]] = {}
        self.lacks: Callable[[Version | None], bool] = writers.lacks
        self.deleted: Callable[[str], None] = writers.deleted
        self.fetch: Callable[[Version], Coroutine[Any, Any, None]] = writers.fetch

    def view(
        self, topic: str, messages: Sequence[RawMessage]
    ) -> tuple[Version | None, list[RawMessage]]:
        """Return the version to fetch first, or None, and the messages of an entry bound to it.

        An entry without values does not wait for a schema, except that keys may need it.
        """
        number = messages[0].int_schema_version()
        version = self._writers.version(base_name(topic), number) if number >= 0 else None
        if version is not None and self._codec is None:
            if all(each.has_null_value() for each in messages):
                version = None
        return version, [VersionedMessage(each, self, version) for each in messages]

    def decode(self, message: RawMessage, version: Version | None) -> Any:
        if self._codec is not None:
            decode = self._decoders.get(version)
            if decode is None:
                written = None if version is None else self._writers.definition(version)
                decode = self._decoders[version] = self._codec.written_decoder(written)
            return decode(message)
        if version is None:  # written as bytes
            return self._schema.decode(message.data())
        writer = self._parsed.get(version)
        if writer is None:
            writer = self._parsed[version] = self._avro(version)
        return self._schema._decode_bytes(message.data(), writer)

    def _avro(self, version: Version) -> dict[str, Any]:
        schema = self._writers.definition(version)
        if schema.kind.upper() != "AVRO":
            topic, number, _ = version
            raise SchemaVersionError(
                f"schema version {number} of {topic}, with which the message was written, is of "
                f"type {schema.kind}, not AVRO: data() has the bytes",
                result="IncompatibleSchema",
            )
        definition: dict[str, Any] = json.loads(schema.definition)
        return definition


class VersionedMessage:
    """A message that decodes its value by its own schema version (`RawMessage`)."""

    __slots__ = ("_raw", "_version", "_versions")

    def __init__(self, raw: RawMessage, versions: SchemaVersions, version: Version | None) -> None:
        self._raw = raw
        self._versions = versions
        self._version = version

    @property
    def id_class(self) -> type[MessageId]:
        return getattr(self._raw, "id_class", MessageId)

    def value(self) -> Any:
        """Return the decoded payload.

        Raises:
            SchemaVersionError: if the version that it was written with is not known.
        """
        return self._versions.decode(self._raw, self._version)

    async def fetch_schema(self) -> None:
        """Fetch the version that it was written with, if the last fetch has failed."""
        if self._version is not None and self._versions.lacks(self._version):
            await self._versions.fetch(self._version)

    def data(self) -> bytes:
        return self._raw.data()

    def length(self) -> int:
        return self._raw.length()

    def properties(self) -> dict[str, str]:
        return self._raw.properties()

    def partition_key(self) -> str:
        return self._raw.partition_key()

    def partition_key_bytes(self) -> bytes | None:
        return self._raw.partition_key_bytes()

    def ordering_key(self) -> str:
        return self._raw.ordering_key()

    def ordering_key_bytes(self) -> bytes | None:
        return self._raw.ordering_key_bytes()

    def publish_timestamp(self) -> int:
        return self._raw.publish_timestamp()

    def event_timestamp(self) -> int:
        return self._raw.event_timestamp()

    def topic_name(self) -> str:
        return self._raw.topic_name()

    def schema_version(self) -> str:
        return self._raw.schema_version()

    def int_schema_version(self) -> int:
        return self._raw.int_schema_version()

    def producer_name(self) -> str:
        return self._raw.producer_name()

    def sequence_id(self) -> int | None:
        return self._raw.sequence_id()

    def has_null_value(self) -> bool:
        return self._raw.has_null_value()

    def encryption_context(self) -> ContextFields | None:
        return self._raw.encryption_context()
