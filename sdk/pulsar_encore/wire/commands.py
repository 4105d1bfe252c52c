"""What a client sends, one constructor a command, and what both sides send.

Also gives everything of `answers`, so that a peer needs this one name. Keyword arguments carry
the protocol's meaning under this project's names; None leaves a field absent. How brokers treat the
fields: `docs/notes/wire-protocol.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import pulsar_pb2 as pb
from ._build import NO_REQUEST, build, key_values, message_id
from .answers import (
    ack_response,
    active_consumer_change,
    auth_challenge,
    connected,
    consumer_stats_response,
    error,
    get_last_message_id_response,
    get_or_create_schema_response,
    get_schema_response,
    get_topics_of_namespace_response,
    lookup_response,
    message,
    partitioned_metadata_response,
    producer_success,
    reached_end_of_topic,
    send_error,
    send_receipt,
    success,
    topic_migrated,
    watch_topic_list_success,
    watch_topic_update,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "NO_REQUEST",
    "ack",
    "ack_response",
    "active_consumer_change",
    "auth_challenge",
    "auth_response",
    "close_consumer",
    "close_producer",
    "connect",
    "connected",
    "consumer_stats",
    "consumer_stats_response",
    "error",
    "flow",
    "get_last_message_id",
    "get_last_message_id_response",
    "get_or_create_schema",
    "get_or_create_schema_response",
    "get_schema",
    "get_schema_response",
    "get_topics_of_namespace",
    "get_topics_of_namespace_response",
    "lookup",
    "lookup_response",
    "message",
    "message_id",
    "partitioned_metadata",
    "partitioned_metadata_response",
    "ping",
    "pong",
    "producer",
    "producer_success",
    "reached_end_of_topic",
    "redeliver",
    "seek",
    "send",
    "send_error",
    "send_receipt",
    "subscribe",
    "success",
    "topic_migrated",
    "unsubscribe",
    "watch_topic_list",
    "watch_topic_list_close",
    "watch_topic_list_success",
    "watch_topic_update",
]


def connect(
    *,
    client_version: str,
    protocol_version: int = 21,
    auth_method_name: str | None = None,
    auth_data: bytes | None = None,
    proxy_to_broker_url: str | None = None,
    feature_flags: pb.FeatureFlags | None = None,
) -> pb.BaseCommand:
    """CONNECT, the first command of a connection and only once."""
    return build(
        "CONNECT",
        client_version=client_version,
        protocol_version=protocol_version,
        auth_method_name=auth_method_name,
        auth_data=auth_data,
        proxy_to_broker_url=proxy_to_broker_url,
        feature_flags=feature_flags,
    )


def auth_response(
    *, client_version: str, method: str, data: bytes, protocol_version: int = 21
) -> pb.BaseCommand:
    """AUTH_RESPONSE to an AUTH_CHALLENGE, with new data; success is silent."""
    return build(
        "AUTH_RESPONSE",
        client_version=client_version,
        response=pb.AuthData(auth_method_name=method, auth_data=data),
        protocol_version=protocol_version,
    )


def partitioned_metadata(
    topic: str, *, request_id: int, auto_create: bool | None = None
) -> pb.BaseCommand:
    """PARTITIONED_METADATA; unless `auto_create` is False it may create the topic."""
    return build(
        "PARTITIONED_METADATA",
        topic=topic,
        request_id=request_id,
        metadata_auto_creation_enabled=auto_create,
    )


def lookup(
    topic: str,
    *,
    request_id: int,
    authoritative: bool = False,
    advertised_listener_name: str | None = None,
) -> pb.BaseCommand:
    """LOOKUP; after a Redirect `authoritative` is what the answer said."""
    return build(
        "LOOKUP",
        topic=topic,
        request_id=request_id,
        authoritative=authoritative,
        advertised_listener_name=advertised_listener_name,
    )


def subscribe(
    topic: str,
    subscription: str,
    *,
    consumer_id: int,
    request_id: int,
    sub_type: pb.CommandSubscribe.SubType.ValueType = pb.CommandSubscribe.Exclusive,
    consumer_name: str | None = None,
    priority_level: int | None = None,
    durable: bool | None = None,
    start_message_id: pb.MessageIdData | None = None,
    start_message_rollback_s: int | None = None,
    metadata: Mapping[str, str] | None = None,
    read_compacted: bool | None = None,
    schema: pb.Schema | None = None,
    initial_position: pb.CommandSubscribe.InitialPosition.ValueType | None = None,
    replicate_subscription_state: bool | None = None,
    force_topic_creation: bool | None = None,
    key_shared: pb.KeySharedMeta | None = None,
    subscription_properties: Mapping[str, str] | None = None,
    consumer_epoch: int | None = None,
) -> pb.BaseCommand:
    """Build SUBSCRIBE. The client must send nothing for this consumer before its SUCCESS.

    The reason: `docs/notes/wire-protocol.md#order-after-a-reconnect`.
    """
    return build(
        "SUBSCRIBE",
        topic=topic,
        subscription=subscription,
        subType=sub_type,
        consumer_id=consumer_id,
        request_id=request_id,
        consumer_name=consumer_name,
        priority_level=priority_level,
        durable=durable,
        start_message_id=start_message_id,
        start_message_rollback_duration_sec=start_message_rollback_s,
        metadata=key_values(metadata),
        read_compacted=read_compacted,
        schema=schema,
        initialPosition=initial_position,
        replicate_subscription_state=replicate_subscription_state,
        force_topic_creation=force_topic_creation,
        keySharedMeta=key_shared,
        subscription_properties=key_values(subscription_properties),
        consumer_epoch=consumer_epoch,
    )


def flow(consumer_id: int, *, permits: int) -> pb.BaseCommand:
    """FLOW; `permits` counts messages, is added to what is left, and must not be 0."""
    return build("FLOW", consumer_id=consumer_id, messagePermits=permits)


def ack(
    consumer_id: int,
    message_ids: Iterable[pb.MessageIdData],
    *,
    cumulative: bool = False,
    request_id: int | None = None,
    validation_error: pb.CommandAck.ValidationError.ValueType | None = None,
    properties: Mapping[str, int] | None = None,
) -> pb.BaseCommand:
    """ACK; cumulative takes exactly one id. With a request id the broker answers."""
    kind = pb.CommandAck
    return build(
        "ACK",
        consumer_id=consumer_id,
        ack_type=kind.Cumulative if cumulative else kind.Individual,
        message_id=list(message_ids),
        request_id=request_id,
        validation_error=validation_error,
        properties=[pb.KeyLongValue(key=k, value=v) for k, v in (properties or {}).items()],
    )


def redeliver(
    consumer_id: int,
    message_ids: Iterable[pb.MessageIdData] = (),
    *,
    consumer_epoch: int | None = None,
) -> pb.BaseCommand:
    """REDELIVER_UNACKNOWLEDGED_MESSAGES; no ids means everything the consumer holds."""
    return build(
        "REDELIVER_UNACKNOWLEDGED_MESSAGES",
        consumer_id=consumer_id,
        message_ids=list(message_ids),
        consumer_epoch=consumer_epoch,
    )


def seek(
    consumer_id: int,
    *,
    request_id: int,
    message_id: pb.MessageIdData | None = None,
    publish_time_ms: int | None = None,
) -> pb.BaseCommand:
    """SEEK to an id or to a publish time, one of the two."""
    return build(
        "SEEK",
        consumer_id=consumer_id,
        request_id=request_id,
        message_id=message_id,
        message_publish_time=publish_time_ms,
    )


def unsubscribe(consumer_id: int, *, request_id: int, force: bool | None = None) -> pb.BaseCommand:
    """UNSUBSCRIBE; `force` closes the other consumers of the subscription."""
    return build("UNSUBSCRIBE", consumer_id=consumer_id, request_id=request_id, force=force)


def close_consumer(
    consumer_id: int,
    *,
    request_id: int = NO_REQUEST,
    assigned_url: str | None = None,
    assigned_url_tls: str | None = None,
) -> pb.BaseCommand:
    """CLOSE_CONSUMER, by a client with a request id, by a broker without.

    Args:
        consumer_id: The client's number for it.
        request_id: What the answer repeats.
        assigned_url: By a broker that knows it: who serves the topic from now on.
        assigned_url_tls: The same by TLS.
    """
    return build(
        "CLOSE_CONSUMER",
        consumer_id=consumer_id,
        request_id=request_id,
        assignedBrokerServiceUrl=assigned_url,
        assignedBrokerServiceUrlTls=assigned_url_tls,
    )


def close_producer(
    producer_id: int,
    *,
    request_id: int = NO_REQUEST,
    assigned_url: str | None = None,
    assigned_url_tls: str | None = None,
) -> pb.BaseCommand:
    """CLOSE_PRODUCER, by a client with a request id, by a broker without.

    Args:
        producer_id: The client's number for it.
        request_id: What the answer repeats.
        assigned_url: By a broker that knows it: who serves the topic from now on.
        assigned_url_tls: The same by TLS.
    """
    return build(
        "CLOSE_PRODUCER",
        producer_id=producer_id,
        request_id=request_id,
        assignedBrokerServiceUrl=assigned_url,
        assignedBrokerServiceUrlTls=assigned_url_tls,
    )


def producer(
    topic: str,
    *,
    producer_id: int,
    request_id: int,
    producer_name: str | None = None,
    user_provided_producer_name: bool | None = None,
    encrypted: bool | None = None,
    metadata: Mapping[str, str] | None = None,
    schema: pb.Schema | None = None,
    epoch: int | None = None,
    access_mode: pb.ProducerAccessMode.ValueType | None = None,
    topic_epoch: int | None = None,
    initial_subscription_name: str | None = None,
) -> pb.BaseCommand:
    """PRODUCER; without a name the broker gives one, to be kept for every later PRODUCER."""
    return build(
        "PRODUCER",
        topic=topic,
        producer_id=producer_id,
        request_id=request_id,
        producer_name=producer_name,
        user_provided_producer_name=user_provided_producer_name,
        encrypted=encrypted,
        metadata=key_values(metadata),
        schema=schema,
        epoch=epoch,
        producer_access_mode=access_mode,
        topic_epoch=topic_epoch,
        initial_subscription_name=initial_subscription_name,
    )


def send(
    producer_id: int,
    *,
    sequence_id: int,
    num_messages: int | None = None,
    highest_sequence_id: int | None = None,
    is_chunk: bool | None = None,
) -> pb.BaseCommand:
    """SEND; its frame needs a body (`frames.encode_with_body`)."""
    return build(
        "SEND",
        producer_id=producer_id,
        sequence_id=sequence_id,
        num_messages=num_messages,
        highest_sequence_id=highest_sequence_id,
        is_chunk=is_chunk,
    )


def get_last_message_id(consumer_id: int, *, request_id: int) -> pb.BaseCommand:
    """GET_LAST_MESSAGE_ID of the consumer's topic."""
    return build("GET_LAST_MESSAGE_ID", consumer_id=consumer_id, request_id=request_id)


def get_topics_of_namespace(
    namespace: str,
    *,
    request_id: int,
    mode: pb.CommandGetTopicsOfNamespace.Mode.ValueType | None = None,
    topics_pattern: str | None = None,
    topics_hash: str | None = None,
) -> pb.BaseCommand:
    """Build GET_TOPICS_OF_NAMESPACE. The client must filter the answer again.

    The reason: `docs/notes/wire-protocol.md#topic-lists`.
    """
    return build(
        "GET_TOPICS_OF_NAMESPACE",
        request_id=request_id,
        namespace=namespace,
        mode=mode,
        topics_pattern=topics_pattern,
        topics_hash=topics_hash,
    )


def watch_topic_list(
    namespace: str,
    *,
    request_id: int,
    watcher_id: int,
    topics_pattern: str,
    topics_hash: str | None = None,
) -> pb.BaseCommand:
    """WATCH_TOPIC_LIST; again with the same watcher id it asks for the list as it is now."""
    return build(
        "WATCH_TOPIC_LIST",
        request_id=request_id,
        watcher_id=watcher_id,
        namespace=namespace,
        topics_pattern=topics_pattern,
        topics_hash=topics_hash,
    )


def watch_topic_list_close(watcher_id: int, *, request_id: int) -> pb.BaseCommand:
    """WATCH_TOPIC_LIST_CLOSE; answered by SUCCESS, for an unknown id too."""
    return build("WATCH_TOPIC_LIST_CLOSE", request_id=request_id, watcher_id=watcher_id)


def get_schema(
    topic: str, *, request_id: int, schema_version: bytes | None = None
) -> pb.BaseCommand:
    """GET_SCHEMA; without a version the latest."""
    return build("GET_SCHEMA", request_id=request_id, topic=topic, schema_version=schema_version)


def get_or_create_schema(topic: str, *, request_id: int, schema: pb.Schema) -> pb.BaseCommand:
    """GET_OR_CREATE_SCHEMA."""
    return build("GET_OR_CREATE_SCHEMA", request_id=request_id, topic=topic, schema=schema)


def consumer_stats(consumer_id: int, *, request_id: int) -> pb.BaseCommand:
    """CONSUMER_STATS; an unknown consumer costs the connection."""
    return build("CONSUMER_STATS", request_id=request_id, consumer_id=consumer_id)


def ping() -> pb.BaseCommand:
    """PING, by either side."""
    return build("PING")


def pong() -> pb.BaseCommand:
    """PONG, the answer to PING."""
    return build("PONG")
