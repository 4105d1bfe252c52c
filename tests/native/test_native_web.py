"""Lookups over HTTP with a small web server. Connections to topics use the binary protocol."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from native_kit import Collector, subscription
from tls_kit import Authority

from pulsar_encore.authentication import AuthenticationBasic, AuthenticationToken
from pulsar_encore.devbroker import BrokerSettings, TlsSettings
from pulsar_encore.devbroker.server import Broker
from pulsar_encore.errors import NotSupportedError, PulsarException, TransportTimeout
from pulsar_encore.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ConnectError,
    ServiceUnitNotReady,
    TopicNotFound,
)
from pulsar_encore.exceptions import LookupError as TopicLookupError
from pulsar_encore.options import RegexSubscriptionMode
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.clusters import OneCluster
from pulsar_encore.transport.native.connection.cluster_service import (
    ClusterService,
    ConnectionCredentials,
)
from pulsar_encore.transport.native.connection.pool import ConnectionPool
from pulsar_encore.transport.native.connection.sockets import Sockets
from pulsar_encore.transport.native.connection.tls_context import TlsContext
from pulsar_encore.transport.native.lookup import http_lookup as web
from pulsar_encore.transport.native.lookup.lookup import Lookup
from pulsar_encore.transport.native.native_transport import NativeTransport

TOPIC = "persistent://public/default/a b"
PARTITIONS = "/admin/v2/persistent/public/default/a%20b/partitions?checkAllowAutoCreation=true"
OWNER = "/lookup/v2/topic/persistent/public/default/a%20b"
NAMED = RegexSubscriptionMode.PersistentOnly
ASKED_ONCE = {"operation_timeout_s": 1.5, "backoff_s": 60.0, "max_backoff_s": 60.0}
"""The wait before a second time would be longer than there is."""


class Site:
    """A web server.

    Attributes:
        pages: Answers by path: (status, JSON or bytes, headers). "*" holds for all other paths.
        asked: The requested paths.
        headers: The headers of the last request.
    """

    def __init__(self, **pages: Any) -> None:
        self.pages: dict[str, Any] = pages
        self.asked: list[str] = []
        self.headers: dict[str, str] = {}
        self.url = ""
        self._tasks: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            path = lines[0].split()[1]
            self.asked.append(path)
            pairs = (line.partition(": ") for line in lines[1:] if line)
            self.headers = {name.lower(): value for name, _, value in pairs}
            page = self.pages.get(path, self.pages.get("*", (404, {"reason": "no such thing"})))
            status, content, *more = page
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            head = "".join(
                f"{name}: {value}\r\n" for name, value in (more[0] if more else {}).items()
            )
            writer.write(
                f"HTTP/1.1 {status} X\r\n{head}Content-Length: {len(body)}\r\n"
                "Connection: close\r\n\r\n".encode()
                + body
            )
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has disconnected
        finally:
            writer.close()


@asynccontextmanager
async def serving(site: Site, context: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    site.url = f"{'https' if context else 'http'}://127.0.0.1:{port}"
    try:
        yield site
    finally:
        server.close()
        await asyncio.sleep(0.01)


def lookup_by(
    *urls: str,
    credentials: ConnectionCredentials | None = None,
    tls: TlsContext | None = None,
    **settings: Any,
) -> Lookup:
    tls = tls or TlsContext()
    hosts = ",".join(url.partition("://")[2] for url in urls)
    service = ClusterService.at(
        f"{urls[0].partition('://')[0]}://{hosts}", Sockets(tls), credentials, tls
    )
    chosen = {"operation_timeout_s": 10, "backoff_s": 0.05, **settings}
    return Lookup(ConnectionPool(service, ClientSettings(**chosen), Random(1)))


async def end(lookup: Lookup) -> None:
    lookup.pool.shutdown()
    await lookup.pool.gone()


async def test_a_whole_consumer_works_with_an_http_address() -> None:
    async with Broker(BrokerSettings()) as broker, serving(Site()) as site:
        site.pages = {
            PARTITIONS: (200, {"partitions": 0}),
            OWNER: (200, {"brokerUrl": broker.url, "brokerUrlTls": None}),
        }
        tls = TlsContext()
        transport = NativeTransport(OneCluster(ClusterService.at(site.url, Sockets(tls))))
        transport_consumer: Any = await transport.subscribe(subscription(topics=("a b",)))
        transport_consumer.start(Collector())
        assert transport_consumer.is_connected()
        await transport.close()
        assert site.asked == [PARTITIONS, OWNER]


async def test_http_lookups_send_the_expected_requests_and_parse_the_answers() -> None:
    listed = [f"{TOPIC}-partition-0", f"{TOPIC}-partition-1", "persistent://public/default/b"]
    async with serving(Site()) as site:
        site.pages = {
            PARTITIONS: (200, {"partitions": 3}),
            PARTITIONS.replace("true", "false"): (200, {"partitions": 0}),
            "/admin/v2/namespaces/public/default/topics?mode=PERSISTENT": (200, listed),
        }
        lookup = lookup_by(site.url)
        assert await lookup.partitions(TOPIC) == 3
        assert await lookup.partitions(TOPIC, create=False) == 0
        assert (await lookup.topics("public/default", NAMED)).topics == listed
        assert "authorization" not in site.headers
        await end(lookup)


@pytest.mark.parametrize(
    ("credentials", "method", "value"),
    [
        (AuthenticationToken("a.b.c"), "token", "Bearer a.b.c"),
        (AuthenticationBasic("u", "p"), "basic", "Basic dTpw"),
    ],
)
async def test_credentials_are_also_sent_to_the_target_of_a_redirect(
    credentials: Any, method: str, value: str
) -> None:
    async with serving(Site()) as site, serving(Site()) as other:
        other.pages = {PARTITIONS: (200, {"partitions": 3})}
        site.pages = {PARTITIONS: (307, {}, {"Location": other.url + PARTITIONS})}
        lookup = lookup_by(site.url, credentials=credentials)
        assert await lookup.partitions(TOPIC) == 3
        for each in (site, other):
            assert each.headers["authorization"] == value
            assert each.headers["x-pulsar-auth-method-name"] == method
        await end(lookup)


async def test_the_listener_name_is_sent() -> None:
    async with serving(Site()) as site:
        lookup = lookup_by(site.url, listener_name="out")
        with pytest.raises(TopicNotFound):
            await lookup.owner(TOPIC)
        assert site.asked == [f"{OWNER}?listenerName=out"]
        await end(lookup)


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, AuthenticationError), (403, AuthorizationError), (404, TopicNotFound)],
)
async def test_a_refusal_contains_the_brokers_text(
    status: int, error: type[PulsarException]
) -> None:
    async with serving(Site(**{"*": (status, {"reason": "because"})})) as site:
        lookup = lookup_by(site.url)
        with pytest.raises(error, match=f"HTTP {status}: because"):
            await lookup.partitions(TOPIC)
        assert len(site.asked) == 1
        await end(lookup)


async def test_a_temporary_error_is_retried() -> None:
    async with serving(Site(**{"*": (503, b"not yet")})) as site:
        lookup = lookup_by(site.url, operation_timeout_s=30)
        asking = asyncio.ensure_future(lookup.partitions(TOPIC))
        while len(site.asked) < 2:
            await asyncio.sleep(0.01)
        site.pages = {"*": (200, {"partitions": 4})}
        assert await asking == 4
        await end(lookup)


async def test_the_brokers_text_is_raised_when_no_time_is_left_to_retry() -> None:
    async with serving(Site(**{"*": (503, b"not yet")})) as site:
        lookup = lookup_by(site.url, **ASKED_ONCE)
        with pytest.raises(ServiceUnitNotReady, match="not yet"):
            await lookup.partitions(TOPIC)
        assert len(site.asked) == 1
        await end(lookup)


async def test_another_address_is_used_when_one_does_not_answer() -> None:
    async with serving(Site()) as stopped:
        dead = stopped.url
    async with serving(Site(**{"*": (200, {"partitions": 1})})) as site:
        lookup = lookup_by(dead, site.url, operation_timeout_s=5)
        for each in range(4):
            assert await lookup.partitions(f"{TOPIC}{each}") == 1
        assert len(site.asked) == 4
        await end(lookup)
    lookup = lookup_by(dead, **ASKED_ONCE)
    with pytest.raises(ConnectError):
        await lookup.partitions(TOPIC)


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ((200, {"partitions": -1}), "answer is invalid"),
        ((200, {"partitions": "many"}), "answer is invalid"),
        ((200, b"<html>"), "not JSON"),
        ((307, {}, {"Location": "ftp://h/"}), "redirect"),
        ((200, b"[" * 2_000), "more than 1000 bytes"),
    ],
)
async def test_an_invalid_answer_is_an_error_that_shows_it(
    page: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "_MAX_ANSWER_BYTES", 1000)
    async with serving(Site(**{"*": page})) as site:
        lookup = lookup_by(site.url)
        with pytest.raises(TopicLookupError, match=why):
            await lookup.partitions(TOPIC)
        await end(lookup)


async def test_a_redirect_loop_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_MAX_REDIRECTS", 2)
    async with serving(Site(**{"*": (307, {}, {"Location": "/again"})})) as site:
        lookup = lookup_by(site.url)
        with pytest.raises(TopicLookupError, match="more than 2 redirects"):
            await lookup.owner(TOPIC)
        assert len(site.asked) == 3
        await end(lookup)


async def test_an_invalid_list_or_address_is_an_error_that_shows_it() -> None:
    async with serving(Site(**{"*": (200, {"brokerUrl": None})})) as site:
        lookup = lookup_by(site.url)
        with pytest.raises(TopicLookupError, match="no plain address"):
            await lookup.owner(TOPIC)
        with pytest.raises(TopicLookupError, match="answer is invalid"):
            await lookup.topics("public/default", NAMED)
        site.pages = {"*": (200, [1, 2])}
        with pytest.raises(TopicLookupError, match="answer is invalid"):
            await lookup.topics("public/default", NAMED)
        with pytest.raises(TopicLookupError, match="answer is invalid"):
            await lookup.owner(TOPIC)
        await end(lookup)


async def test_https_verifies_certificates_and_host_names(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("broker", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    settings = BrokerSettings(tls=TlsSettings(certificate_file=certificate, key_file=key))
    async with (
        Broker(settings) as broker,
        serving(Site(), context) as site,
        serving(Site()) as plain,
    ):
        site.pages = {
            OWNER: (200, {"brokerUrl": broker.url, "brokerUrlTls": broker.url_tls}),
            PARTITIONS: (307, {}, {"Location": plain.url + PARTITIONS}),
        }
        tls = TlsContext(trust_file=authority.file)
        lookup = lookup_by(site.url, tls=tls, operation_timeout_s=5)
        assert (await lookup.owner(TOPIC)).peer == broker.url_tls
        with pytest.raises(TopicLookupError, match="from TLS to none"):
            await lookup.partitions(TOPIC)
        assert plain.asked == []
        await end(lookup)
        stranger = lookup_by(site.url, tls=TlsContext(), operation_timeout_s=5)
        with pytest.raises(ConnectError, match="tls_trust_certs_file_path"):
            await stranger.owner(TOPIC)
        await end(stranger)


async def test_a_silent_web_service_causes_a_timeout() -> None:
    hold = asyncio.Event()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            pass
        writer.close()
        hold.set()

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    lookup = lookup_by(f"http://127.0.0.1:{port}", operation_timeout_s=0.1)
    with pytest.raises(TransportTimeout):
        await lookup.partitions(TOPIC)
    await asyncio.wait_for(hold.wait(), 5)
    server.close()
    await asyncio.sleep(0.01)


async def test_a_missing_package_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    lookup = lookup_by("http://127.0.0.1:1")
    monkeypatch.setattr(web.importlib, "import_module", missing)
    with pytest.raises(NotSupportedError, match=r"pip install 'pulsar-encore\[http\]'"):
        await lookup.partitions(TOPIC)


async def test_an_authentication_method_without_an_http_header_is_an_error() -> None:
    class Other:
        method_name = "sasl"

        async def data(self) -> bytes:
            return b"x"

    lookup = lookup_by("http://127.0.0.1:1", credentials=Other())
    with pytest.raises(NotSupportedError, match="'sasl' over HTTP"):
        await lookup.partitions(TOPIC)
