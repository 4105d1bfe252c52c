"""The start of a worker waits for a broker that is away, and ends at once when it is stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random

import pytest

import pulsar_encore as encore
from pulsar_encore.worker.worker_start import wait_until_made

Make = Callable[[], Awaitable[str]]


async def started(make: Make, stopping: asyncio.Event | None = None) -> str | None:
    log = logging.getLogger("test")
    return await wait_until_made(make, "billing", stopping or asyncio.Event(), Random(1), log)


def failing(times: int, error: Exception) -> Make:
    async def make() -> str:
        nonlocal times
        times -= 1
        if times >= 0:
            raise error
        return "consumer"

    return make


async def test_a_busy_subscription_is_waited_for_with_one_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await started(failing(10, encore.ConsumerBusy("taken"))) == "consumer"
    assert [each.message for each in caplog.records] == [
        "worker billing waits to start: ConsumerBusy: taken"
    ]


async def test_a_wrong_setting_fails_at_once() -> None:
    with pytest.raises(encore.ConfigurationError, match="no such"):
        await started(failing(1, encore.ConfigurationError("no such")))


async def test_a_stop_ends_an_attempt_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    loop, stopping, cancelled = asyncio.get_running_loop(), asyncio.Event(), []

    async def make() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(loop.time())
            raise
        return "consumer"

    begun = loop.time()
    loop.call_later(60, stopping.set)
    assert await started(make, stopping) is None
    assert loop.time() - begun == pytest.approx(60)
    assert len(cancelled) == 1
    assert [each.message for each in caplog.records] == [
        "worker billing waits to start: no connection to the broker, or no answer, for 5 s"
    ]


async def test_a_consumer_that_is_made_in_spite_of_the_stop_is_returned() -> None:
    stopping = asyncio.Event()

    async def make() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
        return "consumer"

    asyncio.get_running_loop().call_later(1, stopping.set)
    assert await started(make, stopping) == "consumer"


async def test_a_cancelled_start_cancels_its_attempt() -> None:
    ended = asyncio.Event()

    async def make() -> str:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()
        return "consumer"

    starting = asyncio.ensure_future(started(make))
    await asyncio.sleep(1)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    async with asyncio.timeout(1):
        await ended.wait()
