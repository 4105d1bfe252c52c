"""An asyncio consumer SDK for Apache Pulsar whose acks and negative acks are right."""

from . import schema
from .backoff import Backoff
from .client import Client
from .consumer import Consumer, Statistics
from .errors import (
    ClosedError,
    ConfigurationError,
    EncoreError,
    ForkedError,
    MessageNotHeldError,
    NotSupportedError,
    ProtocolError,
    ReceiveTimeout,
    SchemaVersionError,
    StoreError,
    TransportError,
    WrongLoopError,
)
from .errors import TransportError as PulsarException
from .ids import MessageId
from .message import Message
from .options import (
    BatchingType,
    BatchReceivePolicy,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    DeadLetterPolicy,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
)
from .options import BatchReceivePolicy as ConsumerBatchReceivePolicy
from .producer import ContentError, Producer
from .reader import Reader
from .transport.stock.names import (
    Authentication,
    AuthenticationAthenz,
    AuthenticationBasic,
    AuthenticationOauth2,
    AuthenticationTLS,
    AuthenticationToken,
    AutoClusterFailover,
    ConsoleLogger,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    CryptoKeyReader,
    EncryptionContext,
    EncryptionKey,
    FileLogger,
    KeySharedMode,
    LoggerLevel,
    Result,
    ServiceInfo,
    ServiceInfoProvider,
)
from .version import VERSION

__version__ = VERSION

__all__ = [
    "Authentication",
    "AuthenticationAthenz",
    "AuthenticationBasic",
    "AuthenticationOauth2",
    "AuthenticationTLS",
    "AuthenticationToken",
    "AutoClusterFailover",
    "Backoff",
    "BatchReceivePolicy",
    "BatchingType",
    "Client",
    "ClosedError",
    "CompressionType",
    "ConfigurationError",
    "ConsoleLogger",
    "Consumer",
    "ConsumerBatchReceivePolicy",
    "ConsumerCryptoFailureAction",
    "ConsumerDeadLetterPolicy",
    "ConsumerKeySharedPolicy",
    "ConsumerType",
    "ContentError",
    "CryptoKeyReader",
    "DeadLetterPolicy",
    "EncoreError",
    "EncryptionContext",
    "EncryptionKey",
    "FileLogger",
    "ForkedError",
    "InitialPosition",
    "KeySharedMode",
    "LoggerLevel",
    "Message",
    "MessageId",
    "MessageNotHeldError",
    "NotSupportedError",
    "PartitionsRoutingMode",
    "Producer",
    "ProducerAccessMode",
    "ProtocolError",
    "PulsarException",
    "Reader",
    "ReceiveTimeout",
    "RegexSubscriptionMode",
    "Result",
    "SchemaVersionError",
    "ServiceInfo",
    "ServiceInfoProvider",
    "Statistics",
    "StoreError",
    "TransportError",
    "WrongLoopError",
    "__version__",
    "schema",
]
