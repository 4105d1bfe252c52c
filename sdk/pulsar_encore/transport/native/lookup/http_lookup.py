"""Lookups over HTTP, at the brokers' admin interface, for http:// and https:// service URLs.

Redirects are followed with the credentials, but never from TLS to plain HTTP. Needs `httpx2`.
"""

from __future__ import annotations

import base64
import importlib
import json
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeGuard
from urllib.parse import quote, urljoin

from ....errors import (
    ConnectError,
    NotSupportedError,
    PulsarException,
    TransportTimeout,
)
from ....errors import LookupError as TopicLookupError
from ....options import RegexSubscriptionMode
from ..connection import tls_context as tls
from ..connection.addresses import Address, broker_address, redirect_target
from ..connection.cluster_service import ConnectionCredentials
from ..connection.pool import ConnectionPool
from ..connection.session import Session
from .binary_lookup import check_partitions
from .http_refusal import refusal
from .lookup_interface import Partitions, TopicListing

_MAX_REDIRECTS: Final = 20
_MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024  # the names of half a million topics
_MODES: Final = {
    RegexSubscriptionMode.PersistentOnly: "PERSISTENT",
    RegexSubscriptionMode.NonPersistentOnly: "NON_PERSISTENT",
    RegexSubscriptionMode.AllTopics: "ALL",
}


class HttpLookup:
    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def partitions(self, topic: str, create: bool) -> Partitions:
        answer = await self.get(
            f"/admin/v2/{path_of(topic)}/partitions",
            {"checkAllowAutoCreation": "true" if create else "false"},
            f"partitions of {topic}",
        )
        count = answer.get("partitions") if _is_object(answer) else None
        if not isinstance(count, int) or count < 0:
            raise _bad_answer(f"partitions of {topic}: the answer is invalid")
        check_partitions(count, topic, self._pool.settings.max_partitions)
        return Partitions(count, tells_missing=True)

    async def topics(self, namespace: str, mode: RegexSubscriptionMode, known: str) -> TopicListing:
        answer = await self.get(
            f"/admin/v2/namespaces/{namespace}/topics",
            {"mode": _MODES[mode]},
            f"topics of {namespace}",
        )
        if not isinstance(answer, list) or not all(isinstance(each, str) for each in answer):
            raise _bad_answer(f"topics of {namespace}: the answer is invalid")
        return TopicListing(answer, "")

    async def owner(self, topic: str) -> Session:
        service, listener = self._pool.service, self._pool.settings.listener_name
        answer = await self.get(
            f"/lookup/v2/topic/{path_of(topic)}",
            {} if listener is None else {"listenerName": listener},
            f"look up {topic}",
        )
        found = answer if _is_object(answer) else {"brokerUrl": 0}
        plain, by_tls = found.get("brokerUrl"), found.get("brokerUrlTls")
        if not isinstance(plain, str | None) or not isinstance(by_tls, str | None):
            raise _bad_answer(f"look up {topic}: the answer is invalid")
        address = broker_address(
            (by_tls if service.secure else plain) or "",
            plain or "",
            asked=service,
            secure=service.secure,
            purpose=topic,
        )
        return await self._pool.broker(address, service=service)

    async def get(
        self, path: str, query: Mapping[str, str], purpose: str, method: str = "GET"
    ) -> Any:
        """Return the JSON answer of a broker of the service. If one does not answer, ask the
        next.

        Args:
            method: The HTTP method of a request that changes nothing.
        """
        httpx2 = _httpx2()
        pool = self._pool
        service = pool.service
        data = await pool.data_of(service.credentials)
        pool.check_cluster(service)  # before an address is chosen
        headers = _headers(service.credentials, data)
        settings = pool.settings
        timeout = httpx2.Timeout(
            settings.operation_timeout_s, connect=settings.connection_timeout_s
        )

        def connect(tls: bool) -> Any:
            # One HTTP client per request: a redirect to https needs certificates, http needs none.
            verify = service.tls.context() if tls else False
            return httpx2.AsyncClient(timeout=timeout, verify=verify, trust_env=False)

        failure: PulsarException | None = None
        for address in pool.addresses_to_try():
            url = f"{address}{path}"
            try:
                status, body = await _fetch(connect, url, query, headers, purpose, method)
            except httpx2.TimeoutException as error:
                failure = TransportTimeout(f"{purpose}: no answer from {address} in time")
                failure.__cause__ = error
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                failure = _connect_error(httpx2, purpose, address, error)
                failure.__cause__ = error
            else:
                pool.prefer(address, service)
                if status != 200:
                    raise refusal(status, body, purpose, service.credentials.method_name)
                return _json(body, purpose)
            pool.avoid(address, service)
        assert failure is not None, "a service has addresses"
        raise failure


async def _fetch(
    connect: Callable[[bool], Any],
    url: str,
    query: Mapping[str, str],
    headers: Mapping[str, str],
    purpose: str,
    method: str,
) -> tuple[int, bytes]:
    params: Mapping[str, str] | None = query
    for _ in range(_MAX_REDIRECTS + 1):
        async with (
            connect(url.startswith("https:")) as http,
            http.stream(method, url, params=params, headers=headers) as response,
        ):
            if not response.is_redirect:
                body = bytearray()
                async for part in response.aiter_raw():
                    body += part
                    if len(body) > _MAX_ANSWER_BYTES:
                        raise _bad_answer(
                            f"{purpose}: an answer of more than {_MAX_ANSWER_BYTES} bytes"
                        )
                return response.status_code, bytes(body)
            target = _location_url(response.url, response.headers.get("location", ""), purpose)
        url = redirect_target(target, asked=url, purpose=purpose)
        params = None  # the target repeats the query
    raise TopicLookupError(f"{purpose}: more than {_MAX_REDIRECTS} redirects in a row")


def _location_url(asked: Any, location: str, purpose: str) -> str:
    """Return the target of a redirect as `httpx2` reads it."""
    try:
        return str(_httpx2().URL(urljoin(str(asked), location)))
    except (ValueError, _httpx2().InvalidURL) as error:
        raise _bad_answer(f"{purpose}: a redirect of {asked} to no web address: {error}") from error


def _json(body: bytes, purpose: str) -> Any:
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if answer is None:
        raise _bad_answer(f"{purpose}: the answer is not JSON")
    return answer


def _headers(credentials: ConnectionCredentials, data: bytes) -> dict[str, str]:
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    method = credentials.method_name
    if method == "none":
        return headers
    headers["X-Pulsar-Auth-Method-Name"] = method
    if method == "token":
        headers["Authorization"] = f"Bearer {data.decode()}"
    elif method == "basic":
        headers["Authorization"] = f"Basic {base64.b64encode(data).decode()}"
    elif data:
        raise NotSupportedError(
            f"authentication by {method!r} over HTTP: use a pulsar:// service URL"
        )
    return headers


def path_of(topic: str) -> str:
    """Return ``persistent/tenant/namespace/name``, with the name quoted."""
    domain, _, rest = topic.partition("://")
    tenant, namespace, name = rest.split("/", 2)
    return f"{domain}/{tenant}/{namespace}/{quote(name, safe='')}"


def _connect_error(
    httpx2: Any, purpose: str, address: Address, error: Exception
) -> PulsarException:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return tls.handshake_error(str(address), address.host, cause)
        cause = cause.__cause__ or cause.__context__
    text = f"{purpose}: {address}: {str(error) or type(error).__name__}"
    if isinstance(error, (httpx2.RemoteProtocolError, httpx2.ReadError)):
        # The peer closed the connection because it does not speak HTTP.
        text += (
            ": give service_url the port of the web service (8080, with TLS 8443), not the binary "
            "protocol's, or connect by pulsar://"
        )
    return ConnectError(text)


def _is_object(answer: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(answer, dict)


def _bad_answer(text: str) -> TopicLookupError:
    """Return the error for an invalid answer. A retry would get the same answer."""
    return TopicLookupError(text, retryable=False)


def _httpx2() -> Any:
    try:
        return importlib.import_module("httpx2")
    except ImportError as error:
        raise NotSupportedError(
            "a service URL of http:// or https:// needs httpx2: pip install 'pulsar-encore[http]', "
            "or connect by pulsar://"
        ) from error
