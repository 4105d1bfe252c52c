"""What the caller may choose, validated before anything connects."""

from .consumer import (
    DEFAULT_UNACKED_WINDOW,
    BatchReceivePolicy,
    ConsumerOptions,
    parse_topics,
)
from .enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
)

__all__ = [
    "DEFAULT_UNACKED_WINDOW",
    "BatchReceivePolicy",
    "BatchingType",
    "CompressionType",
    "ConsumerCryptoFailureAction",
    "ConsumerOptions",
    "ConsumerType",
    "InitialPosition",
    "PartitionsRoutingMode",
    "ProducerAccessMode",
    "RegexSubscriptionMode",
    "parse_topics",
]
