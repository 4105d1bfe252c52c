"""Native consumers, producers and readers that were attached once come back, on a real Pulsar."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

import pulsar_encore as encore

from .admin import Admin
from .conftest import OwnPulsar
from .pulsar_server import Server
from .secured_server import Secured

WAIT_S = 60.0


class Pair:
    """A consumer and a producer of one topic."""

    def __init__(self, client: encore.Client, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.consumer: Any = None
        self.producer: Any = None
        self._number = 0

    async def open(self, **options: Any) -> Pair:
        options = {"consumer_type": encore.ConsumerType.Shared, **options}
        self.consumer = await self.client.subscribe(self.topic, "s", **options)
        self.producer = await self.client.create_producer(self.topic)
        return self

    async def works(self, within_s: float = WAIT_S, count: int = 8) -> float:
        """Send until it works, and receive all that was sent; returns the seconds that took."""
        began = time.monotonic()
        async with asyncio.timeout(within_s):
            bodies = {b"%d" % each for each in range(self._number, self._number + count)}
            self._number += count
            for body in bodies:
                await self.producer.send(body)
            while bodies:
                message = await self.consumer.receive()
                bodies.discard(message.data())
                await self.consumer.acknowledge(message)
            await until(lambda: self.consumer.is_connected() and self.producer.is_connected())
        return time.monotonic() - began


@contextlib.asynccontextmanager
async def pair_of(url: str, topic: str, **options: Any) -> AsyncIterator[Pair]:
    async with encore.Client(url, transport="native", **options) as client:
        yield await Pair(client, topic).open()


async def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds; the caller bounds that."""
    while True:
        if holds():
            return
        await asyncio.sleep(0.05)


async def until_thread(holds: Callable[[], bool]) -> None:
    """The same of what blocks, for `WAIT_S`."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if await asyncio.to_thread(holds):
                return
            await asyncio.sleep(0.2)


async def to_thread(call: Callable[..., Any], *values: Any, **named: Any) -> Any:
    return await asyncio.to_thread(call, *values, **named)


def create(admin: Admin, topic: str, partitions: int) -> None:
    if partitions:
        admin.create_partitioned_topic(topic, partitions)
    else:
        admin.create_topic(topic)


def delete(admin: Admin, topic: str, partitions: int) -> None:
    admin.delete_topic(topic, partitioned=partitions > 0)


def exists(admin: Admin, topic: str) -> bool:
    partitioned = admin.call("GET", "/persistent/public/default/partitioned")
    return any(each.startswith(topic) for each in (*admin.topics(), *partitioned))


@pytest.mark.parametrize(("before", "after"), [(4, 4), (0, 4), (4, 2), (4, 0), (0, 0)])
async def test_a_topic_that_is_deleted_and_made_again_3_s_later_works(
    pulsar: Server, admin: Admin, topic: str, before: int, after: int
) -> None:
    await to_thread(create, admin, topic, before)
    async with pair_of(pulsar.service_url, topic) as pair:
        await pair.works()
        await to_thread(delete, admin, topic, before)
        await asyncio.sleep(3)
        assert not await to_thread(exists, admin, topic)
        waiting = [asyncio.ensure_future(pair.producer.send(b"w%d" % each)) for each in range(20)]
        await to_thread(create, admin, topic, after)
        stored = await asyncio.gather(*waiting)
        assert {each.partition() for each in stored} <= set(range(after) if after else [-1])
        await pair.works()


@pytest.mark.parametrize("after", [0, 4])
async def test_a_reader_goes_on_in_a_topic_that_is_made_again(
    pulsar: Server, admin: Admin, topic: str, after: int
) -> None:
    await to_thread(create, admin, topic, 0)
    async with encore.Client(pulsar.service_url, transport="native") as client:
        reader = await client.create_reader(topic, encore.MessageId.earliest)
        producer = await client.create_producer(topic)
        await producer.send(b"1")
        assert (await reader.read_next(timeout_millis=10_000)).data() == b"1"
        await to_thread(delete, admin, topic, 0)
        await asyncio.sleep(2)
        await to_thread(create, admin, topic, after)
        await producer.send(b"2")
        assert (await reader.read_next(timeout_millis=60_000)).data() == b"2"


async def test_a_deleted_topic_stays_deleted_until_it_is_made_with_4_partitions(
    pulsar: Server, admin: Admin, topic: str
) -> None:
    """The broker creates topics by itself; our own reconnect must not make it do that."""
    async with pair_of(pulsar.service_url, topic) as pair:
        await pair.works()
        await to_thread(delete, admin, topic, 0)
        began = time.monotonic()
        while time.monotonic() - began < 10:
            await asyncio.sleep(0.5)
            assert not await to_thread(exists, admin, topic)
        assert not pair.consumer.is_connected() and not pair.producer.is_connected()
        await to_thread(create, admin, topic, 4)
        await pair.works()
        assert len(await pair.client.get_topic_partitions(topic)) == 4


@pytest.mark.parametrize("before", [0, 4])
async def test_a_topic_that_nobody_makes_again_works_after_recreate_after(
    pulsar: Server, admin: Admin, topic: str, before: int
) -> None:
    await to_thread(create, admin, topic, before)
    async with pair_of(pulsar.service_url, topic, recreate_after=5) as pair:
        await pair.works()
        await to_thread(delete, admin, topic, before)
        await asyncio.sleep(4)
        assert not await to_thread(exists, admin, topic)
        await pair.works()
        assert await to_thread(exists, admin, topic)


async def test_letter_topics_that_are_deleted_come_back_as_the_others_do(
    pulsar: Server, admin: Admin, topic: str
) -> None:
    async with encore.Client(pulsar.service_url, transport="native", recreate_after=5) as client:
        policy = encore.DeadLetterPolicy(max_redeliver_count=1, initial_subscription_name="kept")
        consumer = await client.subscribe(
            topic,
            "s",
            encore.ConsumerType.Shared,
            dead_letter_policy=policy,
            negative_ack_redelivery_delay_ms=100,
        )
        producer = await client.create_producer(topic)
        letters = f"{topic}-s-DLQ"

        async def fail(body: bytes) -> None:
            await producer.send(body)
            for _ in range(2):
                message = await consumer.receive(timeout_millis=30_000)
                consumer.negative_acknowledge(message)

        await fail(b"1")

        def unacked() -> int:
            return int(admin.subscription_stats(topic, "s")["msgBacklog"])

        await until_thread(lambda: exists(admin, letters) and not unacked())
        await to_thread(admin.delete_topic, letters)
        await fail(b"2")
        await asyncio.sleep(2)
        assert not await to_thread(exists, admin, letters)
        await until_thread(lambda: exists(admin, letters) and not unacked())


def jwt(secured: Secured, role: str, lifetime_s: float) -> str:
    """A token with an end, which the fixture's have not."""

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    claims = {"sub": role, "exp": int(time.time() + lifetime_s)}
    parts = [part(json.dumps(each).encode()) for each in ({"alg": "HS256", "typ": "JWT"}, claims)]
    key = secured.credentials.signing_key
    signed = hmac.digest(key, ".".join(parts).encode(), hashlib.sha256)
    return ".".join([*parts, part(signed)])


async def test_a_token_function_that_gives_an_expired_token_for_2_s(
    secured: Secured, topic: str
) -> None:
    given = jwt(secured, "operator", 3)
    ends = time.monotonic() + 3
    calls = 0

    def supply() -> str:
        nonlocal calls
        calls += 1
        return given if time.monotonic() < ends + 2 else jwt(secured, "operator", 600)

    login = encore.AuthenticationToken(supply)
    async with pair_of(secured.plain_url, topic, authentication=login) as pair:
        await pair.works()
        await asyncio.sleep(max(0.0, ends + 1 - time.monotonic()))
        for each in list(pair.client._transport._places.values()):  # type: ignore[attr-defined]
            for session in each.lookup.pool.sessions:  # as a network that fails
                session.fail(encore.TransportError("cut by the test"))
        await asyncio.sleep(0.5)
        assert not pair.consumer.is_connected()
        await pair.works()
        assert calls >= 3


async def test_permissions_that_are_revoked_and_granted_again_4_s_later(
    secured: Secured, topic: str
) -> None:
    admin = secured.admin
    await to_thread(admin.create_topic, topic)
    path = "/persistent/" + topic.partition("://")[2] + "/permissions/guest"
    await to_thread(admin.call, "POST", path, ["produce", "consume"])
    login = encore.AuthenticationToken(jwt(secured, "guest", 600))
    async with pair_of(secured.plain_url, topic, authentication=login) as pair:
        await pair.works()
        await to_thread(admin.call, "DELETE", path)
        await to_thread(admin.unload, topic)
        await asyncio.sleep(4)
        assert not pair.consumer.is_connected() and not pair.producer.is_connected()
        await to_thread(admin.call, "POST", path, ["produce", "consume"])
        await pair.works()


class HalfDead:
    """A TCP proxy whose connections can be cut on the client's side alone."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._where = (where.hostname, where.port)
        self._clients: list[asyncio.StreamWriter] = []
        self._kept: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> HalfDead:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"pulsar://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for each in (*self._clients, *self._kept):
            each.close()
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_reader, broker = await asyncio.open_connection(*self._where)
        self._clients.append(writer)
        self._kept.append(broker)
        for source, target in ((reader, broker), (broker_reader, writer)):
            task = asyncio.ensure_future(self._copy(source, target))
            self._tasks.add(task)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                target.write(data)

    def cut(self) -> None:
        """The client loses its connections, and the broker does not notice."""
        clients, self._clients = self._clients, []
        for each in clients:
            each.transport.abort()


async def test_a_limit_that_a_half_dead_connection_fills_is_waited_for(
    own_pulsar: OwnPulsar, topic: str
) -> None:
    """The broker counts our lost connection until its keep-alive ends that."""
    broker = own_pulsar(maxConsumersPerTopic=1, maxProducersPerTopic=1, keepAliveIntervalSeconds=15)
    async with (
        HalfDead(broker.service_url) as proxy,
        pair_of(proxy.url, topic) as pair,
    ):
        await pair.works()
        proxy.cut()
        began = time.monotonic()
        await asyncio.sleep(12)  # longer than busy names were retried before
        assert not pair.consumer.is_connected()
        await pair.works(within_s=120)
        assert time.monotonic() - began > 12
