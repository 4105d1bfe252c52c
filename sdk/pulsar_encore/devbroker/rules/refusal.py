"""The one way the broker's rules say no: a server error by its protocol name.

Pure rules raise `Refusal`; the session turns it into the answer that belongs to the command
(ERROR, a failed lookup, SEND_ERROR). It never closes a connection: that is for broken bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import ConfigurationError, EncoreError


class Refusal(EncoreError):
    """The broker refuses a request.

    Args:
        code: Name of the protocol's `ServerError`, such as ``"ConsumerBusy"``.
        message: What is wrong and what to change; sent to the client.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def missing_subscription(topic: str, name: str, known: Iterable[str]) -> ConfigurationError:
    """The error for a subscription that was asked about and does not exist."""
    names = ", ".join(repr(each) for each in sorted(known)) or "none"
    return ConfigurationError(f"{topic!r} has no subscription {name!r}; it has {names}")
