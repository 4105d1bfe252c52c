"""The C++ client's configuration of a producer, and the guard around a message router."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import _pulsar

from ...errors import ConfigurationError, NotSupportedError
from ...message import Message
from ...options import ProducerOptions
from ...values.message_id import MessageId
from .client_config import native_enum
from .stock_schemas import schema_info

_NO_LIMIT: Final = 0


class RouterGuard:
    """Wraps a user's `message_router(message, partitions)`. `failed` keeps its exception.

    The exception must not pass into the C++ client's send.
    """

    def __init__(self, route: Callable[[Any, int], int], schema: Any) -> None:
        self._route = route
        self._schema = schema
        self.failed: ConfigurationError | None = None

    def __call__(self, native: Any, partitions: int) -> int:
        try:
            message = Message.of_reader(native, self._schema, MessageId())
            chosen = self._route(message, partitions)
            if not 0 <= chosen < partitions:
                raise ValueError(f"it chose {chosen} of {partitions} partitions")
            return int(chosen)
        except BaseException as error:
            self.failed = ConfigurationError(
                f"message_router failed and nothing was sent: {_described(error)}"
            )
            self.failed.__cause__ = error
            return partitions  # one past the last, which the C++ client refuses


def _described(error: BaseException) -> str:
    """Describe an exception whose `__str__` may raise, which would end the process."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return type(error).__name__


def pending_limit(options: ProducerOptions) -> int:
    """Return how many chunks `StockProducer` sends at once; 0 for no limit."""
    if not (options.block_if_queue_full or options.chunking_enabled):
        return 0
    limits = (options.max_pending_messages, options.max_pending_messages_across_partitions)
    return min((limit for limit in limits if limit), default=0)


def producer_configuration(options: ProducerOptions) -> tuple[Any, RouterGuard | None]:
    """Return the `_pulsar.ProducerConfiguration` for `options`, and the router in it."""
    if options.initial_subscription_name is not None:
        raise NotSupportedError(
            "initial_subscription_name: the stock client cannot ask for a subscription with a "
            "producer; subscribe once before"
        )
    conf = _pulsar.ProducerConfiguration()
    if options.producer_name is not None:
        conf.producer_name(options.producer_name)
    conf.schema(schema_info(options.schema))
    if options.initial_sequence_id is not None:
        conf.initial_sequence_id(options.initial_sequence_id)
    conf.send_timeout_millis(options.send_timeout_millis)
    conf.compression_type(native_enum(options.compression_type))
    has_own_limit = options.block_if_queue_full or options.chunking_enabled
    conf.max_pending_messages(_NO_LIMIT if has_own_limit else options.max_pending_messages)
    conf.max_pending_messages_across_partitions(options.max_pending_messages_across_partitions)
    conf.block_if_queue_full(False)  # it would block the event loop
    conf.batching_enabled(options.batching_enabled)
    conf.batching_max_messages(options.batching_max_messages)
    conf.batching_max_allowed_size_in_bytes(options.batching_max_allowed_size_in_bytes)
    conf.batching_max_publish_delay_ms(options.batching_max_publish_delay_ms)
    conf.chunking_enabled(options.chunking_enabled)
    conf.partitions_routing_mode(native_enum(options.message_routing_mode))
    conf.lazy_start_partitioned_producers(options.lazy_start_partitioned_producers)
    for key, value in (options.properties or {}).items():
        conf.property(key, value)
    conf.batching_type(native_enum(options.batching_type))
    if options.encryption_key is not None:
        keys = options.encryption_key
        for key in keys if isinstance(keys, tuple) else (keys,):
            conf.encryption_key(key)
    if options.crypto_key_reader is not None:
        conf.crypto_key_reader(options.crypto_key_reader.cryptoKeyReader)
    conf.access_mode(native_enum(options.access_mode))
    router = None
    if options.message_router is not None:
        router = RouterGuard(options.message_router, options.schema)
        conf.message_router(router)
    return conf, router
