"""The errors of this package and their base classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

from .. import stock
from ..values.transaction_id import TxnId
from .result import Result

__all__ = [
    "ClosedError",
    "ConfigurationError",
    "DecodeError",
    "EncoreError",
    "ForkedError",
    "LeaseLostError",
    "MessageNotHeldError",
    "NotSupportedError",
    "ProtocolError",
    "PulsarException",
    "ReceiveTimeout",
    "SchemaVersionError",
    "StateDamagedError",
    "StateFormatError",
    "StateInUseError",
    "StateMismatchError",
    "StoreError",
    "Timeout",
    "TransactionAbortedError",
    "TransactionNotEnabledError",
    "TransactionOutcomeUnknown",
    "TransactionStateError",
    "TransportError",
    "TransportTimeout",
    "UnreadableError",
    "WrongLoopError",
]


class EncoreError(Exception):
    """Base class of all exceptions of this package."""


class ConfigurationError(EncoreError, ValueError):
    """An option or argument is out of range, has the wrong type or conflicts with another one."""


class MessageNotHeldError(ConfigurationError):
    """This consumer does not hold the message, so it cannot settle it.

    The id belongs to another consumer, or names a message of a batch that this consumer does not
    hold.
    """


class NotSupportedError(ConfigurationError):
    """The transport does not support this (see `Capabilities`)."""


class UnreadableError(NotSupportedError):
    """The transport cannot read a key or property, or cannot tell its bytes from text.

    The rest of the message can be read, and the message can be settled.
    """


class TransactionNotEnabledError(NotSupportedError):
    """The cluster has no transactions. The text names the broker's setting or command."""


class TransactionStateError(EncoreError):
    """The transaction is not open, has timed out, or belongs to another client or event loop.

    A send with this error sent nothing. An abort has it if the transaction was committed.
    """


class TransactionAbortedError(EncoreError):
    """The transaction was aborted: none of its messages will ever be visible.

    The cause is the error of the send that failed, if one did.

    Attributes:
        txn_id: The id of the transaction, a `TxnId`.
    """

    def __init__(self, message: str = "", *, txn_id: TxnId | None = None) -> None:
        super().__init__(message)
        self.txn_id: TxnId | None = txn_id


class TransactionOutcomeUnknown(EncoreError):
    """The transaction was committed or aborted, and the client could not find out which.

    This is neither success nor failure. The messages are visible together, or never.

    Attributes:
        txn_id: The id of the transaction, a `TxnId`.
    """

    def __init__(self, message: str = "", *, txn_id: TxnId | None = None) -> None:
        super().__init__(message)
        self.txn_id: TxnId | None = txn_id


class LeaseLostError(EncoreError):
    """The lease expired, was settled, or was returned: stop work on its message.

    The message is redelivered unless it was acked.
    """


class DecodeError(EncoreError):
    """The payload of a message does not decode with the schema of its consumer or reader.

    The message can still be settled, and `Message.data` returns its payload.

    Attributes:
        reason: What does not fit, without the other attributes.
        schema: The schema, such as ``Json(Order)``.
        field: Path of the field that does not fit, such as ``lines[2].price``; "" for the whole
            payload.
        payload: The first 64 bytes of the payload. The text of the error does not have them,
            because payloads may have personal data.
    """

    def __init__(
        self,
        message: str = "",
        *,
        reason: str = "",
        schema: str = "",
        field: str = "",
        payload: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.reason: str = reason
        self.schema: str = schema
        self.field: str = field
        self.payload: bytes = payload


class WrongLoopError(ConfigurationError):
    """An object was called from another event loop than its own."""


class ForkedError(ConfigurationError):
    """An object was used in a forked child of its process."""


class PulsarException(EncoreError):
    """An error that has a Pulsar result code.

    Args:
        message: What happened and what to change; or a `Result`, as in `pulsar-client`.
        msg: The text, if `message` is a Result.
        result: Name of the result at the broker or in the C++ client, such as
            ``"AuthorizationError"``; by default that of the class.
        retryable: True if the same call may succeed later; by default that of the class.
    """

    result: str = "UnknownError"
    retryable: bool = False

    # Returns the subclass to raise in place of a class. The stock transport sets it.
    _raised_as: ClassVar[Callable[[Any], Any] | None] = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # As OSError picks FileNotFoundError. Programs on the stock transport may catch exceptions
        # by the names of `pulsar`, also those that are raised above the transports.
        kind = cls if PulsarException._raised_as is None else PulsarException._raised_as(cls)
        instance: Self = super().__new__(kind, *args)
        return instance

    def __init__(
        self,
        message: str | Result = "",
        msg: str | None = None,
        *,
        result: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        if isinstance(message, Result) or stock.is_one(message, "_pulsar.Result"):
            result = message.name
            message = msg or message.name
        # Always one argument: pickle and copy call the class with it, then restore the attributes.
        Exception.__init__(self, message or result or self.result)
        if result is not None:
            self.result = result
        if retryable is not None:
            self.retryable = retryable

    def error(self) -> Result:
        """Return the `Result`; UnknownError if there is no result of that name."""
        return Result.__members__.get(self.result, Result.UnknownError)

    def __str__(self) -> str:
        return Exception.__str__(self)


class ClosedError(PulsarException):
    """The client, consumer, producer or reader was closed before or during the call."""

    result = "AlreadyClosed"


class Timeout(PulsarException):
    """No message (`ReceiveTimeout`) or no answer (`TransportTimeout`) arrived in time."""

    result = "Timeout"
    retryable = True


class ReceiveTimeout(Timeout, TimeoutError):
    """No message arrived within the timeout of `receive` or `read_next`. None was taken."""


class TransportError(PulsarException):
    """The broker refused a request, or the network failed."""


class TransportTimeout(TransportError, Timeout):
    """The broker did not answer in time, or no connection was established."""

    result = "Timeout"
    retryable = True


class ProtocolError(TransportError):
    """The peer sent bytes that are not Pulsar's protocol. The connection is no longer usable."""

    result = "ProtocolError"
    retryable = True


class SchemaVersionError(TransportError):
    """The schema that wrote a message could not be fetched, so its value is unknown."""


class StoreError(EncoreError):
    """A durable store could not write or read. The data concerned stays in memory."""


class StateInUseError(StoreError):
    """Another process has the state directory open, or another consumer its topic.

    The text says who. A process that died no longer holds the directory.
    """


class StateFormatError(StoreError):
    """The directory holds something other than state, or state of a newer version."""


class StateMismatchError(StoreError):
    """The state directory belongs to another cluster, or its topic was deleted and created again.

    Its ids refer to other messages: all messages that were compared with their records differ. The
    text says what to do.
    """


class StateDamagedError(StoreError):
    """Files of a state directory are missing, cut or changed.

    Nothing was opened or deleted. The text says how to continue with the readable part.
    """
