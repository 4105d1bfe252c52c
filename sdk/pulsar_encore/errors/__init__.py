"""Errors: this package's own, those with the names of `pulsar.exceptions`, and result codes.

    EncoreError
      ConfigurationError *      also a ValueError
        MessageNotHeldError *
        NotSupportedError *
          UnreadableError
          TransactionNotEnabledError *
        WrongLoopError *
        ForkedError *
      TransactionStateError *
      TransactionAbortedError
      TransactionOutcomeUnknown
      LeaseLostError
      DecodeError
      PulsarException           errors with a `Result`
        ClosedError *
        Timeout
          ReceiveTimeout        also a TimeoutError
          TransportTimeout      also a TransportError
        TransportError          with `retryable`, trying again can help
          ProtocolError
          SchemaVersionError
      StoreError                the data of a failed store is still in memory
        StateInUseError *
        StateFormatError *
        StateMismatchError *
        StateDamagedError *
      Refusal                   a broker or transport of `testing` does not support that

The caller can fix the errors that are marked with a star. The others are failures of the broker,
the network or the disk, or no failure at all (ReceiveTimeout).

Results with a class in `pulsar.exceptions` are raised as the class of that name in
`pulsar_encore.exceptions`. It is a ConfigurationError if the caller made the mistake, else a
TransportError. Once a program has created a client on the stock transport, each PulsarException is
also an instance of the exception of the same name in `pulsar.exceptions`, and of
`pulsar.asyncio.PulsarException`. `Refusal` is defined in `devbroker`. Errors of dead letters, such
as `deadletters.NothingSelectedError`, are ConfigurationErrors.
"""

from . import encore_errors, pulsar_errors
from .encore_errors import *  # noqa: F403
from .pulsar_errors import *  # noqa: F403
from .pulsar_errors import exception_of_result as exception_of_result
from .result import Result as Result

__all__ = ["Result"]
__all__ += encore_errors.__all__
__all__ += pulsar_errors.__all__

# Users import the errors from here, so tracebacks, pickles and the evidence of letters name this
# module and not the file that defines the class.
for _name in __all__:
    if isinstance(_class := globals()[_name], type):
        _class.__module__ = __name__
