"""The exceptions of `pulsar.exceptions`, with the same names.

Each is raised in the same cases as in `pulsar-client`. Most are TransportErrors; those for mistakes
of the caller are ConfigurationErrors.
"""

from __future__ import annotations

from typing import Final

from .encore_errors import (
    ClosedError,
    ConfigurationError,
    NotSupportedError,
    PulsarException,
    Timeout,
    TransportError,
    TransportTimeout,
)

AlreadyClosed = ClosedError


class InvalidConfiguration(ConfigurationError, PulsarException):
    """An option is not valid, or conflicts with another one."""

    result = "InvalidConfiguration"


class InvalidTopicName(ConfigurationError, PulsarException):
    """The value is not a topic name."""

    result = "InvalidTopicName"


class InvalidUrl(ConfigurationError, PulsarException):
    """The service URL is not valid."""

    result = "InvalidUrl"


class OperationNotSupported(NotSupportedError, PulsarException):
    """This kind of topic or consumer does not support the operation."""

    result = "OperationNotSupported"


class CumulativeAcknowledgementNotAllowedError(ConfigurationError, PulsarException):
    """Cumulative acks need an Exclusive or Failover consumer."""

    result = "CumulativeAcknowledgementNotAllowedError"


class UnknownError(TransportError):
    """An error without a name of its own."""

    result = "UnknownError"


class LookupError(TransportError):
    """The broker could not find the owner of the topic."""

    result = "LookupError"
    retryable = True


class ConnectError(TransportError):
    """The client could not connect to the broker."""

    result = "ConnectError"
    retryable = True


class ReadError(TransportError):
    """The connection broke during a read."""

    result = "ReadError"
    retryable = True


class NotConnected(TransportError):
    """There is no connection to the broker now."""

    result = "NotConnected"
    retryable = True


class AuthenticationError(TransportError):
    """The client could not authenticate, or the broker rejected its credentials."""

    result = "AuthenticationError"


class AuthorizationError(TransportError):
    """The role lacks a permission."""

    result = "AuthorizationError"


class ErrorGettingAuthenticationData(TransportError):
    """The Authentication object could not provide its data."""

    result = "ErrorGettingAuthenticationData"


class BrokerMetadataError(TransportError):
    """The broker could not read or write its metadata."""

    result = "BrokerMetadataError"
    retryable = True


class BrokerPersistenceError(TransportError):
    """The broker could not store or read the topic."""

    result = "BrokerPersistenceError"
    retryable = True


class ChecksumError(TransportError):
    """A message was corrupted in transit."""

    result = "ChecksumError"
    retryable = True


class ConsumerBusy(TransportError):
    """Another consumer holds the subscription."""

    result = "ConsumerBusy"
    retryable = True


class ConsumerNotInitialized(TransportError):
    """The consumer of the C++ client was never created."""

    result = "ConsumerNotInitialized"


class ConsumerNotFound(TransportError):
    """The broker no longer knows the consumer."""

    result = "ConsumerNotFound"
    retryable = True


class ConsumerAssignError(TransportError):
    """The broker could not assign key ranges to the consumer."""

    result = "ConsumerAssignError"
    retryable = True


class ProducerNotInitialized(TransportError):
    """The producer of the C++ client was never created."""

    result = "ProducerNotInitialized"


class ProducerBusy(TransportError):
    """Another producer with this name is connected."""

    result = "ProducerBusy"
    retryable = True


class ProducerFenced(TransportError):
    """Another producer has exclusive access to the topic."""

    result = "ProducerFenced"


class ProducerQueueIsFull(TransportError):
    """The limit of pending messages is reached."""

    result = "ProducerQueueIsFull"
    retryable = True


class ProducerBlockedQuotaExceededError(TransportError):
    """The topic's backlog quota is used up."""

    result = "ProducerBlockedQuotaExceededError"
    retryable = True


class ProducerBlockedQuotaExceededException(TransportError):
    """The topic's backlog quota is used up."""

    result = "ProducerBlockedQuotaExceededException"
    retryable = True


class MemoryBufferIsFull(TransportError):
    """The client's memory limit is used up."""

    result = "MemoryBufferIsFull"
    retryable = True


class InvalidMessage(TransportError):
    """The message cannot be sent in this form."""

    result = "InvalidMessage"


class MessageTooBig(TransportError):
    """The message exceeds the broker's size limit."""

    result = "MessageTooBig"


class TooManyLookupRequestException(TransportError):
    """Too many lookups are in flight."""

    result = "TooManyLookupRequestException"
    retryable = True


class ServiceUnitNotReady(TransportError):
    """The broker is moving or loading the topic."""

    result = "ServiceUnitNotReady"
    retryable = True


class TopicNotFound(TransportError):
    """The topic, or its namespace, does not exist."""

    result = "TopicNotFound"


class TopicTerminated(TransportError):
    """The topic was terminated and accepts no messages."""

    result = "TopicTerminated"


class SubscriptionNotFound(TransportError):
    """The subscription does not exist."""

    result = "SubscriptionNotFound"


class UnsupportedVersionError(TransportError):
    """The broker is too old for this request."""

    result = "UnsupportedVersionError"


class CryptoError(TransportError):
    """Encryption or decryption failed."""

    result = "CryptoError"


class IncompatibleSchema(TransportError):
    """The schema is incompatible with that of the topic."""

    result = "IncompatibleSchema"


class NotAllowedError(TransportError):
    """The broker does not allow this here."""

    result = "NotAllowedError"


class Interrupted(TransportError):
    """The call was interrupted."""

    result = "Interrupted"
    retryable = True


class TransactionCoordinatorNotFoundError(TransportError):
    """As in `pulsar-client`. This package has no transactions."""

    result = "TransactionCoordinatorNotFoundError"


class InvalidTxnStatusError(TransportError):
    """As in `pulsar-client`. This package has no transactions."""

    result = "InvalidTxnStatusError"


class TransactionConflict(TransportError):
    """As in `pulsar-client`. This package has no transactions."""

    result = "TransactionConflict"


class TransactionNotFound(TransportError):
    """As in `pulsar-client`. This package has no transactions."""

    result = "TransactionNotFound"


__all__ = [
    "AlreadyClosed",
    "AuthenticationError",
    "AuthorizationError",
    "BrokerMetadataError",
    "BrokerPersistenceError",
    "ChecksumError",
    "ConnectError",
    "ConsumerAssignError",
    "ConsumerBusy",
    "ConsumerNotFound",
    "ConsumerNotInitialized",
    "CryptoError",
    "CumulativeAcknowledgementNotAllowedError",
    "ErrorGettingAuthenticationData",
    "IncompatibleSchema",
    "Interrupted",
    "InvalidConfiguration",
    "InvalidMessage",
    "InvalidTopicName",
    "InvalidTxnStatusError",
    "InvalidUrl",
    "LookupError",
    "MemoryBufferIsFull",
    "MessageTooBig",
    "NotAllowedError",
    "NotConnected",
    "OperationNotSupported",
    "ProducerBlockedQuotaExceededError",
    "ProducerBlockedQuotaExceededException",
    "ProducerBusy",
    "ProducerFenced",
    "ProducerNotInitialized",
    "ProducerQueueIsFull",
    "PulsarException",
    "ReadError",
    "ServiceUnitNotReady",
    "SubscriptionNotFound",
    "Timeout",
    "TooManyLookupRequestException",
    "TopicNotFound",
    "TopicTerminated",
    "TransactionConflict",
    "TransactionCoordinatorNotFoundError",
    "TransactionNotFound",
    "UnknownError",
    "UnsupportedVersionError",
]

# A result comes from the transport, so `Timeout` is a TransportTimeout and not a ReceiveTimeout.
_CLASSES: Final[dict[str, type[PulsarException]]] = {
    **{name: globals()[name] for name in __all__},
    "Timeout": TransportTimeout,
}

# Names of the protocol's `ServerError` that differ from the names in the clients.
_CLIENT_NAMES: Final = {
    "MetadataError": "BrokerMetadataError",
    "PersistenceError": "BrokerPersistenceError",
    "ServiceNotReady": "ServiceUnitNotReady",
    "TooManyRequests": "TooManyLookupRequestException",
    "TopicTerminatedError": "TopicTerminated",
    "TransactionCoordinatorNotFound": "TransactionCoordinatorNotFoundError",
    "InvalidTxnStatus": "InvalidTxnStatusError",
}


def exception_of_result(
    result: str, message: str, *, retryable: bool | None = None
) -> PulsarException:
    """Return the exception for the name of a result, in the clients or in the protocol.

    Args:
        result: Such as ``"TopicNotFound"``. A name that `pulsar-client` does not have gives a
            TransportError.
        message: What happened and what to change.
        retryable: As for `PulsarException`.
    """
    name = _CLIENT_NAMES.get(result, result)
    return _CLASSES.get(name, TransportError)(message, result=name, retryable=retryable)
