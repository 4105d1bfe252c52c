"""When a task looks for new topics.

`TimedSchedule` uses a timer. A broker in memory knows when topics appear, and hands in another
`RefreshSchedule` that needs no timer.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class RefreshSchedule(Protocol):
    """The schedule of one task that looks for new topics repeatedly."""

    async def next(self, every_s: float) -> None:
        """Wait until the next time, which comes every `every_s` seconds."""

    def again(self) -> None:
        """Have the next time come in any case, because the last attempt failed."""


class TimedSchedule:
    """Returns after each period (`RefreshSchedule`)."""

    async def next(self, every_s: float) -> None:
        await asyncio.sleep(every_s)

    def again(self) -> None:
        """Do nothing: the next period comes anyway."""
