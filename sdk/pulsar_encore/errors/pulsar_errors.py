"""The exceptions of `pulsar.exceptions`, with the same names.

Each is raised in the same cases as in `pulsar-client`.
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


class InvalidTopicName(ConfigurationError, PulsarException):
    """The value is not a topic name."""


class InvalidUrl(ConfigurationError, PulsarException):
    """The service URL is not valid."""


class OperationNotSupported(NotSupportedError, PulsarException):
    """This kind of topic or consumer does not support the operation."""


class CumulativeAcknowledgementNotAllowedError(ConfigurationError, PulsarException):
    """Cumulative acks need an Exclusive or Failover consumer."""


class UnknownError(TransportError):
    """An error without a name of its own."""


class LookupError(TransportError):
    """The broker could not find the owner of the topic."""

    retryable = True


class ConnectError(TransportError):
    """The client could not connect to the broker."""

    retryable = True


class ReadError(TransportError):
    """The connection broke during a read."""

    retryable = True


class NotConnected(TransportError):
    """There is no connection to the broker now."""

    retryable = True


class AuthenticationError(TransportError):
    """The client could not authenticate, or the broker rejected its credentials."""


class AuthorizationError(TransportError):
    """The role lacks a permission."""


class ErrorGettingAuthenticationData(TransportError):
    """The Authentication object could not provide its data."""


class BrokerMetadataError(TransportError):
    """The broker could not read or write its metadata."""

    retryable = True


class BrokerPersistenceError(TransportError):
    """The broker could not store or read the topic."""

    retryable = True


class ChecksumError(TransportError):
    """A message was corrupted in transit."""

    retryable = True


class ConsumerBusy(TransportError):
    """Another consumer holds the subscription."""

    retryable = True


class ConsumerNotInitialized(TransportError):
    """The consumer of the C++ client was never created."""


class ConsumerNotFound(TransportError):
    """The broker no longer knows the consumer."""

    retryable = True


class ConsumerAssignError(TransportError):
    """The broker could not assign key ranges to the consumer."""

    retryable = True


class ProducerNotInitialized(TransportError):
    """The producer of the C++ client was never created."""


class ProducerBusy(TransportError):
    """Another producer with this name is connected."""

    retryable = True


class ProducerFenced(TransportError):
    """Another producer has exclusive access to the topic."""


class ProducerQueueIsFull(TransportError):
    """The limit of pending messages is reached."""

    retryable = True


class ProducerBlockedQuotaExceededError(TransportError):
    """The topic's backlog quota is used up."""

    retryable = True


class ProducerBlockedQuotaExceededException(TransportError):
    """The topic's backlog quota is used up."""

    retryable = True


class MemoryBufferIsFull(TransportError):
    """The client's memory limit is used up."""

    retryable = True


class InvalidMessage(TransportError):
    """The message cannot be sent in this form."""


class MessageTooBig(TransportError):
    """The message exceeds the broker's size limit."""


class TooManyLookupRequestException(TransportError):
    """Too many lookups are in flight."""

    retryable = True


class ServiceUnitNotReady(TransportError):
    """The broker is moving or loading the topic."""

    retryable = True


class TopicNotFound(TransportError):
    """The topic, or its namespace, does not exist."""


class TopicTerminated(TransportError):
    """The topic was terminated and accepts no messages."""


class SubscriptionNotFound(TransportError):
    """The subscription does not exist."""


class UnsupportedVersionError(TransportError):
    """The broker is too old for this request."""


class CryptoError(TransportError):
    """Encryption or decryption failed."""


class IncompatibleSchema(TransportError):
    """The schema is incompatible with that of the topic."""


class NotAllowedError(TransportError):
    """The broker does not allow this here."""


class Interrupted(TransportError):
    """The call was interrupted."""

    retryable = True


class TransactionCoordinatorNotFoundError(TransportError):
    """The transaction coordinator is not loaded at the broker that was asked."""


class InvalidTxnStatusError(TransportError):
    """The transaction is ending, or has ended, the other way."""


class TransactionConflict(TransportError):
    """The message is acked, or is acked in a transaction that is open."""


class TransactionNotFound(TransportError):
    """The transaction has ended, timed out, never existed, or belongs to another role."""


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
for _name, _class in _CLASSES.items():
    if _class is not PulsarException:
        _class.result = _name

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
