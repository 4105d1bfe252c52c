"""When clients of a broker in memory look for new topics: once some have come, in their next round.

Owns `NewTopics`. Without news nothing is looked for and no timer is set, so that in virtual time a
wait that cannot end is found out.
"""

from __future__ import annotations

import asyncio


class NewTopics:
    """Counts the topics that come, and tells those who look for them."""

    def __init__(self) -> None:
        self.count: int = 0
        self._rounds: list[_Round] = []

    def created(self, topic: str) -> None:
        """A topic was made."""
        self.count += 1
        for each in self._rounds:
            each.wake()

    def make_round(self) -> _Round:
        """Of one who looks; of the running loop."""
        return _Round(self, self._rounds)


class _Round:
    """Begins with its making (`Round`)."""

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
        """There are news."""
        self._woken.set()
