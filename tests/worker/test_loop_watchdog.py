"""The watchdog names code that blocks the event loop, once, and is quiet otherwise.

It measures real time in a thread, so these tests block the event loop for real.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Iterator

import pytest
from slots_kit import Desk

from pulsar_encore.testing import run
from pulsar_encore.worker import loop_watchdog
from pulsar_encore.worker.loop_watchdog import LoopWatchdog

NAME = "pulsar-encore-watchdog"
LOG = logging.getLogger(loop_watchdog.LOGGER)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(loop_watchdog, "BLOCKED_S", 0.2)
    yield
    assert watchdog_threads() == [], "the thread has ended with its worker"


def watchdog_threads() -> list[threading.Thread]:
    """Return the running watchdog threads, after giving them time to end."""
    for _ in range(100):
        found = [each for each in threading.enumerate() if each.name == NAME]
        if not found:
            break
        time.sleep(0.02)
    return found


async def block_the_loop() -> None:
    time.sleep(0.9)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == LOG.name]


async def test_a_handler_that_blocks_the_event_loop_is_named_once_with_its_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watchdog = LoopWatchdog.watch(LOG)
    desk = Desk(watchdog=watchdog, name="handler bill of the worker billing")
    try:
        desk.add("one", lambda: asyncio.sleep(0.4))
        desk.add("two", block_the_loop)
        while len(desk.results) < 2:
            await asyncio.sleep(0.01)
        desk.add("three", lambda: asyncio.sleep(0.6))
        while len(desk.results) < 3:
            await asyncio.sleep(0.01)
    finally:
        watchdog.release(LOG)
    blocked, lasted = lines(caplog)
    assert re.search(
        r"blocked for 0\.\d s by the task 'handler bill of the worker billing'", blocked
    )
    assert "in block_the_loop\n    time.sleep(0.9)" in blocked
    assert "it was blocked for 0." in lasted
    assert {each.levelno for each in caplog.records} == {logging.WARNING}


async def test_nothing_is_logged_while_the_event_loop_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watchdog = LoopWatchdog.watch(LOG)
    desk = Desk(watchdog=watchdog)
    try:
        desk.add("one", lambda: asyncio.sleep(1))
        await asyncio.sleep(1.2)
    finally:
        watchdog.release(LOG)
    assert lines(caplog) == []


async def test_workers_of_one_event_loop_share_a_watchdog() -> None:
    first, second = LoopWatchdog.watch(LOG), LoopWatchdog.watch(LOG)
    assert first is second
    first.enter()
    first.leave()
    first.release(LOG)
    assert [each.name for each in threading.enumerate()].count(NAME) == 1
    second.enter()
    second.leave()
    second.release(LOG)
    assert watchdog_threads() == []
    third = LoopWatchdog.watch(LOG)
    assert third is not first
    third.release(LOG)


@pytest.mark.parametrize("clients", ["one", "two"])
async def test_a_blocked_loop_is_logged_by_the_client_of_its_workers(
    caplog: pytest.LogCaptureFixture, clients: str
) -> None:
    mine = logging.getLogger("of.the.application")
    first = LoopWatchdog.watch(mine)
    other = mine if clients == "one" else LOG
    LoopWatchdog.watch(other)
    first.enter()
    await asyncio.sleep(0.4)
    time.sleep(0.8)
    await asyncio.sleep(0.3)
    first.leave()
    first.release(mine)
    first.release(other)
    # Clients of other tests that still reconnect may log, too.
    names = {each.name for each in caplog.records}
    assert names & {mine.name, LOG.name} == {other.name}


async def test_an_idle_worker_has_no_callbacks_of_the_watchdog() -> None:
    loop = asyncio.get_running_loop()
    watchdog = LoopWatchdog.watch(LOG)
    posted = 0
    post = loop.call_soon_threadsafe

    def count(*args: object, **options: object) -> object:
        nonlocal posted
        posted += 1
        return post(*args, **options)  # type: ignore[arg-type]

    watchdog.enter()
    await asyncio.sleep(0.6)
    watchdog.leave()
    await asyncio.sleep(0.3)
    loop.call_soon_threadsafe = count  # type: ignore[method-assign, assignment]
    await asyncio.sleep(0.6)
    assert posted == 0
    watchdog.enter()
    await asyncio.sleep(0.6)
    assert posted >= 1, "it wakes up with the first handler"
    watchdog.leave()
    watchdog.release(LOG)


async def test_a_blocked_idle_worker_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = LoopWatchdog.watch(LOG)
    watchdog.enter()
    watchdog.leave()
    await asyncio.sleep(0.4)
    time.sleep(0.8)
    await asyncio.sleep(0.1)
    watchdog.release(LOG)
    assert lines(caplog) == []


def test_the_thread_ends_with_an_event_loop_that_was_closed_without_a_release() -> None:
    async def main() -> None:
        LoopWatchdog.watch(LOG).enter()

    asyncio.run(main())
    assert watchdog_threads() == []


def test_virtual_time_has_no_watchdog_thread() -> None:
    async def main() -> None:
        watchdog = LoopWatchdog.watch(LOG)
        watchdog.enter()
        assert [each.name for each in threading.enumerate()].count(NAME) == 0
        watchdog.leave()
        watchdog.release(LOG)

    run(main())
