"""When it is time to look again at which topics there are.

Owns the contract, `RefreshSchedule`, and the ordinary one: a timer that goes round. Who knows when
topics come, as a broker in memory does, hands in another, and needs no timer while none has come.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class RefreshSchedule(Protocol):
    """Of one that looks again and again."""

    async def next(self, every_s: float) -> None:
        """Wait until the next look.

        Args:
            every_s: How often there is one, in s.
        """

    def again(self) -> None:
        """The last look did not do: there is to be another, whatever comes."""


class TimedSchedule:
    """A look after each period (`RefreshSchedule`)."""

    async def next(self, every_s: float) -> None:
        await asyncio.sleep(every_s)

    def again(self) -> None:
        """There is another anyway."""
