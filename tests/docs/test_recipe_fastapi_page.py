"""The program of `docs/recipes/fastapi.md` runs under uvicorn, in a process of its own.

`integration/recipes/test_fastapi.py` has the same cases on a real Pulsar.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pulsar_encore as encore
from pulsar_encore import testing
from tests.harness.fastapi_process import fastapi_process, post_and_forget, status_of


async def publish(url: str, *orders: bytes) -> None:
    async with encore.Client(url) as client, client.create_producer("orders") as producer:
        for order in orders:
            await producer.send(order)


async def unacked(url: str) -> list[bytes]:
    """Return the messages that the subscription still has."""
    await publish(url, b"last")
    found = []
    async with (
        encore.Client(url) as client,
        client.subscribe("orders", "billing", consumer_type=encore.ConsumerType.Shared) as consumer,
    ):
        while (message := await consumer.receive()).data() != b"last":
            found.append(message.data())
    return found


async def test_a_handler_in_flight_at_sigterm_ends_and_its_message_is_acked(tmp_path: Path) -> None:
    async with testing.broker() as url, fastapi_process(tmp_path, url) as program:
        assert await status_of(f"{program.health}/live") == 200
        await publish(url, b"first", b"hold")
        await program.until_handled("begins hold")
        program.terminate()
        await program.until_ready_is(503)
        assert "ends hold" not in program.handled()
        assert await status_of(f"{program.health}/live") == 200
        program.go()
        # uvicorn sends the signal to itself again at its end.
        assert await program.ended() == -signal.SIGTERM
        assert sorted(program.handled()) == [
            "begins first",
            "begins hold",
            "ends first",
            "ends hold",
        ]
        assert await unacked(url) == []


async def test_a_failed_worker_is_not_ready_and_ends_the_process(tmp_path: Path) -> None:
    async with testing.broker() as url, fastapi_process(tmp_path, url) as program:
        request = asyncio.ensure_future(post_and_forget(f"{program.url}/fail"))
        await program.until_ready_is(503)
        program.go()
        await request
        assert await program.ended() != 0


async def test_a_request_that_does_not_end_leaves_time_for_the_drain(tmp_path: Path) -> None:
    async with testing.broker() as url, fastapi_process(tmp_path, url) as program:
        await publish(url, b"hold")
        await program.until_handled("begins hold")
        request = asyncio.ensure_future(status_of(f"{program.url}/hang"))
        await program.until_handled("begins request")
        program.terminate()
        program.go()
        assert await program.ended() == -signal.SIGTERM
        await request
        assert "ends hold" in program.handled()
        assert await unacked(url) == []
