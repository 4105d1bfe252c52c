"""The exceptions of stock's `pulsar.exceptions`, under the same names.

Each is raised where stock raises its own. Its place in the tree of `errors` says who must act:
mostly it is a TransportError, and a ConfigurationError if the name tells of the caller's mistake,
whoever found that. Owns the names, and `named`, which picks the class of a result.
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
    """An option is not valid, or does not fit another one."""

    result = "InvalidConfiguration"


class InvalidTopicName(ConfigurationError, PulsarException):
    """What was given for a topic is no topic's name."""

    result = "InvalidTopicName"


class InvalidUrl(ConfigurationError, PulsarException):
    """The service URL is not valid."""

    result = "InvalidUrl"


class OperationNotSupported(NotSupportedError, PulsarException):
    """It cannot be done with this kind of topic or consumer."""

    result = "OperationNotSupported"


class CumulativeAcknowledgementNotAllowedError(ConfigurationError, PulsarException):
    """Cumulative acks need an Exclusive or Failover consumer."""

    result = "CumulativeAcknowledgementNotAllowedError"


class UnknownError(TransportError):
    """There is no name for what went wrong."""

    result = "UnknownError"


class LookupError(TransportError):
    """The broker could not say who serves the topic."""

    result = "LookupError"
    retryable = True


class ConnectError(TransportError):
    """No connection to the broker."""

    result = "ConnectError"
    retryable = True


class ReadError(TransportError):
    """The connection broke while reading."""

    result = "ReadError"
    retryable = True


class NotConnected(TransportError):
    """Not connected at the moment."""

    result = "NotConnected"
    retryable = True


class AuthenticationError(TransportError):
    """The client could not authenticate, or the broker does not accept it."""

    result = "AuthenticationError"


class AuthorizationError(TransportError):
    """The role lacks a permission."""

    result = "AuthorizationError"


class ErrorGettingAuthenticationData(TransportError):
    """The authentication could not give its data."""

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
    """A message was damaged on its way."""

    result = "ChecksumError"
    retryable = True


class ConsumerBusy(TransportError):
    """Another consumer holds the subscription."""

    result = "ConsumerBusy"
    retryable = True


class ConsumerNotInitialized(TransportError):
    """The native consumer was never made."""

    result = "ConsumerNotInitialized"


class ConsumerNotFound(TransportError):
    """The broker does not know the consumer any more."""

    result = "ConsumerNotFound"
    retryable = True


class ConsumerAssignError(TransportError):
    """The broker could not assign the consumer its share of the keys."""

    result = "ConsumerAssignError"
    retryable = True


class ProducerNotInitialized(TransportError):
    """The native producer was never made."""

    result = "ProducerNotInitialized"


class ProducerBusy(TransportError):
    """Another producer of this name is connected."""

    result = "ProducerBusy"
    retryable = True


class ProducerFenced(TransportError):
    """Another producer has the topic for itself."""

    result = "ProducerFenced"


class ProducerQueueIsFull(TransportError):
    """As many messages as may be are under way."""

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
    """The message cannot be sent as it is."""

    result = "InvalidMessage"


class MessageTooBig(TransportError):
    """The message is over the broker's limit."""

    result = "MessageTooBig"


class TooManyLookupRequestException(TransportError):
    """Too many lookups at a time."""

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
    """The topic was terminated and takes no messages."""

    result = "TopicTerminated"


class SubscriptionNotFound(TransportError):
    """The subscription does not exist."""

    result = "SubscriptionNotFound"


class UnsupportedVersionError(TransportError):
    """The broker is too old for this."""

    result = "UnsupportedVersionError"


class CryptoError(TransportError):
    """Encryption or decryption failed."""

    result = "CryptoError"


class IncompatibleSchema(TransportError):
    """The schema does not fit that of the topic."""

    result = "IncompatibleSchema"


class NotAllowedError(TransportError):
    """The broker does not allow this here."""

    result = "NotAllowedError"


class Interrupted(TransportError):
    """The call was interrupted."""

    result = "Interrupted"
    retryable = True


class TransactionCoordinatorNotFoundError(TransportError):
    """As stock's; this package has no transactions."""

    result = "TransactionCoordinatorNotFoundError"


class InvalidTxnStatusError(TransportError):
    """As stock's; this package has no transactions."""

    result = "InvalidTxnStatusError"


class TransactionConflict(TransportError):
    """As stock's; this package has no transactions."""

    result = "TransactionConflict"


class TransactionNotFound(TransportError):
    """As stock's; this package has no transactions."""

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

# `Timeout` alone would leave open whether anything failed; a result always is the transport's.
_CLASSES: Final[dict[str, type[PulsarException]]] = {
    **{name: globals()[name] for name in __all__},
    "Timeout": TransportTimeout,
}

# What the protocol calls differently from the clients (its `ServerError`).
_CLIENT_NAMES: Final = {
    "MetadataError": "BrokerMetadataError",
    "PersistenceError": "BrokerPersistenceError",
    "ServiceNotReady": "ServiceUnitNotReady",
    "TooManyRequests": "TooManyLookupRequestException",
    "TopicTerminatedError": "TopicTerminated",
    "TransactionCoordinatorNotFound": "TransactionCoordinatorNotFoundError",
    "InvalidTxnStatus": "InvalidTxnStatusError",
}


def named(result: str, message: str, *, retryable: bool | None = None) -> PulsarException:
    """The error of a result's name, a client's or the protocol's.

    Args:
        result: Such as ``"TopicNotFound"``; of a name that stock has not, a TransportError.
        message: What happened and what to change.
        retryable: As for `PulsarException`.
    """
    name = _CLIENT_NAMES.get(result, result)
    return _CLASSES.get(name, TransportError)(message, result=name, retryable=retryable)
