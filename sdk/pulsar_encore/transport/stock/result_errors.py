"""Errors for the C++ client's result codes, each with advice from `error_advice`."""

from __future__ import annotations

import re
from typing import Any, Final

import _pulsar

from ...errors import (
    ClosedError,
    ConfigurationError,
    EncoreError,
    PulsarException,
    exception_of_result,
)
from ..error_advice import ADVICE

NO_TRANSACTIONS: Final = (
    "the C++ client has no transactions: use transport='native', or leave txn out"
)

_UNKNOWN: Final = "the engine gives no reason; its log may"
# Begins the detail if the client's own part of the authentication failed.
_OWN_AUTHENTICATION: Final = "Failed to create Connect command"
# Only the type of the exception is shown: its text may hold the secret.
_EXCEPTION_TYPE: Final = re.compile(rf"{_OWN_AUTHENTICATION}: \w+")


def failure(native: Any, action: str, detail: str = "") -> PulsarException:
    if native == _pulsar.Result.AlreadyClosed:
        return ClosedError(f"{action}: it is closed")
    advice = ADVICE.get(native.name, _UNKNOWN)
    if detail.startswith(_OWN_AUTHENTICATION):
        advice = (
            "authentication= failed here, and the broker was not asked: look at what it raised or "
            "returned (a token is a str)"
        )
        shown = _EXCEPTION_TYPE.match(detail)
        detail = _OWN_AUTHENTICATION if shown is None else shown[0]
    text = f"{action}: {native.name}: {advice}" + (f" ({detail})" if detail else "")
    return exception_of_result(native.name, text)


def own_authentication_failure(action: str, why: str) -> PulsarException:
    """Return the error for `authentication=` data that this process could not obtain."""
    return exception_of_result(
        "AuthenticationError", f"{action}: authentication= failed here: {why}"
    )


def raised(error: Exception, action: str) -> EncoreError:
    native = getattr(_pulsar.Result, type(error).__name__, None)
    if native is not None:
        return failure(native, action, str(error))
    if isinstance(error, (ValueError, TypeError)):
        return ConfigurationError(f"{action}: {error}")
    return failure(_pulsar.Result.UnknownError, action, f"{type(error).__name__}: {error}")
