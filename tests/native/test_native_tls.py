"""TLS over real sockets: trust, client certificates and errors."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from native_kit import TOPIC, Collector, lookup_of, subscription
from tls_kit import Authority

from pulsar_encore.devbroker import BrokerSettings, TlsSettings
from pulsar_encore.devbroker.rules.credentials import Credential
from pulsar_encore.devbroker.server import Broker
from pulsar_encore.errors import ClosedError, PulsarException, TransportTimeout
from pulsar_encore.exceptions import AuthenticationError, ConnectError
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.clusters import OneCluster
from pulsar_encore.transport.native.connection.cluster_service import (
    ClusterService,
    ConnectionCredentials,
)
from pulsar_encore.transport.native.connection.pool import ConnectionPool
from pulsar_encore.transport.native.connection.session import Session
from pulsar_encore.transport.native.connection.sockets import Sockets
from pulsar_encore.transport.native.connection.tls_context import TlsContext
from pulsar_encore.transport.native.native_transport import NativeTransport

DAYS = datetime.timedelta(days=1)


class ByCertificate:
    """Authentication by the client certificate of the TLS handshake."""

    method_name = "tls"

    async def data(self) -> bytes:
        return b""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def service(
    url: str, tls: TlsContext, credentials: ConnectionCredentials | None = None
) -> ClusterService:
    return ClusterService.at(url, Sockets(tls), credentials, tls)


@asynccontextmanager
async def connected(
    url: str, tls: TlsContext, credentials: ConnectionCredentials | None = None
) -> AsyncIterator[Session]:
    """Connect a session that the broker accepts, and close it at the end."""
    settings = ClientSettings(connection_timeout_s=5.0)
    pool = ConnectionPool(service(url, tls, credentials), settings, Random(1))
    try:
        yield await pool.any_broker()
    finally:
        pool.shutdown()
        await pool.gone()


async def refused(
    url: str, tls: TlsContext, credentials: ConnectionCredentials | None = None
) -> PulsarException:
    """Return the error of a connect."""
    with pytest.raises(PulsarException) as caught:
        async with connected(url, tls, credentials):
            pass
    return caught.value


def broker(authority: Authority, *hosts: str, **settings: Any) -> Broker:
    certificate, key = authority.issue("broker", *(hosts or ("127.0.0.1", "localhost")))
    return Broker(
        BrokerSettings(tls=TlsSettings(certificate_file=certificate, key_file=key), **settings)
    )


async def test_a_whole_consumer_works_over_tls(authority: Authority) -> None:
    async with broker(authority) as server:
        tls = TlsContext(trust_file=authority.file)
        transport = NativeTransport(OneCluster(service(server.url_tls, tls)))
        transport_consumer: Any = await transport.subscribe(subscription())
        transport_consumer.start(Collector())
        (session,) = lookup_of(transport).pool.sessions
        assert session.peer == server.url_tls
        cipher = session._transport.get_extra_info("cipher")  # type: ignore[attr-defined]
        assert cipher[1] in ("TLSv1.2", "TLSv1.3")
        assert transport_consumer.topic_of(0)[0] == TOPIC
        await transport.close()


async def test_the_host_name_is_verified_and_sent_to_the_server(authority: Authority) -> None:
    async with broker(authority, "localhost") as server:
        by_name = server.url_tls.replace("127.0.0.1", "localhost")
        tls = TlsContext(trust_file=authority.file)
        async with connected(by_name, tls) as session:
            stream = session._transport.get_extra_info("ssl_object")  # type: ignore[attr-defined]
            assert stream.server_hostname == "localhost"
        error = await refused(server.url_tls, tls)
        assert isinstance(error, ConnectError) and not error.retryable
        assert "not for '127.0.0.1'" in str(error)
        async with connected(server.url_tls, TlsContext(insecure=True)):
            pass


async def test_a_certificate_of_an_unknown_authority_is_rejected(
    authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    async with broker(authority) as server:
        for tls in (TlsContext(trust_file=other.file), TlsContext()):
            error = await refused(server.url_tls, tls)
            assert isinstance(error, ConnectError) and not error.retryable
            assert "not trusted" in str(error) and "tls_trust_certs_file_path" in str(error)


@pytest.mark.parametrize(
    ("age", "expected_text"), [(5 * DAYS, "has expired"), (-5 * DAYS, "not valid yet")]
)
async def test_an_expired_or_future_certificate_is_rejected(
    authority: Authority, age: datetime.timedelta, expected_text: str
) -> None:
    certificate, key = authority.issue("broker", "127.0.0.1", age=age)
    settings = BrokerSettings(tls=TlsSettings(certificate_file=certificate, key_file=key))
    async with Broker(settings) as server:
        error = await refused(server.url_tls, TlsContext(trust_file=authority.file))
        assert isinstance(error, ConnectError)
        assert expected_text in str(error)


async def test_the_error_for_mixed_up_plain_and_tls_ports_says_so(authority: Authority) -> None:
    async with broker(authority) as server:
        tls = TlsContext(trust_file=authority.file)
        error = await refused(server.url.replace("pulsar:", "pulsar+ssl:"), tls)
        assert isinstance(error, ConnectError)
        assert "plain" in str(error) and "pulsar://" in str(error)
        error = await refused(server.url_tls.replace("pulsar+ssl:", "pulsar:"), tls)
        assert isinstance(error, ConnectError)
        assert "pulsar+ssl://" in str(error)


async def test_a_client_certificate_authenticates_the_client(
    authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.issue("broker", "127.0.0.1")
    ours = authority.issue("somebody")
    strangers = Authority(tmp_path, "other").issue("stranger")
    settings = BrokerSettings(
        tls=TlsSettings(
            certificate_file=certificate,
            key_file=key,
            client_ca_file=authority.file,
            require_client_certificate=True,
        ),
        credentials=(Credential(method="tls", data="somebody"),),
    )
    async with Broker(settings) as server:
        trust = authority.file
        tls = TlsContext(trust_file=trust, certificate_file=ours[0], key_file=ours[1])
        async with connected(server.url_tls, tls, ByCertificate()) as session:
            assert not session.closed
        for files in (None, strangers):
            chosen = files or (None, None)
            tls = TlsContext(trust_file=trust, certificate_file=chosen[0], key_file=chosen[1])
            error = await refused(server.url_tls, tls, ByCertificate())
            # The connection may end before the refusal arrives.
            assert isinstance(error, (AuthenticationError, ConnectError)), error
            assert "client's certificate" in str(error)


async def test_a_replaced_certificate_is_used_from_the_next_connection(
    authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.issue("broker", "127.0.0.1")
    settings = BrokerSettings(
        tls=TlsSettings(
            certificate_file=certificate,
            key_file=key,
            client_ca_file=authority.file,
            require_client_certificate=True,
        ),
        credentials=(Credential(method="tls", data="ours"),),
    )
    strangers = Authority(tmp_path, "other").issue("ours")
    tls = TlsContext(
        trust_file=authority.file, certificate_file=strangers[0], key_file=strangers[1]
    )
    async with Broker(settings) as server:
        assert "client's certificate" in str(await refused(server.url_tls, tls, ByCertificate()))
        authority.issue("ours")
        async with connected(server.url_tls, tls, ByCertificate()):
            assert tls.context() is tls.context(), "not made anew without a reason"


def test_unusable_certificate_files_are_errors_that_name_them(
    authority: Authority, tmp_path: Path
) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nothing")
    certificate, key = authority.issue("ours")
    _, others_key = authority.issue("others")
    for tls, named in (
        (TlsContext(trust_file=str(tmp_path / "absent.pem")), "tls_trust_certs_file_path"),
        (TlsContext(trust_file=str(nonsense)), "tls_trust_certs_file_path"),
        (TlsContext(certificate_file=str(nonsense), key_file=key), "client certificate"),
        (TlsContext(certificate_file=certificate, key_file=others_key), "client certificate"),
        (
            TlsContext(certificate_file=certificate, key_file=authority.encrypted_key("locked")),
            "must not be encrypted",
        ),
    ):
        with pytest.raises(ConnectError, match=named) as caught:
            tls.context()
        assert not caught.value.retryable
    tls = TlsContext(trust_file=str(nonsense))
    nonsense.write_bytes(Path(authority.file).read_bytes())
    assert tls.context().verify_mode is ssl.CERT_REQUIRED


def test_tls_1_2_is_the_minimum_and_host_names_are_compared() -> None:
    context = TlsContext().context()
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.check_hostname


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[int, asyncio.Event, asyncio.Event]]:
    """Listen without an answer: yields the port, and events for a connect and a disconnect."""
    connected_event, left = asyncio.Event(), asyncio.Event()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected_event.set()
        while await reader.read(1000):
            pass
        writer.close()
        left.set()

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], connected_event, left
    finally:
        server.close()
        await asyncio.wait_for(left.wait(), 5)
        await asyncio.sleep(0)


@pytest.mark.parametrize("scheme", ["pulsar", "pulsar+ssl"])
async def test_a_port_that_accepts_and_never_answers_causes_a_timeout(scheme: str) -> None:
    async with listening() as (port, _, _):
        settings = ClientSettings(connection_timeout_s=0.05)
        pool = ConnectionPool(
            service(f"{scheme}://127.0.0.1:{port}", TlsContext()), settings, Random(1)
        )
        with pytest.raises(TransportTimeout, match=r"0\.05 s"):
            await pool.any_broker()
        pool.shutdown()


@pytest.mark.parametrize("scheme", ["pulsar", "pulsar+ssl"])
async def test_a_cancelled_connect_leaves_no_socket(scheme: str) -> None:
    async with listening() as (port, connected_event, left):
        pool = ConnectionPool(
            service(f"{scheme}://127.0.0.1:{port}", TlsContext()), ClientSettings(), Random(1)
        )
        waiting = asyncio.create_task(pool.any_broker())
        await connected_event.wait()
        pool.shutdown()
        with pytest.raises(ClosedError):
            await waiting
        await asyncio.wait_for(left.wait(), 5)


async def test_a_refused_connection_is_a_connect_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    error = await refused(f"pulsar://127.0.0.1:{port}", TlsContext())
    assert isinstance(error, ConnectError) and error.retryable
    error = await refused("pulsar://no-such-host.invalid", TlsContext())
    assert isinstance(error, ConnectError)


def test_without_system_certificates_the_default_matches_the_stock_transport(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda self: None)
    nowhere = ssl.DefaultVerifyPaths(None, None, "", "", "", "")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: nowhere)
    assert TlsContext().context().cert_store_stats()["x509_ca"] > 50
