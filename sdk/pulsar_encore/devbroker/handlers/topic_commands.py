"""Commands about topics: partitions, lookup, lists, schemas."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import ProtocolError
from ...wire import pulsar_pb2 as pb
from ...wire.checksum import topics_hash
from ...wire.frames import Frame
from ..attached import Peer
from ..broker_service import BrokerService
from ..rules.refusal import Refusal
from ..rules.topic_watchers import MAX_PATTERN, TopicPattern, Watcher
from ..rules.transactions import ASSIGN_TOPIC


def on_partitioned_metadata(service: BrokerService, session: Peer, frame: Frame) -> None:
    """Answer the number of partitions. Create the topic unless the client forbids it."""
    request = frame.command.partitionMetadata
    if request.topic == ASSIGN_TOPIC:
        count = 1 if service.settings.transactions else 0
    else:
        count = service.catalogue.partitions(request.topic, request.metadata_auto_creation_enabled)
    session.send(
        pb.CommandPartitionedTopicMetadataResponse(
            request_id=request.request_id,
            partitions=count,
            response=pb.CommandPartitionedTopicMetadataResponse.Success,
        )
    )


def on_lookup(service: BrokerService, session: Peer, frame: Frame) -> None:
    request = frame.command.lookupTopic
    settings = service.settings
    topic = request.topic
    if not topic.startswith(ASSIGN_TOPIC):
        topic = service.catalogue.name(topic).full
    tls = session.url.startswith("pulsar+ssl:")
    response = pb.CommandLookupTopicResponse.Connect
    url = (settings.advertised_url_tls if tls else settings.advertised_url) or session.url
    if settings.redirect_to is not None:
        response, url = pb.CommandLookupTopicResponse.Redirect, settings.redirect_to
    else:
        service.looked_up.add(topic)
    session.send(
        pb.CommandLookupTopicResponse(
            request_id=request.request_id,
            brokerServiceUrl=None if tls else url,
            brokerServiceUrlTls=url if tls else None,
            response=response,
            authoritative=True,
        )
    )


def on_topics_of_namespace(service: BrokerService, session: Peer, frame: Frame) -> None:
    """List topics. Patterns that are too long are left to the client."""
    request = frame.command.getTopicsOfNamespace
    topics = []
    if request.mode != pb.CommandGetTopicsOfNamespace.NON_PERSISTENT:
        topics += _in_namespace(service, request.namespace)
    if request.mode != pb.CommandGetTopicsOfNamespace.PERSISTENT:
        topics += _in_namespace(service, request.namespace, "non-persistent")
    filtered = 0 < len(request.topics_pattern) <= MAX_PATTERN
    if filtered:
        try:
            topics = TopicPattern(request.topics_pattern).filter(topics)
        except Refusal as refusal:
            raise Refusal("MetadataError", refusal.message) from refusal
    hashed = topics_hash(topics)
    same = request.topics_hash == hashed
    session.send(
        pb.CommandGetTopicsOfNamespaceResponse(
            request_id=request.request_id,
            topics=[] if same else topics,
            filtered=filtered,
            topics_hash=hashed,
            changed=not same,
        )
    )


def _in_namespace(service: BrokerService, namespace: str, domain: str = "persistent") -> list[str]:
    if len(namespace.split("/")) not in (2, 3):
        raise ProtocolError(f"malformed namespace {namespace!r}")
    return service.catalogue.in_namespace(namespace, domain)


def on_watch(service: BrokerService, session: Peer, frame: Frame) -> None:
    request = frame.command.watchTopicList
    if not service.settings.topic_watchers:
        raise Refusal("NotAllowedError", "topic watchers are off (BrokerSettings.topic_watchers)")
    if len(request.topics_pattern) > MAX_PATTERN:
        raise Refusal("NotAllowedError", f"Pattern longer than maximum: {MAX_PATTERN}")
    watcher = Watcher(request.watcher_id, request.namespace, TopicPattern(request.topics_pattern))
    topics = watcher.pattern.filter(_in_namespace(service, request.namespace))
    session.watchers[request.watcher_id] = watcher
    hashed = topics_hash(topics)
    session.send(
        pb.CommandWatchTopicListSuccess(
            request_id=request.request_id,
            watcher_id=request.watcher_id,
            topic=[] if request.topics_hash == hashed else topics,
            topics_hash=hashed,
        )
    )


def on_watch_close(service: BrokerService, session: Peer, frame: Frame) -> None:
    request = frame.command.watchTopicListClose
    session.watchers.pop(request.watcher_id, None)
    session.send(pb.CommandSuccess(request_id=request.request_id))


def on_get_schema(service: BrokerService, session: Peer, frame: Frame) -> None:
    request = frame.command.getSchema
    states = service.catalogue.states(request.topic)
    version = request.schema_version if request.HasField("schema_version") else None
    schema, found = states[0].schemas.get(version)
    session.send(
        pb.CommandGetSchemaResponse(
            request_id=request.request_id, schema=schema, schema_version=found
        )
    )


def on_get_or_create_schema(service: BrokerService, session: Peer, frame: Frame) -> None:
    """Register a schema on every partition."""
    request = frame.command.getOrCreateSchema
    version = b""
    for state in service.catalogue.states(request.topic):
        version = state.schemas.register(request.schema)
    session.send(
        pb.CommandGetOrCreateSchemaResponse(request_id=request.request_id, schema_version=version)
    )


HANDLERS: dict[str, Callable[[BrokerService, Peer, Frame], None]] = {
    "PARTITIONED_METADATA": on_partitioned_metadata,
    "LOOKUP": on_lookup,
    "GET_TOPICS_OF_NAMESPACE": on_topics_of_namespace,
    "WATCH_TOPIC_LIST": on_watch,
    "WATCH_TOPIC_LIST_CLOSE": on_watch_close,
    "GET_SCHEMA": on_get_schema,
    "GET_OR_CREATE_SCHEMA": on_get_or_create_schema,
}
