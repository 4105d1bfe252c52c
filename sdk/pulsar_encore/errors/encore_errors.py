"""Every error this package raises, by who must act.

    EncoreError
      ConfigurationError    you: an option or argument is wrong (also a ValueError)
        MessageNotHeldError you: this consumer cannot settle that message
        NotSupportedError   you: the transport cannot do that
          UnreadableError   the transport cannot read a key or property of a message
        WrongLoopError      you: called from another event loop
        ForkedError         you: used in a child process
      LeaseLostError        nobody: your time with a message is over, it comes again
      PulsarException       all that has a `Result`
        ClosedError         you, late: the object was closed
        Timeout
          ReceiveTimeout    nobody: nothing arrived in time (also a TimeoutError)
          TransportTimeout  a TransportError: no answer in time
        TransportError      the broker or the network; `retryable`: trying again can help
          ProtocolError     the peer sent bytes that break the protocol
          SchemaVersionError  the schema a message was written with could not be fetched
      StoreError            a local store failed; what it held is still in memory
        StateInUseError     somebody else has it open, who is named
        StateFormatError    what is there is no state, or a newer version's
        StateDamagedError   files of a state directory were lost or changed
      Refusal               a `testing` broker or transport cannot do what a test asked of it

A result that has a name in stock's `pulsar.exceptions` is raised as the class of that name in
`pulsar_encore.exceptions`: a TransportError, or a ConfigurationError where the mistake is yours.
Once a program has made a client on the stock transport, each PulsarException is also an instance of
the exception of the same name in `pulsar.exceptions`, and of `pulsar.asyncio.PulsarException`.
`Refusal` is `devbroker`'s; errors of dead letters (`deadletters.NothingSelectedError` and kin) are
ConfigurationErrors.

Raised where the mistake is, before anything is sent, and always with what to change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

from .. import stock
from .result import Result


class EncoreError(Exception):
    """Root of all errors of this package."""


class ConfigurationError(EncoreError, ValueError):
    """An option or argument is out of range, of the wrong kind, or fits no other option given."""


class MessageNotHeldError(ConfigurationError):
    """The id is another consumer's, or names part of a batch that this consumer does not hold."""


class NotSupportedError(ConfigurationError):
    """The transport declares that it cannot do this (see `Capabilities`)."""


class UnreadableError(NotSupportedError):
    """A key or the properties of a message are raw bytes, which its transport cannot read, or
    cannot tell from text. The rest of the message can be read, and it can be settled."""


class LeaseLostError(EncoreError):
    """The lease expired, was settled, or its message was given back: stop work on it. The message
    comes again unless it was acked."""


class WrongLoopError(ConfigurationError):
    """Called from another event loop than the one it was made on."""


class ForkedError(ConfigurationError):
    """Used in a child process, made in its parent."""


class PulsarException(EncoreError):
    """An error that has a Pulsar result code.

    Args:
        message: What happened and what to change; or a `Result`, as stock's takes one.
        msg: The text, when `message` is a Result.
        result: The broker's or C++ library's name for it, such as ``"AuthorizationError"``; by
            default that of the class.
        retryable: True when the same call may succeed later; by default what holds for the class.
    """

    result: str = "UnknownError"
    retryable: bool = False

    # Gives the subclass to raise in place of a class. The stock transport sets it.
    _raised_as: ClassVar[Callable[[Any], Any] | None] = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # As OSError picks FileNotFoundError. Code above the transports raises most exceptions, and
        # a program on the stock transport catches those by the names of `pulsar` too.
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
        # One argument, whatever came: pickle and copy call the class with it and add the rest.
        Exception.__init__(self, message or result or self.result)
        if result is not None:
            self.result = result
        if retryable is not None:
            self.retryable = retryable

    def error(self) -> Result:
        """The `Result`; UnknownError where there is none of that name."""
        return Result.__members__.get(self.result, Result.UnknownError)

    def __str__(self) -> str:
        return Exception.__str__(self)


class ClosedError(PulsarException):
    """The client, consumer, producer or reader was closed before or during the call."""

    result = "AlreadyClosed"


class Timeout(PulsarException):
    """Nothing came in time: no message (`ReceiveTimeout`), or no answer (`TransportTimeout`)."""

    result = "Timeout"
    retryable = True


class ReceiveTimeout(Timeout, TimeoutError):
    """`receive` or `read_next` had a timeout and nothing arrived; no message was taken."""


class TransportError(PulsarException):
    """The broker refused, or the network failed."""


class TransportTimeout(TransportError, Timeout):
    """The broker did not answer in time, or the connection did not come about."""

    result = "Timeout"
    retryable = True


class ProtocolError(TransportError):
    """Bytes on the wire that are not the Pulsar protocol; the connection cannot be trusted."""

    result = "ProtocolError"
    retryable = True


class SchemaVersionError(TransportError):
    """The schema that a message was written with could not be fetched; its value is not known."""


class StoreError(EncoreError):
    """A durable store could not write or read; the entry concerned stays in memory."""


class StateInUseError(StoreError):
    """Another process has that state directory open, or another consumer that source of it; the
    text says who. One that died has it no more."""


class StateFormatError(StoreError):
    """What is stored is something else than state, or state that a newer version wrote."""


class StateMismatchError(StoreError):
    """A state directory is of another cluster, or its topic was deleted and made again.

    The ids in it are those of other messages: all messages that were compared with their records
    differ from them. The text says what to do.
    """


class StateDamagedError(StoreError):
    """Files of a state directory are lost, cut or changed. Nothing was opened and nothing deleted;
    the text says how to go on with what can still be read."""
