"""Native consumers, producers and readers reconnect on a real Pulsar."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

import pulsar_encore as encore
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server

WAIT_S = 60.0


class Pair:
    """A consumer and a producer of one topic."""

    def __init__(self, client: encore.Client, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.consumer: Any = None
        self.producer: Any = None
        self._number = 0

    async def open(
        self, consumer: dict[str, Any] | None = None, producer: dict[str, Any] | None = None
    ) -> Pair:
        options = {"consumer_type": encore.ConsumerType.Shared, **(consumer or {})}
        self.consumer = await self.client.subscribe(self.topic, "s", **options)
        self.producer = await self.client.create_producer(self.topic, **(producer or {}))
        return self

    async def works(self, within_s: float = WAIT_S, count: int = 8) -> float:
        """Send messages and receive all of them. Return the seconds it took."""
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
            await wait_until(lambda: self.consumer.is_connected() and self.producer.is_connected())
        return time.monotonic() - began


@contextlib.asynccontextmanager
async def pair_of(url: str, topic: str, **options: Any) -> AsyncIterator[Pair]:
    async with encore.Client(url, transport="native", **options) as client:
        yield await Pair(client, topic).open()


async def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until `holds()` is true. The caller sets the timeout."""
    while True:
        if holds():
            return
        await asyncio.sleep(0.05)


async def wait_until_in_thread(holds: Callable[[], bool]) -> None:
    """Like `wait_until` for a blocking function, with a timeout of `WAIT_S`."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if await asyncio.to_thread(holds):
                return
            await asyncio.sleep(0.2)


def cut_connections(client: encore.Client) -> None:
    """Close all connections of a client, as a failing network does."""
    transport: Any = client._transport
    for scope in list(transport._scopes.values()):
        for session in scope.lookup.pool.sessions:
            session.fail(encore.TransportError("cut by the test"))


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


@pytest.mark.parametrize("transport", ["native", "stock"])
@pytest.mark.parametrize("position", list(encore.InitialPosition), ids=lambda each: each.name)
async def test_a_subscription_that_is_deleted_by_force_begins_anew(
    pulsar: Server, admin: Admin, topic: str, transport: str, position: encore.InitialPosition
) -> None:
    async with encore.Client(pulsar.service_url, transport=transport) as client:
        pair = await Pair(client, topic).open(
            {"initial_position": position, "receiver_queue_size": 2}
        )
        for number in range(6):
            await pair.producer.send(b"%d" % number)
        await pair.consumer.acknowledge(await pair.consumer.receive(10_000))
        await to_thread(admin.delete_subscription, topic, "s")
        await wait_until_in_thread(
            lambda: (
                "s" in admin.stats(topic)["subscriptions"]
                and bool(admin.subscription_stats(topic, "s")["consumers"])
            )
        )
        if position is encore.InitialPosition.Latest:  # the queue has messages from before
            await pair.producer.send(b"new")
        expected = b"5" if position is encore.InitialPosition.Earliest else b"new"
        found: set[bytes] = set()
        async with asyncio.timeout(WAIT_S):
            while expected not in found:
                message = await pair.consumer.receive()
                found.add(message.data())
                await pair.consumer.acknowledge(message)
        assert (b"3" in found) is (position is encore.InitialPosition.Earliest)


@pytest.mark.parametrize(("before", "after"), [(4, 4), (0, 4), (4, 2), (4, 0), (0, 0)])
async def test_clients_recover_after_a_topic_is_deleted_and_recreated(
    pulsar: Server, admin: Admin, topic: str, before: int, after: int
) -> None:
    await to_thread(create, admin, topic, before)
    async with pair_of(pulsar.service_url, topic) as pair:
        await pair.works()
        await to_thread(delete, admin, topic, before)
        await asyncio.sleep(2)
        assert not await to_thread(exists, admin, topic)
        sends = [asyncio.ensure_future(pair.producer.send(b"w%d" % each)) for each in range(20)]
        await to_thread(create, admin, topic, after)
        stored = await asyncio.gather(*sends)
        assert {each.partition() for each in stored} <= set(range(after) if after else [-1])
        await pair.works()


@pytest.mark.parametrize("kind", [each for each in encore.ConsumerType if each.name != "Shared"])
async def test_every_subscription_type_and_an_exclusive_producer_recover_on_a_recreated_topic(
    pulsar: Server, admin: Admin, topic: str, kind: encore.ConsumerType
) -> None:
    await to_thread(create, admin, topic, 4)
    async with encore.Client(pulsar.service_url, transport="native") as client:
        pair = await Pair(client, topic).open(
            {"consumer_type": kind}, {"access_mode": encore.ProducerAccessMode.Exclusive}
        )
        await pair.works()
        await to_thread(delete, admin, topic, 4)
        await asyncio.sleep(1)
        await to_thread(create, admin, topic, 2)
        await pair.works()


@pytest.mark.parametrize("after", [0, 4])
async def test_a_reader_continues_on_a_recreated_topic(
    pulsar: Server, admin: Admin, topic: str, after: int
) -> None:
    await to_thread(create, admin, topic, 0)
    async with encore.Client(pulsar.service_url, transport="native") as client:
        reader = await client.create_reader(topic, encore.MessageId.earliest)
        producer = await client.create_producer(topic)
        await producer.send(b"1")
        assert (await reader.read_next(timeout_millis=10_000)).data() == b"1"
        await to_thread(delete, admin, topic, 0)
        await asyncio.sleep(1)
        await to_thread(create, admin, topic, after)
        await producer.send(b"2")
        assert (await reader.read_next(timeout_millis=60_000)).data() == b"2"


async def test_a_deleted_topic_stays_deleted_until_it_is_created_with_4_partitions(
    pulsar: Server, admin: Admin, topic: str
) -> None:
    """The broker has topic auto-creation enabled, but a reconnect must not create a topic."""
    async with pair_of(pulsar.service_url, topic) as pair:
        await pair.works()
        await to_thread(delete, admin, topic, 0)
        began = time.monotonic()
        while time.monotonic() - began < 5:
            await asyncio.sleep(0.5)
            assert not await to_thread(exists, admin, topic)
        assert not pair.consumer.is_connected() and not pair.producer.is_connected()
        await to_thread(create, admin, topic, 4)
        await pair.works()
        assert len(await pair.client.get_topic_partitions(topic)) == 4


@pytest.mark.parametrize("before", [0, 4])
async def test_a_deleted_topic_is_created_again_after_recreate_after(
    pulsar: Server, admin: Admin, topic: str, before: int
) -> None:
    await to_thread(create, admin, topic, before)
    async with pair_of(pulsar.service_url, topic, recreate_after=4) as pair:
        await pair.works()
        await to_thread(delete, admin, topic, before)
        await asyncio.sleep(1)
        assert not await to_thread(exists, admin, topic)
        await pair.works()
        assert await to_thread(exists, admin, topic)


async def test_a_deleted_letter_topic_is_created_again_after_recreate_after(
    pulsar: Server, admin: Admin, topic: str
) -> None:
    async with encore.Client(pulsar.service_url, transport="native", recreate_after=4) as client:
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

        await wait_until_in_thread(lambda: exists(admin, letters) and not unacked())
        await to_thread(admin.delete_topic, letters)
        await fail(b"2")
        await asyncio.sleep(1)
        assert not await to_thread(exists, admin, letters)
        await wait_until_in_thread(lambda: exists(admin, letters) and not unacked())
        stats = await to_thread(admin.stats, letters)
        assert list(stats["subscriptions"]) == ["kept"], "PRODUCER names the subscription again"


class HalfOpenProxy:
    """A TCP proxy that can cut its connections on the client's side alone.

    Attributes:
        url: Its service URL.
    """

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._address = (address.hostname, address.port)
        self._clients: list[asyncio.StreamWriter] = []
        self._brokers: list[asyncio.StreamWriter] = []
        self._half_open: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> HalfOpenProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"pulsar://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for each in (*self._clients, *self._brokers, *self._half_open):
            each.close()
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_reader, broker = await asyncio.open_connection(*self._address)
        self._clients.append(writer)
        self._brokers.append(broker)
        for origin, target in ((reader, broker), (broker_reader, writer)):
            task = asyncio.ensure_future(self._copy(origin, target))
            self._tasks.add(task)

    async def _copy(self, reader: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                target.write(data)

    def cut_connections(self) -> None:
        """Abort the connections of the client. The connections to the broker stay open."""
        for each in self._clients:
            each.transport.abort()
        self._clients.clear()
        self._half_open, self._brokers = self._brokers, []

    def close_broker_side(self) -> None:
        """Close the connections to the broker that `cut` left open, as its keep-alive does."""
        for each in self._half_open:
            each.close()


@pytest.fixture
def limited(admin: Admin) -> Iterator[str]:
    """A namespace that allows one producer and one consumer on each topic."""
    name = f"public/limited-{uuid.uuid4().hex[:8]}"
    admin.create_namespace(name)
    admin.set_namespace_policy(name, "maxConsumersPerTopic", 1)
    admin.set_namespace_policy(name, "maxProducersPerTopic", 1)
    yield name
    admin.delete_namespace(name)


async def test_a_consumer_waits_for_a_limit_that_its_half_dead_connection_fills(
    pulsar: Server, limited: str
) -> None:
    """The broker counts the lost connection until its keep-alive closes it."""
    async with (
        HalfOpenProxy(pulsar.service_url) as proxy,
        pair_of(proxy.url, f"persistent://{limited}/t") as pair,
    ):
        await pair.works()
        proxy.cut_connections()
        await asyncio.sleep(12)  # an earlier version failed after 10 s
        assert not pair.consumer.is_connected() and not pair.producer.is_connected()
        proxy.close_broker_side()
        await pair.works()
