"""Pops: which messages they take, and the order in which they wait.

A pop takes and leases messages in one step, with no await after it, so a cancelled pop has taken
nothing.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

from ...core.entry import Entry
from ...eventloop.fair_yield import FairYield
from ...message import Message
from ..delivery.receive_queue import ReceiveQueue
from .key_queues import KeyQueue, KeyQueues
from .lease_record import LeaseRecord
from .lease_table import LeaseTable
from .topic_choice import TopicChoice

#: Every fifth pop takes messages with failed attempts first, as in RocketMQ. If none did, new
#: messages would delay failed ones; if all did, poison messages would delay the others.
_RETRIED_FIRST_EVERY: Final = 5


class _Line:
    """Pops that are served one at a time, in order."""

    __slots__ = ("lock", "pops")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.pops = 0  # pops that took messages


class PopQueue:
    def __init__(
        self,
        queue: ReceiveQueue,
        leases: LeaseTable,
        fair_yield: FairYield,
        loop: asyncio.AbstractEventLoop,
        key_queues: KeyQueues | None = None,
    ) -> None:
        self._queue = queue
        self._leases = leases
        self._fair_yield = fair_yield
        self._loop = loop
        # A line for each topic: its waiting pops do not block other pops.
        self._lines: defaultdict[TopicChoice | None, _Line] = defaultdict(_Line)
        self._key_queues = key_queues
        self._key_queue_of: dict[int, KeyQueue] = {}  # by number of the lease
        if key_queues is not None:
            leases.ended = self._ended
            leases.requeue_early = self._requeue_early

    async def pop(
        self,
        most: int,
        length_ms: int,
        wait_ms: int,
        only: TopicChoice | None = None,
        per_key: int | None = None,
    ) -> list[LeaseRecord]:
        deadline = self._loop.time() + wait_ms / 1000
        if self._fair_yield.clock() >= self._fair_yield.ends:
            await self._fair_yield.end()
        ticket = self._queue.ticket()
        line = self._lines[only]
        try:
            async with asyncio.timeout_at(deadline):
                await line.lock.acquire()
        except TimeoutError:
            return []
        try:
            while True:
                self._leases.check_open()
                free = min(most, self._leases.free_for(ticket))
                if free <= 0:
                    if not await self._leases.wait_for_free(deadline, ticket):
                        return []
                    continue
                if self._key_queues is None:
                    records = self._take(line, free, length_ms, only)
                else:
                    taken = self._key_queues.take(free, self._queue.unpaused(only), per_key)
                    records = self._granted(taken, length_ms)
                self._leases.wake_if_free()
                if records:
                    if len(self._lines) > 1:
                        self._queue.wake(1)  # a pop of another line may find more messages
                    return records
                if self._key_queues is not None and self._key_queues.has_more(
                    self._queue.unpaused(only)
                ):
                    await asyncio.sleep(0)
                    continue
                if not await self._queue.wait(deadline, ticket, only=only):
                    return []
        finally:
            line.lock.release()

    def _take(
        self, line: _Line, most: int, length_ms: int, only: TopicChoice | None
    ) -> list[LeaseRecord]:
        taken = []
        retried_first = line.pops % _RETRIED_FIRST_EVERY == _RETRIED_FIRST_EVERY - 1
        if only is not None:
            taken = self._queue.take_of(only, most, retried_first=retried_first)
        else:
            if retried_first:
                taken = self._queue.take_retried(most)
            if len(taken) < most:
                taken += self._queue.take_many(most - len(taken), 0)
        line.pops += bool(taken)
        return [self._leases.add(message, length_ms) for message in taken]

    def _granted(self, taken: list[tuple[KeyQueue, Message]], length_ms: int) -> list[LeaseRecord]:
        records = []
        for key_queue, message in taken:
            record = self._leases.add(message, length_ms)
            self._key_queue_of[record.number] = key_queue
            key_queue.records[_message_of(record)] = record
            records.append(record)
        return records

    def _ended(self, record: LeaseRecord) -> None:
        assert self._key_queues is not None
        key_queue, key = self._key_queue_of.pop(record.number, None), _message_of(record)
        if key_queue is None or key_queue.records.get(key) is not record:
            return
        del key_queue.records[key]
        for returned in self._key_queues.lease_ended(key_queue, *key):
            follower = key_queue.records.pop(returned, None)
            if follower is not None:
                del self._key_queue_of[follower.number]
                self._leases.lose(follower, "the lease on a message before it in its key is over")

    def _requeue_early(self, record: LeaseRecord) -> bool:
        assert self._key_queues is not None
        key_queue = self._key_queue_of.get(record.number)
        return key_queue is not None and self._key_queues.requeue_early(
            key_queue, *_message_of(record)
        )


def _message_of(record: LeaseRecord) -> tuple[Entry, int]:
    return record.held.entry, record.held.batch_index
