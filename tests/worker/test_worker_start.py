"""The start of a worker waits for a broker that is away, and ends at once when it is stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random

import pytest

import pulsar_encore as encore
from pulsar_encore.worker.start_log import StartLog, start_log_of
from pulsar_encore.worker.worker_start import wait_until_made

Make = Callable[[], Awaitable[str]]


async def started(make: Make, stopping: asyncio.Event | None = None) -> str | None:
    log = StartLog(logging.getLogger("test"))
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


def missing_namespace() -> encore.TransportError:
    """The answer of a standalone of Pulsar 4.2.4 for its first seconds, and of a wrong name."""
    return encore.TopicNotFound("partitions of orders: (broker: Namespace not found)")


async def test_a_broker_that_has_not_made_its_namespaces_yet_is_waited_for() -> None:
    assert await started(failing(5, missing_namespace())) == "consumer"


async def test_a_missing_namespace_fails_the_start_after_half_a_minute() -> None:
    begun = asyncio.get_running_loop().time()
    with pytest.raises(encore.TopicNotFound, match="Namespace not found"):
        await started(failing(1000, missing_namespace()))
    assert 30 <= asyncio.get_running_loop().time() - begun < 60


async def test_an_outage_begins_the_wait_for_a_namespace_anew() -> None:
    errors = [missing_namespace(), *[encore.ConnectError("away")] * 10, missing_namespace()]

    async def make() -> str:
        if errors:
            raise errors.pop(0)
        return "consumer"

    assert await started(make) == "consumer"


async def test_a_missing_topic_fails_at_once() -> None:
    with pytest.raises(encore.TopicNotFound):
        await started(failing(1, encore.TopicNotFound("orders does not exist")))


async def test_a_thousand_workers_that_wait_are_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    log = StartLog(logging.getLogger("test"))
    starts = [
        wait_until_made(
            failing(5, encore.ConnectError("away")), f"w{number}", asyncio.Event(), Random(1), log
        )
        for number in range(1000)
    ]
    assert await asyncio.gather(*starts) == ["consumer"] * 1000
    await asyncio.sleep(60)
    assert [each.message for each in caplog.records] == [
        "worker w0 waits to start: ConnectError: away",
        "999 more workers of this client wait to start, the last is w999: ConnectError: away",
    ]


async def test_each_kind_of_reason_has_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    log = StartLog(logging.getLogger("test"))
    for error in (encore.ConnectError("away"), encore.ConsumerBusy("taken")):
        await wait_until_made(failing(1, error), "billing", asyncio.Event(), Random(1), log)
    assert len(caplog.records) == 2


async def test_a_worker_that_waits_an_hour_later_is_logged_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = StartLog(logging.getLogger("test"))
    log.waits("a", "ConnectError", "away")
    await asyncio.sleep(3600)
    log.waits("b", "ConnectError", "away")
    assert [each.message for each in caplog.records] == [
        "worker a waits to start: away",
        "worker b waits to start: away",
    ]


async def test_the_workers_of_a_client_share_a_log(client: encore.Client) -> None:
    assert start_log_of(client) is start_log_of(client)
