"""Nack a message and kill the process: when does the next process receive the message?"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from .scenario import SIDES, MeasuredRun, Outcomes, Scenario, attempt, seconds
from .workload import Figures

DELAY_S: Final = 3.0
_WITHIN_S: Final = 40.0
WITHOUT_STATE: Final = "native without"


def killed_after(work: Callable[[], object]) -> None:
    """Do work in another process, and kill that process (SIGKILL) when the work is done.

    The process is forked, so call this before a client exists.
    """
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        _die_after(work, writing)
    os.close(writing)
    done = os.read(reading, 1)
    os.close(reading)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    if not done:
        raise RuntimeError("the process that was to be killed ended by itself")


def _die_after(work: Callable[[], object], writing: int) -> NoReturn:
    try:
        work()
        os.write(writing, b".")
        time.sleep(_WITHIN_S)
    finally:
        os._exit(1)


async def _measure(run: MeasuredRun) -> Outcomes:
    def one(side: str, transport: str, keep: bool) -> asyncio.Future[object]:
        work = run(
            side, "killed_nack", within_s=_WITHIN_S, transport=transport, delay_s=DELAY_S, keep=keep
        )
        return asyncio.ensure_future(attempt(work))

    pending = {label: one(*side, side[0] != "stock") for label, side in SIDES.items()}
    pending[WITHOUT_STATE] = one("encore", "native", False)
    return dict(zip(pending, await asyncio.gather(*pending.values()), strict=True))  # type: ignore[arg-type]


def _redelivery(figures: Figures) -> str:
    if figures["back_s"] is None:
        return "not while we waited"
    return f"after {seconds(figures['back_s'])}, as attempt {figures['attempt']:.0f}"


def _cell(figures: Mapping[str, Figures], column: str) -> str:
    text = _redelivery(figures[column])
    if column == "stock":
        return text
    without = f"; without {_redelivery(figures[WITHOUT_STATE])}" if column == "native" else ""
    return f"with a state {text}{without}"


def _missing() -> str | None:
    return None if importlib.util.find_spec("rocksdict") else "rocksdict (the extra state)"


SCENARIO = Scenario(
    title=(
        f"A message is nacked for {DELAY_S:g} s, its process killed (SIGKILL) and started again: "
        "when is it redelivered?"
    ),
    labels=(*SIDES, WITHOUT_STATE),
    measure=_measure,
    cell=_cell,
    seconds=8,
    missing=_missing,
)
