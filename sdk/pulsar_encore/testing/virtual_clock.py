"""Virtual time: an event loop whose clock jumps to the next timer instead of waiting for it.

Owns `VirtualClockLoop` and `run`. Only for code without threads and sockets: what comes from
outside the loop comes at no particular virtual time. A loop with nothing left to run and no timer
would wait for ever; here that is an error, `Deadlock`, after `patience_s` of real time.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..errors import EncoreError

T = TypeVar("T")


class Deadlock(EncoreError):
    """Every task waits and no timer is set: nothing can ever happen in this loop."""


class _JumpingSelector(selectors.DefaultSelector):
    """Polls; where the loop would sleep, it moves the loop's clock instead."""

    def __init__(self, patience_s: float) -> None:
        super().__init__()
        self.now_s = 0.0
        self._patience_s = patience_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            events = super().select(self._patience_s)
            if not events:
                raise Deadlock(
                    "every task waits and no timer is set; give what is awaited a timeout to see "
                    "which it is"
                )
            return events
        events = super().select(0)
        if not events and timeout > 0:
            self.now_s += timeout
        return events


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop that sleeps in no time. Its clock starts at 0 s.

    Args:
        patience_s: Real seconds to wait, with no timer set, for another thread to say something.
            Threads that open files are slow on a busy machine.
    """

    def __init__(self, patience_s: float = 10.0) -> None:
        self._jumping = _JumpingSelector(patience_s)
        super().__init__(self._jumping)
        self._epoch_s = time.time()

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jumping.now_s

    def wall_time(self) -> float:
        """Seconds since the epoch on a clock that goes as `time` does."""
        return self._epoch_s + self._jumping.now_s

    def advance(self, seconds: float) -> None:
        """Let time pass without running what falls due meanwhile: a busy or suspended process.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"time only goes forward, not {seconds} s")
        self._jumping.now_s += seconds

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the threads of `asyncio.to_thread` to end; they are in real time."""
        # From Python 3.12 on the runner gives it 300 s: virtual ones would be over at once.
        await super().shutdown_default_executor()


def run(main: Coroutine[Any, Any, T], *, patience_s: float = 10.0) -> T:
    """`asyncio.run` in virtual time.

    Raises:
        Deadlock: Every task waits and no timer is set.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualClockLoop(patience_s)) as runner:
        return runner.run(main)
