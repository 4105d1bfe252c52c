"""OAuth2 client credentials: a token from an issuer, cached until shortly before it expires."""

from __future__ import annotations

import logging
import math
import time
from typing import Any, Final, NamedTuple

from . import oauth2_credentials as credentials
from .authentication import Authentication, text
from .oauth2_issuer import request_token
from .shared_call import SharedCall

log: Final = logging.getLogger("pulsar_encore.client")

_RENEWAL_SHARE: Final = 0.1  # renew a token in this last share of its lifetime,
_RENEWAL_MAX_S: Final = 60.0  # but at most this long before its end


class _CachedToken(NamedTuple):
    """A token and two times in monotonic s."""

    token: str
    renew_at: float
    expires_at: float


class AuthenticationOauth2(Authentication):
    """OAuth2 client credentials.

    Needs `pip install "pulsar-encore[oauth2]"`, except on the stock transport.

    Args:
        auth_params_string: JSON with `issuer_url`, `private_key`, and optionally `audience` and
            `scope`. `private_key` is a path, ``file:///path`` or
            ``data:application/json;base64,...`` of JSON with `client_id` and `client_secret`; the
            parameters may also contain these two directly.

    Raises:
        ConfigurationError: if a value is missing or wrong, or the file cannot be read. The text
            shows no value.
    """

    method_name: str = "token"

    def __init__(self, auth_params_string: str) -> None:
        self._auth_params = text(auth_params_string, "auth_params_string")
        self._parameters = credentials.read(auth_params_string)
        self._cached: _CachedToken | None = None
        self._renewal = SharedCall[str]()

    async def data(self) -> bytes:
        """Return the access token. Requests a new one near its end, or after the broker refused it.

        If the issuer returns no new token, the last one is used until it expires.

        Raises:
            AuthenticationError: if the issuer returned no token; `retryable` if it was only
                unavailable.
            ConfigurationError: if the key file is no longer usable.
            NotSupportedError: if `httpx2` is not installed.
        """
        cached = self._cached
        if cached is not None and time.monotonic() < cached.renew_at:
            return cached.token.encode()
        return (await self._renewal.run(self._renew)).encode()

    async def _renew(self) -> str:
        requested_at = time.monotonic()  # the lifetime begins later: a safe bound
        try:
            answer = await request_token(self._parameters)
        except Exception as error:
            # Brokers still accept a token that has not expired, and the next call asks again.
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
        """Request a new token next time: the broker refused this token."""
        if self._cached is not None:
            self._cached = self._cached._replace(renew_at=-math.inf)

    def _native(self, library: Any) -> Any:
        return library.AuthenticationOauth2.create(self._auth_params)


def renew_after_s(lifetime_s: float) -> float:
    """Return the time after which a token with this lifetime is renewed."""
    return lifetime_s - min(_RENEWAL_MAX_S, _RENEWAL_SHARE * lifetime_s)
