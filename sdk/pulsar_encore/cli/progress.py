from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from ..eventloop.shielded_work import shielded

T = TypeVar("T")
_NOTICE_DELAY_S: Final = 1.0


class Progress:
    """A count on one line of stderr, if that is a terminal.

    Attributes:
        in_flight: What an interruption waits for, and the effect of a kill.
    """

    in_flight: str

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()
        self._has_output = False

    def summary(self) -> str:
        raise NotImplementedError

    def show(self, count: str) -> None:
        if self._shows:
            self._has_output = True
            sys.stderr.write(f"\r{count}")
            sys.stderr.flush()

    def interrupted(self, text: str) -> None:
        self.close()
        sys.stderr.write(f"interrupted: {text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        if self._has_output:
            sys.stderr.write("\n")
        self._shows = self._has_output = False


async def run_to_safe_end(work: Coroutine[Any, Any, T], progress: Progress) -> T:
    """Run work that, when it is cancelled, still waits for messages in flight.

    If the broker is down, that takes long, so the user is told.
    """
    running = asyncio.ensure_future(work)
    try:
        return await shielded(running)
    except asyncio.CancelledError:
        running.cancel()
        if not (await asyncio.wait([running], timeout=_NOTICE_DELAY_S))[0]:
            progress.interrupted(f"waiting for {progress.in_flight}")
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # marks it as retrieved; the interruption is reported instead
        progress.interrupted(f"{progress.summary()}; run it again to continue")
        raise
    finally:
        progress.close()
