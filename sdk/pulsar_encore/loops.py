"""Which event loop, and which process, something belongs to.

Owns `Place`. A consumer, a reader or a producer keeps timers, waiters and an order of events on
the loop it was made on. Called from another one it would wait for answers that go elsewhere, or
send and then fail; in a forked child its connection and its threads are not there at all. So every
call looks where it is before it does anything; on its own loop that costs one comparison.
"""

from __future__ import annotations

import asyncio
import os
from asyncio import _get_running_loop as running_loop

from .errors import ConfigurationError, ForkedError, WrongLoopError

__all__ = ["Place", "check_process", "running_loop"]


class Place:
    """The running loop and this process; for calls, compare `running_loop()` with `loop` first.

    Args:
        what: What belongs here, for the text of an error, such as "consumer".
    """

    __slots__ = ("_pid", "_what", "loop")

    def __init__(self, what: str) -> None:
        self.loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._what = what

    def check(self) -> None:
        """
        Raises:
            ForkedError: In a child of the process it was made in.
            WrongLoopError: On another loop, or on none.
        """
        if running_loop() is not self.loop:
            raise self._refusal()

    @property
    def over(self) -> bool:
        """Its loop is closed: nothing it waits for can happen any more."""
        return self.loop.is_closed()

    def moved(self) -> Place:
        """The same on the loop that runs now, for what keeps nothing on its own.

        Raises:
            ForkedError: In a child of the process it was made in.
            RuntimeError: No loop runs.
        """
        check_process(self._pid, self._what)
        return Place(self._what)

    def _refusal(self) -> ConfigurationError:
        check_process(self._pid, self._what)
        if running_loop() is None:
            how = (
                "called without its event loop running: await it there; from another thread use "
                "asyncio.run_coroutine_threadsafe(...) or loop.call_soon_threadsafe(...)"
            )
        elif self.over:
            how = (
                "made on an event loop that is closed by now: make it anew on this one, as each "
                "asyncio.run() has its own loop; the client may be kept"
            )
        else:
            how = (
                "made on another event loop: call it there "
                "(asyncio.run_coroutine_threadsafe), or make another from the same client here"
            )
        return WrongLoopError(f"this {self._what} was {how}")


def check_process(pid: int, what: str) -> None:
    """
    Args:
        pid: Of the process that made it.
        what: What it is, for the text.

    Raises:
        ForkedError: This is another process.
    """
    if os.getpid() != pid:
        raise ForkedError(
            f"this {what} was made by the parent process ({pid}), where its connection and its "
            "threads stayed: make a new Client in this one"
        )
