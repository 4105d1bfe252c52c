"""Several messages in one call: waits for enough of them, then takes them in one step.

Owns `BatchReceiver`. Nothing is taken while it waits, so a cancelled call has taken nothing.
"""

from __future__ import annotations

import asyncio

from ..errors import EncoreError
from ..message import Message
from ..options import BatchReceivePolicy
from .receive_queue import ReceiveQueue


class BatchReceiver:
    """Takes batches from `queue` as `policy` says (Java's rules, consumer-semantics notes 13.4).

    Args:
        queue: Where messages wait.
        policy: Limits.
        room: Messages that can wait there at most.
    """

    def __init__(self, queue: ReceiveQueue, policy: BatchReceivePolicy, room: int) -> None:
        self._queue = queue
        wanted = policy.max_num_message
        self._most = min(wanted, room) if wanted > 0 else room
        self._bytes = policy.max_num_bytes
        self._timeout_s = policy.timeout_ms / 1000

    async def receive(self) -> list[Message]:
        """At least one message, or none when the policy's time ran out."""
        deadline = None
        if self._timeout_s > 0:
            deadline = asyncio.get_running_loop().time() + self._timeout_s
        while not self._enough():
            try:
                if not await self._queue.wait(deadline, takes=False):
                    break
            except EncoreError:
                if not len(self._queue):
                    raise
                break
        return self._take()

    def _enough(self) -> bool:
        if len(self._queue) >= self._most:
            return True
        return self._bytes > 0 and sum(self._queue.peek_sizes(self._most)) >= self._bytes

    def _take(self) -> list[Message]:
        batch: list[Message] = []
        size = 0
        while len(batch) < self._most:
            head = self._queue.peek_sizes(1)
            if not head or (batch and 0 < self._bytes < size + head[0]):
                break
            message = self._queue.take()
            if message is None:
                break
            size += head[0]
            batch.append(message)
        return batch
