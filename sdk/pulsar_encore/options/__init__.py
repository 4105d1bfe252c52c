"""What the caller may choose, validated before anything connects."""

from .client import ClientOptions
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
from .letters import DeadLetterPolicy
from .producer import ProducerOptions
from .reader import ReaderOptions

__all__ = [
    "DEFAULT_UNACKED_WINDOW",
    "BatchReceivePolicy",
    "BatchingType",
    "ClientOptions",
    "CompressionType",
    "ConsumerCryptoFailureAction",
    "ConsumerOptions",
    "ConsumerType",
    "DeadLetterPolicy",
    "InitialPosition",
    "PartitionsRoutingMode",
    "ProducerAccessMode",
    "ProducerOptions",
    "ReaderOptions",
    "RegexSubscriptionMode",
    "parse_topics",
]
