"""The native library's result codes as this package's errors, each with what to change.

Owns `StockError` and the table behind it.
"""

from __future__ import annotations

from typing import Any, Final

import _pulsar
from pulsar.asyncio import PulsarException as StockPulsarException

from ...errors import ClosedError, ConfigurationError, EncoreError, TransportError

# Result -> (trying again can help, what to change).
_ADVICE: Final[dict[str, tuple[bool, str]]] = {
    "Timeout": (
        True,
        "no answer in time: check that the broker is up and reachable at service_url, or raise "
        "operation_timeout_seconds (send_timeout_millis when sending); a broker that refuses "
        "authentication= looks the same to this engine",
    ),
    "ConnectError": (True, "no connection: check service_url, the port and the network"),
    "LookupError": (True, "the broker could not find the topic's owner: check the topic's name"),
    "ReadError": (True, "the connection broke while reading"),
    "NotConnected": (True, "not connected at the moment; it reconnects by itself"),
    "AuthenticationError": (False, "the broker does not accept authentication=: check it"),
    "AuthorizationError": (False, "the role lacks a permission: grant it on the topic"),
    "ErrorGettingAuthenticationData": (False, "authentication= could not give its data"),
    "BrokerMetadataError": (True, "the broker could not read or write its metadata"),
    "BrokerPersistenceError": (True, "the broker could not store or read the topic"),
    "ChecksumError": (True, "the message was damaged on its way"),
    "ConsumerBusy": (
        True,
        "another consumer holds the subscription: close it, or use consumer_type=Shared, "
        "KeyShared or Failover on both",
    ),
    "ProducerBusy": (True, "another producer of this producer_name is connected: close it"),
    "ProducerFenced": (False, "another producer took the topic over: see access_mode"),
    "ProducerQueueIsFull": (
        True,
        "max_pending_messages are on their way (each chunk counts): await some sends first, raise "
        "it, or use block_if_queue_full=True",
    ),
    "ProducerBlockedQuotaExceededError": (True, "the topic's backlog quota is used up"),
    "ProducerBlockedQuotaExceededException": (True, "the topic's backlog quota is used up"),
    "MemoryBufferIsFull": (True, "the client's memory limit is used up: await some sends first"),
    "MessageTooBig": (
        False,
        "the message is over the broker's limit (5 MiB unless changed): split it, or use "
        "chunking_enabled=True with batching_enabled=False",
    ),
    "InvalidMessage": (False, "the message cannot be sent as it is"),
    "InvalidConfiguration": (False, "an option is not valid for the engine"),
    "InvalidTopicName": (False, "write topic as name or persistent://tenant/namespace/name"),
    "InvalidUrl": (False, "service_url is not valid"),
    "TopicNotFound": (False, "the topic or its namespace does not exist: create it, or fix topic="),
    "TopicTerminated": (False, "the topic was terminated and takes no messages"),
    "SubscriptionNotFound": (False, "the subscription does not exist: check its name"),
    "ConsumerNotFound": (True, "the broker does not know the consumer any more"),
    "ConsumerAssignError": (True, "no consumer could be assigned: check the key ranges"),
    "TooManyLookupRequestException": (True, "too many lookups: lower concurrent_lookup_requests"),
    "ServiceUnitNotReady": (True, "the broker is moving or loading the topic"),
    "OperationNotSupported": (False, "the engine cannot do this with this kind of topic"),
    "NotAllowedError": (False, "the broker does not allow this here"),
    "UnsupportedVersionError": (False, "the broker is too old for this"),
    "IncompatibleSchema": (
        False,
        "the topic has a schema that does not fit schema=: change one of them, or the "
        "namespace's compatibility strategy",
    ),
    "CryptoError": (False, "encryption or decryption failed: check crypto_key_reader"),
    "CumulativeAcknowledgementNotAllowedError": (
        False,
        "cumulative acks need an Exclusive or Failover consumer",
    ),
    "Interrupted": (True, "interrupted"),
}
_UNKNOWN: Final = (False, "the engine gives no reason; its log may")


class StockError(TransportError, StockPulsarException):  # type: ignore[misc]
    """A failure that the stock library reported; also a `pulsar.asyncio.PulsarException`."""

    def __init__(self, native: Any, doing: str, detail: str = "") -> None:
        retryable, advice = _ADVICE.get(native.name, _UNKNOWN)
        text = f"{doing}: {native.name}: {advice}" + (f" ({detail})" if detail else "")
        super().__init__(text, result=native.name, retryable=retryable)
        self._result = native
        self._msg = text

    def error(self) -> Any:
        """The `_pulsar.Result`."""
        return self._result

    def __str__(self) -> str:
        return str(self._msg)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.result, self._msg))


def _rebuild(name: str, text: str) -> StockError:
    error = StockError(getattr(_pulsar.Result, name), "")
    error._msg = text
    return error


def failure(native: Any, doing: str, detail: str = "") -> EncoreError:
    """The error for a `_pulsar.Result` other than Ok."""
    if native == _pulsar.Result.AlreadyClosed:
        return ClosedError(f"{doing}: it is closed")
    return StockError(native, doing, detail)


def raised(error: Exception, doing: str) -> EncoreError:
    """The error for an exception that the stock library raised."""
    native = getattr(_pulsar.Result, type(error).__name__, None)
    if native is not None:
        return failure(native, doing, str(error))
    if isinstance(error, (ValueError, TypeError)):
        return ConfigurationError(f"{doing}: {error}")
    return StockError(_pulsar.Result.UnknownError, doing, f"{type(error).__name__}: {error}")
