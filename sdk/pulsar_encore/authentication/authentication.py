"""The base class `Authentication`. Secrets never appear in a repr, a log line or an error."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from .. import stock
from ..errors import AuthenticationError, ConfigurationError, NotSupportedError


class Authentication:
    """Credentials of a client. Subclasses implement one method each.

    Your own subclass sets `method_name` and overrides `data`; the stock transport does not support
    it. An instance of this class itself is a plugin of the C++ client (stock transport only).

    Args:
        dynamicLibPath: A shared library with a plugin, or the name of a plugin of the C++ client.
        authParamsString: Parameters of the plugin.

    Attributes:
        method_name: Pulsar's name of the method, such as "token".

    Raises:
        ConfigurationError: if an argument is not a str.

    Example:
        ```python
        class SessionToken(pulsar_encore.Authentication):
            method_name = "token"

            def __init__(self, session):
                self._session = session

            async def data(self):
                return (await self._session.token()).encode()
        ```
    """

    method_name: str = "plugin"

    def __init__(self, dynamicLibPath: str, authParamsString: str) -> None:
        self._plugin: str = text(dynamicLibPath, "dynamicLibPath")
        self._plugin_parameters = text(authParamsString, "authParamsString")

    async def data(self) -> bytes:
        """Return the data for the broker. Called for each CONNECT and each AUTH_CHALLENGE.

        Raises:
            AuthenticationError: if there is no data now. The broker was not asked.
            NotSupportedError: if only the stock transport supports this class.
        """
        raise NotSupportedError(
            f"{type(self).__name__} is a plugin of the C++ library: use the stock transport"
        )

    @cached_property
    def auth(self) -> Any:
        """The credentials as an object of the C++ client.

        Raises:
            ConfigurationError: if the C++ client cannot create one.
        """
        native = self._native(stock.library())
        if native is None:
            raise ConfigurationError(
                "authentication: the C++ library has no such plugin and could not load it from "
                "dynamicLibPath"
            )
        return native

    def _native(self, library: Any) -> Any:
        """Return an object that the C++ client `library` created."""
        if not hasattr(self, "_plugin"):
            raise NotSupportedError(
                f"the stock transport cannot use {type(self).__name__}, which is not a class of "
                "this package: use one of its Authentication classes"
            )
        return library.Authentication.create(self._plugin, self._plugin_parameters)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


def of(value: Any) -> Authentication | None:
    """Return an `authentication=` whose data Python can read, or None.

    Raises:
        NotSupportedError: if it belongs to `pulsar-client`: its secrets are in the C++ client.
    """
    check(value, "authentication")
    if value is None or isinstance(value, Authentication):
        return value
    raise NotSupportedError(
        f"authentication is a pulsar.{type(value).__name__}, and only the C++ client can read "
        f"its secrets: create a pulsar_encore.{type(value).__name__}, or use the stock transport"
    )


def check(value: Any, name: str) -> None:
    """Check that a value is an Authentication, of either package, or None."""
    if not (
        value is None
        or isinstance(value, Authentication)
        or stock.is_one(value, "pulsar.Authentication")
    ):
        raise ConfigurationError(
            f"{name} must be one of the Authentication classes, such as AuthenticationToken, got "
            f"{type(value).__name__}"
        )


def text(value: Any, name: str) -> str:
    """Return a str that UTF-8 can encode. The C++ client would show another value in its error."""
    if not isinstance(value, str):
        raise ConfigurationError(f"{name} must be a str, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{name} must be text that UTF-8 can encode") from None
    return value


def field(values: Mapping[str, Any], name: str, where: str) -> str:
    """Return a required non-empty str of a JSON object. Errors do not show it."""
    value = values.get(name)
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{where} needs {name!r}, a string that is not empty")
    return value


def authentication_failed(reason: str, *, retryable: bool = False) -> AuthenticationError:
    return AuthenticationError(
        f"authentication= failed here, and the broker was not asked: {reason}", retryable=retryable
    )
