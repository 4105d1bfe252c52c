"""Commands about topics: partitions, lookup, lists, schemas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import ProtocolError
from ..wire import answers
from .names import topics_hash

if TYPE_CHECKING:
    from ..wire.frames import Frame
    from .connection import Connection


def on_partitioned_metadata(conn: Connection, frame: Frame) -> None:
    """How many partitions; creates the topic unless told not to."""
    ask = frame.command.partitionMetadata
    count = conn.hub.catalogue.partitions(ask.topic, ask.metadata_auto_creation_enabled)
    conn.send(answers.partitioned_metadata_response(ask.request_id, partitions=count))


def on_lookup(conn: Connection, frame: Frame) -> None:
    """This broker serves every topic."""
    ask = frame.command.lookupTopic
    hub = conn.hub
    hub.looked_up.add(hub.catalogue.name(ask.topic).full)
    conn.send(
        answers.lookup_response(
            ask.request_id,
            service_url=hub.settings.advertised_url or conn.url,
            authoritative=True,
        )
    )


def on_topics_of_namespace(conn: Connection, frame: Frame) -> None:
    """All topics of a namespace; patterns are left to the client (`filtered` stays false)."""
    ask = frame.command.getTopicsOfNamespace
    if len(ask.namespace.split("/")) not in (2, 3):
        raise ProtocolError(f"malformed namespace {ask.namespace!r}")
    topics = conn.hub.catalogue.in_namespace(ask.namespace)
    hashed = topics_hash(topics)
    same = ask.topics_hash == hashed
    conn.send(
        answers.get_topics_of_namespace_response(
            ask.request_id,
            topics=[] if same else topics,
            topics_hash=hashed,
            changed=not same,
        )
    )


def on_get_schema(conn: Connection, frame: Frame) -> None:
    """One version of a topic's schema, or the latest."""
    ask = frame.command.getSchema
    states = conn.hub.catalogue.states(ask.topic)
    version = ask.schema_version if ask.HasField("schema_version") else None
    schema, found = states[0].schemas.get(version)
    conn.send(answers.get_schema_response(ask.request_id, schema=schema, schema_version=found))


def on_get_or_create_schema(conn: Connection, frame: Frame) -> None:
    """Register a schema, on every partition alike."""
    ask = frame.command.getOrCreateSchema
    version = b""
    for state in conn.hub.catalogue.states(ask.topic):
        version = state.schemas.register(ask.schema)
    conn.send(answers.get_or_create_schema_response(ask.request_id, schema_version=version))


HANDLERS: dict[str, Callable[[Connection, Frame], None]] = {
    "PARTITIONED_METADATA": on_partitioned_metadata,
    "LOOKUP": on_lookup,
    "GET_TOPICS_OF_NAMESPACE": on_topics_of_namespace,
    "GET_SCHEMA": on_get_schema,
    "GET_OR_CREATE_SCHEMA": on_get_or_create_schema,
}
