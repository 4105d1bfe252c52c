"""The exceptions of stock's `pulsar.exceptions`, under the same names and caught by either's.

Each is raised where stock raises its own, is a subclass of it, and hangs in the tree of `errors` by
who must act: mostly a TransportError, and a ConfigurationError where the caller's mistake is what
the name says, whoever found it. Owns the names, and `named`, which picks the class of a result.
"""

from __future__ import annotations

from typing import Final

from . import stock
from .errors import (
    ClosedError,
    ConfigurationError,
    NotSupportedError,
    PulsarException,
    Timeout,
    TransportError,
    TransportTimeout,
)

AlreadyClosed = ClosedError


class InvalidConfiguration(ConfigurationError, PulsarException, stock.InvalidConfiguration):
    """An option is not valid, or does not fit another one."""

    result = "InvalidConfiguration"


class InvalidTopicName(ConfigurationError, PulsarException, stock.InvalidTopicName):
    """What was given for a topic is no topic's name."""

    result = "InvalidTopicName"


class InvalidUrl(ConfigurationError, PulsarException, stock.InvalidUrl):
    """The service URL is not valid."""

    result = "InvalidUrl"


class OperationNotSupported(NotSupportedError, PulsarException, stock.OperationNotSupported):
    """It cannot be done with this kind of topic or consumer."""

    result = "OperationNotSupported"


class CumulativeAcknowledgementNotAllowedError(
    ConfigurationError, PulsarException, stock.CumulativeAcknowledgementNotAllowedError
):
    """Cumulative acks need an Exclusive or Failover consumer."""

    result = "CumulativeAcknowledgementNotAllowedError"


class UnknownError(TransportError, stock.UnknownError):
    """There is no name for what went wrong."""

    result = "UnknownError"


class LookupError(TransportError, stock.LookupError):
    """The broker could not say who serves the topic."""

    result = "LookupError"
    retryable = True


class ConnectError(TransportError, stock.ConnectError):
    """No connection to the broker."""

    result = "ConnectError"
    retryable = True


class ReadError(TransportError, stock.ReadError):
    """The connection broke while reading."""

    result = "ReadError"
    retryable = True


class NotConnected(TransportError, stock.NotConnected):
    """Not connected at the moment."""

    result = "NotConnected"
    retryable = True


class AuthenticationError(TransportError, stock.AuthenticationError):
    """The client could not authenticate, or the broker does not accept it."""

    result = "AuthenticationError"


class AuthorizationError(TransportError, stock.AuthorizationError):
    """The role lacks a permission."""

    result = "AuthorizationError"


class ErrorGettingAuthenticationData(TransportError, stock.ErrorGettingAuthenticationData):
    """The authentication could not give its data."""

    result = "ErrorGettingAuthenticationData"


class BrokerMetadataError(TransportError, stock.BrokerMetadataError):
    """The broker could not read or write its metadata."""

    result = "BrokerMetadataError"
    retryable = True


class BrokerPersistenceError(TransportError, stock.BrokerPersistenceError):
    """The broker could not store or read the topic."""

    result = "BrokerPersistenceError"
    retryable = True


class ChecksumError(TransportError, stock.ChecksumError):
    """A message was damaged on its way."""

    result = "ChecksumError"
    retryable = True


class ConsumerBusy(TransportError, stock.ConsumerBusy):
    """Another consumer holds the subscription."""

    result = "ConsumerBusy"
    retryable = True


class ConsumerNotInitialized(TransportError, stock.ConsumerNotInitialized):
    """The native consumer was never made."""

    result = "ConsumerNotInitialized"


class ConsumerNotFound(TransportError, stock.ConsumerNotFound):
    """The broker does not know the consumer any more."""

    result = "ConsumerNotFound"
    retryable = True


class ConsumerAssignError(TransportError, stock.ConsumerAssignError):
    """The broker could not assign the consumer its share of the keys."""

    result = "ConsumerAssignError"
    retryable = True


class ProducerNotInitialized(TransportError, stock.ProducerNotInitialized):
    """The native producer was never made."""

    result = "ProducerNotInitialized"


class ProducerBusy(TransportError, stock.ProducerBusy):
    """Another producer of this name is connected."""

    result = "ProducerBusy"
    retryable = True


class ProducerFenced(TransportError, stock.ProducerFenced):
    """Another producer has the topic for itself."""

    result = "ProducerFenced"


class ProducerQueueIsFull(TransportError, stock.ProducerQueueIsFull):
    """As many messages as may be are under way."""

    result = "ProducerQueueIsFull"
    retryable = True


class ProducerBlockedQuotaExceededError(TransportError, stock.ProducerBlockedQuotaExceededError):
    """The topic's backlog quota is used up."""

    result = "ProducerBlockedQuotaExceededError"
    retryable = True


class ProducerBlockedQuotaExceededException(
    TransportError, stock.ProducerBlockedQuotaExceededException
):
    """The topic's backlog quota is used up."""

    result = "ProducerBlockedQuotaExceededException"
    retryable = True


class MemoryBufferIsFull(TransportError, stock.MemoryBufferIsFull):
    """The client's memory limit is used up."""

    result = "MemoryBufferIsFull"
    retryable = True


class InvalidMessage(TransportError, stock.InvalidMessage):
    """The message cannot be sent as it is."""

    result = "InvalidMessage"


class MessageTooBig(TransportError, stock.MessageTooBig):
    """The message is over the broker's limit."""

    result = "MessageTooBig"


class TooManyLookupRequestException(TransportError, stock.TooManyLookupRequestException):
    """Too many lookups at a time."""

    result = "TooManyLookupRequestException"
    retryable = True


class ServiceUnitNotReady(TransportError, stock.ServiceUnitNotReady):
    """The broker is moving or loading the topic."""

    result = "ServiceUnitNotReady"
    retryable = True


class TopicNotFound(TransportError, stock.TopicNotFound):
    """The topic, or its namespace, does not exist."""

    result = "TopicNotFound"


class TopicTerminated(TransportError, stock.TopicTerminated):
    """The topic was terminated and takes no messages."""

    result = "TopicTerminated"


class SubscriptionNotFound(TransportError, stock.SubscriptionNotFound):
    """The subscription does not exist."""

    result = "SubscriptionNotFound"


class UnsupportedVersionError(TransportError, stock.UnsupportedVersionError):
    """The broker is too old for this."""

    result = "UnsupportedVersionError"


class CryptoError(TransportError, stock.CryptoError):
    """Encryption or decryption failed."""

    result = "CryptoError"


class IncompatibleSchema(TransportError, stock.IncompatibleSchema):
    """The schema does not fit that of the topic."""

    result = "IncompatibleSchema"


class NotAllowedError(TransportError, stock.NotAllowedError):
    """The broker does not allow this here."""

    result = "NotAllowedError"


class Interrupted(TransportError, stock.Interrupted):
    """The call was interrupted."""

    result = "Interrupted"
    retryable = True


class TransactionCoordinatorNotFoundError(
    TransportError, stock.TransactionCoordinatorNotFoundError
):
    """As stock's; this package has no transactions."""

    result = "TransactionCoordinatorNotFoundError"


class InvalidTxnStatusError(TransportError, stock.InvalidTxnStatusError):
    """As stock's; this package has no transactions."""

    result = "InvalidTxnStatusError"


class TransactionConflict(TransportError, stock.TransactionConflict):
    """As stock's; this package has no transactions."""

    result = "TransactionConflict"


class TransactionNotFound(TransportError, stock.TransactionNotFound):
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
