"""Authentication with a token, such as a JWT: a value, a file, or a function."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Final
from weakref import WeakSet

from ..errors import ConfigurationError
from ..options.checks import readable_file
from .authentication import Authentication, authentication_failed, text
from .shared_call import SharedCall
from .token_supplier import (
    PendingSupplier,
    Supplier,
    library_authentication,
    supplier_name,
)

_TOKEN_PREFIX: Final = "token:"
_FILE_PREFIX: Final = "file:"


class AuthenticationToken(Authentication):
    """A token, or the place where the current token is found.

    Args:
        token: One of these, as in Java: the token, with an optional prefix ``token:``;
            ``file:///path`` (or ``file:path``) of a file that is read each time, stripped of white
            space; or a function that returns the token and is called each time. A plain function
            runs in a thread, because it may block. A function that returns an awaitable runs on the
            event loop (on the stock transport, on a loop of its own).

    Raises:
        ConfigurationError: if it is none of these, or the file cannot be read.

    Example:
        ```python
        client = pulsar_encore.Client(
            "pulsar+ssl://host:6651",
            authentication=pulsar_encore.AuthenticationToken("file:///run/secrets/pulsar"),
        )
        ```
    """

    method_name: str = "token"

    def __init__(self, token: str | Supplier) -> None:
        if not (isinstance(token, str) or callable(token)):
            raise ConfigurationError(
                f"token must be a str or a function that returns one, got {type(token).__name__}"
            )
        if isinstance(token, str) and token.startswith(_FILE_PREFIX):
            token = _TokenFile(token.removeprefix(_FILE_PREFIX))
        elif isinstance(token, str):
            token = text(token, "token").removeprefix(_TOKEN_PREFIX)
            if not token:
                raise ConfigurationError("token must not be empty")
        self._token = token
        self._supplier_call = SharedCall[object]()
        #: Calls of stock transports, which fail if the supplier fails before its first token.
        self.waiting: WeakSet[PendingSupplier] = WeakSet()

    async def data(self) -> bytes:
        """Return the current token.

        Raises:
            AuthenticationError: if the function or the file gave no token.
        """
        if isinstance(self._token, str):
            return self._token.encode()
        try:
            if inspect.iscoroutinefunction(self._token):
                token = await self._token()
            else:
                token = await self._supplier_call.run(self._in_thread)
        except Exception as error:
            # The text of the error may contain the secret.
            raise authentication_failed(
                f"{supplier_name(self._token)} raised {type(error).__name__}"
            ) from error
        if not isinstance(token, str):
            kind = type(token).__name__
            raise authentication_failed(
                f"{supplier_name(self._token)} gave {kind} (a token is a str)"
            )
        if not token:
            raise authentication_failed(f"{supplier_name(self._token)} gave an empty token")
        return token.encode()

    async def _in_thread(self) -> object:
        assert callable(self._token)
        result = await asyncio.to_thread(self._token)
        return await result if inspect.isawaitable(result) else result

    def _native(self, library: Any) -> Any:
        if isinstance(self._token, str):
            return library.AuthenticationToken.create(self._token)
        return library_authentication(self._token, library.AuthenticationToken.create, self.waiting)


class _TokenFile:
    """A supplier that reads the token from a file."""

    def __init__(self, path: str) -> None:
        self._path = f"/{path.lstrip('/')}" if path.startswith("/") else path
        readable_file(self._path, "AuthenticationToken's token file")
        self.description: str = f"reading the token file {self._path!r}"

    def __str__(self) -> str:
        return f"the token file {self._path!r}"

    def __call__(self) -> str:
        with open(self._path, encoding="utf-8") as file:
            return file.read().strip()
