"""Which schema a message was written with: fetched before the message is handed out.

Owns `WriterSchemas`. Bytes of Avro say nothing without their writer's schema, and with another one
they decode to wrong values without a word. The stock package fetches a version when the first value
is decoded, which blocks, and when that fails it goes on with the reader's schema; here a version is
fetched on a thread, once, and a value whose version is not known is an error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

import _pulsar
from pulsar.schema import AvroSchema

from ...errors import SchemaVersionError, TransportTimeout
from ...exceptions import IncompatibleSchema
from ...message import RawMessage
from ...topic_names import base_name
from .calls import in_thread

#: A topic, without its partition, and a version of its schema.
Version = tuple[str, int]

#: Longest that messages are held back for their schema; after it they go without, and a value is
#: an error until the schema is here.
WAIT_S: Final = 15.0
_AGAIN_S: Final = 5.0  # how long a failed fetch is not tried again


def has_versions(schema: Any) -> bool:
    """Whether values of `schema` can only be decoded with the version they were written with."""
    return isinstance(schema, AvroSchema) and (
        type(schema).decode_message is AvroSchema.decode_message
    )


class WriterSchemas:
    """The schema versions of one client's topics. On any event loop.

    Args:
        native_client: The `_pulsar.Client` that fetches.
    """

    def __init__(self, native_client: Any) -> None:
        self._native = native_client
        self._known: dict[Version, str] = {}
        self._failed: dict[Version, tuple[float, Exception]] = {}
        # An event loop waits for its own tasks only.
        self._fetching: dict[tuple[Version, asyncio.AbstractEventLoop], asyncio.Task[None]] = {}

    def lacks(self, version: Version | None) -> bool:
        """Whether it has to be fetched, now or again."""
        if version is None or version in self._known:
            return False
        failed = self._failed.get(version)
        return failed is None or failed[0] + _AGAIN_S <= asyncio.get_running_loop().time()

    async def fetch(self, version: Version) -> None:
        """Wait until it is known, or cannot be had; it goes on when the caller is cancelled."""
        at = (version, asyncio.get_running_loop())
        task = self._fetching.get(at)
        if task is None:
            task = self._fetching[at] = asyncio.create_task(self._fetch(version))
            task.add_done_callback(lambda _: self._fetching.pop(at))
        await asyncio.wait((task,), timeout=WAIT_S)
        if not task.done():
            self._fail(version, TransportTimeout(f"no answer in {WAIT_S:g} s"))

    async def _fetch(self, version: Version) -> None:
        topic, number = version
        try:
            info = await in_thread(
                partial(self._native.get_schema_info, topic, number),
                f"get schema version {number} of {topic}",
            )
            if info.schema_type() != _pulsar.SchemaType.AVRO:
                raise IncompatibleSchema(f"it is of type {info.schema_type().name}, not AVRO")
            self._known[version] = info.schema()
            self._failed.pop(version, None)
        except Exception as error:
            self._fail(version, error)

    def _fail(self, version: Version, error: Exception) -> None:
        self._failed[version] = (asyncio.get_running_loop().time(), error)

    def definition(self, version: Version) -> str:
        """A version, as JSON.

        Raises:
            SchemaVersionError: It is not known.
        """
        known = self._known.get(version)
        if known is not None:
            return known
        topic, number = version
        _, error = self._failed.get(version, (0.0, None))
        raise SchemaVersionError(
            f"schema version {number} of {topic}, with which the message was written, could not "
            f"be fetched{f' ({error})' if error else ''}: nack the message, it is tried again when "
            "it comes back; data() has the bytes",
            result=getattr(error, "result", "UnknownError"),
            retryable=True,
        ) from error


class SchemaVersions:
    """Decodes with one reader's schema what was written with any version.

    Args:
        schema: The reader's.
        writers: The versions of its client.
    """

    def __init__(self, schema: AvroSchema, writers: WriterSchemas) -> None:
        self._schema = schema
        self._writers = writers
        self._parsed: dict[Version, dict[str, Any]] = {}
        self.lacks: Callable[[Version | None], bool] = writers.lacks
        self.fetch: Callable[[Version], Coroutine[Any, Any, None]] = writers.fetch

    def view(
        self, topic: str, messages: Sequence[RawMessage]
    ) -> tuple[Version | None, list[RawMessage]]:
        """The version of an entry's messages, None without one; and the messages, decoding by it.

        Args:
            topic: Or a partition of it.
            messages: Of one entry, which has one version.
        """
        number = messages[0].int_schema_version()
        version = (base_name(topic), number) if number >= 0 else None
        return version, [VersionedMessage(each, self, version) for each in messages]

    def decode(self, message: RawMessage, version: Version | None) -> Any:
        """The value of a message.

        Raises:
            SchemaVersionError: Its version is not known.
        """
        if version is None:  # written as bytes: there is no other schema than the reader's
            return self._schema.decode(message.data())
        writer = self._parsed.get(version)
        if writer is None:
            writer = self._parsed[version] = json.loads(self._writers.definition(version))
        return self._schema._decode_bytes(message.data(), writer)


class VersionedMessage:
    """A native message that decodes its value by its own schema version (`RawMessage`)."""

    __slots__ = ("_native", "_version", "_versions")

    def __init__(
        self, native: RawMessage, versions: SchemaVersions, version: Version | None
    ) -> None:
        self._native = native
        self._versions = versions
        self._version = version

    def value(self) -> Any:
        return self._versions.decode(self._native, self._version)

    def data(self) -> bytes:
        return self._native.data()

    def length(self) -> int:
        return self._native.length()

    def properties(self) -> dict[str, str]:
        return self._native.properties()

    def partition_key(self) -> str:
        return self._native.partition_key()

    def ordering_key(self) -> str:
        return self._native.ordering_key()

    def publish_timestamp(self) -> int:
        return self._native.publish_timestamp()

    def event_timestamp(self) -> int:
        return self._native.event_timestamp()

    def topic_name(self) -> str:
        return self._native.topic_name()

    def schema_version(self) -> str:
        return self._native.schema_version()

    def int_schema_version(self) -> int:
        return self._native.int_schema_version()

    def producer_name(self) -> str:
        return self._native.producer_name()

    def has_null_value(self) -> bool:
        return self._native.has_null_value()

    def encryption_context(self) -> Any:
        return self._native.encryption_context()
