"""Answers of a real Pulsar that would weaken TLS: the client sends nothing unencrypted."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

import pulsar_encore as encore
from pulsar_encore.wire import pb
from tests.harness.admin import Admin
from tests.harness.contract.relay import Relay
from tests.harness.pulsar_server import Server, Standalone, free_ports

from .secured_server import Credentials, make_credentials
from .test_native_connections import native, send_and_receive

_AT_ONCE_S: Final = 10.0  # the operation timeout, within which a first attempt is retried, is 30 s


class Secured:
    """A broker with TLS and tokens; its listener "plain" has no TLS address."""

    def __init__(self, credentials: Credentials, broker: Standalone, tls: int, web: int) -> None:
        self.tls_url = f"pulsar+ssl://127.0.0.1:{tls}"
        self.web_url = f"https://127.0.0.1:{web}"
        self.plain_url = broker.service_url
        self.plain_listener = self.plain_url.replace("127.0.0.1", "localhost")
        self.credentials = credentials
        self.admin = Admin(broker.admin_url, token=credentials.token())

    @property
    def login(self) -> dict[str, Any]:
        return {
            "authentication": encore.AuthenticationToken(self.credentials.token()),
            "tls_trust_certs_file_path": self.credentials.file("ca.pem"),
        }

    def context(self) -> ssl.SSLContext:
        """Return the context of a server that shows the broker's certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        files = self.credentials.file("broker.pem"), self.credentials.file("broker.key")
        context.load_cert_chain(*files)
        return context


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    credentials = make_credentials(tmp_path_factory.mktemp("credentials"))
    port, tls, web = free_ports(3)
    settings = {
        **credentials.settings(tls),
        "webServicePortTls": web,
        "advertisedListeners": (
            f"internal:pulsar://127.0.0.1:{port},internal:pulsar+ssl://127.0.0.1:{tls},"
            f"plain:pulsar://localhost:{port}"
        ),
        "internalListenerName": "internal",
    }
    with Standalone(settings, port=port) as broker:
        yield Secured(credentials, broker, tls, web)


class Listener:
    """A port without TLS. `data` has the bytes of all connections, and `connections` counts
    them.
    """

    def __init__(self) -> None:
        self.data = b""
        self.connections = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while data := await reader.read(1 << 16):
                self.data += data
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
        await asyncio.sleep(0.1)
    assert listener.connections == 0
    assert listener.data == b""


async def _refused(client: encore.Client, topic: str) -> str:
    """Return the error of a consumer, a producer and a reader, which must be equal."""
    texts = set()
    async with asyncio.timeout(_AT_ONCE_S):
        for opening in (
            client.subscribe(topic, "s"),
            client.create_producer(topic),
            client.create_reader(topic, encore.MessageId.earliest),
        ):
            with pytest.raises(encore.LookupError) as caught:
                await opening
            assert not caught.value.retryable
            texts.add(str(caught.value))
    (text,) = texts
    return text


def _names_the_remedies(text: str) -> bool:
    return "brokerServiceUrlTls" in text and "proxy_through_service_url" in text


async def test_binary_and_http_lookups_work_on_a_broker_with_tls(secured: Secured) -> None:
    for url in (secured.tls_url, secured.web_url):
        async with native(url, **secured.login) as client:
            await send_and_receive(client)


async def test_a_listener_without_a_tls_address_is_refused(secured: Secured, topic: str) -> None:
    for url in (secured.tls_url, secured.web_url):
        async with native(url, listener_name="plain", **secured.login) as client:
            text = await _refused(client, topic)
            assert url in text and secured.plain_listener in text
            assert _names_the_remedies(text)


async def test_tls_that_ends_in_front_of_the_broker_is_refused(
    secured: Secured, pulsar: Server, topic: str
) -> None:
    async with Relay(
        pulsar.service_url, change=lambda command: None, tls=secured.context()
    ) as front:
        tls_options = {"tls_trust_certs_file_path": secured.credentials.file("ca.pem")}
        async with native(front.url, **tls_options) as client:
            text = await _refused(client, topic)
            assert front.url in text and pulsar.service_url in text
            assert _names_the_remedies(text)


@pytest.mark.parametrize("redirect", [False, True])
async def test_a_lookup_that_names_a_plain_address_gets_no_token(
    secured: Secured, topic: str, redirect: bool
) -> None:
    async with plain_listener() as listener:

        def change_addresses(command: pb.BaseCommand) -> None:
            if command.type == pb.BaseCommand.LOOKUP_RESPONSE:
                answer = command.lookupTopicResponse
                answer.brokerServiceUrlTls = answer.brokerServiceUrl = listener.url
                answer.proxy_through_service_url = False
                if redirect:
                    answer.response = pb.CommandLookupTopicResponse.Redirect

        async with (
            Relay(secured.plain_url, change=change_addresses, tls=secured.context()) as front,
            native(front.url, **secured.login) as client,
        ):
            text = await _refused(client, topic)
            assert front.url in text and listener.url in text
            assert _names_the_remedies(text)


async def test_a_close_that_names_a_plain_address_is_logged_and_a_lookup_follows(
    secured: Secured, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic is unloaded, and the broker's CLOSE names an address without TLS.

    For a while the lookups name it too. The consumer and the producer wait, and reconnect
    afterwards.
    """
    names_plain_address = False
    async with plain_listener() as listener:

        def change_addresses(command: pb.BaseCommand) -> None:
            if command.type == pb.BaseCommand.LOOKUP_RESPONSE:
                answer = command.lookupTopicResponse
                answer.brokerServiceUrlTls = listener.url if names_plain_address else front.url
                answer.proxy_through_service_url = False
            for kind, close in (
                (pb.BaseCommand.CLOSE_CONSUMER, command.close_consumer),
                (pb.BaseCommand.CLOSE_PRODUCER, command.close_producer),
            ):
                if command.type == kind:
                    close.assignedBrokerServiceUrl = listener.url
                    close.assignedBrokerServiceUrlTls = listener.url

        async with (
            Relay(secured.plain_url, change=change_addresses, tls=secured.context()) as front,
            native(front.url, **secured.login) as client,
        ):
            consumer = await client.subscribe(topic, "s", encore.ConsumerType.Shared)
            producer = await client.create_producer(topic)
            names_plain_address = True
            await asyncio.to_thread(secured.admin.unload, topic)
            await asyncio.sleep(3)
            assert not (producer.is_connected() or consumer.is_connected())
            names_plain_address = False
            async with asyncio.timeout(60):
                await producer.send(b"after")
                message = await consumer.receive()
            assert message.data() == b"after"
            await consumer.acknowledge(message)
        warned = [
            each.getMessage()
            for each in caplog.records
            if each.levelno == logging.WARNING and "ignored: CLOSE_" in each.getMessage()
        ]
        assert len(warned) == 2
        assert all(front.url in each and listener.url in each for each in warned)
