"""The C++ client's configuration of consumers and readers.

Nacks, ack timeouts and dead letters are this package's, so the C++ client's stay unset
(`docs/notes/cpp-client.md#rules-for-the-stock-transport`).
"""

from __future__ import annotations

import re
from typing import Any, Final

import _pulsar

from ...errors import NotSupportedError
from ...options import Subscription
from ...values.topic_names import full_name
from .client_config import native_enum
from .stock_schemas import schema_info

#: Raised to the C++ client's minimum of 100 ms. Nacks handed over are due:
#: `docs/notes/cpp-client.md#negative-acks`.
NACK_DELAY_MS: Final = 1
#: Limits of one `batch_receive` of the pump, and the time it waits for more messages.
PUMP_MAX_MESSAGES: Final = 1000
PUMP_MAX_BYTES: Final = 10 * 1024 * 1024
PUMP_TIMEOUT_MS: Final = 2

_READER_NAME: Final = re.compile(r"(?:(.*)-)?reader-[0-9a-f]+", re.DOTALL)


def queue_share(requested: int) -> int:
    """Return the C++ client's half of a receiver queue; the consumer above buffers the other half.

    At least 2: a seek by id costs the C++ client a permit.
    """
    return max(2, requested - requested // 2)


def consumer_configuration(subscription: Subscription) -> Any:
    """Return the `_pulsar.ConsumerConfiguration` for a durable `subscription`."""
    if subscription.receiver_queue_size == 0:
        raise NotSupportedError(
            "receiver_queue_size=0 loses all but the first message of a batch in the stock "
            "library: use 1"
        )
    conf = _pulsar.ConsumerConfiguration()
    _set_common(conf, subscription)
    conf.consumer_type(native_enum(subscription.consumer_type))
    queue = queue_share(subscription.receiver_queue_size)
    conf.receiver_queue_size(queue)
    conf.max_total_receiver_queue_size_across_partitions(
        queue_share(subscription.max_total_receiver_queue_size_across_partitions)
    )
    if subscription.consumer_name:
        conf.consumer_name(subscription.consumer_name)
    conf.negative_ack_redelivery_delay_ms(NACK_DELAY_MS)
    conf.batch_index_ack_enabled(True)
    conf.batch_receive_policy(
        # With a limit above the queue's size the C++ client logs a warning.
        _pulsar.BatchReceivePolicy(min(PUMP_MAX_MESSAGES, queue), PUMP_MAX_BYTES, PUMP_TIMEOUT_MS)
    )
    conf.broker_consumer_stats_cache_time_ms(subscription.broker_consumer_stats_cache_time_ms)
    for key, value in (subscription.properties or {}).items():
        conf.property(key, value)
    conf.pattern_auto_discovery_period(subscription.pattern_auto_discovery_period)
    conf.regex_subscription_mode(native_enum(subscription.regex_subscription_mode))
    conf.subscription_initial_position(native_enum(subscription.initial_position))
    conf.replicate_subscription_state_enabled(subscription.replicate_subscription_state_enabled)
    # The C++ client never requests chunks that it dropped for this limit. So the limit is set only
    # if the dropped message may be acked.
    acks_dropped = subscription.auto_ack_oldest_chunked_message_on_queue_full
    conf.max_pending_chunked_message(
        subscription.max_pending_chunked_message if acks_dropped else 0
    )
    conf.auto_ack_oldest_chunked_message_on_queue_full(acks_dropped)
    if subscription.key_shared_policy is not None:
        conf.key_shared_policy(subscription.key_shared_policy.policy())
    return conf


def reader_configuration(subscription: Subscription) -> Any:
    """Return the `_pulsar.ReaderConfiguration` for a `subscription` that is not durable."""
    if len(subscription.topics) != 1:
        raise NotSupportedError("a reader of the stock library reads one topic: make one for each")
    conf = _pulsar.ReaderConfiguration()
    _set_common(conf, subscription)
    conf.receiver_queue_size(max(1, subscription.receiver_queue_size))
    if subscription.consumer_name is not None:
        conf.reader_name(subscription.consumer_name)
    conf.subscription_role_prefix(_role_prefix(subscription.subscription_name))
    return conf


def _set_common(conf: Any, subscription: Subscription) -> None:
    conf.schema(schema_info(subscription.schema))
    conf.read_compacted(subscription.read_compacted)
    conf.start_message_id_inclusive(subscription.start_message_id_inclusive)
    if subscription.crypto_key_reader is not None:
        conf.crypto_key_reader(subscription.crypto_key_reader.cryptoKeyReader)
    conf.crypto_failure_action(native_enum(subscription.crypto_failure_action))


def _role_prefix(name: str) -> str:
    """Return the prefix of a subscription name in the form of the C++ client, else the name.

    The C++ client names readers `prefix-reader-random`. A permission for the prefix must apply.
    """
    match = _READER_NAME.fullmatch(name)
    return name if match is None else match[1] or ""


def subscribed_topics(subscription: Subscription) -> Any:
    if subscription.pattern is not None:
        return _pulsar.TopicRegex(_regex_of(subscription.pattern, subscription.excluded_topics))
    return subscription.topics[0] if len(subscription.topics) == 1 else list(subscription.topics)


def _regex_of(pattern: str, excluded: tuple[str, ...]) -> str:
    """Return a pattern for the C++ client, which compares it with names without their domain.

    A lookahead behind the namespace excludes topics. The C++ client takes everything before the
    last slash for the namespace.
    """
    path = full_name(pattern).partition("://")[2]
    parts = path.split("/", 2)
    if len(parts) != 3:
        return path
    namespace = "/".join(parts[:2]) + "/"
    name = f"(?:{parts[2]})" if "|" in parts[2] else parts[2]
    if not excluded:
        return namespace + name
    endings = []
    for each in excluded:
        if "://" not in each:
            endings.append(f".*{re.escape(each)}")
        elif each.partition("://")[2].startswith(namespace):
            endings.append(re.escape(each.partition("://")[2].removeprefix(namespace)))
    return f"{namespace}(?!(?:{'|'.join(endings)})(?:-partition-\\d+)?$){name}"
