"""A subscription as a transport needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError
from ..values.message_id import MessageId
from .enums import (
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    RegexSubscriptionMode,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Subscription:
    """One subscription: durable for a consumer, non-durable for a reader.

    Fields that are not listed are those of `Client.subscribe`.

    Attributes:
        topics: Short or full names; empty if there is a pattern.
        pattern: Regular expression of topic names. New topics that match are added.
        excluded_topics: Endings of full names, without the partition, that a pattern does not add.
        receiver_queue_size: Most messages of a topic or partition that were received and not
            `consumed`.
        max_total_receiver_queue_size_across_partitions: The same for all topics together.
        initial_position: Where a durable subscription begins if the broker creates it.
        durable: The broker stores the acks. A non-durable subscription has no acks; the transport
            keeps its position in each topic over reconnects.
        start_message_id: Start of a non-durable subscription; None for a durable one.
        start_message_id_inclusive: Deliver the message of that id too, or of an id that is sought.
            For `MessageId.latest` this is the last message.
        read_compacted: Read only the last message of each key, in the compacted part of the topic.
        max_pending_chunked_message: Most incomplete chunked messages; 0 for no limit.
        auto_ack_oldest_chunked_message_on_queue_full: Ack the oldest message beyond that limit.
        broker_consumer_stats_cache_time_ms: Longest age of cached broker statistics, in ms.
        priority_level: 0 is served first, if the transport supports it.
        force_topic_creation: False if a missing topic must not be created, if the transport
            supports it.

    Raises:
        ConfigurationError: if there are neither or both of topics and a pattern; if a durable
            subscription has a start position or a non-durable one has none; or if a non-durable one
            is shared.
    """

    topics: tuple[str, ...]
    subscription_name: str
    pattern: str | None = None
    excluded_topics: tuple[str, ...] = ()
    regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly
    pattern_auto_discovery_period: int = 60
    consumer_type: ConsumerType = ConsumerType.Exclusive
    consumer_name: str | None = None
    schema: Any = None
    receiver_queue_size: int = 1000
    max_total_receiver_queue_size_across_partitions: int = 50_000
    initial_position: InitialPosition = InitialPosition.Latest
    durable: bool = True
    start_message_id: MessageId | None = None
    start_message_id_inclusive: bool = False
    read_compacted: bool = False
    properties: dict[str, str] | None = None
    replicate_subscription_state_enabled: bool = False
    key_shared_policy: Any = None
    crypto_key_reader: Any = None
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    max_pending_chunked_message: int = 10
    auto_ack_oldest_chunked_message_on_queue_full: bool = False
    broker_consumer_stats_cache_time_ms: int = 30_000
    priority_level: int = 0
    force_topic_creation: bool = True

    def __post_init__(self) -> None:
        if bool(self.topics) == (self.pattern is not None):
            raise ConfigurationError("a subscription needs topics or a pattern, not both")
        if self.durable:
            if self.start_message_id is not None:
                raise ConfigurationError(
                    "start_message_id needs durable=False: a durable subscription continues after "
                    "its acks, and a new one begins at its initial_position"
                )
            return
        if self.start_message_id is None:
            raise ConfigurationError("durable=False needs a start_message_id to begin at")
        if self.shared:
            raise ConfigurationError(
                "durable=False needs consumer_type Exclusive or Failover: without acks the broker "
                "cannot share messages among consumers"
            )

    @property
    def shared(self) -> bool:
        """True for the types on which the broker redelivers single entries."""
        return self.consumer_type in (ConsumerType.Shared, ConsumerType.KeyShared)
