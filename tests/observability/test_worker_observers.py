"""Observers see each handler call of a worker once, whatever its end is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client, Message
from pulsar_encore.testing import MemoryTransport
from tests.observability.recording import TRACE, Recording
from tests.worker.worker_kit import DEAD_LETTERS, TOPIC, all_acked, running, running_lists, until


@pytest.mark.parametrize("order", ["none", "key", "partition"])
async def test_each_call_starts_and_ends_once(
    client: Client, transport: MemoryTransport, seen: Recording, order: str
) -> None:
    inside: list[str] = []

    async def handler(value: bytes) -> None:
        inside.append(TRACE.get())
        if value == b"bad" and len(seen.of("handler_ended")) < 4:
            raise ValueError("bad")

    for each in (b"a", b"bad", b"b"):
        transport.put(TOPIC, each, key="k")
    async with running(client, handler, order=order):
        await all_acked(transport)
    started = [call for (call,) in seen.of("handler_started")]
    ended = [call for call, _ in seen.of("handler_ended")]
    assert len(started) == len(ended) == len(set(map(id, ended)))
    assert set(map(id, started)) == set(map(id, ended))
    assert inside == [f"attempt {number + 1}" for number in range(len(inside))]
    assert ("failure", "nack" if order == "none" else "wait") in seen.ends()
    assert seen.ends().count(("success", "ack")) == 3
    failure = next(end for _, end in seen.of("handler_ended") if end.result == "failure")
    assert isinstance(failure.error, ValueError)
    assert failure.retry_delay is not None
    assert failure.retry_delay > 0


async def test_the_life_of_a_worker(
    client: Client, transport: MemoryTransport, seen: Recording
) -> None:
    async def handler(value: bytes) -> None: ...

    transport.put(TOPIC, b"a")
    async with running(client, handler):
        await all_acked(transport)
    assert seen.names() == [
        "worker_started",
        "consumer_opened",
        "handler_started",
        "handler_ended",
        "drain_began",
        "consumer_closed",
        "drain_ended",
        "worker_ended",
    ]
    assert seen.of("worker_ended")[0][1] is None


async def test_a_plain_function_in_a_thread_sees_the_context(
    client: Client, transport: MemoryTransport, seen: Recording
) -> None:
    inside: list[str] = []

    def handler(value: bytes) -> None:
        inside.append(TRACE.get())

    transport.put(TOPIC, b"a")
    async with running(client, handler):
        await all_acked(transport)
    assert inside == ["attempt 1"]
    assert seen.ends() == [("success", "ack")]


async def test_results_are_sent_in_the_context_of_their_call(
    client: Client, transport: MemoryTransport, seen: Recording
) -> None:
    async def handler(value: bytes, message: Message[bytes]) -> bytes:
        message.publish(b"first")
        return value

    transport.put(TOPIC, b"a")
    async with running(client, handler, publish="invoices"):
        await all_acked(transport)
    assert seen.traces == ["attempt 1", "attempt 1"]
    assert seen.names().index("sent") < seen.names().index("handler_ended")


async def test_the_handler_settles_its_message(
    client: Client, transport: MemoryTransport, seen: Recording
) -> None:
    async def handler(value: bytes, message: Message[bytes]) -> None:
        if value == b"nack" and message.redelivery_count() == 0:
            await message.nack(1, error=ValueError("later"))
        elif value == b"reject":
            await message.reject("never")
        else:
            await message.ack()

    for each in (b"nack", b"reject", b"ack"):
        transport.put(TOPIC, each)
    async with running(client, handler):
        await all_acked(transport)
    assert seen.ends().count(("failure", "handler")) == 2
    assert seen.ends().count(("success", "handler")) == 2
    [(letter,)] = seen.of("letter_written")
    assert (letter.kind, letter.topic) == ("dead", DEAD_LETTERS)
    assert letter.message.data() == b"reject"


async def test_a_timeout_is_a_failure(
    client: Client, transport: MemoryTransport, seen: Recording
) -> None:
    async def handler(value: bytes) -> None:
        if len(seen.of("handler_started")) == 1:
            await asyncio.sleep(100)

    transport.put(TOPIC, b"a")
    async with running(client, handler, timeout=5):
        await all_acked(transport)
    [(_, first), (_, second)] = seen.of("handler_ended")
    assert isinstance(first.error, TimeoutError)
    assert first.duration == pytest.approx(5, abs=0.1)
    assert second.result == "success"


async def test_a_payload_that_does_not_decode_is_a_failed_call(
    client: Client, transport: MemoryTransport, seen: Recording
) -> None:
    async def handler(value: Any) -> None: ...

    transport.put(TOPIC, b"no json")
    async with running(client, handler, schema=encore.Json(dict[str, int])):
        await all_acked(transport)
    assert seen.ends() == [("failure", "dead_letter")]


@pytest.mark.parametrize("ignores", [False, True])
async def test_a_call_that_the_drain_ends(
    client: Client, transport: MemoryTransport, seen: Recording, ignores: bool
) -> None:
    release = asyncio.Event()

    async def handler(value: bytes) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                if not ignores:
                    raise

    transport.put(TOPIC, b"a")
    async with running(client, handler, drain=3):
        await until(lambda: bool(seen.of("handler_started")))
    assert seen.ends() == [("drained", "none")]
    release.set()
    await asyncio.sleep(1)
    assert seen.ends() == [("drained", "none")]
    assert seen.names().index("handler_ended") < seen.names().index("drain_ended")


async def test_a_breaker_opens_and_closes_once(
    client: Client, transport: MemoryTransport, seen: Recording
) -> None:
    broken = True

    async def handler(value: bytes) -> None:
        if broken:
            raise ConnectionError("down")

    for _ in range(5):
        transport.put(TOPIC, b"a")
    breaker = encore.Breaker(on=(ConnectionError,), failures=3, pause=10)
    async with running(client, handler, breaker=breaker):
        await asyncio.sleep(60)
        assert [change.is_open for (change,) in seen.of("breaker_changed")] == [True]
        broken = False
        await all_acked(transport)
    changes = [change for (change,) in seen.of("breaker_changed")]
    assert [each.is_open for each in changes] == [True, False]
    assert isinstance(changes[0].error, ConnectionError)


async def test_a_worker_that_fails(client: Client, seen: Recording) -> None:
    async def handler(value: bytes) -> None: ...

    await client.subscribe(TOPIC, "billing", encore.ConsumerType.Exclusive)
    with pytest.raises(encore.EncoreError):
        async with running(client, handler, start_retry=False):
            pass
    [(_, error)] = seen.of("worker_ended")
    assert isinstance(error, encore.EncoreError)


async def test_a_list_is_one_call(
    client: Client, transport: MemoryTransport, seen: Recording
) -> None:
    async def handler(values: list[bytes]) -> None:
        assert TRACE.get()
        if b"bad" in values:
            raise encore.BatchFailure({values.index(b"bad"): ValueError("bad")})

    for each in (b"a", b"b", b"bad"):
        transport.put(TOPIC, each)
    retry = encore.RetryPolicy(attempts=2)
    async with running_lists(client, handler, max_messages=3, max_wait=1, retry=retry):
        await all_acked(transport)
    assert seen.ends() == [("failure", "ack"), ("failure", "dead_letter")]
    [(first, end), _] = seen.of("handler_ended")
    assert len(first.messages) == 3
    assert isinstance(end.error, ValueError)


async def test_a_list_that_the_drain_ends(
    client: Client, transport: MemoryTransport, seen: Recording
) -> None:
    async def handler(values: list[bytes]) -> None:
        await asyncio.sleep(1000)

    transport.put(TOPIC, b"a")
    async with running_lists(client, handler, max_messages=3, max_wait=1, drain=2):
        await until(lambda: bool(seen.of("handler_started")))
    assert seen.ends() == [("drained", "none")]
