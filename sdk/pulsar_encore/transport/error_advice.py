"""Advice by result, for the text of errors."""

from __future__ import annotations

from typing import Final

REACHABLE: Final = (
    "check that the broker is up and reachable at service_url, that the port is the binary "
    "protocol's (6650, with TLS 6651) and not the web service's (8080), and that pulsar+ssl:// is "
    "for a port with TLS"
)

#: For a refusal because of a limit, whatever its result is.
LIMIT_ADVICE: Final = (
    "the broker's limit is reached: close some, or raise the limit (maxConsumersPerTopic, "
    "maxConsumersPerSubscription, maxProducersPerTopic, brokerMaxConnections); a connection that "
    "was lost counts until the broker notices that, which can take two minutes"
)

ADVICE: Final[dict[str, str]] = {
    "Timeout": (
        f"no answer in time: {REACHABLE}; or raise operation_timeout_seconds (send_timeout_millis "
        "when sending); with the stock transport, refused authentication= looks the same"
    ),
    "ConnectError": f"no connection: {REACHABLE}",
    "LookupError": (
        "no broker named the topic's owner: check its name; and with http:// that service_url has "
        "the port of the web service (8080), not the binary protocol's"
    ),
    "ReadError": "the connection broke while reading",
    "NotConnected": "not connected at the moment; it reconnects automatically",
    "AuthenticationError": (
        "authentication= is not given, failed, or is not accepted by the broker: check its files, "
        "addresses and credentials, and the certificates"
    ),
    "AuthorizationError": "the role lacks a permission: grant it on the topic",
    "ErrorGettingAuthenticationData": "authentication= could not give its data",
    "BrokerMetadataError": "the broker could not read or write its metadata",
    "BrokerPersistenceError": "the broker could not store or read the topic",
    "ChecksumError": "the message was damaged on its way",
    "ConsumerBusy": (
        "another consumer holds the subscription: close it, or use consumer_type=Shared, "
        "KeyShared or Failover on both; or a limit of consumers is reached (maxConsumersPerTopic, "
        "maxConsumersPerSubscription)"
    ),
    "ProducerBusy": (
        "another producer of this producer_name is connected: close it; or a limit of producers is "
        "reached (maxProducersPerTopic)"
    ),
    "ProducerFenced": "another producer has the topic, or took it over: see access_mode",
    "ProducerQueueIsFull": (
        "max_pending_messages are pending (each chunk counts): await some sends first, raise "
        "it, or use block_if_queue_full=True"
    ),
    "ProducerBlockedQuotaExceededError": "the topic's backlog quota is used up",
    "ProducerBlockedQuotaExceededException": "the topic's backlog quota is used up",
    "MemoryBufferIsFull": "the client's memory limit is used up: await some sends first",
    "MessageTooBig": (
        "the message is over the broker's limit (5 MiB unless changed): split it, or use "
        "chunking_enabled=True with batching_enabled=False"
    ),
    "InvalidMessage": "the message cannot be sent as it is",
    "InvalidConfiguration": "an option is not valid for the transport",
    "InvalidTopicName": "write topic as name or persistent://tenant/namespace/name",
    "InvalidUrl": "service_url is not valid",
    "TopicNotFound": "the topic or its namespace does not exist: create it, or fix topic=",
    "TopicTerminated": "the topic was terminated and takes no messages",
    "SubscriptionNotFound": "the subscription does not exist: check its name",
    "ConsumerNotFound": "the broker does not know the consumer any more",
    "ConsumerAssignError": "no consumer could be assigned: check the key ranges",
    "TooManyLookupRequestException": "too many lookups: lower concurrent_lookup_requests",
    "ServiceUnitNotReady": "the broker is moving or loading the topic",
    "OperationNotSupported": "the transport cannot do this with this kind of topic",
    "NotAllowedError": "the broker does not allow this here",
    "UnsupportedVersionError": "the broker is too old for this",
    "IncompatibleSchema": (
        "the topic has a schema that does not fit schema=: change one of them, or the "
        "namespace's compatibility strategy"
    ),
    "CryptoError": "encryption or decryption failed: check crypto_key_reader",
    "CumulativeAcknowledgementNotAllowedError": (
        "cumulative acks need an Exclusive or Failover consumer"
    ),
    "Interrupted": "interrupted",
}
