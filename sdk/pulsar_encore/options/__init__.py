"""Option classes. All values are checked before anything connects."""

from .client_options import ClientOptions
from .consumer_options import (
    DEFAULT_UNACKED_WINDOW,
    BatchReceivePolicy,
    ConsumerOptions,
    parse_topics,
)
from .dead_letter_policy import ConsumerDeadLetterPolicy, DeadLetterPolicy, DeadLetterPolicyBuilder
from .durable_state import RocksState
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
from .key_shared import ConsumerKeySharedPolicy, KeySharedMode, KeySharedPolicy
from .loggers import ConsoleLogger, FileLogger, LoggerLevel
from .nack_index import SpillingNackIndex
from .producer_options import ProducerOptions
from .reader_options import ReaderOptions
from .subscription import Subscription

__all__ = [
    "DEFAULT_UNACKED_WINDOW",
    "BatchReceivePolicy",
    "BatchingType",
    "ClientOptions",
    "CompressionType",
    "ConsoleLogger",
    "ConsumerCryptoFailureAction",
    "ConsumerDeadLetterPolicy",
    "ConsumerKeySharedPolicy",
    "ConsumerOptions",
    "ConsumerType",
    "DeadLetterPolicy",
    "DeadLetterPolicyBuilder",
    "FileLogger",
    "InitialPosition",
    "KeySharedMode",
    "KeySharedPolicy",
    "LoggerLevel",
    "PartitionsRoutingMode",
    "ProducerAccessMode",
    "ProducerOptions",
    "ReaderOptions",
    "RegexSubscriptionMode",
    "RocksState",
    "SpillingNackIndex",
    "Subscription",
    "parse_topics",
]
