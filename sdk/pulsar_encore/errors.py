"""Every error this package raises, by who must act.

    EncoreError
      ConfigurationError    you: an option or argument is wrong (also a ValueError)
        MessageNotHeldError you: this consumer cannot settle that message
        NotSupportedError   you: the engine underneath cannot do that
        WrongLoopError      you: it belongs to another event loop
        ForkedError         you: it belongs to the parent process
      ClosedError           you, late: the object was closed
      ReceiveTimeout        nobody: nothing arrived in time (also a TimeoutError)
      TransportError        the broker or the network; `retryable`: trying again can help
        StockError          the same, as the stock library says it (also its PulsarException)
        ProtocolError       the peer sent bytes that break the protocol
        SchemaVersionError  the schema a message was written with could not be fetched
      StoreError            a local store failed; what it held is still in memory (kept for
                            stores to come: nothing here raises it yet)
      Refusal               a `testing` broker or transport cannot do what a test asked of it

`StockError` is `transport.stock.failures`', `Refusal` is `devbroker`'s; those of dead letters
(`deadletters.NothingSelectedError` and kin) are ConfigurationErrors.

Raised where the mistake is, before anything is sent, and always with what to change.
"""

from __future__ import annotations

from typing import Any


class EncoreError(Exception):
    """Root of all errors of this package."""


class ConfigurationError(EncoreError, ValueError):
    """An option or argument is out of range, of the wrong kind, or fits no other option given."""


class MessageNotHeldError(ConfigurationError):
    """The id is another consumer's, or names part of a batch that this consumer does not hold."""


class NotSupportedError(ConfigurationError):
    """The transport declares that it cannot do this (see `Capabilities`)."""


class WrongLoopError(ConfigurationError):
    """Called from another event loop than the one it was made on."""


class ForkedError(ConfigurationError):
    """Used in a child process, made in its parent."""


class ClosedError(EncoreError):
    """The client, consumer, producer or reader was closed before or during the call."""


class ReceiveTimeout(EncoreError, TimeoutError):
    """`receive` or `read_next` had a timeout and nothing arrived; no message was taken."""


class TransportError(EncoreError):
    """The broker refused, or the network failed.

    Args:
        message: What happened and what to change.
        result: The broker's or engine's name for it, such as ``"AuthorizationError"``.
        retryable: True when the same call may succeed later.
    """

    def __init__(
        self, message: str = "", *, result: str = "UnknownError", retryable: bool = False
    ) -> None:
        super().__init__(message or result)
        self.result = result
        self.retryable = retryable

    def error(self) -> Any:
        """The engine's result code; the name stock gives it (`pulsar.asyncio.PulsarException`)."""
        return self.result


class ProtocolError(TransportError):
    """Bytes on the wire that are not the Pulsar protocol; the connection cannot be trusted."""

    def __init__(self, message: str) -> None:
        super().__init__(message, result="ProtocolError", retryable=True)


class SchemaVersionError(TransportError):
    """The schema that a message was written with could not be fetched; its value is not known."""


class StoreError(EncoreError):
    """A durable store could not write or read; the entry concerned stays in memory."""
