"""OAuth2 client credentials: a token from an issuer, cached while it is good.

Owns `AuthenticationOauth2` and its cached token. On one event loop one request is under way at
most, whoever waits for it; being cancelled ends it for nobody.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from . import oauth2_credentials as credentials
from .authentication import Authentication, text
from .oauth2_issuer import request_token

log: Final = logging.getLogger("pulsar_encore.client")

_RENEWAL_SHARE: Final = 0.1  # a token is renewed before this last part of its life,
_RENEWAL_MAX_S: Final = 60.0  # or this long before its end, if that is later


class _CachedToken(NamedTuple):
    """A token, until when it is used, and until when it is good (monotonic s)."""

    token: str
    renew_at: float
    expires_at: float


class AuthenticationOauth2(Authentication):
    """OAuth2 client credentials.

    Needs `pip install "pulsar-encore[oauth2]"` (the stock transport does not).

    Args:
        auth_params_string: JSON with `issuer_url`; `private_key`, a path, ``file:///path`` or
            ``data:application/json;base64,...`` of JSON with `client_id` and `client_secret` (or
            these two themselves); and, if need be, `audience` and `scope`.

    Raises:
        ConfigurationError: One is missing or wrong, or the file cannot be read; no value is shown.
    """

    method_name: str = "token"

    def __init__(self, auth_params_string: str) -> None:
        self._auth_params = text(auth_params_string, "auth_params_string")
        self._parameters = credentials.read(auth_params_string)
        self._cached: _CachedToken | None = None
        self._requests: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[str]] = (
            WeakKeyDictionary()
        )

    async def data(self) -> bytes:
        """The access token, asked for when the last one is near its end or was refused.

        If the issuer gives no new token, the last one is used until it expires.

        Raises:
            AuthenticationError: The issuer gave none; `retryable` where it is only away.
            ConfigurationError: The key file cannot be used any more.
            NotSupportedError: `httpx2` is not installed.
        """
        cached = self._cached
        if cached is not None and time.monotonic() < cached.renew_at:
            return cached.token.encode()
        loop = asyncio.get_running_loop()
        request = self._requests.get(loop)
        if request is None or request.done():
            request = self._requests[loop] = loop.create_task(self._renew())
            request.add_done_callback(_retrieve_exception)
        return (await asyncio.shield(request)).encode()

    async def _renew(self) -> str:
        requested_at = time.monotonic()  # the token's life begins after that: never too long
        try:
            answer = await request_token(self._parameters)
        except Exception as error:
            # Whatever is wrong with the issuer, or with the key file: a broker still takes a token
            # that is good, and the issuer is asked again the next time.
            cached = self._cached
            if cached is not None and requested_at < cached.expires_at:
                log.warning(
                    "the OAuth2 issuer gave no new token; the last one is used for another %.0f s: "
                    "%s",
                    cached.expires_at - requested_at,
                    error,
                )
                return cached.token
            raise
        self._cached = _CachedToken(
            answer.token,
            requested_at + renew_after_s(answer.lifetime_s),
            requested_at + answer.lifetime_s,
        )
        return answer.token

    def refused(self) -> None:
        """The broker did not take the token: ask for another the next time."""
        if self._cached is not None:
            self._cached = self._cached._replace(renew_at=-math.inf)

    def _native(self, library: Any) -> Any:
        return library.AuthenticationOauth2.create(self._auth_params)


def renew_after_s(lifetime_s: float) -> float:
    """How long a token is used that is good for `lifetime_s`."""
    return lifetime_s - min(_RENEWAL_MAX_S, _RENEWAL_SHARE * lifetime_s)


def _retrieve_exception(task: asyncio.Task[str]) -> None:
    """What failed is told to those who wait; when they are gone, to nobody."""
    if not task.cancelled():
        task.exception()
