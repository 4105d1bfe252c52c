"""Virtual time: an event loop with a clock that jumps to the next timer instead of waiting.

It suits only code without threads and sockets: outside events have no virtual time.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from ..errors import EncoreError

T = TypeVar("T")

_DEADLOCK: Final = (
    "every task waits and no timer is set; give what is awaited a timeout to see which it is"
)


class Deadlock(EncoreError):
    """Every task waits and no timer is set, so nothing can happen in this loop."""

    __module__ = "pulsar_encore.testing"


class _JumpingSelector(selectors.DefaultSelector):
    """Advances the loop's clock where the loop would sleep."""

    def __init__(self, deadlock_timeout_s: float) -> None:
        super().__init__()
        self.now_s = 0.0
        self.interrupt: Callable[[], object] | None = None
        self._patience_s = deadlock_timeout_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            events = super().select(self._patience_s)
            if not events:
                interrupt, self.interrupt = self.interrupt, None
                if interrupt is None:
                    raise Deadlock(_DEADLOCK)
                interrupt()
            return events
        events = super().select(0)
        if not events and timeout > 0:
            self.now_s += timeout
        return events


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop that sleeps in no time. Its clock starts at 0 s.

    Args:
        deadlock_timeout_s: Real seconds to wait for another thread if no task can run and no timer
            is set. Then the loop raises `Deadlock`.
    """

    def __init__(self, deadlock_timeout_s: float = 10.0) -> None:
        self._jumping = _JumpingSelector(deadlock_timeout_s)
        super().__init__(self._jumping)
        self._epoch_s = time.time()

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._jumping.now_s

    def wall_time(self) -> float:
        """Return seconds since the epoch, on a clock that advances with `time`."""
        return self._epoch_s + self._jumping.now_s

    def advance(self, seconds: float) -> None:
        """Advance the clock by 0 s or more without running timers, like a suspended process."""
        if seconds < 0:
            raise ValueError(f"time only goes forward, not {seconds} s")
        self._jumping.now_s += seconds

    async def interrupt_deadlock(self, call: Awaitable[T]) -> T:
        """Await a call in the current task. A deadlock then raises in the code that awaits.

        Otherwise `Deadlock` ends the run of the loop, where no traceback shows what is awaited, and
        the task waits on. A second deadlock during the call does so.

        Raises:
            Deadlock: from `CancelledError`, if every task waits and no timer is set.
        """
        __tracebackhide__ = True  # pytest then shows the code that awaits
        task = asyncio.current_task(self)
        assert task is not None  # a coroutine runs in a task
        cancelling = task.cancelling()
        deadlocked = False

        def interrupt() -> None:
            nonlocal deadlocked
            deadlocked = True
            task.cancel()

        outer, self._jumping.interrupt = self._jumping.interrupt, interrupt
        try:
            return await call
        except asyncio.CancelledError as error:
            if deadlocked and task.uncancel() <= cancelling:
                raise Deadlock(_DEADLOCK) from error
            raise
        finally:
            self._jumping.interrupt = outer

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait in real time for the threads of `asyncio.to_thread`."""
        # From Python 3.12 on, the runner passes 300 s, which would elapse at once in virtual time.
        await super().shutdown_default_executor()


def run(main: Coroutine[Any, Any, T], *, deadlock_timeout_s: float = 10.0) -> T:
    """Run a coroutine like `asyncio.run`, in virtual time.

    Raises:
        Deadlock: if every task waits and no timer is set.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualClockLoop(deadlock_timeout_s)) as runner:
        return runner.run(main)
