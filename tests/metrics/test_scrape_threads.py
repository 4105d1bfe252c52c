"""A scrape in another thread than the event loop is safe, and never waits for a blocked loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from pulsar_encore import Client, Consumer, ConsumerType, prometheus
from pulsar_encore.observability import instruments as of
from pulsar_encore.observability import object_registry
from pulsar_encore.observability.samples import Snapshot
from pulsar_encore.testing import MemoryTransport
from tests.metrics.scrape import OF_CONSUMER, Scrape

ACKED = "pulsar_client_consumer_message_ack_total"
AGE = "pulsar_client_encore_snapshot_age_seconds"


@contextmanager
def loop_in_thread() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Yield a function that runs a coroutine on an event loop in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def one_acked(
    registry: CollectorRegistry, transport: MemoryTransport
) -> tuple[Client, Consumer[Any]]:
    client = Client("memory://", transport=transport, observers=[prometheus.Metrics(registry)])
    consumer = await client.subscribe("orders", "billing", ConsumerType.Shared)
    await ack_one(consumer, transport)
    return client, consumer


async def ack_one(consumer: Consumer[Any], transport: MemoryTransport) -> None:
    transport.put("orders", b"x")
    await consumer.acknowledge(await consumer.receive())


def test_a_blocked_loop_gives_its_last_values(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = MemoryTransport()
    with loop_in_thread() as run:
        client, consumer = run(one_acked(registry, transport))
        scrape = Scrape(registry)
        assert (scrape.value(ACKED, **OF_CONSUMER), scrape.value(AGE)) == (1, 0)
        run(ack_one(consumer, transport))

        blocked, release = threading.Event(), threading.Event()

        async def block() -> None:
            blocked.set()
            release.wait()

        blocker = threading.Thread(target=run, args=(block(),))
        blocker.start()
        blocked.wait()
        monkeypatch.setattr(object_registry, "_WAIT_S", 0.01)
        for _ in range(3):
            scrape = Scrape(registry)
            assert scrape.value(ACKED, **OF_CONSUMER) == 1
            assert scrape.value(AGE) > 0
        release.set()
        blocker.join()
        monkeypatch.setattr(object_registry, "_WAIT_S", 10.0)
        scrape = Scrape(registry)
        assert (scrape.value(ACKED, **OF_CONSUMER), scrape.value(AGE)) == (2, 0)
        run(client.close())


def test_a_scrape_on_the_loop_itself_does_not_wait(registry: CollectorRegistry) -> None:
    transport = MemoryTransport()

    async def scrape() -> Scrape:
        return Scrape(registry)

    with loop_in_thread() as run:
        client, _ = run(one_acked(registry, transport))
        found = run(scrape())
        assert (found.value(ACKED, **OF_CONSUMER), found.value(AGE)) == (1, 0)
        run(client.close())


def test_consumers_of_two_loops_are_added_up(registry: CollectorRegistry) -> None:
    with loop_in_thread() as run, loop_in_thread() as run_other:
        client, _ = run(one_acked(registry, MemoryTransport()))
        other, _ = run_other(one_acked(registry, MemoryTransport()))
        assert Scrape(registry).value(ACKED, **OF_CONSUMER) == 2
        run(client.close())
        run_other(other.close())
    assert Scrape(registry).value(ACKED, **OF_CONSUMER) == 2


def test_a_loop_that_ended_without_a_close_is_read_to_the_end(
    registry: CollectorRegistry,
) -> None:
    with loop_in_thread() as run:
        client, _ = run(one_acked(registry, MemoryTransport()))
    scrape = Scrape(registry)
    assert (scrape.value(ACKED, **OF_CONSUMER), scrape.value(AGE)) == (1, 0)
    asyncio.run(client.close())
    assert Scrape(registry).value(ACKED, **OF_CONSUMER) == 1


def test_scrapes_during_deliveries_are_consistent(registry: CollectorRegistry) -> None:
    """Values never fall, and none is half of a change."""
    transport = MemoryTransport()

    async def ack_many(consumer: Consumer[Any]) -> None:
        for _ in range(300):
            await ack_one(consumer, transport)
            await asyncio.sleep(0)

    with loop_in_thread() as run:
        client, consumer = run(one_acked(registry, transport))
        worker = threading.Thread(target=run, args=(ack_many(consumer),))
        worker.start()
        seen = []
        while worker.is_alive():
            seen.append(Scrape(registry).value(ACKED, **OF_CONSUMER))
        worker.join()
        seen.append(Scrape(registry).value(ACKED, **OF_CONSUMER))
        run(client.close())
    assert seen == sorted(seen)
    assert seen[-1] == 301


def test_a_forked_process_begins_with_no_counts(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Any wait would be for the loop of the parent process.
    monkeypatch.setattr(object_registry, "_WAIT_S", 1000.0)
    transport = MemoryTransport()

    async def fork() -> int:
        client, consumer = await one_acked(registry, transport)
        Scrape(registry)
        child = os.fork()
        if child == 0:
            os._exit(0 if not registry_has_counts(registry) else 1)
        await consumer.close()
        await client.close()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert asyncio.run(fork()) == 0
    assert Scrape(registry).value(ACKED, **OF_CONSUMER) == 1


def registry_has_counts(registry: CollectorRegistry) -> bool:
    return bool([name for name, _ in Scrape(registry).samples if name != AGE])


class _Thing:
    __slots__ = ("__weakref__",)


def test_a_new_object_with_the_id_of_a_dead_one_is_not_lost() -> None:
    objects = object_registry.ObjectRegistry()
    first, second = _Thing(), [_Thing()]
    third: list[_Thing] = []
    labels = "t", "s"

    def read(thing: _Thing) -> Snapshot:
        return Snapshot({(of.ACKED, labels): 1})

    def replace_second(_: _Thing) -> None:
        # Another thread does this while a scrape walks over the objects.
        if second:
            key = id(second.pop())
            while not third or id(third[-1]) != key:
                third.append(_Thing())
            objects.opened(third[-1], lambda _: None, read)

    objects.opened(first, replace_second, read)
    objects.opened(second[0], lambda _: None, read)
    objects.collect()
    objects.closed(third[-1])
    assert objects.collect()[of.ACKED] == [(labels, 1)]


def test_metrics_made_in_two_threads_share_a_registry() -> None:
    errors: list[Exception] = []

    class Slow(CollectorRegistry):
        """While one thread registers, a second one makes its metrics."""

        second: threading.Thread | None = None

        def register(self, collector: Any) -> None:
            if self.second is None:
                self.second = threading.Thread(target=make)
                self.second.start()
                self.second.join(0.05)  # it ends at once, or waits for this thread
            super().register(collector)

    registry = Slow()

    def make() -> None:
        try:
            prometheus.Metrics(registry)
        except Exception as error:
            errors.append(error)

    make()
    assert registry.second is not None
    registry.second.join()
    assert errors == []
