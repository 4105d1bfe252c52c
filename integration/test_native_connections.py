"""Connections of the native transport to a real Pulsar: TLS, authentication, proxies, failover,
lookups.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

import pulsar_encore as encore
from pulsar_encore.options import ClientOptions
from pulsar_encore.transport.native.native_transport import NativeTransport
from pulsar_encore.transport.native.service_options import of_options
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server

from .secured_server import OPERATOR, PASSWORD, Secured


@asynccontextmanager
async def native(service_url: Any, **options: Any) -> AsyncIterator[encore.Client]:
    """Yield a client over the native transport."""
    client_options = ClientOptions(service_url=service_url, **options)
    async with encore.Client(
        service_url, transport=NativeTransport(*of_options(client_options))
    ) as client:
        yield client


async def send_and_receive(client: encore.Client, topic: str | None = None) -> None:
    """Send one message and receive it."""
    topic = topic or f"connections-{uuid4().hex[:8]}"
    async with (
        await client.subscribe(topic, "s", encore.ConsumerType.Shared) as consumer,
        await client.create_producer(topic) as producer,
    ):
        await producer.send(b"x")
        message = await consumer.receive(timeout_millis=10_000)
        assert message.data() == b"x"
        await consumer.acknowledge(message)


def logins(secured: Secured) -> list[encore.Authentication]:
    return [
        encore.AuthenticationToken(secured.credentials.token()),
        encore.AuthenticationBasic(OPERATOR, PASSWORD),
        encore.AuthenticationTLS(secured.file("operator.pem"), secured.file("operator.key")),
    ]


async def test_every_login_works_over_tls(secured: Secured) -> None:
    for login in logins(secured):
        async with native(
            secured.tls_url,
            authentication=login,
            tls_trust_certs_file_path=secured.file("ca.pem"),
        ) as client:
            await send_and_receive(client)


async def test_logins_work_over_plain_connections_and_http(secured: Secured) -> None:
    for login in logins(secured)[:2]:
        for url in (secured.plain_url, secured.web_url):
            async with native(url, authentication=login) as client:
                await send_and_receive(client)


async def test_unknown_clients_are_refused_at_once(secured: Secured) -> None:
    tls_options = {"tls_trust_certs_file_path": secured.file("ca.pem")}
    stranger = encore.AuthenticationTLS(secured.file("stranger.pem"), secured.file("stranger.key"))
    for url, options, error in (
        (secured.plain_url, {}, encore.AuthenticationError),
        (secured.plain_url, {"authentication": encore.AuthenticationToken("no")}, None),
        (secured.web_url, {"authentication": encore.AuthenticationToken("no")}, None),
        (secured.tls_url, tls_options, None),
        (secured.tls_url, {**tls_options, "authentication": stranger}, encore.TransportError),
        (secured.tls_url, {"authentication": logins(secured)[0]}, encore.ConnectError),
    ):
        async with native(url, operation_timeout_seconds=5, **options) as client:
            with pytest.raises(error or encore.AuthenticationError):
                await client.subscribe("t", "s")


async def test_a_wrong_port_is_named_in_the_error(secured: Secured) -> None:
    plain, tls = (urlsplit(url).port for url in (secured.plain_url, secured.tls_url))
    web = urlsplit(secured.web_url).port
    for url, expected in (
        (f"pulsar+ssl://127.0.0.1:{plain}", "no TLS"),
        (f"pulsar://127.0.0.1:{tls}", "TLS"),
        (f"pulsar://127.0.0.1:{web}", "HTTP"),
        (f"pulsar+ssl://127.0.0.1:{web}", "no TLS"),
    ):
        async with native(url, operation_timeout_seconds=2) as client:
            with pytest.raises(encore.ConnectError, match=expected):
                await client.subscribe("t", "s")


async def test_a_broker_under_another_host_name_acts_as_proxy(pulsar: Server) -> None:
    """A standalone broker on loopback says that it is reached through the service URL. If that is
    another host name than its own, the client requests it as a proxy, and it acts as one.
    """
    port = urlsplit(pulsar.service_url).port
    for host in ("localhost", "127.0.0.1"):
        async with native(f"pulsar://{host}:{port}") as client:
            await send_and_receive(client)


async def test_one_address_of_several_is_enough(pulsar: Server) -> None:
    host = urlsplit(pulsar.service_url).netloc
    for _ in range(4):  # either address may be the first
        async with native(f"pulsar://127.0.0.1:9,{host}") as client:
            await send_and_receive(client)


async def test_lookups_work_over_http(pulsar: Server) -> None:
    async with native(pulsar.admin_url) as client:
        await send_and_receive(client)
        with pytest.raises(encore.TopicNotFound):
            await client.subscribe("persistent://nobody/there/t", "s")


async def test_a_client_fails_over_to_a_reachable_cluster(pulsar: Server) -> None:
    plan = encore.AutoClusterFailover(
        encore.ServiceInfo("pulsar://127.0.0.1:9"),
        [encore.ServiceInfo(pulsar.service_url)],
        check_interval_ms=200,
    )
    async with native(plan) as client:
        await send_and_receive(client)


async def test_a_pattern_consumer_follows_created_and_deleted_topics(
    pulsar: Server, admin: Admin
) -> None:
    mark = uuid4().hex[:8]
    async with native(pulsar.service_url) as client:
        pattern = f"persistent://public/default/{mark}-.*"
        consumer = await client.subscribe(
            pattern,
            "s",
            encore.ConsumerType.Shared,
            initial_position=encore.InitialPosition.Earliest,
            is_pattern_topic=True,
        )
        for name in ("a", "b"):
            topic = f"persistent://public/default/{mark}-{name}"
            async with await client.create_producer(topic) as producer:
                await producer.send(name.encode())
            # Well before the minute after which the list of topics is requested.
            message = await consumer.receive(timeout_millis=10_000)
            assert message.data() == name.encode()
            await consumer.acknowledge(message)
        admin.delete_topic(f"persistent://public/default/{mark}-a")
        await asyncio.sleep(1)
        async with await client.create_producer(
            f"persistent://public/default/{mark}-b"
        ) as producer:
            await producer.send(b"on")
        assert (await consumer.receive(timeout_millis=10_000)).data() == b"on"
        await consumer.close()
