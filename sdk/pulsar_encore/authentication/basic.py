"""Authentication with a user name and a password."""

from __future__ import annotations

import json
from typing import Any

from ..errors import ConfigurationError
from .authentication import Authentication, field, text


class AuthenticationBasic(Authentication):
    """A user name and a password, as two arguments or as JSON.

    Args:
        username: The user name.
        password: The password.
        method: Pulsar's name of the method, if the broker uses another name than "basic".
        auth_params_string: JSON with `username`, `password` and optionally `method`. If it is
            given, the other arguments are ignored.

    Raises:
        ConfigurationError: if a value is missing or not a str. The text does not show the values.
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
        """Return ``user:password``."""
        return f"{self._username}:{self._password}".encode()

    def _native(self, library: Any) -> Any:
        return library.AuthenticationBasic.create(self._username, self._password, self.method_name)


def _read(parameters: str) -> tuple[str, str, str]:
    where = "AuthenticationBasic's auth_params_string"
    try:
        values = json.loads(parameters)
    except ValueError:  # not chained: its text would show the secret
        values = None
    if not isinstance(values, dict):
        raise ConfigurationError(f'{where} must be JSON, as {{"username": ..., "password": ...}}')
    method = text(values.get("method", "basic"), f"{where}: method")
    return field(values, "username", where), field(values, "password", where), method or "basic"
