"""When a task looks for new topics. A broker in memory hands in a schedule without a timer."""

from __future__ import annotations

import asyncio
from typing import Protocol


class RefreshSchedule(Protocol):
    async def next(self, every_s: float) -> None:
        """Wait until the next time, which comes every `every_s` seconds."""

    def again(self) -> None:
        """Have the next time come in any case, because the last attempt failed."""


class TimedSchedule:
    async def next(self, every_s: float) -> None:
        await asyncio.sleep(every_s)

    def again(self) -> None:
        """Do nothing: the next period comes anyway."""
