"""Look for new topics only if some were created.

Without new topics no timer runs, so that a deadlock in virtual time is detected.
"""

from __future__ import annotations

import asyncio


class NewTopics:
    def __init__(self) -> None:
        self.count: int = 0
        self._rounds: list[_Round] = []

    def created(self, topic: str) -> None:
        self.count += 1
        for each in self._rounds:
            each.wake()

    def make_round(self) -> _Round:
        return _Round(self, self._rounds)


class _Round:
    """The schedule of one task that looks for new topics (`RefreshSchedule`)."""

    def __init__(self, topics: NewTopics, waiting: list[_Round]) -> None:
        self._topics = topics
        self._seen = topics.count
        self._waiting = waiting
        self._woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()

    async def next(self, every_s: float) -> None:
        if self._seen == self._topics.count:
            self._woken.clear()
            self._waiting.append(self)
            try:
                await self._woken.wait()
            finally:
                self._waiting.remove(self)
        await asyncio.sleep(every_s - (self._loop.time() - self._began_s) % every_s)
        self._seen = self._topics.count

    def again(self) -> None:
        self._seen = -1

    def wake(self) -> None:
        self._woken.set()
