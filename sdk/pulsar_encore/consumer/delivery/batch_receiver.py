"""Several messages in one call: waits for enough of them, then takes them in one step.

Owns `BatchReceiver`. Nothing is taken while it waits, so a cancelled call has taken nothing. The
objects of a large batch are made before that step, in several turns of the loop.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ...errors import EncoreError
from ...eventloop.fair_yield import FairYield
from ...message import Message
from ...options import BatchReceivePolicy
from .receive_queue import ReceiveQueue

#: Messages that are taken without being prepared: 1 ms or so.
_UNPREPARED_LIMIT: Final = 1_000


class BatchReceiver:
    """Take batches from `queue` within the limits of `policy`.

    The rules are Java's: `docs/notes/consumer-semantics.md#batch-receive`.

    Args:
        queue: Where messages wait.
        policy: Limits.
        most: Messages in a result at most: the receiver queue's size, as in stock.
        fair_yield: When a call that need not wait lets the loop run.
    """

    def __init__(
        self, queue: ReceiveQueue, policy: BatchReceivePolicy, most: int, fair_yield: FairYield
    ) -> None:
        self._queue = queue
        wanted = policy.max_num_message
        self._most = min(wanted, most) if wanted > 0 else most
        self._bytes = policy.max_num_bytes
        self._timeout_s = policy.timeout_ms / 1000
        self._fair_yield = fair_yield

    async def receive(self) -> list[Message]:
        """At least one message, or none when the policy's time ran out."""
        deadline = None
        if self._timeout_s > 0:
            deadline = asyncio.get_running_loop().time() + self._timeout_s
        if self._fair_yield.clock() >= self._fair_yield.ends:
            await self._fair_yield.end()
        ticket = self._queue.ticket()
        while True:
            in_time = self._queue.has(self._most, self._bytes) or await self._fill(deadline, ticket)
            if min(self._most, len(self._queue)) > _UNPREPARED_LIMIT:
                await self._prepare()
                if in_time and not self._queue.has(self._most, self._bytes):
                    continue  # others have taken some meanwhile
            batch = self._queue.take_many(self._most, self._bytes)
            if batch or not in_time:  # else all that was queued had been settled
                return batch

    async def _prepare(self) -> None:
        """Have the messages made that the call is about to take, and let the loop run meanwhile."""
        fair_yield = self._fair_yield
        for _ in self._queue.prepare(self._most, self._bytes):
            if fair_yield.clock() >= fair_yield.ends:
                await fair_yield.end()

    async def _fill(self, deadline: float | None, ticket: int) -> bool:
        """Wait for enough; False when the time ran out, or nothing more will come."""
        queue = self._queue
        queue.collect()
        try:
            while not queue.has(self._most, self._bytes):
                if not await queue.wait(deadline, ticket, takes=False):
                    return False
        except EncoreError:
            if not len(queue):
                raise
        finally:
            queue.collected()
        return True
