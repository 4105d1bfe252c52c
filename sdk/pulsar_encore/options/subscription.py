"""A subscription as an engine needs it: where to read, as whom, from where and how much at once.

Owns `Subscription`, what goes over the seam: what only the consumer above it needs, such as delays,
group times and policies for letters, is not here. It is made of options that were checked, and
refuses only what does not go together.
"""

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
    """One subscription, durable as a consumer's or not, as a reader's.

    Attributes:
        topics: Short or full names; none where there is a pattern.
        pattern: A regular expression of topic names, found again while the subscription lasts.
        regex_subscription_mode: Of which domain the pattern's topics may be.
        pattern_auto_discovery_period: s between two looks for topics of the pattern.
        subscription_name: At the broker.
        consumer_type: How the subscription's consumers share it.
        consumer_name: At the broker; None lets the engine or the broker choose.
        schema: Registered with the topics; None for bytes.
        receiver_queue_size: Messages of a source that may be here and not `consumed`.
        max_total_receiver_queue_size_across_partitions: The same of all sources together.
        initial_position: Where a durable subscription begins that the broker does not know yet.
        durable: The broker keeps what was acked. A subscription that is not durable has no acks: it
            has a place in each topic, which its engine keeps over reconnects.
        start_message_id: Where one begins that is not durable; None of a durable one.
        start_message_id_inclusive: Whether that id, or one that is sought, is delivered itself; of
            `MessageId.latest` that is the last message there is.
        read_compacted: The last message of each key alone, as far as the topic is compacted.
        properties: Of the consumer, in the broker's statistics.
        replicate_subscription_state_enabled: Acks are copied to the other clusters.
        key_shared_policy: A `ConsumerKeySharedPolicy`, of Key_Shared; None for the broker's way.
        crypto_key_reader: Has the private keys of encrypted messages.
        crypto_failure_action: What becomes of a message that cannot be decrypted.
        max_pending_chunked_message: Chunked messages under way at most, 0 for any.
        auto_ack_oldest_chunked_message_on_queue_full: Whether what is over that is acked.
        broker_consumer_stats_cache_time_ms: How old the broker's statistics may be.
        priority_level: 0 is served first; for engines that can say it.
        force_topic_creation: Whether a topic that is missing may be made; for engines that can ask.

    Raises:
        ConfigurationError: Neither topics nor a pattern, or both; a start position of a durable
            subscription, or none of one that is not; one that is not and is shared.
    """

    topics: tuple[str, ...]
    subscription_name: str
    pattern: str | None = None
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
                    "start_message_id needs durable=False: a durable subscription goes on where it "
                    "was, and a new one begins at its initial_position"
                )
            return
        if self.start_message_id is None:
            raise ConfigurationError("durable=False needs a start_message_id to begin at")
        if self.shared:
            raise ConfigurationError(
                "durable=False needs consumer_type Exclusive or Failover: without acks nothing "
                "says which of several consumers had a message"
            )

    @property
    def shared(self) -> bool:
        """True for the types on which the broker redelivers single entries."""
        return self.consumer_type in (ConsumerType.Shared, ConsumerType.KeyShared)
