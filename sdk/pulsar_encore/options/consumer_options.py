"""The checked options of a consumer: those of `pulsar-client` with its defaults, and new ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from ..codecs.bound_codec import bind
from ..errors import ConfigurationError, InvalidConfiguration, InvalidTopicName
from ..values.backoff import BackoffLike, backoff_of, to_ms
from ..values.letter_topic_names import retry_topic_of
from ..values.topic_names import base_name, full_name
from .checks import (
    check_booleans,
    check_crypto_key_reader,
    check_event_listener,
    integer,
    optional_text,
    string_map,
    text,
    topic_name,
)
from .dead_letter_policy import DEFAULT_MAX_RECONSUME, DeadLetterPolicy, policy_of
from .durable_state import RocksState
from .enums import (
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    RegexSubscriptionMode,
    coerce_fields,
)
from .key_shared import ConsumerKeySharedPolicy, key_shared_of
from .nack_index import SpillingNackIndex

#: The default of the broker's `maxUnackedMessagesPerConsumer`.
DEFAULT_UNACKED_WINDOW: Final = 50_000

_MAX_PRECISION_BITS: Final = 32  # 2**32 ms is 49 days


@dataclass(frozen=True, slots=True)
class BatchReceivePolicy:
    """Limits at which `batch_receive` returns: number of messages, bytes, or time.

    Args:
        max_num_message: Most messages in a result; 0 or less for no limit.
        max_num_bytes: Most payload bytes in a result, which always has at least one message; 0 or
            less for no limit.
        timeout_ms: Longest wait, in ms; 0 or less to wait until another limit is reached.

    Raises:
        ConfigurationError: if a value is not an int, or if no value is above 0.

    Example:
        ```python
        policy = pulsar_encore.BatchReceivePolicy(max_num_message=100, timeout_ms=500)
        consumer = await client.subscribe("orders", "billing", batch_receive_policy=policy)
        ```
    """

    max_num_message: int = -1
    max_num_bytes: int = 10 * 1024 * 1024
    timeout_ms: int = 100

    def __post_init__(self) -> None:
        for name in ("max_num_message", "max_num_bytes", "timeout_ms"):
            integer(getattr(self, name), name, low=-(2**63))
        if self.max_num_message <= 0 and self.max_num_bytes <= 0 and self.timeout_ms <= 0:
            raise ConfigurationError(
                "BatchReceivePolicy needs max_num_message, max_num_bytes or timeout_ms above 0"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerOptions:
    """Checked options of a consumer. `Client.subscribe` documents the fields and their units."""

    topics: tuple[str, ...]
    pattern: str | None
    subscription_name: str
    consumer_type: ConsumerType = ConsumerType.Exclusive
    schema: Any = None
    message_listener: Callable[..., Any] | None = None
    receiver_queue_size: int = 1000
    max_total_receiver_queue_size_across_partitions: int = 50_000
    consumer_name: str | None = None
    unacked_messages_timeout_ms: int | None = None
    broker_consumer_stats_cache_time_ms: int = 30_000
    negative_ack_redelivery_delay_ms: int = 60_000
    is_read_compacted: bool = False
    properties: dict[str, str] | None = None
    pattern_auto_discovery_period: int = 60
    initial_position: InitialPosition = InitialPosition.Latest
    crypto_key_reader: Any = None
    replicate_subscription_state_enabled: bool = False
    max_pending_chunked_message: int = 10
    auto_ack_oldest_chunked_message_on_queue_full: bool = False
    start_message_id_inclusive: bool = False
    batch_receive_policy: Any = None
    key_shared_policy: ConsumerKeySharedPolicy | None = None
    batch_index_ack_enabled: bool = False
    regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly
    dead_letter_policy: Any = None
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    # New in this package.
    negative_ack_redelivery_backoff: BackoffLike | None = None
    negative_ack_precision_bit_cnt: int | None = None  # None: chosen by the delay
    ack_timeout_redelivery_backoff: BackoffLike | None = None
    ack_group_time_ms: int = 100  # Java's default
    ack_group_max_size: int = 1000  # Java's default
    ack_receipt_enabled: bool = False
    event_listener: Callable[..., Any] | None = None
    max_unacked_messages: int = DEFAULT_UNACKED_WINDOW
    retry_enable: bool = False
    nack_overflow: str | None = None  # or "retry_letter"
    nack_overflow_share: float = 0.5  # half of the window is left for other messages
    nack_overflow_delay: float | timedelta = 600.0  # s; processes often do not live longer
    state: RocksState | None = None
    max_leases: int = 10_000  # a fifth of DEFAULT_UNACKED_WINDOW
    ordered_leases: bool = False
    nack_index: SpillingNackIndex | None = None

    def __post_init__(self) -> None:
        self._check_topics()
        text(self.subscription_name, "subscription_name", blank=InvalidConfiguration)
        optional_text(self.consumer_name, "consumer_name")
        coerce_fields(
            self,
            consumer_type=ConsumerType,
            initial_position=InitialPosition,
            regex_subscription_mode=RegexSubscriptionMode,
            crypto_failure_action=ConsumerCryptoFailureAction,
        )
        for name, low in (
            ("receiver_queue_size", 0),
            ("max_total_receiver_queue_size_across_partitions", 0),
            ("broker_consumer_stats_cache_time_ms", 0),
            ("negative_ack_redelivery_delay_ms", 0),
            ("pattern_auto_discovery_period", 1),
            ("max_pending_chunked_message", 0),
            ("ack_group_time_ms", 0),
            ("ack_group_max_size", 1),
            ("max_unacked_messages", 1),
            ("max_leases", 1),
        ):
            integer(getattr(self, name), name, low=low)
        check_booleans(self)
        object.__setattr__(self, "schema", bind(self.schema, reads=True))
        check_crypto_key_reader(self.crypto_key_reader)
        object.__setattr__(self, "properties", string_map(self.properties, "properties"))
        if self.unacked_messages_timeout_ms in (None, 0):
            object.__setattr__(self, "unacked_messages_timeout_ms", None)
        else:
            integer(
                self.unacked_messages_timeout_ms, "unacked_messages_timeout_ms", low=1000, unit="ms"
            )
        if self.negative_ack_precision_bit_cnt is not None:
            name = "negative_ack_precision_bit_cnt"
            integer(self.negative_ack_precision_bit_cnt, name, low=0, high=_MAX_PRECISION_BITS)
        for name in ("negative_ack_redelivery_backoff", "ack_timeout_redelivery_backoff"):
            object.__setattr__(self, name, backoff_of(getattr(self, name), name))
        object.__setattr__(self, "dead_letter_policy", policy_of(self.dead_letter_policy))
        object.__setattr__(self, "key_shared_policy", key_shared_of(self.key_shared_policy))
        if not isinstance(self.state, (RocksState, type(None))):
            raise ConfigurationError(
                f"state must be a RocksState(path) or None, got {type(self.state).__name__}"
            )
        if not isinstance(self.nack_index, (SpillingNackIndex, type(None))):
            raise ConfigurationError(
                "nack_index must be a SpillingNackIndex(path) or None, got "
                f"{type(self.nack_index).__name__}"
            )
        if self.state is not None and self.nack_index is not None:
            state_path, index_path = Path(self.state.path), Path(self.nack_index.path)
            if index_path.resolve().is_relative_to(state_path.resolve()):
                raise ConfigurationError(
                    f"the directory of nack_index, {index_path}, must not be that of "
                    f"state, {state_path}, or below it: name another one for nack_index"
                )
        self._check_combinations()
        self._check_letters()
        self._check_order()
        if self.retry_enable and self.dead_letter_policy is None:
            object.__setattr__(self, "dead_letter_policy", DeadLetterPolicy(DEFAULT_MAX_RECONSUME))

    def _check_topics(self) -> None:
        if self.pattern is None and not self.topics:
            raise ConfigurationError("topic must name at least one topic")
        for topic in self.topics:
            topic_name(topic, "topic")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ConfigurationError(f"topic is not a valid pattern: {error}") from error

    def _check_combinations(self) -> None:
        if self.message_listener is not None and not callable(self.message_listener):
            raise ConfigurationError("message_listener must be callable")
        check_event_listener(self.event_listener)
        if (
            self.ack_timeout_redelivery_backoff is not None
            and self.unacked_messages_timeout_ms is None
        ):
            raise ConfigurationError(
                "ack_timeout_redelivery_backoff needs unacked_messages_timeout_ms"
            )
        if self.key_shared_policy is not None and self.consumer_type is not ConsumerType.KeyShared:
            raise ConfigurationError("key_shared_policy needs consumer_type=ConsumerType.KeyShared")
        if self.is_read_compacted and self.shared:
            raise InvalidConfiguration("is_read_compacted needs an Exclusive or Failover consumer")
        if self.message_listener is not None and self.receiver_queue_size == 0:
            raise ConfigurationError("message_listener needs receiver_queue_size of 1 or more")
        if self.batch_receive_policy is not None and not isinstance(
            self.batch_receive_policy, BatchReceivePolicy
        ):
            object.__setattr__(
                self, "batch_receive_policy", _batch_policy_of(self.batch_receive_policy)
            )

    def _check_letters(self) -> None:
        policy: DeadLetterPolicy | None = self.dead_letter_policy
        if self.nack_overflow not in (None, "retry_letter"):
            raise ConfigurationError('nack_overflow must be None or "retry_letter"')
        if self.nack_overflow is not None and not self.retry_enable:
            raise ConfigurationError('nack_overflow="retry_letter" needs retry_enable=True')
        to_ms(self.nack_overflow_delay, "nack_overflow_delay")
        share = self.nack_overflow_share
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise ConfigurationError(f"nack_overflow_share must be from 0 to 1, got {share!r}")
        if self.retry_enable and self.receiver_queue_size == 0:
            raise ConfigurationError("retry_enable needs receiver_queue_size of 1 or more")
        retry = None if policy is None else policy.retry_letter_topic
        if self.retry_enable and self.pattern is not None and retry is None:
            raise ConfigurationError(
                "retry_enable on a pattern needs a DeadLetterPolicy with retry_letter_topic"
            )
        consumed_topics = {full_name(topic) for topic in self.topics}
        for name in ("retry_letter_topic", "dead_letter_topic"):
            topic = None if policy is None else getattr(policy, name)
            if isinstance(topic, str) and full_name(topic) in consumed_topics:
                raise ConfigurationError(
                    f"{name} {topic!r} is a topic that the consumer reads, which is a loop"
                )
        if policy is not None and policy.transactional:
            self._check_transactional(policy)

    def _check_transactional(self, policy: DeadLetterPolicy) -> None:
        if self.ordered_leases:
            raise ConfigurationError(
                "ordered_leases and DeadLetterPolicy(transactional=True) contradict each other: "
                "ordered leases have no transactions. Leave one out"
            )
        named = (*self.topics, self.pattern, policy.dead_letter_topic, policy.retry_letter_topic)
        for topic in named:
            if isinstance(topic, str) and topic.startswith("non-persistent://"):
                raise ConfigurationError(
                    f"{topic} is not persistent, so it has no transactions: leave transactional "
                    "out of the DeadLetterPolicy, or name a persistent topic"
                )

    def _check_order(self) -> None:
        if not self.ordered_leases:
            return
        if self.consumer_type is not ConsumerType.KeyShared:
            raise ConfigurationError(
                "ordered_leases needs consumer_type=ConsumerType.KeyShared, because "
                f"messages of a key go to one consumer only there; got {self.consumer_type.name}"
            )
        policy = self.key_shared_policy
        if policy is not None and policy.allow_out_of_order_delivery:
            raise ConfigurationError(
                "ordered_leases and allow_out_of_order_delivery contradict each other: leave the "
                "latter out of the key_shared_policy"
            )
        for name in ("message_listener", "retry_enable"):
            if getattr(self, name):
                raise ConfigurationError(
                    f"ordered_leases and {name} contradict each other: messages would "
                    "overtake a failed message of their key. Leave one out"
                )

    @property
    def retry_letter_topic(self) -> str | None:
        """The full name of the retry letter topic to read, or None without `retry_enable`."""
        if not self.retry_enable:
            return None
        policy: DeadLetterPolicy | None = self.dead_letter_policy
        if policy is not None and policy.retry_letter_topic is not None:
            return full_name(policy.retry_letter_topic)
        return retry_topic_of(self.topics, self.subscription_name)

    @property
    def excluded_topics(self) -> tuple[str, ...]:
        """Endings of the names of this consumer's letter topics, which its pattern must not add.

        A pattern such as "orders-.*" also matches "orders-eu-billing-DLQ". A consumer that read its
        own letters would write letters of letters without end.
        """
        policy: DeadLetterPolicy | None = self.dead_letter_policy
        if self.pattern is None or policy is None:
            return ()
        named = (policy.dead_letter_topic, policy.retry_letter_topic)
        return (
            f"-{self.subscription_name}-DLQ",
            f"-{self.subscription_name}-RETRY",
            *(full_name(each) for each in named if isinstance(each, str)),
        )

    def is_shared(self, topic: str) -> bool:
        """Return True if a topic of this consumer is subscribed as Shared or Key_Shared."""
        return self.shared or self.reads_letters(topic)

    def remembers_failures(self, topic: str) -> bool:
        """Return True if failed delivery attempts of a topic's messages must be counted here.

        The dead letter policy needs them. A backoff needs them on Exclusive and Failover, where the
        broker counts no redeliveries.
        """
        has_backoff = (
            self.negative_ack_redelivery_backoff is not None
            or self.ack_timeout_redelivery_backoff is not None
        )
        return self.dead_letter_policy is not None or (has_backoff and not self.is_shared(topic))

    def reads_letters(self, topic: str) -> bool:
        """Return True for this consumer's retry letter topic and its partitions."""
        retry = self.retry_letter_topic
        return retry is not None and retry in (topic, base_name(topic))

    @property
    def shared(self) -> bool:
        """True for the types on which the broker redelivers single entries."""
        return self.consumer_type in (ConsumerType.Shared, ConsumerType.KeyShared)


def _batch_policy_of(stock: Any) -> BatchReceivePolicy:
    """Convert a ConsumerBatchReceivePolicy of `pulsar-client`."""
    try:
        native = stock.policy()
        return BatchReceivePolicy(
            max_num_message=native.getMaxNumMessages(),
            max_num_bytes=native.getMaxNumBytes(),
            timeout_ms=native.getTimeoutMs(),
        )
    except AttributeError as error:
        raise ConfigurationError(
            "batch_receive_policy must be a BatchReceivePolicy (or ConsumerBatchReceivePolicy)"
        ) from error


def parse_topics(topic: Any, is_pattern_topic: bool) -> tuple[tuple[str, ...], str | None]:
    """Split `topic` (a str, a list of str or a compiled pattern) into topic names and a pattern."""
    if isinstance(topic, re.Pattern):
        return (), text(topic.pattern, "topic")
    if isinstance(topic, str):
        if is_pattern_topic:
            return (), text(topic, "topic")
        return (text(topic, "topic", blank=InvalidTopicName),), None
    if isinstance(topic, (list, tuple)):
        if is_pattern_topic:
            raise ConfigurationError("topic must be one string when is_pattern_topic is True")
        return tuple(text(each, "topic", blank=InvalidTopicName) for each in topic), None
    raise ConfigurationError(
        f"topic must be a str, a list of str or a compiled pattern, got {type(topic).__name__}"
    )
