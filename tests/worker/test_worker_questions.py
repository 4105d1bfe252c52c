"""Questions to a running worker: its pending messages, and topics that it pauses."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from worker_kit import TOPIC, all_acked, running, running_lists, until

import pulsar_encore as encore
from pulsar_encore import Client, Message
from pulsar_encore.testing import MemoryTransport
from pulsar_encore.worker.worker_core import WorkerCore

OTHER = f"{TOPIC}2"


async def test_pending_messages_of_an_ordered_worker(
    client: Client, transport: MemoryTransport
) -> None:
    """One runs, one waits for its next attempt, and one of the same key is behind it."""
    for text, key in ((b"bad", "k"), (b"later", "k"), (b"slow", "j")):
        transport.put(TOPIC, text, key=key)
    go_on = asyncio.Event()

    async def handle(value: bytes) -> None:
        if value == b"bad":
            raise OSError("the gateway is away")
        await go_on.wait()

    retry = encore.RetryPolicy(backoff=[600])
    async with running(client, handle, order="key", concurrency=4, retry=retry) as worker:
        await until(lambda: len(worker.pending()) == 3)
        await asyncio.sleep(5)
        by_state = {each.state: each for each in worker.pending()}
        assert set(by_state) == {"waiting", "blocked", "running"}
        waiting, blocked, slow = (by_state[each] for each in ("waiting", "blocked", "running"))
        assert (waiting.key, blocked.key, slow.key) == ("k", "k", "j")
        assert waiting.last_error == "OSError: the gateway is away"
        assert waiting.attempt == 2 and waiting.due is not None
        assert slow.attempt == 1 and slow.since is not None and slow.due is None
        assert 500 < (waiting.due - slow.since).total_seconds() < 700
        go_on.set()
    assert worker.pending() == [] or worker.health().state == "ended"


async def test_a_worker_that_has_not_started_has_no_messages(client: Client) -> None:
    async def handle(value: bytes) -> None: ...

    assert encore.Worker(client, TOPIC, "billing", handle).pending() == []


@pytest.mark.parametrize("order", ["none", "key", "partition"])
async def test_a_paused_topic_starts_no_handler_and_loses_no_message(
    client: Client, transport: MemoryTransport, order: Any
) -> None:
    for topic in (TOPIC, OTHER):
        for each in range(40):
            transport.put(topic, b"%d" % each, key=f"k{each % 3}")
    started: list[tuple[str, int]] = []

    async def handle(value: bytes, message: Message) -> None:
        started.append((message.topic_name(), int(value)))
        await asyncio.sleep(1)

    async with running(client, handle, [TOPIC, OTHER], order=order, concurrency=4) as worker:
        await until(lambda: len(started) >= 8)
        worker.pause(TOPIC)
        worker.pause(TOPIC)
        before = Counter(topic for topic, _ in started)[TOPIC]
        await all_acked(transport, OTHER)
        assert Counter(topic for topic, _ in started)[TOPIC] == before
        worker.resume(TOPIC)
        await all_acked(transport, TOPIC)
    assert len(started) == 80, "each message is handled once"
    if order != "none":
        for key in range(3):
            numbers = [each for topic, each in started if topic == TOPIC and each % 3 == key]
            assert numbers == sorted(numbers)


async def test_a_failed_message_of_a_paused_topic_waits_for_resume(
    client: Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"x", key="k")
    transport.put(TOPIC, b"y", key="k")
    calls: list[tuple[bytes, int]] = []

    async def handle(value: bytes, message: Message) -> None:
        calls.append((value, message.attempt))
        await asyncio.sleep(5)
        if len(calls) == 1:
            raise OSError("away")

    retry = encore.RetryPolicy(backoff=[10])
    async with running(client, handle, order="key", retry=retry) as worker:
        await until(lambda: len(calls) == 1)
        worker.pause(TOPIC)
        await asyncio.sleep(1000)
        assert calls == [(b"x", 1)]
        worker.resume()
        await all_acked(transport)
    assert calls == [(b"x", 1), (b"x", 2), (b"y", 1)]


async def test_a_batch_worker_pauses_a_topic(client: Client, transport: MemoryTransport) -> None:
    for topic in (TOPIC, OTHER):
        for each in range(30):
            transport.put(topic, b"%d" % each)
    handled: Counter[str] = Counter()

    async def handle(values: list[bytes], messages: list[Message]) -> None:
        handled.update(each.topic_name() for each in messages)
        await asyncio.sleep(1)

    async with running_lists(client, handle, [TOPIC, OTHER], max_messages=5) as worker:
        await until(lambda: bool(handled))
        worker.pause(TOPIC)
        before = handled[TOPIC]
        await all_acked(transport, OTHER)
        assert handled[TOPIC] == before
        worker.resume()
        await all_acked(transport, TOPIC)
    assert handled == {TOPIC: 30, OTHER: 30}


async def test_a_topic_paused_before_the_start(client: Client, transport: MemoryTransport) -> None:
    transport.put(TOPIC, b"x")
    handled: list[bytes] = []

    async def handle(value: bytes) -> None:
        handled.append(value)

    worker = encore.Worker(
        client, TOPIC, "billing", handle, initial_position=encore.InitialPosition.Earliest
    )
    worker.pause("orders")
    async with worker:
        await asyncio.sleep(60)
        assert handled == []
        with pytest.raises(encore.ConfigurationError, match="does not read"):
            worker.pause("nope")
        worker.resume("orders")
        await all_acked(transport)


async def test_early_calls_for_a_topic_count_by_its_full_name(
    client: Client, transport: MemoryTransport
) -> None:
    transport.catalogue.create_partitioned(TOPIC, 2)
    first, second = (f"{TOPIC}-partition-{each}" for each in range(2))
    transport.put(first, b"first")
    transport.put(second, b"second")
    transport.put(OTHER, b"other")
    handled: list[bytes] = []

    async def handle(value: bytes) -> None:
        handled.append(value)

    worker = encore.Worker(
        client, [TOPIC, OTHER], "billing", handle, initial_position=encore.InitialPosition.Earliest
    )
    worker.pause(OTHER)
    worker.resume(f"persistent://public/default/{OTHER.rpartition('/')[2]}")
    worker.pause(TOPIC)
    worker.resume(second)
    async with worker:
        await asyncio.sleep(60)
        assert sorted(handled) == [b"other", b"second"]
        worker.resume(TOPIC)
        await all_acked(transport, first)


async def test_a_worker_with_a_paused_topic_says_so(client: Client) -> None:
    async def handle(value: bytes) -> None: ...

    async with running(client, handle, [TOPIC, OTHER]) as worker:
        worker.pause(TOPIC)
        health = worker.health()
        assert health.ready and health.reasons == ("a topic is paused",)
        worker.resume()
        assert worker.health().reasons == ()
    # A supervisor may call these after the end.
    worker.pause(TOPIC)
    worker.resume(TOPIC)
    worker.pause()
    worker.resume()


async def test_an_error_that_cannot_be_shown_leaves_a_worker_ready(
    client: Client, transport: MemoryTransport
) -> None:
    class Broken(ConnectionError):
        def __repr__(self) -> str:
            raise AttributeError("no response")

        __str__ = __repr__

    async def fail(value: bytes) -> None:
        raise Broken

    breaker = encore.Breaker(on=ConnectionError, failures=1)
    async with running(client, fail, breaker=breaker) as worker:
        transport.put(TOPIC, b"x")
        await asyncio.sleep(5)
        health = worker.health()
        assert health.ready and health.reasons == ("the breaker is open: Broken",)


async def test_a_paused_topic_costs_no_walk_at_each_start(
    client: Client, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of waiting messages, the walks would take most of the time."""
    for each in range(50):
        transport.put(TOPIC, b"%d" % each, key=f"k{each}")

    async def handle(value: bytes, message: Message) -> None:
        if message.topic_name() == TOPIC:
            raise OSError("away")

    retry = encore.RetryPolicy(attempts=99, backoff=[100])
    options: dict[str, Any] = {"retry": retry, "order": "key"}
    async with running(client, handle, [TOPIC, OTHER], **options) as worker:
        await until(lambda: worker.health().waiting == 50)
        jobs, walks = WorkerCore.jobs, 0

        def counted(core: WorkerCore) -> Any:
            nonlocal walks
            walks += 1
            return jobs(core)

        monkeypatch.setattr(WorkerCore, "jobs", counted)
        worker.pause(TOPIC)
        for each in range(200):
            transport.put(OTHER, b"%d" % each)
        await all_acked(transport, OTHER)
        assert walks <= 5
        await asyncio.sleep(2000)
        before = worker.report().failed
        assert before == 50, "what became due went back to the consumer"
        assert worker.health().waiting == 0
        worker.resume()
        await until(lambda: worker.report().failed >= before + 50)
