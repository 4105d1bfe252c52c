"""Batch receive: wait for enough messages, then take them in one step.

A cancelled call has taken nothing.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ...errors import EncoreError
from ...eventloop.fair_yield import FairYield
from ...message import Message
from ...options import BatchReceivePolicy
from .receive_queue import ReceiveQueue

#: Larger batches are prepared in steps: making this many objects takes about 1 ms.
_UNPREPARED_LIMIT: Final = 1_000


class BatchReceiver:
    """The batch receives of one consumer.

    The rules are those of Java's client: `docs/notes/consumer-semantics.md#batch-receive`.

    Args:
        most: Largest batch: the receiver queue size, as in the stock client.
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
                    continue  # other callers have taken some meanwhile
            batch = self._queue.take_many(self._most, self._bytes)
            if batch or not in_time:  # otherwise all queued messages were settled
                return batch

    async def _prepare(self) -> None:
        fair_yield = self._fair_yield
        for _ in self._queue.prepare(self._most, self._bytes):
            if fair_yield.clock() >= fair_yield.ends:
                await fair_yield.end()

    async def _fill(self, deadline: float | None, ticket: int) -> bool:
        """Wait for enough messages; return False at the deadline or if the queue has failed."""
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
