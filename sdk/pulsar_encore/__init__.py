"""An asyncio consumer SDK for Apache Pulsar whose acks and negative acks are right."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from . import exceptions, schema
from .authentication import (
    Authentication,
    AuthenticationAthenz,
    AuthenticationBasic,
    AuthenticationOauth2,
    AuthenticationTLS,
    AuthenticationToken,
)
from .backoff import Backoff
from .client import Client
from .consumer import Consumer, Statistics
from .consumer.events import (
    BecameActive,
    BecameInactive,
    Connected,
    ConsumerEvent,
    Disconnected,
    EndOfTopic,
    TopicAdded,
)
from .consumer.leasing.lease import Lease
from .encryption import CryptoKeyReader, EncryptionContext, EncryptionKey
from .errors import (
    ClosedError,
    ConfigurationError,
    EncoreError,
    ForkedError,
    LeaseLostError,
    MessageNotHeldError,
    NotSupportedError,
    ProtocolError,
    ReceiveTimeout,
    SchemaVersionError,
    StateDamagedError,
    StateFormatError,
    StateInUseError,
    StoreError,
    TransportError,
    TransportTimeout,
    UnreadableError,
    WrongLoopError,
)
from .exceptions import (
    AlreadyClosed,
    AuthenticationError,
    AuthorizationError,
    BrokerMetadataError,
    BrokerPersistenceError,
    ChecksumError,
    ConnectError,
    ConsumerAssignError,
    ConsumerBusy,
    ConsumerNotFound,
    ConsumerNotInitialized,
    CryptoError,
    CumulativeAcknowledgementNotAllowedError,
    ErrorGettingAuthenticationData,
    IncompatibleSchema,
    Interrupted,
    InvalidConfiguration,
    InvalidMessage,
    InvalidTopicName,
    InvalidTxnStatusError,
    InvalidUrl,
    LookupError,
    MemoryBufferIsFull,
    MessageTooBig,
    NotAllowedError,
    NotConnected,
    OperationNotSupported,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    ProducerBusy,
    ProducerFenced,
    ProducerNotInitialized,
    ProducerQueueIsFull,
    PulsarException,
    ReadError,
    ServiceUnitNotReady,
    SubscriptionNotFound,
    Timeout,
    TooManyLookupRequestException,
    TopicNotFound,
    TopicTerminated,
    TransactionConflict,
    TransactionCoordinatorNotFoundError,
    TransactionNotFound,
    UnknownError,
    UnsupportedVersionError,
)
from .ids import MessageId
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
)
from .options import BatchReceivePolicy as ConsumerBatchReceivePolicy
from .producer import ContentError, Producer
from .reader import Reader
from .result import Result
from .service_info import AutoClusterFailover, ServiceInfo, ServiceInfoProvider
from .version import VERSION

__version__ = VERSION

from . import asyncio

if TYPE_CHECKING:
    from . import deadletters, testing
    from .message_batch import MessageBatch
    from .schema import BytesSchema

# What brings a library along that most programs do without, and where it is.
_LATER: Final = {"BytesSchema": "schema", "MessageBatch": "message_batch"}


def __getattr__(name: str) -> Any:
    """`pulsar_encore.testing` and `deadletters` need no import of their own, and cost none."""
    if name in ("deadletters", "testing"):
        return import_module(f".{name}", __name__)
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
    "Backoff",
    "BatchReceivePolicy",
    "BatchingType",
    "BecameActive",
    "BecameInactive",
    "BrokerMetadataError",
    "BrokerPersistenceError",
    "BytesSchema",
    "ChecksumError",
    "Client",
    "ClosedError",
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
    "CryptoError",
    "CryptoKeyReader",
    "CumulativeAcknowledgementNotAllowedError",
    "DeadLetterPolicy",
    "DeadLetterPolicyBuilder",
    "Disconnected",
    "EncoreError",
    "EncryptionContext",
    "EncryptionKey",
    "EndOfTopic",
    "ErrorGettingAuthenticationData",
    "FileLogger",
    "ForkedError",
    "IncompatibleSchema",
    "InitialPosition",
    "Interrupted",
    "InvalidConfiguration",
    "InvalidMessage",
    "InvalidTopicName",
    "InvalidTxnStatusError",
    "InvalidUrl",
    "KeySharedMode",
    "KeySharedPolicy",
    "Lease",
    "LeaseLostError",
    "LoggerLevel",
    "LookupError",
    "MemoryBufferIsFull",
    "Message",
    "MessageBatch",
    "MessageId",
    "MessageNotHeldError",
    "MessageTooBig",
    "NotAllowedError",
    "NotConnected",
    "NotSupportedError",
    "OperationNotSupported",
    "PartitionsRoutingMode",
    "Producer",
    "ProducerAccessMode",
    "ProducerBlockedQuotaExceededError",
    "ProducerBlockedQuotaExceededException",
    "ProducerBusy",
    "ProducerFenced",
    "ProducerNotInitialized",
    "ProducerQueueIsFull",
    "ProtocolError",
    "PulsarException",
    "ReadError",
    "Reader",
    "ReceiveTimeout",
    "RegexSubscriptionMode",
    "Result",
    "RocksState",
    "SchemaVersionError",
    "ServiceInfo",
    "ServiceInfoProvider",
    "ServiceUnitNotReady",
    "StateDamagedError",
    "StateFormatError",
    "StateInUseError",
    "Statistics",
    "StoreError",
    "SubscriptionNotFound",
    "Timeout",
    "TooManyLookupRequestException",
    "TopicAdded",
    "TopicNotFound",
    "TopicTerminated",
    "TransactionConflict",
    "TransactionCoordinatorNotFoundError",
    "TransactionNotFound",
    "TransportError",
    "TransportTimeout",
    "UnknownError",
    "UnreadableError",
    "UnsupportedVersionError",
    "WrongLoopError",
    "__version__",
    "asyncio",
    "deadletters",
    "exceptions",
    "schema",
    "testing",
]
