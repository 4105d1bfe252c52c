"""The limit on pending messages: a send waits, or fails with `ProducerQueueIsFull`.

`max_pending_messages` limits each partition, `max_pending_messages_across_partitions` all together.
With `block_if_queue_full`, messages wait in one line for all partitions.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from ....errors import ProducerQueueIsFull
from ....options import ProducerOptions
from ....values.outgoing_message import MessageTransaction, OutgoingMessage
from ...error_advice import ADVICE
from .partition_producer import PartitionProducer
from .send_results import FAILURES_PER_STEP, closed_error, deleted_error, ended_error, set_failed
from .unconfirmed_frames import Waiter


class SendQueue:
    """Counts the pending messages of a producer, and holds messages that do not fit.

    A message takes one slot, and a chunked message one for each of its chunks. `pending_slots` are
    the slots of messages that a partition has taken, and that have no id or error.
    """

    def __init__(self, options: ProducerOptions, topic: str) -> None:
        self._topic = topic
        self._max_in_part = options.max_pending_messages
        self._max_in_all = options.max_pending_messages_across_partitions
        self._blocks = options.block_if_queue_full
        self._chunking = options.chunking_enabled
        self.pending_slots: int = 0
        self._waiting: deque[tuple[PartitionProducer, OutgoingMessage, Waiter]] = deque()
        # Messages that waited when the producer was closed.
        self._discarded: deque[tuple[PartitionProducer, OutgoingMessage, Waiter]] = deque()
        self._paused = False

    @property
    def waiters(self) -> list[Waiter]:
        return [waiter for _, _, waiter in self._waiting]

    def put(self, part: PartitionProducer, message: OutgoingMessage, waiter: Waiter) -> None:
        """Send a message if it fits. Else let it wait, or fail it with `ProducerQueueIsFull`."""
        if not self._waiting and self._admit(part, message, waiter):
            return
        if self._blocks:
            self._waiting.append((part, message, waiter))
            return
        waiter.set_exception(
            ProducerQueueIsFull(
                f"send to {self._topic}: ProducerQueueIsFull: {ADVICE['ProducerQueueIsFull']}"
            )
        )

    def _admit(self, part: PartitionProducer, message: OutgoingMessage, waiter: Waiter) -> bool:
        """Send a message if it fits; return False if not.

        Without pending messages every message fits, so that one with more slots than the limit can
        still be sent.
        """
        slots = part.slots_of(message) if self._chunking else 1
        pending = self.pending_slots
        if pending:
            if self._max_in_all and pending + slots > self._max_in_all:
                return False
            most = self._max_in_part
            if part.pending_slots and most and part.pending_slots + slots > most:
                return False
        self.pending_slots = pending + slots
        part.publish(message, waiter, slots)
        return True

    def release(self, slots: int) -> None:
        """Free the slots of completed messages, and send waiting messages that fit now."""
        self.pending_slots -= slots
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        if not self._waiting or self._paused:
            return
        self._paused = True  # a message that fails at once calls this again
        try:
            while self._waiting and self._admit_first():
                self._waiting.popleft()
        finally:
            self._paused = False

    def _admit_first(self) -> bool:
        """Send or fail the first waiting message. Return False if it must wait."""
        part, message, waiter = self._waiting[0]
        if waiter.done():  # the caller has given up
            return True
        if part.error is not None:
            set_failed((waiter,), part.error)
            return True
        if message.txn is not None and not message.txn.may_send:
            set_failed((waiter,), ended_error(message.txn))
            return True
        return self._admit(part, message, waiter)

    @contextmanager
    def waiting_paused(self) -> Iterator[None]:
        """Send no waiting message within the block. At its end, send those that fit."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False
        self._admit_waiting()

    def move(
        self,
        gone: Collection[PartitionProducer],
        choose: Callable[[OutgoingMessage], PartitionProducer],
    ) -> None:
        waiting, self._waiting = self._waiting, deque()
        for part, message, waiter in waiting:
            if part not in gone:
                self._waiting.append((part, message, waiter))
            elif message.txn is None:
                self._waiting.append((choose(message), message, waiter))
            else:
                set_failed((waiter,), deleted_error(part.topic))

    def discard(self, txn: MessageTransaction, error: Exception) -> None:
        """Fail the waiting messages of a transaction."""
        if all(each[1].txn is not txn for each in self._waiting):
            return
        waiting, self._waiting = self._waiting, deque()
        self._waiting.extend(each for each in waiting if each[1].txn is not txn)
        set_failed([each[2] for each in waiting if each[1].txn is txn], error)

    def reset(self) -> None:
        self._waiting.clear()
        self.pending_slots = 0

    async def close(self) -> None:
        """Fail the waiting messages with `ClosedError`, in several steps of the loop."""
        self._discard()
        try:
            while self._fail_discarded(FAILURES_PER_STEP):  # noqa: ASYNC110 - in parts, not a wait
                await asyncio.sleep(0)
        finally:
            self._fail_discarded(sys.maxsize)

    def abandon(self) -> None:
        self._discard()
        self._fail_discarded(sys.maxsize)

    def _discard(self) -> None:
        self._discarded += self._waiting
        self._waiting.clear()

    def _fail_discarded(self, most: int) -> bool:
        count = min(most, len(self._discarded))
        set_failed([self._discarded.popleft()[2] for _ in range(count)], closed_error())
        return bool(self._discarded)
