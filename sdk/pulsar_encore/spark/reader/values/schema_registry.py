"""The schemas that brokers keep for topics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import cache
from struct import Struct
from typing import Any, Final, NamedTuple

from ....client import Client, transport_of
from ....errors import ConfigurationError, TopicNotFound
from ....transport.interface import Transport
from ....values.topic_names import base_name
from ....wire import pulsar_pb2 as pb
from ...connection_options import ConnectionOptions
from ...runtime import runtime
from ...source_options import ReadOptions
from .primitives import FIXED
from .value_plan import RAW, ValueForm, ValuePlan

_LENGTH: Final = Struct(">i")
_FETCH_TIMEOUT_S: Final = 60.0
# A few types have another name in a pair.
_NAMES: Final = {"boolean": "bool", "none": "bytes"}
_RECORDS: Final = ("avro", "json")


class Registered(NamedTuple):
    """A schema as the broker stores it.

    `kind` is lower-cased and without underscores, such as "keyvalue". `properties` of a pair has
    the types of its halves.
    """

    kind: str
    data: bytes
    properties: Mapping[str, str]

    @property
    def meaning(self) -> tuple[Any, ...]:
        """Equal for schemas with the same meaning."""
        if self.kind in _RECORDS:
            return self.kind, _json(self.data)
        if self.kind == "keyvalue":
            key, value, separated = halves(self)
            return key.meaning, value.meaning, separated
        return (self.kind,)


def registered_schema(known: Any) -> Registered:
    info = known.schema_info()
    if isinstance(info, pb.Schema):
        kind = pb.Schema.Type.Name(info.type)
        properties = {each.key: each.value for each in info.properties}
        return Registered(_plain(kind), info.schema_data, properties)
    return Registered(_plain(info.schema_type().name), info.schema().encode(), {})


def _plain(kind: str) -> str:
    found = kind.replace("_", "").lower()
    return _NAMES.get(found, found)


def _json(data: bytes) -> str:
    try:
        return json.dumps(json.loads(data), sort_keys=True)
    except ValueError:
        return data.decode(errors="replace")


def halves(pair: Registered) -> tuple[Registered, Registered, bool]:
    """Return the schemas of key and value, and whether the key is the partition key."""
    found = []
    at = 0
    for half in ("key", "value"):
        if at + _LENGTH.size > len(pair.data):
            raise ValueError("its definition ends too early")
        (length,) = _LENGTH.unpack_from(pair.data, at)
        at += _LENGTH.size
        kind = _plain(pair.properties.get(f"{half}.schema.type", "bytes"))
        found.append(Registered(kind, pair.data[at : at + max(0, length)], {}))
        at += max(0, length)
    separated = pair.properties.get("kv.encoding.type", "").upper() == "SEPARATED"
    return found[0], found[1], separated


async def plan_of_registry(client: Client, options: ReadOptions) -> ValuePlan:
    """Return how values are decoded by the latest schemas of the topics; raw without a schema."""
    transport = transport_of(client)
    topics = options.topics.names
    if options.topics.pattern is not None:
        found = await transport.topics_matching(options.topics.pattern)
        topics = tuple(found)
    names = list(dict.fromkeys(map(base_name, topics)))
    answers = await asyncio.gather(*(_latest(transport, each) for each in names))
    schemas = dict(zip(names, answers, strict=True))
    if not schemas:
        return ValuePlan(mode=options.shape.mode)
    first, schema = next(iter(schemas.items()))
    for topic, other in schemas.items():
        if (schema and schema.meaning) != (other and other.meaning):
            if options.shape.mixed_schemas:
                return ValuePlan(mode=options.shape.mode)
            raise ConfigurationError(
                f"valueFormat=schema: {first} and {topic} have different schemas "
                f"({_kind_name(schema)} and {_kind_name(other)}): read them one by one, or set "
                "allowDifferentTopicSchemas=true for raw values"
            )
    return _plan(schema, first, options.shape.mode)


async def _latest(transport: Transport, topic: str) -> Registered | None:
    known = await transport.latest_schema(topic)
    return None if known is None else registered_schema(known)


def _kind_name(schema: Registered | None) -> str:
    return "none" if schema is None else schema.kind.upper()


def _plan(schema: Registered | None, topic: str, mode: str) -> ValuePlan:
    if schema is None:
        return ValuePlan(mode=mode)
    if schema.kind != "keyvalue":
        return ValuePlan(value=_form(schema, topic), mode=mode)
    try:
        key, value, separated = halves(schema)
    except ValueError as error:
        raise ConfigurationError(f"the schema of {topic} is no pair: {error}") from error
    return ValuePlan(
        value=_form(value, topic), mode=mode, key=_form(key, topic), separated=separated
    )


def _form(schema: Registered, topic: str) -> ValueForm:
    if schema.kind in _RECORDS:
        return ValueForm(kind=schema.kind, definition=schema.data.decode(errors="replace"))
    if schema.kind == "bytes":
        return RAW
    if schema.kind == "string" or schema.kind in FIXED:
        return ValueForm(kind=schema.kind)
    raise ConfigurationError(
        f"valueFormat=schema: {topic} has a schema of type {schema.kind.upper()}, whose values are "
        "read raw only: set valueFormat=raw"
    )


def writer_texts(
    connection: ConnectionOptions, topic: str
) -> tuple[Callable[[int], str], Callable[[int], str], Callable[[int], str]]:
    """Return functions that find Avro's JSON of a version: of values, pairs' keys, pairs' values.

    Each task fetches a version once. A cache per process would be wrong: Spark uses the worker
    processes for many queries, and a topic that was deleted and created again has other schemas
    with the same version numbers.
    """
    base = base_name(topic)

    @cache
    def find(version: int) -> Registered:
        found = fetch_schema(connection, base, version)
        if found is None:
            raise ValueError(f"schema version {version} of {base} does not exist any more")
        return found

    return (
        lambda version: _text(find(version), version),
        lambda version: _text(halves(find(version))[0], version),
        lambda version: _text(halves(find(version))[1], version),
    )


def _text(schema: Registered, version: int) -> str:
    if schema.kind != "avro":
        raise ValueError(f"schema version {version} is of type {schema.kind.upper()}, not AVRO")
    return schema.data.decode(errors="replace")


def fetch_schema(connection: ConnectionOptions, topic: str, version: int) -> Registered | None:
    process_runtime = runtime()
    transport = transport_of(process_runtime.client(connection))
    try:
        known = process_runtime.call(
            transport.schema_of(topic, version), f"schema {version} of {topic}", _FETCH_TIMEOUT_S
        )
    except TopicNotFound:
        return None
    return registered_schema(known)
