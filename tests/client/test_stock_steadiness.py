"""When the stock transport believes that a connection is back, and that it always checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import _pulsar
import pytest

from pulsar_encore.eventloop.mailbox import Mailbox
from pulsar_encore.transport.stock.pump import Pump, Steadiness


def checks(*seen: tuple[float, bool]) -> list[bool]:
    steadiness = Steadiness()
    return [steadiness.record_poll(connected, at) for at, connected in seen]


def test_the_first_connection_counts_at_once() -> None:
    assert checks((0.0, True), (0.01, True)) == [True, True]


def test_a_lost_connection_counts_at_the_first_check() -> None:
    assert checks((0.0, True), (0.01, False)) == [True, False]


def test_a_restored_connection_counts_only_after_some_time() -> None:
    seen = checks((0.0, False), (0.01, True), (0.02, True), (0.061, True))
    assert seen == [False, False, False, True]


def test_the_time_counts_from_the_first_check_that_saw_the_connection() -> None:
    """On a busy machine checks are far apart: a connection made a moment ago must not count."""
    assert checks((0.0, False), (5.0, True), (5.06, True)) == [False, False, True]


def test_each_loss_restarts_the_time() -> None:
    seen = checks((0.0, False), (0.01, True), (0.04, False), (0.05, True), (0.07, True))
    assert seen == [False] * 5


class Native:
    """A native consumer that gets nothing."""

    def __init__(self, connected: Callable[[], bool]) -> None:
        self.is_connected = connected
        self._asked: list[Callable[..., None]] = []

    def receive_async(self, answer: Callable[..., None]) -> None:
        self._asked.append(answer)

    def close(self) -> None:
        while self._asked:
            self._asked.pop()(_pulsar.Result.AlreadyClosed, None)


async def test_a_failed_connection_check_of_one_consumer_affects_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One thread checks all consumers: without it none would notice its connection."""
    up = True
    checks = 0
    reported: list[bool] = []

    def broken() -> bool:
        nonlocal checks
        checks += 1
        raise RuntimeError("no state")

    def begin(connected: Callable[[], bool]) -> tuple[Native, Pump, asyncio.Event]:
        native, ended = Native(connected), asyncio.Event()

        def end(_error: Any) -> None:
            ended.set()

        mail = Mailbox(asyncio.get_running_loop())
        pump = Pump(
            native, mail, 10, list, ignore, reported.append, end, stops_while_disconnected=False
        )
        pump.start()
        return native, pump, ended

    pumps = [begin(broken), begin(lambda: up)]
    try:
        async with asyncio.timeout(20):
            while checks < 3:
                await asyncio.sleep(0.01)
            up = False
            while not reported:
                await asyncio.sleep(0.01)
    finally:
        for native, pump, ended in pumps:
            pump.stop()
            native.close()
            await ended.wait()
    assert reported == [False]
    assert [each.message for each in caplog.records].count(
        "could not check whether a consumer is connected"
    ) == 1


def ignore(_arrived: Any) -> None:
    pass
