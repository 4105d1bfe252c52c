"""The HTTP side of OAuth2: discover the token endpoint of an issuer and request a token.

An error is retryable if the issuer was unavailable, not if it refused. Redirects, answers over
`_MAX_ANSWER_BYTES`, and an http endpoint of an https issuer are errors. Needs `httpx2`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import ssl
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import certifi

from ..errors import NotSupportedError
from .authentication import authentication_failed
from .oauth2_credentials import Parameters, is_web_address

_CONNECT_TIMEOUT_S: Final = 10.0
_TIMEOUT_S: Final = 30.0
_MAX_ANSWER_BYTES: Final = 1 << 20
_MAX_REASON_LENGTH: Final = 300  # of the issuer's text in an error
_SERVER_ERROR_STATUS: Final = 500  # this status and above are failures of the issuer
_TOO_MANY_REQUESTS_STATUS: Final = 429


class TokenGrant(NamedTuple):
    """A token and its lifetime in s from now; 0 if the issuer gave none."""

    token: str
    lifetime_s: float


async def request_token(parameters: Parameters) -> TokenGrant:
    """Request a token with client credentials: `docs/notes/wire-protocol.md#authentication`."""
    httpx2 = _httpx2()
    client = await asyncio.to_thread(parameters.client)
    fields = {
        "grant_type": "client_credentials",
        "client_id": client.client_id,
        "client_secret": client.client_secret,
        "audience": parameters.audience,
        "scope": parameters.scope,
    }
    form = {name: value for name, value in fields.items() if value is not None}
    discovery = parameters.issuer_url.rstrip("/") + "/.well-known/openid-configuration"
    try:
        timeout = httpx2.Timeout(_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
        async with httpx2.AsyncClient(timeout=timeout, verify=_tls_context()) as http:
            found = await _request_json(http, "GET", discovery, None)
            endpoint = _endpoint(found.get("token_endpoint"), discovery)
            answer = await _request_json(http, "POST", endpoint, form)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        # The text of the error may contain a secret; its type does not.
        reason = f"{parameters.issuer_url}: {type(error).__name__}"
        raise authentication_failed(
            reason, retryable=isinstance(error, httpx2.TransportError)
        ) from error
    token = answer.get("access_token")
    if not isinstance(token, str) or not token:
        raise authentication_failed(f"{endpoint} answered without an access_token")
    return TokenGrant(token, _lifetime(answer.get("expires_in")))


async def _request_json(
    http: Any, method: str, url: str, form: Mapping[str, str] | None
) -> Mapping[str, Any]:
    # Not compressed: a small answer could unpack to a large one.
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    body = bytearray()
    async with http.stream(method, url, data=form, headers=headers) as response:
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > _MAX_ANSWER_BYTES:
                raise authentication_failed(
                    f"{url} answered with more than {_MAX_ANSWER_BYTES} bytes"
                )
        status = response.status_code
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if status != 200:
        raise authentication_failed(
            f"{url} answered {status}{_reason(answer, form)}",
            retryable=status >= _SERVER_ERROR_STATUS or status == _TOO_MANY_REQUESTS_STATUS,
        )
    if not isinstance(answer, dict):
        raise authentication_failed(f"{url} answered with something other than a JSON object")
    return answer


def _reason(answer: object, form: Mapping[str, str] | None) -> str:
    """Return the issuer's error text without the secret."""
    if not isinstance(answer, dict):
        return ""
    texts = [answer.get(name) for name in ("error", "error_description")]
    text = "".join(f": {each}" for each in texts if isinstance(each, str))
    secret = (form or {}).get("client_secret")
    return (text.replace(secret, "...") if secret else text)[:_MAX_REASON_LENGTH]


def _endpoint(endpoint: object, discovery: str) -> str:
    if not isinstance(endpoint, str) or not is_web_address(endpoint):
        raise authentication_failed(f"{discovery} names no token_endpoint")
    if endpoint.startswith("http:") and discovery.startswith("https:"):
        raise authentication_failed(
            f"{discovery} names a token_endpoint without TLS, and the secret is not sent "
            f"there: {endpoint.partition('?')[0]}. Configure the issuer to name an https endpoint"
        )
    return endpoint


def _lifetime(expires_in: object) -> float:
    try:
        return max(0.0, float(expires_in))  # type: ignore[arg-type]  # some issuers write a str
    except (TypeError, ValueError, OverflowError):
        return 0.0


def _tls_context() -> ssl.SSLContext:
    """Return a TLS context that trusts `SSL_CERT_FILE`, else `SSL_CERT_DIR`, else certifi.

    The default of httpx2 is the operating system's store, which slim containers do not have.
    """
    if file := os.environ.get("SSL_CERT_FILE"):
        return ssl.create_default_context(cafile=file)
    if folder := os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context(capath=folder)
    return ssl.create_default_context(cafile=certifi.where())


def _httpx2() -> Any:
    try:
        return importlib.import_module("httpx2")
    except ImportError as error:
        raise NotSupportedError(
            "AuthenticationOauth2 needs httpx2: pip install 'pulsar-encore[oauth2]'"
        ) from error
