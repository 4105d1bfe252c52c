"""What every authentication is: a method's name, and data that prove it.

Owns `Authentication`, and `of`, by which a transport learns whether it can read one. Secrets stay
in the object: none is in a repr, a log line or an error's text.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from .. import stock
from ..errors import AuthenticationError, ConfigurationError, NotSupportedError


class Authentication:
    """Proves who the client is. The subclasses name methods; of its own it is a plugin of stock's.

    A subclass of yours sets `method_name` and overrides `data`. (The stock transport takes those of
    this package only.)

    Args:
        dynamicLibPath: A shared library with a plugin for the C++ library, or the name of one
            that it has; for the stock transport alone.
        authParamsString: The plugin's parameters.

    Attributes:
        method_name: Pulsar's name of the method, such as "token".

    Raises:
        ConfigurationError: An argument is no str.
    """

    method_name: str = "plugin"

    def __init__(self, dynamicLibPath: str, authParamsString: str) -> None:
        self._plugin: str = text(dynamicLibPath, "dynamicLibPath")
        self._plugin_parameters = text(authParamsString, "authParamsString")

    async def data(self) -> bytes:
        """What goes to the broker, for each CONNECT and each AUTH_CHALLENGE.

        Raises:
            AuthenticationError: There is none at the moment; the broker was not asked.
            NotSupportedError: Only the stock transport can do this one.
        """
        raise NotSupportedError(
            f"{type(self).__name__} is a plugin of the C++ library: use the stock transport"
        )

    @cached_property
    def auth(self) -> Any:
        """The C++ library's object, as stock's own code takes it.

        Raises:
            ConfigurationError: The library cannot make one.
        """
        native = self._native(stock.library())
        if native is None:
            raise ConfigurationError(
                "authentication: the C++ library has no such plugin and could not load it from "
                "dynamicLibPath"
            )
        return native

    def _native(self, library: Any) -> Any:
        """Made by the C++ library `library`."""
        if not hasattr(self, "_plugin"):
            raise NotSupportedError(
                f"the stock transport cannot use {type(self).__name__}, which is not of this "
                "package: use one of the Authentication classes that are"
            )
        return library.Authentication.create(self._plugin, self._plugin_parameters)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


def of(value: Any) -> Authentication | None:
    """An `authentication=` whose data Python can read, or None without one.

    Raises:
        NotSupportedError: It is stock's own: its secrets went into the C++ library.
        ConfigurationError: It is no authentication.
    """
    check(value, "authentication")
    if value is None or isinstance(value, Authentication):
        return value
    raise NotSupportedError(
        f"authentication is a pulsar.{type(value).__name__}, of the stock package, and only its "
        f"library knows what is in it: make a pulsar_encore.{type(value).__name__}, or use the "
        "stock transport"
    )


def check(value: Any, name: str) -> None:
    """An Authentication, stock's or ours, or None.

    Raises:
        ConfigurationError: Something else.
    """
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
    """A str, which may be empty and is not shown.

    Raises:
        ConfigurationError: It is something else, or UTF-8 cannot encode it. The C++ library would
            show the value in its own error.
    """
    if not isinstance(value, str):
        raise ConfigurationError(f"{name} must be a str, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{name} must be text that UTF-8 can encode") from None
    return value


def field(values: Mapping[str, Any], name: str, where: str) -> str:
    """A str that has to be in a JSON object, and not empty.

    Raises:
        ConfigurationError: It is not; what is there is not shown.
    """
    value = values.get(name)
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{where} needs {name!r}, a string that is not empty")
    return value


def authentication_failed(reason: str, *, retryable: bool = False) -> AuthenticationError:
    """The error for data that could not be had; `retryable` where they may be had later."""
    return AuthenticationError(
        f"authentication= failed here, and the broker was not asked: {reason}", retryable=retryable
    )
