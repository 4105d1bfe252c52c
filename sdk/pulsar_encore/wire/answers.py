"""What a broker sends, one constructor a command; `commands` has what a client sends.

Keyword arguments carry the protocol's meaning under this project's names; None leaves a field
absent. How clients treat the fields: `docs/notes/wire-protocol.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import pulsar_pb2 as pb
from ._build import NO_REQUEST, build

if TYPE_CHECKING:
    from collections.abc import Iterable


def connected(
    *,
    server_version: str,
    protocol_version: int = 21,
    max_message_size: int | None = None,
    feature_flags: pb.FeatureFlags | None = None,
) -> pb.BaseCommand:
    """CONNECTED; `max_message_size` in bytes, None leaves the client at 5 MiB."""
    return build(
        "CONNECTED",
        server_version=server_version,
        protocol_version=protocol_version,
        max_message_size=max_message_size,
        feature_flags=feature_flags,
    )


def success(request_id: int, *, schema: pb.Schema | None = None) -> pb.BaseCommand:
    """SUCCESS of SUBSCRIBE, SEEK, UNSUBSCRIBE or CLOSE."""
    return build("SUCCESS", request_id=request_id, schema=schema)


def error(
    request_id: int = NO_REQUEST, *, error: pb.ServerError.ValueType, message: str
) -> pb.BaseCommand:
    """ERROR; without a request id it is about the connection, which closes next."""
    return build("ERROR", request_id=request_id, error=error, message=message)


def lookup_response(
    request_id: int,
    *,
    service_url: str | None = None,
    service_url_tls: str | None = None,
    response: pb.CommandLookupTopicResponse.LookupType.ValueType = (
        pb.CommandLookupTopicResponse.Connect
    ),
    authoritative: bool | None = None,
    proxy_through_service_url: bool | None = None,
    error: pb.ServerError.ValueType | None = None,
    message: str | None = None,
) -> pb.BaseCommand:
    """LOOKUP_RESPONSE; with `error` it is Failed whatever `response` says."""
    if error is not None:
        response = pb.CommandLookupTopicResponse.Failed
    return build(
        "LOOKUP_RESPONSE",
        request_id=request_id,
        brokerServiceUrl=service_url,
        brokerServiceUrlTls=service_url_tls,
        response=response,
        authoritative=authoritative,
        proxy_through_service_url=proxy_through_service_url,
        error=error,
        message=message,
    )


def partitioned_metadata_response(
    request_id: int,
    *,
    partitions: int | None = None,
    error: pb.ServerError.ValueType | None = None,
    message: str | None = None,
) -> pb.BaseCommand:
    """PARTITIONED_METADATA_RESPONSE; 0 partitions is a topic without partitions."""
    kind = pb.CommandPartitionedTopicMetadataResponse
    return build(
        "PARTITIONED_METADATA_RESPONSE",
        request_id=request_id,
        partitions=partitions,
        response=kind.Success if error is None else kind.Failed,
        error=error,
        message=message,
    )


def message(
    consumer_id: int,
    message_id: pb.MessageIdData,
    *,
    redelivery_count: int = 0,
    ack_set: Iterable[int] = (),
    consumer_epoch: int | None = None,
) -> pb.BaseCommand:
    """MESSAGE; a count of 0 and an ack set of everything (empty here) are absent on the wire."""
    # By hand: a broker makes one for every entry it delivers, and `build` takes twice as long.
    command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
    body = command.message
    body.consumer_id = consumer_id
    body.message_id.CopyFrom(message_id)
    if redelivery_count:
        body.redelivery_count = redelivery_count
    if ack_set:
        body.ack_set.extend(ack_set)
    if consumer_epoch is not None:
        body.consumer_epoch = consumer_epoch
    return command


def ack_response(
    consumer_id: int,
    *,
    request_id: int,
    error: pb.ServerError.ValueType | None = None,
    message: str | None = None,
) -> pb.BaseCommand:
    """ACK_RESPONSE; applied in memory, which does not mean durable."""
    return build(
        "ACK_RESPONSE",
        consumer_id=consumer_id,
        request_id=request_id,
        error=error,
        message=message,
    )


def producer_success(
    request_id: int,
    *,
    producer_name: str,
    last_sequence_id: int = -1,
    schema_version: bytes | None = None,
    topic_epoch: int | None = None,
    producer_ready: bool = True,
) -> pb.BaseCommand:
    """PRODUCER_SUCCESS; with `producer_ready` False a second one, same request id, follows."""
    return build(
        "PRODUCER_SUCCESS",
        request_id=request_id,
        producer_name=producer_name,
        last_sequence_id=last_sequence_id,
        schema_version=schema_version,
        topic_epoch=topic_epoch,
        producer_ready=producer_ready,
    )


def send_receipt(
    producer_id: int,
    *,
    sequence_id: int,
    message_id: pb.MessageIdData,
    highest_sequence_id: int | None = None,
) -> pb.BaseCommand:
    """SEND_RECEIPT; the sequence id of a batch is that of its first message."""
    return build(
        "SEND_RECEIPT",
        producer_id=producer_id,
        sequence_id=sequence_id,
        message_id=message_id,
        highest_sequence_id=highest_sequence_id,
    )


def send_error(
    producer_id: int, *, sequence_id: int, error: pb.ServerError.ValueType, message: str
) -> pb.BaseCommand:
    """SEND_ERROR; the connection stays."""
    return build(
        "SEND_ERROR",
        producer_id=producer_id,
        sequence_id=sequence_id,
        error=error,
        message=message,
    )


def get_last_message_id_response(
    request_id: int,
    *,
    last_message_id: pb.MessageIdData,
    mark_delete_position: pb.MessageIdData | None = None,
) -> pb.BaseCommand:
    """GET_LAST_MESSAGE_ID_RESPONSE; an empty topic answers -1:-1."""
    return build(
        "GET_LAST_MESSAGE_ID_RESPONSE",
        request_id=request_id,
        last_message_id=last_message_id,
        consumer_mark_delete_position=mark_delete_position,
    )


def get_topics_of_namespace_response(
    request_id: int,
    *,
    topics: Iterable[str],
    filtered: bool = False,
    topics_hash: str | None = None,
    changed: bool = True,
) -> pb.BaseCommand:
    """GET_TOPICS_OF_NAMESPACE_RESPONSE; an equal hash answers no topics and `changed` False."""
    return build(
        "GET_TOPICS_OF_NAMESPACE_RESPONSE",
        request_id=request_id,
        topics=list(topics),
        filtered=filtered,
        topics_hash=topics_hash,
        changed=changed,
    )


def get_schema_response(
    request_id: int,
    *,
    schema: pb.Schema | None = None,
    schema_version: bytes | None = None,
    error: pb.ServerError.ValueType | None = None,
    message: str | None = None,
) -> pb.BaseCommand:
    """GET_SCHEMA_RESPONSE; `schema_version` is 8 bytes, big-endian, from 0."""
    return build(
        "GET_SCHEMA_RESPONSE",
        request_id=request_id,
        schema=schema,
        schema_version=schema_version,
        error_code=error,
        error_message=message,
    )


def get_or_create_schema_response(
    request_id: int,
    *,
    schema_version: bytes | None = None,
    error: pb.ServerError.ValueType | None = None,
    message: str | None = None,
) -> pb.BaseCommand:
    """GET_OR_CREATE_SCHEMA_RESPONSE."""
    return build(
        "GET_OR_CREATE_SCHEMA_RESPONSE",
        request_id=request_id,
        schema_version=schema_version,
        error_code=error,
        error_message=message,
    )


def reached_end_of_topic(consumer_id: int) -> pb.BaseCommand:
    """REACHED_END_OF_TOPIC: terminated, and this subscription has nothing left."""
    return build("REACHED_END_OF_TOPIC", consumer_id=consumer_id)


def active_consumer_change(consumer_id: int, *, is_active: bool) -> pb.BaseCommand:
    """ACTIVE_CONSUMER_CHANGE, on Failover subscriptions only."""
    return build("ACTIVE_CONSUMER_CHANGE", consumer_id=consumer_id, is_active=is_active)


def consumer_stats_response(
    request_id: int,
    *,
    consumer_name: str = "",
    available_permits: int = 0,
    unacked_messages: int = 0,
    blocked: bool = False,
    backlog: int = 0,
    subscription_type: str | None = None,
    address: str | None = None,
    connected_since: str | None = None,
) -> pb.BaseCommand:
    """CONSUMER_STATS_RESPONSE; `backlog` counts entries, permits below zero wrap at 2^64."""
    return build(
        "CONSUMER_STATS_RESPONSE",
        request_id=request_id,
        msgRateOut=0.0,
        msgThroughputOut=0.0,
        msgRateRedeliver=0.0,
        consumerName=consumer_name,
        availablePermits=available_permits & NO_REQUEST,
        unackedMessages=unacked_messages,
        blockedConsumerOnUnackedMsgs=blocked,
        address=address,
        connectedSince=connected_since,
        type=subscription_type,
        msgRateExpired=0.0,
        msgBacklog=backlog,
    )


def auth_challenge(*, method: str, data: bytes, protocol_version: int = 21) -> pb.BaseCommand:
    """AUTH_CHALLENGE; `data` is ``PulsarAuthRefresh`` when a credential expired."""
    return build(
        "AUTH_CHALLENGE",
        challenge=pb.AuthData(auth_method_name=method, auth_data=data),
        protocol_version=protocol_version,
    )


def watch_topic_list_success(
    request_id: int, *, watcher_id: int, topics: Iterable[str], topics_hash: str
) -> pb.BaseCommand:
    """WATCH_TOPIC_LIST_SUCCESS; no topics when the hash that was asked with is still right."""
    return build(
        "WATCH_TOPIC_LIST_SUCCESS",
        request_id=request_id,
        watcher_id=watcher_id,
        topic=list(topics),
        topics_hash=topics_hash,
    )


def watch_topic_update(
    watcher_id: int,
    *,
    new_topics: Iterable[str] = (),
    deleted_topics: Iterable[str] = (),
    topics_hash: str,
) -> pb.BaseCommand:
    """WATCH_TOPIC_UPDATE; `topics_hash` is that of the list after the change."""
    return build(
        "WATCH_TOPIC_UPDATE",
        watcher_id=watcher_id,
        new_topics=list(new_topics),
        deleted_topics=list(deleted_topics),
        topics_hash=topics_hash,
    )


def topic_migrated(
    resource_id: int,
    *,
    resource_type: pb.CommandTopicMigrated.ResourceType.ValueType,
    service_url: str | None = None,
    service_url_tls: str | None = None,
) -> pb.BaseCommand:
    """TOPIC_MIGRATED: the cluster where a producer or consumer goes on; its close follows."""
    return build(
        "TOPIC_MIGRATED",
        resource_id=resource_id,
        resource_type=resource_type,
        brokerServiceUrl=service_url,
        brokerServiceUrlTls=service_url_tls,
    )
