"""The Python blocks of `docs/event-loops.md` run on real loops and in threads."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop

import pulsar_encore as encore
from pulsar_encore.devbroker import run_in_thread
from tests.harness.pages import Block, blocks_of, compiled, run_block

BLOCKS = blocks_of("event-loops.md")


def block(words: str) -> Block:
    (found,) = (each for each in BLOCKS if words in each.code)
    return found


@pytest.fixture
def url() -> Iterator[str]:
    with run_in_thread() as broker:
        yield broker.url


def names(url: str, **others: Any) -> dict[str, Any]:
    return {
        "asyncio": asyncio,
        "encore": encore,
        "multiprocessing": multiprocessing,
        "url": url,
        "uvloop": uvloop,
        **others,
    }


async def received(url: str, count: int) -> list[bytes]:
    earliest = encore.InitialPosition.Earliest
    async with (
        encore.Client(url) as client,
        client.subscribe("jobs", "test", initial_position=earliest) as consumer,
    ):
        return [(await consumer.receive(timeout=10)).data() for _ in range(count)]


def test_every_block_has_a_test() -> None:
    for words in ("for job in jobs", "def work", "on_message", "in_child", "uvloop"):
        block(words)
    assert len(BLOCKS) == 5


def test_one_client_serves_a_loop_for_each_job(url: str) -> None:
    jobs = [b"1", b"2", b"3"]
    exec(compiled(block("for job in jobs")), names(url, jobs=jobs))
    assert asyncio.run(received(url, 3)) == jobs


def test_a_consumer_left_open_by_a_loop_is_refused_on_the_next(url: str) -> None:
    client = encore.Client(url)

    async def subscribe() -> encore.Consumer[bytes]:
        return await client.subscribe("jobs", "test")

    async def receive(consumer: encore.Consumer[bytes]) -> None:
        with pytest.raises(encore.WrongLoopError, match=r"each asyncio\.run"):
            await consumer.receive()
        await client.close()

    asyncio.run(receive(asyncio.run(subscribe())))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_thread_acks_and_sends(url: str, run: Any) -> None:
    parsed: list[bytes] = []

    async def main() -> None:
        async with encore.Client(url) as client:
            consumer = await client.subscribe("jobs", "parsers")
            producer = await client.create_producer("jobs-parsed")
            async with client.create_producer("jobs") as jobs:
                await jobs.send(b"job")
            space = names(url, consumer=consumer, producer=producer, parse=parsed.append)
            await run_block(block("def work"), space)
            await consumer.flush()
            assert consumer.statistics().unacked == 0
            assert producer.last_sequence_id() == 0

    run(main())
    assert parsed == [b"job"]


def test_an_error_of_a_call_from_a_thread_is_logged(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with encore.Client(url) as client, client.subscribe("jobs", "parsers") as consumer:
            await asyncio.to_thread(consumer.acknowledge, "no message")  # type: ignore[arg-type]
            await asyncio.sleep(0.1)
            refused = asyncio.to_thread(asyncio.run, consumer.receive())
            with pytest.raises(encore.WrongLoopError):
                await refused

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert [each.name for each in caplog.records] == ["pulsar_encore.eventloop.awaitables"]


def test_a_listener_that_blocks_in_a_thread_leaves_the_loop_free(url: str) -> None:
    threads: list[int] = []

    def parse(data: bytes) -> None:
        threads.append(threading.get_ident())

    async def main() -> None:
        async with encore.Client(url) as client:
            space = names(url, client=client, parse=parse)
            await run_block(block("on_message"), space)
            async with client.create_producer("jobs") as producer:
                await producer.send(b"job")
            while not threads or space["consumer"].statistics().unacked:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 10))
    assert threads != [threading.get_ident()]


def test_a_child_makes_its_own_client(url: str) -> None:
    space = names(url)
    exec(compiled(block("in_child")), space)
    assert not space["child"].is_alive()
    space["in_child"](b"job")
    assert asyncio.run(received(url, 1)) == [b"job"]


def test_a_program_runs_on_uvloop(url: str) -> None:
    async def main() -> None:
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        async with encore.Client(url) as client, client.create_producer("jobs") as producer:
            await producer.send(b"job")

    exec(compiled(block("uvloop")), names(url, main=main))
    assert asyncio.run(received(url, 1)) == [b"job"]
