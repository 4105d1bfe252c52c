"""A user and a password."""

from __future__ import annotations

import json
from typing import Any

from ..errors import ConfigurationError
from .authentication import Authentication, field, text


class AuthenticationBasic(Authentication):
    """A user and a password, given as two arguments or as JSON.

    Args:
        username: The user.
        password: The password.
        method: Pulsar's name of the method, where the broker has another for it.
        auth_params_string: JSON with `username`, `password` and, if need be, `method`; then the
            others are not looked at.

    Raises:
        ConfigurationError: One is missing or no str; what was given is not shown.
    """

    def __init__(
        self,
        username: str | None = None,
        password: str | None = None,
        method: str = "basic",
        auth_params_string: str | None = None,
    ) -> None:
        if auth_params_string is not None:
            username, password, method = _read(text(auth_params_string, "auth_params_string"))
        self._username = text(username, "username")
        self._password = text(password, "password")
        self.method_name: str = text(method, "method")

    async def data(self) -> bytes:
        """``user:password``."""
        return f"{self._username}:{self._password}".encode()

    def _native(self, library: Any) -> Any:
        return library.AuthenticationBasic.create(self._username, self._password, self.method_name)


def _read(parameters: str) -> tuple[str, str, str]:
    where = "AuthenticationBasic's auth_params_string"
    try:
        values = json.loads(parameters)
    except ValueError:  # not from it: its text would show what it could not read
        values = None
    if not isinstance(values, dict):
        raise ConfigurationError(f'{where} must be JSON, as {{"username": ..., "password": ...}}')
    method = text(values.get("method", "basic"), f"{where}: method")
    return field(values, "username", where), field(values, "password", where), method or "basic"
