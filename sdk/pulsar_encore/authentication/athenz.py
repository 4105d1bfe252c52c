"""Athenz, which only the C++ library speaks."""

from __future__ import annotations

from typing import Any

from .authentication import Authentication, text


class AuthenticationAthenz(Authentication):
    """Athenz role tokens. For the stock transport; another says so by name.

    Args:
        auth_params_string: The library's parameters, JSON.

    Raises:
        ConfigurationError: It is no str.
    """

    method_name: str = "athenz"

    def __init__(self, auth_params_string: str) -> None:
        self._parameters = text(auth_params_string, "auth_params_string")

    def _native(self, library: Any) -> Any:
        return library.AuthenticationAthenz.create(self._parameters)
