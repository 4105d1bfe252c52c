"""Commands about topics: partitions, lookup, lists, schemas."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import ProtocolError
from ...wire import answers
from ...wire.frames import Frame
from ..attached import Peer
from ..rules.names import topics_hash
from ..service import BrokerService


def on_partitioned_metadata(service: BrokerService, session: Peer, frame: Frame) -> None:
    """How many partitions; creates the topic unless told not to."""
    ask = frame.command.partitionMetadata
    count = service.catalogue.partitions(ask.topic, ask.metadata_auto_creation_enabled)
    session.send(answers.partitioned_metadata_response(ask.request_id, partitions=count))


def on_lookup(service: BrokerService, session: Peer, frame: Frame) -> None:
    """This broker serves every topic."""
    ask = frame.command.lookupTopic
    service.looked_up.add(service.catalogue.name(ask.topic).full)
    session.send(
        answers.lookup_response(
            ask.request_id,
            service_url=service.settings.advertised_url or session.url,
            authoritative=True,
        )
    )


def on_topics_of_namespace(service: BrokerService, session: Peer, frame: Frame) -> None:
    """All topics of a namespace; patterns are left to the client (`filtered` stays false)."""
    ask = frame.command.getTopicsOfNamespace
    if len(ask.namespace.split("/")) not in (2, 3):
        raise ProtocolError(f"malformed namespace {ask.namespace!r}")
    topics = service.catalogue.in_namespace(ask.namespace)
    hashed = topics_hash(topics)
    same = ask.topics_hash == hashed
    session.send(
        answers.get_topics_of_namespace_response(
            ask.request_id,
            topics=[] if same else topics,
            topics_hash=hashed,
            changed=not same,
        )
    )


def on_get_schema(service: BrokerService, session: Peer, frame: Frame) -> None:
    """One version of a topic's schema, or the latest."""
    ask = frame.command.getSchema
    states = service.catalogue.states(ask.topic)
    version = ask.schema_version if ask.HasField("schema_version") else None
    schema, found = states[0].schemas.get(version)
    session.send(answers.get_schema_response(ask.request_id, schema=schema, schema_version=found))


def on_get_or_create_schema(service: BrokerService, session: Peer, frame: Frame) -> None:
    """Register a schema, on every partition alike."""
    ask = frame.command.getOrCreateSchema
    version = b""
    for state in service.catalogue.states(ask.topic):
        version = state.schemas.register(ask.schema)
    session.send(answers.get_or_create_schema_response(ask.request_id, schema_version=version))


HANDLERS: dict[str, Callable[[BrokerService, Peer, Frame], None]] = {
    "PARTITIONED_METADATA": on_partitioned_metadata,
    "LOOKUP": on_lookup,
    "GET_TOPICS_OF_NAMESPACE": on_topics_of_namespace,
    "GET_SCHEMA": on_get_schema,
    "GET_OR_CREATE_SCHEMA": on_get_or_create_schema,
}
