"""A pop: what is taken, in which order, and who waits.

Owns `Popping`. Pops are served in line, one at a time. Taking and granting are one step without an
await, and nothing is awaited after it: a cancelled pop has taken nothing, so there is nothing to
put back.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ...turn import Turn
from ..receiving.queue import ReceiveQueue
from .grant import Grant
from .lanes import Lane, Lanes
from .leases import Leases

#: One pop of so many takes what failed before first, as RocketMQ's does: with a queue that fresh
#: messages keep full it would come late, and with it always first poison would hold up the rest.
_AGAIN_FIRST: Final = 5


class Popping:
    """The pops of one consumer.

    Args:
        queue: Where messages are.
        leases: Where they go.
        turn: When a pop that need not wait lets the loop run.
        loop: The consumer's event loop.
        lanes: Keep each key in order; None where nobody asked for that.
    """

    def __init__(
        self,
        queue: ReceiveQueue,
        leases: Leases,
        turn: Turn,
        loop: asyncio.AbstractEventLoop,
        lanes: Lanes | None = None,
    ) -> None:
        self._queue = queue
        self._leases = leases
        self._turn = turn
        self._loop = loop
        self._line = asyncio.Lock()  # first come, first served
        self._pops = 0  # those that took something
        self._lanes = lanes
        self._lane_of: dict[int, Lane] = {}  # by number of the lease that is out of it
        if lanes is not None:
            leases.ended = self._ended

    async def pop(self, most: int, length_ms: int, wait_ms: int) -> list[Grant]:
        """At least one lease, or none when the time is over."""
        deadline = self._loop.time() + wait_ms / 1000
        if self._turn.clock() >= self._turn.ends:
            await self._turn.end()
        ticket = self._queue.ticket()
        try:
            async with asyncio.timeout_at(deadline):
                await self._line.acquire()
        except TimeoutError:
            return []
        try:
            while True:
                self._leases.check_open()
                free = min(most, self._leases.free)
                if free <= 0:
                    if not await self._leases.room(deadline):
                        return []
                    continue
                if self._lanes is None:
                    grants = self._take(free, length_ms)
                else:
                    grants = self._take_in_order(self._lanes, free, length_ms)
                if grants:
                    return grants
                if self._lanes is not None and self._lanes.unseen:
                    await asyncio.sleep(0)
                    continue
                if not await self._queue.wait(deadline, ticket):
                    return []
        finally:
            self._line.release()

    def _take(self, most: int, length_ms: int) -> list[Grant]:
        taken = []
        if self._pops % _AGAIN_FIRST == _AGAIN_FIRST - 1:
            taken = self._queue.take_again(most)
        if len(taken) < most:
            taken += self._queue.take_many(most - len(taken), 0)
        self._pops += bool(taken)
        return [self._leases.grant(message, length_ms) for message in taken]

    def _take_in_order(self, lanes: Lanes, most: int, length_ms: int) -> list[Grant]:
        grants = []
        for lane, message in lanes.take(most):
            grant = self._leases.grant(message, length_ms)
            self._lane_of[grant.number] = lane
            grants.append(grant)
        return grants

    def _ended(self, grant: Grant) -> None:
        assert self._lanes is not None
        self._lanes.back(self._lane_of.pop(grant.number))
