"""An asyncio consumer SDK for Apache Pulsar with exact acks and nacks."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from . import exceptions, schema
from .authentication import (
    Authentication,
    AuthenticationBasic,
    AuthenticationTLS,
    AuthenticationToken,
)
from .client import Client
from .errors import (
    AlreadyClosed,
    AuthenticationError,
    AuthorizationError,
    BrokerMetadataError,
    BrokerPersistenceError,
    ChecksumError,
    ClosedError,
    ConfigurationError,
    ConnectError,
    ConsumerAssignError,
    ConsumerBusy,
    ConsumerNotFound,
    ConsumerNotInitialized,
    CryptoError,
    CumulativeAcknowledgementNotAllowedError,
    DecodeError,
    EncoreError,
    ErrorGettingAuthenticationData,
    ForkedError,
    IncompatibleSchema,
    Interrupted,
    InvalidConfiguration,
    InvalidMessage,
    InvalidTopicName,
    InvalidTxnStatusError,
    InvalidUrl,
    LeaseLostError,
    LookupError,
    MemoryBufferIsFull,
    MessageNotHeldError,
    MessageTooBig,
    NotAllowedError,
    NotConnected,
    NotSupportedError,
    OperationNotSupported,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    ProducerBusy,
    ProducerFenced,
    ProducerNotInitialized,
    ProducerQueueIsFull,
    ProtocolError,
    PulsarException,
    ReadError,
    ReceiveTimeout,
    Result,
    SchemaVersionError,
    ServiceUnitNotReady,
    StateDamagedError,
    StateFormatError,
    StateInUseError,
    StateMismatchError,
    StoreError,
    SubscriptionNotFound,
    Timeout,
    TooManyLookupRequestException,
    TopicNotFound,
    TopicTerminated,
    TransactionAbortedError,
    TransactionConflict,
    TransactionCoordinatorNotFoundError,
    TransactionNotEnabledError,
    TransactionNotFound,
    TransactionOutcomeUnknown,
    TransactionStateError,
    TransportError,
    TransportTimeout,
    UnknownError,
    UnreadableError,
    UnsupportedVersionError,
    WrongLoopError,
)
from .message import Message
from .options import (
    BatchingType,
    BatchReceivePolicy,
    CompressionType,
    ConsoleLogger,
    ConsumerCryptoFailureAction,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    ConsumerType,
    DeadLetterPolicy,
    DeadLetterPolicyBuilder,
    FileLogger,
    InitialPosition,
    KeySharedMode,
    KeySharedPolicy,
    LoggerLevel,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
    RocksState,
    SpillingNackIndex,
)
from .options import BatchReceivePolicy as ConsumerBatchReceivePolicy
from .values.backoff import Backoff, BackoffTable
from .values.crypto_keys import CryptoKeyReader, EncryptionContext, EncryptionKey
from .values.message_id import MessageId
from .values.service_info import AutoClusterFailover, ServiceInfo, ServiceInfoProvider
from .values.transaction_id import TxnId
from .values.transaction_state import TxnState
from .version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from . import asyncio, deadletters, health, testing
    from .authentication.athenz import AuthenticationAthenz
    from .authentication.oauth2 import AuthenticationOauth2
    from .codecs.auto_consume import AutoConsume
    from .codecs.codec import Codec, SchemaInfo
    from .codecs.generic_values import GenericRecord
    from .codecs.json_codec import Json
    from .codecs.json_definition import Float32, Int32
    from .codecs.key_value import KeyValue
    from .consumer.consumer import Consumer
    from .consumer.counters import Counters
    from .consumer.events import (
        BecameActive,
        BecameInactive,
        Connected,
        ConsumerEvent,
        Disconnected,
        EndOfTopic,
        Failed,
        ProducerEvent,
        ReaderEvent,
        Retrying,
        TopicAdded,
        TopicRemoved,
    )
    from .consumer.lag import Lag, TopicLag
    from .consumer.leases.lease import Lease
    from .consumer.nack_disk_index import NackIndexStatistics
    from .consumer.pending_messages import PendingMessage
    from .consumer.statistics import Statistics
    from .message_batch import MessageBatch
    from .observability.observations import (
        BreakerChange,
        HandlerCall,
        HandlerEnd,
        LetterWritten,
        Sending,
        WindowFilling,
    )
    from .observability.observer import Observer
    from .producer import ContentError, Producer
    from .reader.reader import Reader
    from .schema import BytesSchema
    from .state import MetricSample
    from .state.rocks import StoreStatistics
    from .transaction import Transaction
    from .worker.batch_failure import BatchFailure
    from .worker.batch_worker import BatchWorker
    from .worker.breaker import Breaker
    from .worker.commit_queue import Transactional
    from .worker.handler_call import current_message
    from .worker.health import Health, LongHandler, Report
    from .worker.outbox import Out, PublishTo
    from .worker.retry_policy import Reject, Retry, RetryPolicy
    from .worker.run import run
    from .worker.scheduler import Order
    from .worker.subscribe_options import SubscribeOptions
    from .worker.worker import Worker

# Modules and names that are imported at their first use; the values are the modules of the names.
# Importing them here would double the time of `import pulsar_encore`.
_LAZY_MODULES: Final = ("asyncio", "deadletters", "health", "testing")
_LAZY_NAMES: Final = {
    "AuthenticationAthenz": "authentication.athenz",
    "AuthenticationOauth2": "authentication.oauth2",
    "BatchFailure": "worker.batch_failure",
    "BatchWorker": "worker.batch_worker",
    "Breaker": "worker.breaker",
    "AutoConsume": "codecs.auto_consume",
    "BytesSchema": "schema",
    "Codec": "codecs.codec",
    "Consumer": "consumer.consumer",
    "ContentError": "producer",
    "Counters": "consumer.counters",
    "Float32": "codecs.json_definition",
    "GenericRecord": "codecs.generic_values",
    "Int32": "codecs.json_definition",
    "Json": "codecs.json_codec",
    "KeyValue": "codecs.key_value",
    "Lag": "consumer.lag",
    "Lease": "consumer.leases.lease",
    "MessageBatch": "message_batch",
    "MetricSample": "state",
    "NackIndexStatistics": "consumer.nack_disk_index",
    "PendingMessage": "consumer.pending_messages",
    "TopicLag": "consumer.lag",
    "Producer": "producer",
    "Reader": "reader",
    "Reject": "worker.retry_policy",
    "Retry": "worker.retry_policy",
    "RetryPolicy": "worker.retry_policy",
    "SchemaInfo": "codecs.codec",
    "Statistics": "consumer.statistics",
    "StoreStatistics": "state.rocks",
    "Transaction": "transaction",
    "Transactional": "worker.commit_queue",
    "current_message": "worker.handler_call",
    "Health": "worker.health",
    "LongHandler": "worker.health",
    "Observer": "observability.observer",
    "Order": "worker.scheduler",
    "Out": "worker.outbox",
    "PublishTo": "worker.outbox",
    "Report": "worker.health",
    "SubscribeOptions": "worker.subscribe_options",
    "Worker": "worker.worker",
    "run": "worker.run",
    **dict.fromkeys(
        (
            "BecameActive",
            "BecameInactive",
            "Connected",
            "ConsumerEvent",
            "Disconnected",
            "EndOfTopic",
            "Failed",
            "ProducerEvent",
            "ReaderEvent",
            "Retrying",
            "TopicAdded",
            "TopicRemoved",
        ),
        "consumer.events",
    ),
    **dict.fromkeys(
        (
            "BreakerChange",
            "HandlerCall",
            "HandlerEnd",
            "LetterWritten",
            "Sending",
            "WindowFilling",
        ),
        "observability.observations",
    ),
}


if not TYPE_CHECKING:  # type checkers would take every misspelled name for an Any

    def __getattr__(name: str) -> Any:
        if name in _LAZY_MODULES:
            return import_module(f".{name}", __name__)
        if name in _LAZY_NAMES:
            found = getattr(import_module(f".{_LAZY_NAMES[name]}", __name__), name)
            globals()[name] = found
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "AlreadyClosed",
    "Authentication",
    "AuthenticationAthenz",
    "AuthenticationBasic",
    "AuthenticationError",
    "AuthenticationOauth2",
    "AuthenticationTLS",
    "AuthenticationToken",
    "AuthorizationError",
    "AutoClusterFailover",
    "AutoConsume",
    "Backoff",
    "BackoffTable",
    "BatchFailure",
    "BatchReceivePolicy",
    "BatchWorker",
    "BatchingType",
    "BecameActive",
    "BecameInactive",
    "Breaker",
    "BreakerChange",
    "BrokerMetadataError",
    "BrokerPersistenceError",
    "BytesSchema",
    "ChecksumError",
    "Client",
    "ClosedError",
    "Codec",
    "CompressionType",
    "ConfigurationError",
    "ConnectError",
    "Connected",
    "ConsoleLogger",
    "Consumer",
    "ConsumerAssignError",
    "ConsumerBatchReceivePolicy",
    "ConsumerBusy",
    "ConsumerCryptoFailureAction",
    "ConsumerDeadLetterPolicy",
    "ConsumerEvent",
    "ConsumerKeySharedPolicy",
    "ConsumerNotFound",
    "ConsumerNotInitialized",
    "ConsumerType",
    "ContentError",
    "Counters",
    "CryptoError",
    "CryptoKeyReader",
    "CumulativeAcknowledgementNotAllowedError",
    "DeadLetterPolicy",
    "DeadLetterPolicyBuilder",
    "DecodeError",
    "Disconnected",
    "EncoreError",
    "EncryptionContext",
    "EncryptionKey",
    "EndOfTopic",
    "ErrorGettingAuthenticationData",
    "Failed",
    "FileLogger",
    "Float32",
    "ForkedError",
    "GenericRecord",
    "HandlerCall",
    "HandlerEnd",
    "Health",
    "IncompatibleSchema",
    "InitialPosition",
    "Int32",
    "Interrupted",
    "InvalidConfiguration",
    "InvalidMessage",
    "InvalidTopicName",
    "InvalidTxnStatusError",
    "InvalidUrl",
    "Json",
    "KeySharedMode",
    "KeySharedPolicy",
    "KeyValue",
    "Lag",
    "Lease",
    "LeaseLostError",
    "LetterWritten",
    "LoggerLevel",
    "LongHandler",
    "LookupError",
    "MemoryBufferIsFull",
    "Message",
    "MessageBatch",
    "MessageId",
    "MessageNotHeldError",
    "MessageTooBig",
    "MetricSample",
    "NackIndexStatistics",
    "NotAllowedError",
    "NotConnected",
    "NotSupportedError",
    "Observer",
    "OperationNotSupported",
    "Order",
    "Out",
    "PartitionsRoutingMode",
    "PendingMessage",
    "Producer",
    "ProducerAccessMode",
    "ProducerBlockedQuotaExceededError",
    "ProducerBlockedQuotaExceededException",
    "ProducerBusy",
    "ProducerEvent",
    "ProducerFenced",
    "ProducerNotInitialized",
    "ProducerQueueIsFull",
    "ProtocolError",
    "PublishTo",
    "PulsarException",
    "ReadError",
    "Reader",
    "ReaderEvent",
    "ReceiveTimeout",
    "RegexSubscriptionMode",
    "Reject",
    "Report",
    "Result",
    "Retry",
    "RetryPolicy",
    "Retrying",
    "RocksState",
    "SchemaInfo",
    "SchemaVersionError",
    "Sending",
    "ServiceInfo",
    "ServiceInfoProvider",
    "ServiceUnitNotReady",
    "SpillingNackIndex",
    "StateDamagedError",
    "StateFormatError",
    "StateInUseError",
    "StateMismatchError",
    "Statistics",
    "StoreError",
    "StoreStatistics",
    "SubscribeOptions",
    "SubscriptionNotFound",
    "Timeout",
    "TooManyLookupRequestException",
    "TopicAdded",
    "TopicLag",
    "TopicNotFound",
    "TopicRemoved",
    "TopicTerminated",
    "Transaction",
    "TransactionAbortedError",
    "TransactionConflict",
    "TransactionCoordinatorNotFoundError",
    "TransactionNotEnabledError",
    "TransactionNotFound",
    "TransactionOutcomeUnknown",
    "TransactionStateError",
    "Transactional",
    "TransportError",
    "TransportTimeout",
    "TxnId",
    "TxnState",
    "UnknownError",
    "UnreadableError",
    "UnsupportedVersionError",
    "WindowFilling",
    "Worker",
    "WrongLoopError",
    "__version__",
    "asyncio",
    "current_message",
    "deadletters",
    "exceptions",
    "health",
    "run",
    "schema",
    "testing",
]
