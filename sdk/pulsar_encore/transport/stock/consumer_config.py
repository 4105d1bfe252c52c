"""A subscription's options as the stock library takes them.

Owns what the library is told, as against what the application asked for: negative acks, ack
timeouts and dead letters are this package's, so the library's own stay out of the way
(stock-client notes, section 13).
"""

from __future__ import annotations

from typing import Any, Final

import _pulsar

from ...errors import ConfigurationError, NotSupportedError
from ...options import ConsumerOptions
from ...options.producer import check_crypto_key_reader, check_schema
from .schemas import schema_info

#: The library's floor; what it is handed is due already (notes, 1.4).
NACK_DELAY_MS: Final = 1
#: How much one `batch_receive` of the pump takes at most, and how long it waits for more.
PUMP_MAX_MESSAGES: Final = 1000
PUMP_MAX_BYTES: Final = 10 * 1024 * 1024
PUMP_TIMEOUT_MS: Final = 2


def queue_share(asked: int) -> int:
    """The library's part of a receiver queue; the consumer above buffers the other half.

    Never 1: a seek by id costs the library a permit, and with the only one it stands still.
    """
    return max(2, asked - asked // 2)


def consumer_configuration(options: ConsumerOptions) -> Any:
    """The `_pulsar.ConsumerConfiguration` for `options`.

    Raises:
        NotSupportedError: A receiver queue of 0.
        ConfigurationError: The library refuses a value.
    """
    if options.receiver_queue_size == 0:
        raise NotSupportedError(
            "receiver_queue_size=0 loses all but the first message of a batch in the stock "
            "library: use 1"
        )
    check_schema(options.schema)
    check_crypto_key_reader(options.crypto_key_reader)
    conf = _pulsar.ConsumerConfiguration()
    conf.consumer_type(getattr(_pulsar.ConsumerType, options.consumer_type.name))
    queue = queue_share(options.receiver_queue_size)
    conf.receiver_queue_size(queue)
    conf.max_total_receiver_queue_size_across_partitions(
        queue_share(options.max_total_receiver_queue_size_across_partitions)
    )
    if options.consumer_name:
        conf.consumer_name(options.consumer_name)
    conf.negative_ack_redelivery_delay_ms(NACK_DELAY_MS)
    conf.batch_index_ack_enabled(True)
    conf.batch_receive_policy(
        # More than the queue holds makes the library warn and take the queue's size.
        _pulsar.BatchReceivePolicy(min(PUMP_MAX_MESSAGES, queue), PUMP_MAX_BYTES, PUMP_TIMEOUT_MS)
    )
    conf.broker_consumer_stats_cache_time_ms(options.broker_consumer_stats_cache_time_ms)
    conf.read_compacted(options.is_read_compacted)
    for key, value in (options.properties or {}).items():
        conf.property(key, value)
    conf.pattern_auto_discovery_period(options.pattern_auto_discovery_period)
    conf.regex_subscription_mode(
        getattr(_pulsar.RegexSubscriptionMode, options.regex_subscription_mode.name)
    )
    conf.subscription_initial_position(
        getattr(_pulsar.InitialPosition, options.initial_position.name)
    )
    conf.schema(schema_info(options.schema))
    conf.replicate_subscription_state_enabled(options.replicate_subscription_state_enabled)
    # The library forgets what it drops for the limit, and never asks for it again: without the
    # permission to ack it there is no limit.
    acks_dropped = options.auto_ack_oldest_chunked_message_on_queue_full
    conf.max_pending_chunked_message(options.max_pending_chunked_message if acks_dropped else 0)
    conf.auto_ack_oldest_chunked_message_on_queue_full(
        options.auto_ack_oldest_chunked_message_on_queue_full
    )
    conf.start_message_id_inclusive(options.start_message_id_inclusive)
    if options.crypto_key_reader is not None:
        conf.crypto_key_reader(options.crypto_key_reader.cryptoKeyReader)
    conf.crypto_failure_action(
        getattr(_pulsar.ConsumerCryptoFailureAction, options.crypto_failure_action.name)
    )
    if options.key_shared_policy is not None:
        try:
            conf.key_shared_policy(options.key_shared_policy.policy())
        except (AttributeError, TypeError) as error:
            raise ConfigurationError(
                "key_shared_policy must be a ConsumerKeySharedPolicy, "
                f"got {type(options.key_shared_policy).__name__}"
            ) from error
    return conf


def subscribed_topics(options: ConsumerOptions) -> Any:
    """What `subscribe_async_v2` takes: a pattern, one topic, or a list."""
    if options.pattern is not None:
        return _pulsar.TopicRegex(options.pattern)
    return options.topics[0] if len(options.topics) == 1 else list(options.topics)
