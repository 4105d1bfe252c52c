"""Athenz, which only the C++ client supports."""

from __future__ import annotations

from typing import Any

from .authentication import Authentication, text


class AuthenticationAthenz(Authentication):
    """Athenz role tokens, on the stock transport. Other transports raise NotSupportedError.

    Args:
        auth_params_string: Parameters of the C++ client, in JSON.

    Raises:
        ConfigurationError: if it is not a str.
    """

    method_name: str = "athenz"

    def __init__(self, auth_params_string: str) -> None:
        self._parameters = text(auth_params_string, "auth_params_string")

    def _native(self, library: Any) -> Any:
        return library.AuthenticationAthenz.create(self._parameters)
