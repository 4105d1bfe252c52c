"""Answers from the network that would weaken TLS are refused, in memory and over sockets."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from brokers_kit import Brokers, Double, lookup_answer, welcome
from google.protobuf.message import Message
from native_kit import TOPIC, Collector, lookup_of, run, subscription
from test_native_tls import broker, service
from test_native_web import OWNER, PARTITIONS, Site, lookup_by, serving
from tls_kit import Authority

from pulsar_encore.authentication import AuthenticationToken
from pulsar_encore.devbroker.server import Broker
from pulsar_encore.exceptions import LookupError as TopicLookupError
from pulsar_encore.exceptions import NotConnected
from pulsar_encore.options import ProducerOptions
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.clusters import OneCluster
from pulsar_encore.transport.native.connection.addresses import (
    Address,
    broker_address,
    parse,
    redirect_target,
)
from pulsar_encore.transport.native.connection.attachment import Attachment
from pulsar_encore.transport.native.connection.cluster_service import ClusterService
from pulsar_encore.transport.native.connection.pool import ConnectionPool
from pulsar_encore.transport.native.connection.session import Session
from pulsar_encore.transport.native.connection.tls_context import TlsContext
from pulsar_encore.transport.native.lookup.lookup import Lookup
from pulsar_encore.transport.native.native_transport import NativeTransport
from pulsar_encore.wire import NO_REQUEST, frames, pb

SECRET = "the-secret-token"
ASKED = "pulsar+ssl://asked:6651"
_Type = pb.BaseCommand


# The rule


@pytest.mark.parametrize("url", ["pulsar://b:6650", "http://b:80", "pulsar://asked:6651"])
def test_an_address_without_tls_is_refused_and_both_addresses_are_named(url: str) -> None:
    with pytest.raises(TopicLookupError) as caught:
        broker_address(url, "pulsar://b:6650", asked=ASKED, secure=True, purpose="t")
    text = str(caught.value)
    assert not caught.value.retryable
    assert ASKED in text and url in text
    assert "brokerServiceUrlTls" in text and "proxy_through_service_url" in text


def test_an_answer_without_a_tls_address_is_refused_and_says_what_to_change() -> None:
    for proxied in (False, True):
        with pytest.raises(TopicLookupError) as caught:
            broker_address(
                "", "pulsar://b:1", asked=ASKED, secure=True, purpose="t", proxied=proxied
            )
        text = str(caught.value)
        assert not caught.value.retryable
        assert ASKED in text and "pulsar://b:1" in text
        assert "brokerServiceUrlTls" in text and "proxy_through_service_url" in text


@pytest.mark.parametrize("url", ["pulsar+ssl://b:6651", "pulsar+ssl://b", "pulsar+ssl://b,c"])
def test_an_address_with_tls_is_accepted(url: str) -> None:
    address = broker_address(url, asked=ASKED, secure=True, purpose="t")
    assert address == Address("pulsar+ssl", "b", 6651)


@pytest.mark.parametrize("url", ["pulsar://b:6650", "pulsar+ssl://b:6651"])
def test_a_client_without_tls_accepts_both_kinds_of_address(url: str) -> None:
    assert str(broker_address(url, asked="pulsar://h:6650", secure=False, purpose="t")) == url


def test_a_proxy_may_reach_its_broker_without_tls() -> None:
    address = broker_address("pulsar://b:1", asked=ASKED, secure=True, purpose="t", proxied=True)
    assert address.host_port == "b:1"


@pytest.mark.parametrize("url", ["https://b", "PULSAR+SSL://b", "b:6651", "pulsar+ssl://u@b"])
def test_a_malformed_address_is_refused(url: str) -> None:
    with pytest.raises(TopicLookupError, match="is malformed"):
        broker_address(url, asked=ASKED, secure=True, purpose="t")


@pytest.mark.parametrize(
    ("asked", "to"),
    [("http://a/x", "http://b/x"), ("http://a", "https://b"), ("https://a", "https://b:1/x?y=z")],
)
def test_a_redirect_that_does_not_weaken_tls_is_followed(asked: str, to: str) -> None:
    assert redirect_target(to, asked=asked, purpose="t") == to


@pytest.mark.parametrize(
    ("asked", "to", "named"),
    [
        ("https://a:1/x", "http://b:2/x", "http://b:2"),
        ("HTTPS://a:1/x", "http://b:2/x", "http://b:2"),
        ("https://a:1/x", "HTTP://b:2/x", "http://b:2"),
        ("https://a:1/x", "ftp://b:2/x", "ftp://b:2"),
        ("https://a:1/x", "https:///x", "https://"),
        ("https://a:1/x", "https://user:pass@b:2/x", "https://b:2"),
        ("https://a:1/x", "https://[b:2/x", "https://a:1"),
    ],
)
def test_a_redirect_that_weakens_tls_is_refused_and_both_addresses_are_named(
    asked: str, to: str, named: str
) -> None:
    with pytest.raises(TopicLookupError) as caught:
        redirect_target(to, asked=asked, purpose="t")
    assert not caught.value.retryable
    assert "a:1" in str(caught.value) and named in str(caught.value)
    assert "pass" not in str(caught.value)


def test_the_error_for_an_address_of_any_length_is_short() -> None:
    for url, plain in (("pulsar+ssl://" + "h" * 5_000_000, ""), ("", "\n" * 5_000_000)):
        with pytest.raises(TopicLookupError) as caught:
            broker_address(url, plain, asked=ASKED, secure=True, purpose="t")
        assert len(str(caught.value)) < 3_000
        assert "\n" not in str(caught.value)


# In memory


class Schemes(Brokers):
    """Memory brokers that record `addresses`: each address that was dialed, with its scheme."""

    def __init__(self, **doubles: Double) -> None:
        super().__init__()
        self.doubles = {f"{name}:1": double for name, double in doubles.items()}
        self.addresses: list[str] = []

    async def dial(self, address: Address, make: Any, timeout_s: float) -> Session:
        self.addresses.append(str(address))
        return await super().dial(address, make, timeout_s)


def answering(**lookup: Any) -> Double:
    """Return a broker that answers lookups with these fields, which are read at each lookup."""

    def answer(command: pb.BaseCommand) -> list[Message]:
        if command.type == _Type.LOOKUP:
            return [lookup_answer(command, **lookup)]
        return welcome(command)

    return Double(answer)


@pytest.mark.parametrize(
    "lookup",
    [
        {"brokerServiceUrlTls": "pulsar://plain:1", "brokerServiceUrl": "pulsar://plain:1"},
        {"brokerServiceUrl": "pulsar://plain:1"},
        {"brokerServiceUrlTls": "http://plain:1"},
        {
            "brokerServiceUrlTls": "pulsar://plain:1",
            "response": pb.CommandLookupTopicResponse.Redirect,
        },
        {
            "brokerServiceUrl": "pulsar://plain:1",
            "response": pb.CommandLookupTopicResponse.Redirect,
            "proxy_through_service_url": True,
        },
    ],
)
def test_a_first_attempt_fails_at_once_and_no_plain_address_is_dialed(
    lookup: dict[str, Any],
) -> None:
    async def main() -> None:
        network = Schemes(h=answering(**lookup), plain=answering())
        pool = network.pool("pulsar+ssl://h:1", credentials=AuthenticationToken(SECRET))
        loop = asyncio.get_running_loop()
        began = loop.time()
        attachment = Attachment(Lookup(pool), TOPIC, _nothing, lambda error: None)
        with pytest.raises(TopicLookupError, match=r"pulsar\+ssl://h:1.*://plain:1"):
            await attachment.first()
        assert loop.time() == began
        assert network.addresses == ["pulsar+ssl://h:1"]

    run(main())


async def _nothing(session: Session) -> None:
    """Do nothing on attach."""


def test_after_the_first_success_the_refusal_is_retried_until_the_answer_is_right() -> None:
    lookup: dict[str, Any] = {"brokerServiceUrlTls": "pulsar+ssl://h:1"}

    def answer(command: pb.BaseCommand) -> list[Message]:
        if command.type == _Type.LOOKUP:
            return [lookup_answer(command, **lookup)]
        return welcome(command)

    async def main() -> None:
        network = Schemes(h=Double(answer), plain=Double(answer))
        pool = network.pool("pulsar+ssl://h:1")
        failures: list[Exception] = []
        attached: list[str] = []

        async def attach(session: Session) -> None:
            attached.append(session.peer)

        attachment = Attachment(Lookup(pool), TOPIC, attach, failures.append)
        await attachment.first()
        lookup["brokerServiceUrlTls"] = "pulsar://plain:1"
        attachment.again()
        await asyncio.sleep(300)
        assert len(attached) == 1 and failures == []
        lookup["brokerServiceUrlTls"] = "pulsar+ssl://h:1"
        await asyncio.sleep(100)
        assert attached == ["pulsar+ssl://h:1"] * 2
        assert set(network.addresses) == {"pulsar+ssl://h:1"}

    run(main())


def test_the_pool_never_dials_a_plain_address_for_a_service_with_tls() -> None:
    async def main() -> None:
        network = Schemes(plain=answering())
        pool = network.pool("pulsar+ssl://h:1", credentials=AuthenticationToken(SECRET))
        plain, broker_url = parse("pulsar://plain:1,b:2")
        for through in (None, plain):
            with pytest.raises(TopicLookupError, match=r"pulsar\+ssl://h:1.*pulsar://plain:1"):
                await pool.broker(plain if through is None else broker_url, through=through)
        assert network.addresses == []

    run(main())


def test_a_proxy_with_tls_may_name_a_plain_broker_and_gets_the_connection() -> None:
    """A Pulsar proxy puts the address that it connects to itself into both fields."""

    async def main() -> None:
        inside = "pulsar://inside:6650"
        proxy = answering(
            brokerServiceUrl=inside, brokerServiceUrlTls=inside, proxy_through_service_url=True
        )
        network = Schemes(h=proxy)
        session = await Lookup(network.pool("pulsar+ssl://h:1")).owner(TOPIC)
        assert session.peer == "pulsar+ssl://h:1 for inside:6650"
        assert network.addresses == ["pulsar+ssl://h:1"] * 2
        assert _reported_address(session, plain=inside, by_tls="") is None
        assert (
            _reported_address(session, plain=inside, by_tls="pulsar://other:1")
            == "pulsar://other:1"
        )

    run(main())


def _reported_address(session: Session, *, plain: str, by_tls: str) -> str | None:
    """Return the address that a consumer gets from a CLOSE_CONSUMER with these two addresses."""
    reported: list[str | None] = []

    class Handler:
        def on_closed_by_broker(self, address: str | None) -> None:
            reported.append(address)

    session.attach_consumer(77, Handler())  # type: ignore[arg-type]
    close = pb.CommandCloseConsumer(
        consumer_id=77,
        assignedBrokerServiceUrl=plain,
        assignedBrokerServiceUrlTls=by_tls,
        request_id=NO_REQUEST,
    )
    session.receive(frames.encode(close))
    return reported[0]


def test_an_answer_of_the_former_cluster_gets_no_credentials_of_the_next() -> None:
    async def main() -> None:
        network = Schemes(
            a=answering(brokerServiceUrl="pulsar://b:1"), b=answering(), c=answering()
        )
        pool = network.pool("pulsar://a:1")
        first = pool.service
        (b,) = parse("pulsar://b:1")
        pool.move(ClusterService.at("pulsar://c:1", network, AuthenticationToken(SECRET)))
        with pytest.raises(NotConnected, match="another cluster"):
            await pool.broker(b, service=first)
        assert network.addresses == []
        assert (await pool.any_broker()).peer == "pulsar://c:1"

    run(main())


async def test_a_token_for_one_cluster_is_not_sent_to_the_web_service_of_the_next() -> None:
    """The client moves while its credentials are being made."""
    asked = asyncio.Event()
    go_on = asyncio.Event()

    class Slow:
        method_name = "token"

        async def data(self) -> bytes:
            asked.set()
            await go_on.wait()
            return SECRET.encode()

    async with serving(Site()) as first, serving(Site()) as second:
        lookup = lookup_by(first.url, credentials=Slow())
        asking = asyncio.ensure_future(lookup.owner(TOPIC))
        await asked.wait()
        lookup.pool.move(ClusterService.at(second.url, lookup.pool.service.dialer))
        go_on.set()
        with pytest.raises(NotConnected, match="another cluster"):
            await asking
        assert first.asked == second.asked == []
        lookup.pool.shutdown()


# Over sockets


class Listener:
    """A port without TLS that records all received bytes and counts its connections."""

    def __init__(self) -> None:
        self.received = b""
        self.connections = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while data := await reader.read(1000):
                self.received += data
        except ConnectionError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def plain_listener() -> AsyncIterator[Listener]:
    """Listen, and assert at the end that no connection was made."""
    listener = Listener()
    server = await asyncio.start_server(listener.serve, "127.0.0.1", 0)
    listener.url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield listener
    finally:
        server.close()
        await asyncio.sleep(0.01)
    assert listener.connections == 0
    assert listener.received == b""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def secured(authority: Authority, **settings: Any) -> AsyncIterator[tuple[Broker, Any]]:
    """A development broker with TLS, and a transport with a token on it."""
    async with broker(authority, token=SECRET, **settings) as server:
        where = service(
            server.url_tls, TlsContext(trust_file=authority.file), AuthenticationToken(SECRET)
        )
        transport = NativeTransport(OneCluster(where), ClientSettings(backoff_s=0.01))
        yield server, transport
        await transport.close()


@pytest.mark.parametrize("field", ["advertised_url_tls", "redirect_to"])
async def test_no_token_reaches_a_plain_address_of_a_lookup(
    authority: Authority, field: str
) -> None:
    async with (
        plain_listener() as listener,
        secured(authority, **{field: listener.url}) as (server, transport),
        asyncio.timeout(10),  # the operation timeout is 30 s
    ):
        for opening in (
            transport.subscribe(subscription()),
            transport.create_producer(ProducerOptions(topic=TOPIC)),
        ):
            with pytest.raises(TopicLookupError) as caught:
                await opening
            assert server.url_tls in str(caught.value) and listener.url in str(caught.value)


_CLOSE: dict[str, Callable[[str, str], Message]] = {
    "consumer": lambda plain, by_tls: pb.CommandCloseConsumer(
        consumer_id=1,
        assignedBrokerServiceUrl=plain,
        assignedBrokerServiceUrlTls=by_tls,
        request_id=NO_REQUEST,
    ),
    "producer": lambda plain, by_tls: pb.CommandCloseProducer(
        producer_id=1,
        assignedBrokerServiceUrl=plain,
        assignedBrokerServiceUrlTls=by_tls,
        request_id=NO_REQUEST,
    ),
}


@pytest.mark.parametrize("kind", list(_CLOSE))
@pytest.mark.parametrize("by_tls", [True, False])
async def test_a_plain_address_in_a_close_is_logged_and_a_lookup_follows(
    authority: Authority, kind: str, by_tls: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        plain_listener() as listener,
        secured(authority) as (server, transport),
        asyncio.timeout(20),
    ):
        if kind == "consumer":
            component = await transport.subscribe(subscription())
            component.start(Collector())
        else:
            component = await transport.create_producer(ProducerOptions(topic=TOPIC))
        (session,) = lookup_of(transport).pool.sessions
        close = _CLOSE[kind](listener.url, listener.url if by_tls else "")
        caplog.clear()
        session.receive(frames.encode(close))
        (logged,) = _warnings(caplog)
        assert server.url_tls in logged and listener.url in logged
        assert "ignored" in logged and f"CLOSE_{kind.upper()}" in logged
        assert not component.is_connected()
        while not component.is_connected():
            await asyncio.sleep(0.01)
        assert lookup_of(transport).pool.sessions == [session]


async def test_a_migration_to_a_plain_address_is_logged_and_not_followed(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with plain_listener() as listener, secured(authority) as (server, transport):
        component = await transport.subscribe(subscription())
        component.start(Collector())
        (session,) = lookup_of(transport).pool.sessions
        for url, by_tls, expected_text in (
            (listener.url, listener.url, "has no TLS"),
            (listener.url, "", "is empty"),
            ("pulsar://other:1", "pulsar+ssl://other:2", "pulsar+ssl://other:2"),
        ):
            caplog.clear()
            moved = pb.CommandTopicMigrated(
                resource_id=1,
                resource_type=pb.CommandTopicMigrated.Consumer,
                brokerServiceUrl=url,
                brokerServiceUrlTls=by_tls,
            )
            session.receive(frames.encode(moved))
            (logged,) = _warnings(caplog)
            assert server.url_tls in logged and expected_text in logged
        assert component.is_connected()


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        each.getMessage()
        for each in caplog.records
        if each.name == "pulsar_encore.connection" and each.levelno == logging.WARNING
    ]


def _server_context(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("web", "127.0.0.1"))
    return context


@pytest.mark.parametrize("answer", ["plain", "empty"])
async def test_no_token_reaches_a_plain_address_of_an_https_lookup(
    authority: Authority, answer: str
) -> None:
    async with plain_listener() as listener, serving(Site(), _server_context(authority)) as site:
        by_tls = listener.url if answer == "plain" else None
        site.pages = {OWNER: (200, {"brokerUrl": listener.url, "brokerUrlTls": by_tls})}
        tls = TlsContext(trust_file=authority.file)
        lookup = lookup_by(site.url, tls=tls, credentials=AuthenticationToken(SECRET))
        with pytest.raises(TopicLookupError) as caught:
            await lookup.owner("persistent://public/default/a b")
        assert site.headers["authorization"] == f"Bearer {SECRET}"
        text = str(caught.value)
        assert site.url in text and listener.url in text
        assert "brokerServiceUrlTls" in text and "proxy_through_service_url" in text
        lookup.pool.shutdown()


@pytest.mark.parametrize("steps", [1, 2])
async def test_no_token_follows_a_redirect_from_https_to_http(
    authority: Authority, steps: int
) -> None:
    """The first of two redirects is to https, in upper case."""
    async with plain_listener() as listener, serving(Site(), _server_context(authority)) as site:
        less = listener.url.replace("pulsar:", "http:")
        site.pages = {
            PARTITIONS: (307, {}, {"Location": site.url.replace("https:", "HTTPS:") + "/2"}),
            "/2": (307, {}, {"Location": less}),
        }
        if steps == 1:
            site.pages[PARTITIONS] = site.pages["/2"]
        tls = TlsContext(trust_file=authority.file)
        lookup = lookup_by(site.url, tls=tls, credentials=AuthenticationToken(SECRET))
        with pytest.raises(TopicLookupError, match="from TLS to none") as caught:
            await lookup.partitions("persistent://public/default/a b")
        assert site.url in str(caught.value) and less in str(caught.value)
        assert len(site.asked) == steps
        lookup.pool.shutdown()


async def test_a_redirect_from_http_to_https_is_checked_like_any_connection_by_tls(
    authority: Authority,
) -> None:
    page = (200, {"partitions": 3})
    async with (
        serving(Site(**{"*": page}), _server_context(authority)) as site,
        serving(Site(**{"*": (307, {}, {"Location": site.url})})) as first,
    ):
        trusting = lookup_by(first.url, tls=TlsContext(trust_file=authority.file))
        assert await trusting.partitions(TOPIC) == 3
        trusting.pool.shutdown()
        stranger = lookup_by(first.url, operation_timeout_s=5)
        with pytest.raises(Exception, match="tls_trust_certs_file_path"):
            await stranger.partitions(TOPIC)
        assert len(site.asked) == 1
        stranger.pool.shutdown()


@pytest.mark.parametrize("location", ["https://user:pass@127.0.0.1:1/", "http://["])
async def test_a_malformed_redirect_is_an_error_that_names_it(location: str) -> None:
    async with serving(Site(**{"*": (307, {}, {"Location": location})})) as site:
        lookup = lookup_by(site.url, credentials=AuthenticationToken(SECRET))
        with pytest.raises(TopicLookupError, match="redirect"):
            await lookup.partitions(TOPIC)
        lookup.pool.shutdown()


def test_clusters_that_the_user_configured_may_have_no_tls() -> None:
    """A plain cluster beside one with TLS is the user's configuration, not an answer."""

    async def main() -> None:
        network = Schemes(h=answering(), plain=answering())
        pool = ConnectionPool(
            ClusterService.at("pulsar+ssl://h:1", network), ClientSettings(), Random(1)
        )
        pool.move(ClusterService.at("pulsar://plain:1", network))
        assert (await pool.any_broker()).peer == "pulsar://plain:1"

    run(main())
