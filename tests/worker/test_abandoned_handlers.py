"""Real processes with handlers that ignore their cancellation: they end promptly and quietly."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

SDK = Path(__file__).resolve().parents[2] / "sdk"

PROGRAM = """
import asyncio, sys, time
from pulsar_encore.worker.handler_threads import run_in_thread
from pulsar_encore.worker.slots import Slots

async def catches_cancellation():
    while True:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            pass

async def catches_everything():
    while True:
        try:
            await asyncio.sleep(3600)
        except BaseException:
            pass

async def waits_for_a_task_that_catches_it():
    await asyncio.wait_for(catches_cancellation(), 3600)

async def has_a_generator_that_catches_it():
    async def values():
        while True:
            await catches_cancellation()
            yield 1
    async for each in values():
        pass

async def shields():
    while True:
        try:
            await asyncio.shield(asyncio.sleep(3600))
        except asyncio.CancelledError:
            pass

async def sleeps_in_a_thread():
    await run_in_thread(time.sleep, 60)

async def main(handler):
    jobs = [handler]
    slots = Slots(
        1,
        lambda: jobs.pop() if jobs else None,
        lambda job: job(),
        lambda job, result: print("reported", result),
        cancellable=lambda: handler is not sleeps_in_a_thread,
    )
    slots.wake()
    await asyncio.sleep(0.1)
    left = await slots.close(asyncio.get_running_loop().time() + 0.3)
    print("abandoned", *[job.__name__ for job in left])

RUNNER
"""


@pytest.mark.parametrize(
    ("runner", "handler"),
    [
        ("asyncio.run", "catches_cancellation"),
        ("asyncio.run", "catches_everything"),
        ("asyncio.run", "waits_for_a_task_that_catches_it"),
        ("asyncio.run", "has_a_generator_that_catches_it"),
        ("asyncio.run", "shields"),
        ("asyncio.run", "sleeps_in_a_thread"),
        ("uvloop.run", "catches_everything"),
        ("uvloop.run", "sleeps_in_a_thread"),
    ],
)
def test_the_process_ends_promptly_and_quietly(runner: str, handler: str) -> None:
    if runner == "uvloop.run":
        pytest.importorskip("uvloop")
    call = f"import {runner.split('.')[0]}\n{runner}(main({handler}))"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", PROGRAM.replace("RUNNER", call)],
        env={"PYTHONPATH": str(SDK)},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0
    if handler == "has_a_generator_that_catches_it":
        # The event loop logs that it cannot close a generator that is running.
        assert "Task was destroyed" not in done.stderr
        assert "GeneratorExit" not in done.stderr
    else:
        assert done.stderr == ""
    assert done.stdout == f"abandoned {handler}\n"
    assert time.monotonic() - began < 30
