"""The program of `docs/recipes/fastapi.md` under uvicorn, on a real Pulsar."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

import pytest

import pulsar_encore as encore
from tests.harness.admin import Admin, AdminError
from tests.harness.fastapi_process import FastApiProcess, fastapi_process, post_and_forget
from tests.harness.pulsar_server import Server

# looptime's plugin requests a loop before every synchronous test; see the contract's fixtures.
asyncio.set_event_loop(None)


@pytest.fixture(autouse=True)
def no_topic(admin: Admin) -> None:
    with contextlib.suppress(AdminError):
        admin.delete_topic("orders")


async def publish(pulsar: Server, *orders: bytes) -> None:
    async with (
        encore.Client(pulsar.service_url) as client,
        client.create_producer("orders", batching_enabled=False) as producer,
    ):
        for order in orders:
            await producer.send(order)


async def until_all_but_the_held_are_acked(program: FastApiProcess, admin: Admin) -> None:
    await program.until_handled("begins hold")
    async with asyncio.timeout(30):
        while await asyncio.to_thread(backlog, admin) != 1:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)


def backlog(admin: Admin) -> int:
    count: int = admin.subscription_stats("orders", "billing")["msgBacklog"]
    return count


async def test_sigterm_drains_and_nothing_is_processed_again(
    pulsar: Server, admin: Admin, tmp_path: Path
) -> None:
    orders = [b"%d" % number for number in range(50)]
    async with fastapi_process(tmp_path, pulsar.service_url) as program:
        await publish(pulsar, *orders, b"hold")
        await until_all_but_the_held_are_acked(program, admin)
        program.terminate()
        await program.until_ready_is(503)
        assert "ends hold" not in program.handled()
        program.go()
        assert await program.ended() == -signal.SIGTERM
    assert await asyncio.to_thread(backlog, admin) == 0
    async with fastapi_process(tmp_path, pulsar.service_url) as program:
        await publish(pulsar, b"last")
        await program.until_handled("ends last")
        program.terminate()
        await program.ended()
    lines = program.handled()
    assert len(lines) == len(set(lines)) == 2 * (len(orders) + 2)


async def test_a_failed_worker_is_not_ready_and_ends_the_process(
    pulsar: Server, admin: Admin, tmp_path: Path
) -> None:
    async with fastapi_process(tmp_path, pulsar.service_url) as program:
        request = asyncio.ensure_future(post_and_forget(f"{program.url}/fail"))
        await program.until_ready_is(503)
        program.go()
        await request
        assert await program.ended() != 0
    async with asyncio.timeout(30):
        while admin.subscription_stats("orders", "billing")["consumers"]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
