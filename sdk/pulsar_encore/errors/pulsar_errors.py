"""The exceptions of stock's `pulsar.exceptions`, under the same names and caught by either's.

Each is raised where stock raises its own, is a subclass of it once that is loaded (`stock`), and
hangs in the tree of `errors` by who must act: mostly a TransportError, and a ConfigurationError
where the caller's mistake is what the name says, whoever found it. Owns the names, and `named`,
which picks the class of a result.
"""

from __future__ import annotations

from typing import Final

from .. import stock
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


@stock.twin("InvalidConfiguration")
class InvalidConfiguration(ConfigurationError, PulsarException):
    """An option is not valid, or does not fit another one."""

    result = "InvalidConfiguration"


@stock.twin("InvalidTopicName")
class InvalidTopicName(ConfigurationError, PulsarException):
    """What was given for a topic is no topic's name."""

    result = "InvalidTopicName"


@stock.twin("InvalidUrl")
class InvalidUrl(ConfigurationError, PulsarException):
    """The service URL is not valid."""

    result = "InvalidUrl"


@stock.twin("OperationNotSupported")
class OperationNotSupported(NotSupportedError, PulsarException):
    """It cannot be done with this kind of topic or consumer."""

    result = "OperationNotSupported"


@stock.twin("CumulativeAcknowledgementNotAllowedError")
class CumulativeAcknowledgementNotAllowedError(ConfigurationError, PulsarException):
    """Cumulative acks need an Exclusive or Failover consumer."""

    result = "CumulativeAcknowledgementNotAllowedError"


@stock.twin("UnknownError")
class UnknownError(TransportError):
    """There is no name for what went wrong."""

    result = "UnknownError"


@stock.twin("LookupError")
class LookupError(TransportError):
    """The broker could not say who serves the topic."""

    result = "LookupError"
    retryable = True


@stock.twin("ConnectError")
class ConnectError(TransportError):
    """No connection to the broker."""

    result = "ConnectError"
    retryable = True


@stock.twin("ReadError")
class ReadError(TransportError):
    """The connection broke while reading."""

    result = "ReadError"
    retryable = True


@stock.twin("NotConnected")
class NotConnected(TransportError):
    """Not connected at the moment."""

    result = "NotConnected"
    retryable = True


@stock.twin("AuthenticationError")
class AuthenticationError(TransportError):
    """The client could not authenticate, or the broker does not accept it."""

    result = "AuthenticationError"


@stock.twin("AuthorizationError")
class AuthorizationError(TransportError):
    """The role lacks a permission."""

    result = "AuthorizationError"


@stock.twin("ErrorGettingAuthenticationData")
class ErrorGettingAuthenticationData(TransportError):
    """The authentication could not give its data."""

    result = "ErrorGettingAuthenticationData"


@stock.twin("BrokerMetadataError")
class BrokerMetadataError(TransportError):
    """The broker could not read or write its metadata."""

    result = "BrokerMetadataError"
    retryable = True


@stock.twin("BrokerPersistenceError")
class BrokerPersistenceError(TransportError):
    """The broker could not store or read the topic."""

    result = "BrokerPersistenceError"
    retryable = True


@stock.twin("ChecksumError")
class ChecksumError(TransportError):
    """A message was damaged on its way."""

    result = "ChecksumError"
    retryable = True


@stock.twin("ConsumerBusy")
class ConsumerBusy(TransportError):
    """Another consumer holds the subscription."""

    result = "ConsumerBusy"
    retryable = True


@stock.twin("ConsumerNotInitialized")
class ConsumerNotInitialized(TransportError):
    """The native consumer was never made."""

    result = "ConsumerNotInitialized"


@stock.twin("ConsumerNotFound")
class ConsumerNotFound(TransportError):
    """The broker does not know the consumer any more."""

    result = "ConsumerNotFound"
    retryable = True


@stock.twin("ConsumerAssignError")
class ConsumerAssignError(TransportError):
    """The broker could not assign the consumer its share of the keys."""

    result = "ConsumerAssignError"
    retryable = True


@stock.twin("ProducerNotInitialized")
class ProducerNotInitialized(TransportError):
    """The native producer was never made."""

    result = "ProducerNotInitialized"


@stock.twin("ProducerBusy")
class ProducerBusy(TransportError):
    """Another producer of this name is connected."""

    result = "ProducerBusy"
    retryable = True


@stock.twin("ProducerFenced")
class ProducerFenced(TransportError):
    """Another producer has the topic for itself."""

    result = "ProducerFenced"


@stock.twin("ProducerQueueIsFull")
class ProducerQueueIsFull(TransportError):
    """As many messages as may be are under way."""

    result = "ProducerQueueIsFull"
    retryable = True


@stock.twin("ProducerBlockedQuotaExceededError")
class ProducerBlockedQuotaExceededError(TransportError):
    """The topic's backlog quota is used up."""

    result = "ProducerBlockedQuotaExceededError"
    retryable = True


@stock.twin("ProducerBlockedQuotaExceededException")
class ProducerBlockedQuotaExceededException(TransportError):
    """The topic's backlog quota is used up."""

    result = "ProducerBlockedQuotaExceededException"
    retryable = True


@stock.twin("MemoryBufferIsFull")
class MemoryBufferIsFull(TransportError):
    """The client's memory limit is used up."""

    result = "MemoryBufferIsFull"
    retryable = True


@stock.twin("InvalidMessage")
class InvalidMessage(TransportError):
    """The message cannot be sent as it is."""

    result = "InvalidMessage"


@stock.twin("MessageTooBig")
class MessageTooBig(TransportError):
    """The message is over the broker's limit."""

    result = "MessageTooBig"


@stock.twin("TooManyLookupRequestException")
class TooManyLookupRequestException(TransportError):
    """Too many lookups at a time."""

    result = "TooManyLookupRequestException"
    retryable = True


@stock.twin("ServiceUnitNotReady")
class ServiceUnitNotReady(TransportError):
    """The broker is moving or loading the topic."""

    result = "ServiceUnitNotReady"
    retryable = True


@stock.twin("TopicNotFound")
class TopicNotFound(TransportError):
    """The topic, or its namespace, does not exist."""

    result = "TopicNotFound"


@stock.twin("TopicTerminated")
class TopicTerminated(TransportError):
    """The topic was terminated and takes no messages."""

    result = "TopicTerminated"


@stock.twin("SubscriptionNotFound")
class SubscriptionNotFound(TransportError):
    """The subscription does not exist."""

    result = "SubscriptionNotFound"


@stock.twin("UnsupportedVersionError")
class UnsupportedVersionError(TransportError):
    """The broker is too old for this."""

    result = "UnsupportedVersionError"


@stock.twin("CryptoError")
class CryptoError(TransportError):
    """Encryption or decryption failed."""

    result = "CryptoError"


@stock.twin("IncompatibleSchema")
class IncompatibleSchema(TransportError):
    """The schema does not fit that of the topic."""

    result = "IncompatibleSchema"


@stock.twin("NotAllowedError")
class NotAllowedError(TransportError):
    """The broker does not allow this here."""

    result = "NotAllowedError"


@stock.twin("Interrupted")
class Interrupted(TransportError):
    """The call was interrupted."""

    result = "Interrupted"
    retryable = True


@stock.twin("TransactionCoordinatorNotFoundError")
class TransactionCoordinatorNotFoundError(TransportError):
    """As stock's; this package has no transactions."""

    result = "TransactionCoordinatorNotFoundError"


@stock.twin("InvalidTxnStatusError")
class InvalidTxnStatusError(TransportError):
    """As stock's; this package has no transactions."""

    result = "InvalidTxnStatusError"


@stock.twin("TransactionConflict")
class TransactionConflict(TransportError):
    """As stock's; this package has no transactions."""

    result = "TransactionConflict"


@stock.twin("TransactionNotFound")
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
_NAMED: Final[dict[str, type[PulsarException]]] = {
    **{name: globals()[name] for name in __all__},
    "Timeout": TransportTimeout,
}

# What the protocol calls differently from the clients (its `ServerError`).
_OF_PROTOCOL: Final = {
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
    name = _OF_PROTOCOL.get(result, result)
    return _NAMED.get(name, TransportError)(message, result=name, retryable=retryable)
