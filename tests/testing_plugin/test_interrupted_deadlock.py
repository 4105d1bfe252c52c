"""`VirtualClockLoop.interrupt_deadlock` raises a deadlock in the code that waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from pulsar_encore import testing


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return testing.run(main, deadlock_timeout_s=0.01)


async def guarded(call: Coroutine[Any, Any, Any]) -> Any:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, testing.VirtualClockLoop)
    return await loop.interrupt_deadlock(call)


async def forever() -> None:
    await asyncio.Event().wait()


def test_a_call_that_ends_returns_its_result() -> None:
    assert run(guarded(asyncio.sleep(3600, "done"))) == "done"


def test_the_loop_goes_on_after_a_deadlock_was_raised() -> None:
    async def main() -> float:
        with pytest.raises(testing.Deadlock, match="every task waits") as caught:
            await guarded(forever())
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
        await asyncio.sleep(60)
        return asyncio.get_running_loop().time()

    assert run(main()) == 60


def test_code_that_waits_can_clean_up() -> None:
    cleaned: list[str] = []

    async def waits() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(1)
            cleaned.append("up")

    with pytest.raises(testing.Deadlock):
        run(guarded(waits()))
    assert cleaned == ["up"]


def test_a_second_deadlock_ends_the_loop() -> None:
    async def waits_twice() -> None:
        try:
            await forever()
        finally:
            await forever()

    with pytest.raises(testing.Deadlock) as caught:
        run(guarded(waits_twice()))
    assert caught.value.__cause__ is None


def test_a_cancellation_is_no_deadlock() -> None:
    async def main() -> None:
        task = asyncio.ensure_future(guarded(forever()))
        asyncio.get_running_loop().call_later(5, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await guarded(forever())

    run(main())
