"""The checked options of a producer, with the names and defaults of `pulsar-client`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..codecs.bound_codec import bind
from ..errors import ConfigurationError
from .checks import (
    check_booleans,
    check_crypto_key_reader,
    check_event_listener,
    integer,
    optional_text,
    string_map,
    topic_name,
)
from .enums import (
    BatchingType,
    CompressionType,
    PartitionsRoutingMode,
    ProducerAccessMode,
    coerce_fields,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerOptions:
    """Checked options of a producer. `Client.create_producer` documents the fields."""

    topic: str
    producer_name: str | None = None
    schema: Any = None
    initial_sequence_id: int | None = None
    send_timeout_millis: int = 30_000
    compression_type: CompressionType = CompressionType.NONE
    max_pending_messages: int = 1000
    max_pending_messages_across_partitions: int = 50_000
    block_if_queue_full: bool = False
    batching_enabled: bool = True
    batching_max_messages: int = 1000
    batching_max_allowed_size_in_bytes: int = 128 * 1024
    batching_max_publish_delay_ms: int = 10
    chunking_enabled: bool = False
    message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution
    lazy_start_partitioned_producers: bool = False
    properties: dict[str, str] | None = None
    batching_type: BatchingType = BatchingType.Default
    encryption_key: str | tuple[str, ...] | None = None  # several if a copied message had several
    crypto_key_reader: Any = None
    access_mode: ProducerAccessMode = ProducerAccessMode.Shared
    message_router: Callable[[Any, int], int] | None = None
    initial_subscription_name: str | None = None  # created before the first message
    event_listener: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        topic_name(self.topic, "topic")
        optional_text(self.producer_name, "producer_name")
        optional_text(self.initial_subscription_name, "initial_subscription_name")
        keys = self.encryption_key
        for key in keys if isinstance(keys, tuple) else (keys,):
            optional_text(key, "encryption_key")
        object.__setattr__(self, "schema", bind(self.schema, reads=False))
        coerce_fields(
            self,
            compression_type=CompressionType,
            message_routing_mode=PartitionsRoutingMode,
            batching_type=BatchingType,
            access_mode=ProducerAccessMode,
        )
        for name, low, unit in (
            ("send_timeout_millis", 0, "ms"),
            ("max_pending_messages", 0, ""),
            ("max_pending_messages_across_partitions", 0, ""),
            ("batching_max_messages", 2, ""),  # the lower bound of the C++ client
            ("batching_max_allowed_size_in_bytes", 1, "bytes"),
            ("batching_max_publish_delay_ms", 1, "ms"),
        ):
            integer(getattr(self, name), name, low=low, high=2**31 - 1, unit=unit)
        if self.initial_sequence_id is not None:
            integer(self.initial_sequence_id, "initial_sequence_id", low=-1, high=2**63 - 1)
        check_booleans(self)
        object.__setattr__(self, "properties", string_map(self.properties, "properties"))
        check_crypto_key_reader(self.crypto_key_reader)
        check_event_listener(self.event_listener)
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.batching_enabled and self.chunking_enabled:
            raise ConfigurationError("chunking_enabled needs batching_enabled=False")
        if self.message_router is not None and not callable(self.message_router):
            raise ConfigurationError("message_router must be callable")
        if (
            self.message_routing_mode is PartitionsRoutingMode.CustomPartition
            and self.message_router is None
        ):
            raise ConfigurationError(
                "message_routing_mode=PartitionsRoutingMode.CustomPartition needs a message_router"
            )
        if self.encryption_key is not None and self.crypto_key_reader is None:
            raise ConfigurationError("encryption_key needs a crypto_key_reader")
