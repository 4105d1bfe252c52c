"""Handlers in daemon threads: reuse, contexts, errors, cancellation, and closed event loops."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from contextvars import ContextVar
from pathlib import Path

import pytest

from pulsar_encore.worker.handler_threads import run_in_thread

SDK = Path(__file__).resolve().parents[2] / "sdk"


async def test_the_result_and_the_error_of_a_function_come_back() -> None:
    assert await run_in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await run_in_thread(divmod, 7, 0)


async def test_an_idle_thread_is_used_again() -> None:
    threads = {await run_in_thread(threading.current_thread) for _ in range(20)}
    assert len(threads) == 1
    assert threads.pop().daemon


async def test_calls_at_the_same_time_run_in_threads_of_their_own() -> None:
    barrier = threading.Barrier(5, timeout=10)

    def meet() -> threading.Thread:
        barrier.wait()
        return threading.current_thread()

    threads = await asyncio.gather(*[run_in_thread(meet) for _ in range(5)])
    assert len(set(threads)) == 5


async def test_a_thread_has_a_copy_of_the_context() -> None:
    name: ContextVar[str] = ContextVar("name", default="none")

    def change() -> str:
        before = name.get()
        name.set("changed in the thread")
        return before

    name.set("of the caller")
    assert await run_in_thread(change) == "of the caller"
    assert name.get() == "of the caller"


async def test_stop_iteration_is_an_error_and_no_endless_wait() -> None:
    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        await asyncio.wait_for(run_in_thread(next, iter(())), 10)
    assert isinstance(caught.value.__cause__, StopIteration)


async def test_a_cancelled_caller_leaves_the_function_running() -> None:
    begun, proceed, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        proceed.wait(10)
        ended.set()

    task = asyncio.create_task(run_in_thread(work))
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not ended.is_set()
    proceed.set()
    assert await asyncio.to_thread(ended.wait, 10)


def test_a_result_for_a_closed_event_loop_is_dropped_and_its_thread_is_used_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    begun, proceed = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def work() -> None:
        threads.append(threading.current_thread())
        begun.set()
        proceed.wait(10)

    async def leave() -> None:
        task = asyncio.create_task(run_in_thread(work))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()

    asyncio.run(leave())
    proceed.set()

    def slow() -> threading.Thread:
        time.sleep(0.01)
        return threading.current_thread()

    async def again() -> None:
        for _ in range(100):
            # Several at once, because threads of other tests may be idle too.
            if threads[0] in await asyncio.gather(*(run_in_thread(slow) for _ in range(10))):
                return
        raise AssertionError("the thread is not used again")

    asyncio.run(again())
    assert capfd.readouterr().err == ""


def test_a_handler_in_a_thread_does_not_hold_the_end_of_the_process() -> None:
    program = """
import asyncio, time
from pulsar_encore.worker.handler_threads import run_in_thread

async def main():
    task = asyncio.create_task(run_in_thread(time.sleep, 60))
    await asyncio.sleep(0.2)

asyncio.run(main())
"""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SDK)},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert time.monotonic() - began < 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_starts_threads_of_its_own() -> None:
    program = """
import asyncio, os, threading
from pulsar_encore.worker.handler_threads import run_in_thread

assert asyncio.run(run_in_thread(abs, -1)) == 1
pid = os.fork()
if pid == 0:
    os._exit(asyncio.run(asyncio.wait_for(run_in_thread(abs, -7), 10)))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={"PYTHONPATH": str(SDK)},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.returncode, done.stderr) == (0, "")
