"""Refusals of requests by the broker's rules. They never close a connection."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import ConfigurationError, EncoreError


class Refusal(EncoreError):
    """The broker refuses a request.

    Args:
        code: Name of the protocol's `ServerError`, such as ``"ConsumerBusy"``.
        message: Problem and remedy. Sent to the client.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def missing_subscription(topic: str, name: str, known: Iterable[str]) -> ConfigurationError:
    names = ", ".join(repr(each) for each in sorted(known)) or "none"
    return ConfigurationError(f"{topic!r} has no subscription {name!r}; it has {names}")
