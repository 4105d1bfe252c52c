"""`shielded`: work goes on when its caller is cancelled, and logs no error on any Python."""

from __future__ import annotations

import asyncio
import gc
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from pulsar_encore.eventloop.shielded_work import shielded


@pytest.fixture
def reported() -> Iterator[list[dict[str, Any]]]:
    """What the event loop reports, also for futures that are freed at the end of the test."""
    found: list[dict[str, Any]] = []
    yield found
    gc.collect()
    assert found == []


def watch(reported: list[dict[str, Any]]) -> asyncio.AbstractEventLoop:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    return loop


async def wait_for(future: asyncio.Future[Any]) -> Any:
    return await shielded(future)


async def test_a_result_and_an_error_reach_the_caller() -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()
    waiting = asyncio.create_task(wait_for(future))
    await asyncio.sleep(0)
    future.set_result(3)
    assert await waiting == 3
    assert await shielded(future) == 3
    failed: asyncio.Future[int] = loop.create_future()
    waiting = asyncio.create_task(wait_for(failed))
    await asyncio.sleep(0)
    failed.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await waiting
    with pytest.raises(ValueError, match="no"):
        await shielded(failed)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
@pytest.mark.parametrize("error_first", [False, True])
async def test_an_error_behind_a_cancelled_caller_is_not_reported(
    reported: list[dict[str, Any]], steps: int, error_first: bool
) -> None:
    future: asyncio.Future[None] = watch(reported).create_future()
    waiting = asyncio.create_task(wait_for(future))
    await asyncio.sleep(0)
    if error_first:
        future.set_exception(ValueError("late"))
    else:
        waiting.cancel()
    for _ in range(steps):
        await asyncio.sleep(0)
    if error_first:
        waiting.cancel()
    else:
        future.set_exception(ValueError("late"))
    with pytest.raises((asyncio.CancelledError, ValueError)):
        await waiting
    await asyncio.sleep(0)
    assert future.done()


async def test_work_goes_on_when_its_caller_is_cancelled(reported: list[dict[str, Any]]) -> None:
    future: asyncio.Future[int] = watch(reported).create_future()
    waiting = asyncio.create_task(wait_for(future))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not future.done()
    future.set_result(1)
    assert await shielded(future) == 1


async def test_cancelled_work_is_a_cancellation_that_is_not_the_callers() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(wait_for(future))
    await asyncio.sleep(0)
    future.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert waiting.cancelling() == 0


async def test_each_of_several_callers_gets_the_place_of_the_error() -> None:
    async def fail_here() -> None:
        await asyncio.sleep(0.01)
        raise ValueError("no")

    work = asyncio.create_task(fail_here())

    async def place() -> str:
        try:
            await shielded(work)
        except ValueError as error:
            return "".join(traceback.format_tb(error.__traceback__))
        return ""

    for text in await asyncio.gather(place(), place(), place()):
        assert "fail_here" in text


def test_pending_work_of_another_loop_is_an_error() -> None:
    another = asyncio.new_event_loop()
    future = another.create_future()
    try:
        with pytest.raises(RuntimeError, match="different loop"):
            asyncio.run(asyncio.wait_for(wait_for(future), 10))
    finally:
        another.close()


async def test_cancelled_callers_leave_nothing_behind_at_work_that_goes_on() -> None:
    class Counted(asyncio.Future[None]):
        callbacks = 0

        def add_done_callback(self, *args: Any, **options: Any) -> None:
            super().add_done_callback(*args, **options)
            self.callbacks += 1

        def remove_done_callback(self, callback: Any, /) -> int:
            removed = super().remove_done_callback(callback)
            self.callbacks -= removed
            return removed

    future = Counted()
    for _ in range(100):
        waiting = asyncio.create_task(wait_for(future))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert future.callbacks == 1
    future.set_result(None)
