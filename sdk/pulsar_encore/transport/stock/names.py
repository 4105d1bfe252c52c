"""What of the stock package users of this one need under the same names.

Owns the list. They are the stock package's own objects (but `AuthenticationOauth2`, which inherits
from its own), so that code and libraries that build them keep working when the import changes.
"""

from pulsar import (
    Authentication,
    AuthenticationAthenz,
    AuthenticationBasic,
    AuthenticationToken,
    AutoClusterFailover,
    ConsoleLogger,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    CryptoKeyReader,
    DeadLetterPolicyBuilder,
    EncryptionContext,
    EncryptionKey,
    FileLogger,
    KeySharedMode,
    KeySharedPolicy,
    LoggerLevel,
    MessageBatch,
    Result,
    ServiceInfo,
    ServiceInfoProvider,
)

from .authentication import AuthenticationOauth2, AuthenticationTLS

__all__ = [
    "Authentication",
    "AuthenticationAthenz",
    "AuthenticationBasic",
    "AuthenticationOauth2",
    "AuthenticationTLS",
    "AuthenticationToken",
    "AutoClusterFailover",
    "ConsoleLogger",
    "ConsumerDeadLetterPolicy",
    "ConsumerKeySharedPolicy",
    "CryptoKeyReader",
    "DeadLetterPolicyBuilder",
    "EncryptionContext",
    "EncryptionKey",
    "FileLogger",
    "KeySharedMode",
    "KeySharedPolicy",
    "LoggerLevel",
    "MessageBatch",
    "Result",
    "ServiceInfo",
    "ServiceInfoProvider",
]
