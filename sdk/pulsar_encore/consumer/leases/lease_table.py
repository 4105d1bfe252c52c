"""The active leases of one consumer, in buckets by their ends.

If the end of a lease moves later, the lease stays in its bucket until the bucket is due, and then
moves to another one. Every change is one step without an await, so a lease is either settled or
expires.

Invariant: a lease is in `_active` until it is over. Until then it is also in the bucket at edge
`armed`, or in `_expiring`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import islice
from operator import itemgetter
from typing import Final, TypeAlias
from weakref import WeakValueDictionary

from ...core.bucket_width import bucket_edge
from ...core.topic_state import TopicState
from ...errors import ConfigurationError, LeaseLostError
from ...eventloop.affinity import LoopAffinity
from ...eventloop.alarm import Alarm, due_in_ms, now_ms
from ...message import Message
from ...message import held as held_of
from ..delivery.receive_queue import expire
from ..forwarding.nack_handler import NackHandler
from ..settlement.ack_receipts import AckReceipts
from ..settlement.settlement import Settlement
from . import lease_handle as handles
from .lease_record import BITS, LeaseRecord, lost
from .lease_writer import LeaseWriter

_Bucket: TypeAlias = dict[int, LeaseRecord | None]

# Leases checked in one iteration of the loop.
_SWEEP_LIMIT: Final = 1_000
_EXPIRE_LIMIT: Final = 250  # leases that expire in one iteration of the loop: 1 to 2 ms
_DURABLE_EXPIRE_LIMIT: Final = 75  # the same for leases on disk
_RETRY_DELAY_MS: Final = 1_000  # delay before a failed nack is retried
_TICKET: Final = itemgetter(0)
_MAX_EMPTY: Final = 64  # emptied buckets that are kept in any case
_SETTLED_OTHERWISE: Final = "its message was settled by another call, or returned to the broker"


class LeaseTable:
    def __init__(
        self,
        settlement: Settlement,
        nack_handler: NackHandler,
        receipts: AckReceipts | None,
        loop: asyncio.AbstractEventLoop,
        most: int,
        writer: LeaseWriter | None = None,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self._logger = logger_of(__name__)
        self._settlement = settlement
        self._nack_handler = nack_handler
        self._receipts = receipts
        self._loop = loop
        self._affinity = LoopAffinity("lease")
        self._writer = writer
        self._granter = secrets.token_hex(8)
        _all[self._granter] = self
        self._granted = 0
        self._active: dict[int, LeaseRecord] = {}
        self._buckets: dict[int, _Bucket | None] = {}  # by edge; None for an emptied bucket
        self._edges: list[int] = []  # the same edges, as a heap
        self._empty_count = 0  # number of emptied buckets
        # Leases of the due bucket that are not checked yet.
        self._expiring: Iterator[LeaseRecord] = iter(())
        self._waiters: list[tuple[int, asyncio.Future[bool]]] = []  # by ticket of the pop
        self._refusal: Exception | None = None
        #: Called with each lease that is over, except at `close`.
        self.ended: Callable[[LeaseRecord], None] = _ignore_end
        #: Requeues the message of an expired lease if its attempt has not failed.
        self.requeue_early: Callable[[LeaseRecord], bool] = _never
        self.most: int = most
        #: Number of leases that were lost.
        self.lost: int = 0
        self._alarm = Alarm(loop)
        self._alarm.start(self._ring)

    def __len__(self) -> int:
        return len(self._active)

    def __iter__(self) -> Iterator[LeaseRecord]:
        return iter(list(self._active.values()))

    @property
    def free(self) -> int:
        return self.most - len(self._active)

    @property
    def is_open(self) -> bool:
        return self._refusal is None and not self._affinity.loop_is_closed

    # Granting

    def check_open(self) -> None:
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)

    def add(self, message: Message, length_ms: int) -> LeaseRecord:
        """Lease a message that was just delivered. The lease replaces its ack timeout."""
        held = held_of(message)
        assert held is not None  # readers grant no leases
        state: TopicState = held.entry.topic_state
        state.end_timeout(held.entry, held.batch_index)
        self._granted = number = self._granted + 1
        record = LeaseRecord(message, held, number, length_ms, due_in_ms(self._loop, length_ms))
        self._active[number] = record
        self._arm(record)
        return record

    def handle(self, record: LeaseRecord) -> str:
        if record.handle is None:
            first_ms = 0 if self._writer is None else self._writer.named(record)
            record.handle = handles.write(
                record.message_id, self._granter, record.number, record.attempt, first_ms
            )
        return record.handle

    def is_foreign(self, named: handles.LeaseHandle) -> bool:
        """Return True if no open consumer of this process granted the lease."""
        granter = _all.get(named.granter)
        return granter is None or not granter.is_open

    def find(self, text: str) -> LeaseRecord:
        named = handles.read(text)
        if named.granter != self._granter:
            raise LeaseLostError(
                f"the lease on a message of {named.topic} was granted by another consumer, or by "
                "an earlier process without a state directory (`state=`). If another consumer "
                "granted it, settle it there; otherwise it is lost and the message is redelivered"
            )
        record = self._active.get(named.number)
        if record is None:
            raise LeaseLostError(
                f"the lease on a message of {named.topic} has ended: its message was acked or "
                "nacked, or the lease expired or was lost and the message is redelivered"
            )
        if self.handle(record) != text:
            raise ConfigurationError(
                "this lease handle was changed; pass exactly the text that the lease gave you"
            )
        self.check(record)
        return record

    def check(self, record: LeaseRecord) -> None:
        self._affinity.check()
        if record.over is None and self._refusal is not None:
            # `close` has not reached this lease yet.
            self._lose(record, str(self._refusal))
        elif record.over is None and not record.holds:
            self._lose(record, _SETTLED_OTHERWISE)
        if record.over is not None:
            raise lost(record)

    def extend(self, record: LeaseRecord, length_ms: int) -> None:
        self.check(record)
        record.due_ms = due_in_ms(self._loop, length_ms)
        if record.due_ms <= record.armed - (1 << BITS):
            self._disarm(record)
            self._arm(record)
        if record.keeper is not None:
            record.keeper.moved()
        if self._writer is not None:
            self._writer.extended(record)

    # Ending

    def ack(self, record: LeaseRecord) -> Sequence[asyncio.Future[None]]:
        """Ack the leased message; return the ack receipts to wait for."""
        if record.acked:
            self._affinity.check()
            return ()
        self.check(record)
        topic_state = self._settlement.ack(record.message)
        record.acked = True
        self._end(record, "it was acked")
        return () if self._receipts is None else self._receipts.of((topic_state,))

    def nack(
        self,
        record: LeaseRecord,
        delay: float | timedelta | None,
        error: BaseException | str | None = None,
    ) -> None:
        """Nack the leased message. An invalid `delay` changes nothing."""
        self.check(record)
        self._nack_handler.nack(record.message, delay, error)
        self._end(record, "it was nacked")

    def sweep(self) -> None:
        """Lose leases on messages that were returned to the broker, over several iterations.

        `check` detects such a lease if this walk has not reached it yet.
        """
        self._lose_some(iter(list(self._active.values())), "its message was returned to the broker")

    def _lose_some(
        self, records: Iterator[LeaseRecord], why: str, *, all_of_them: bool = False
    ) -> None:
        for at, record in enumerate(records, 1):
            if record.over is None and (all_of_them or not record.holds):
                self._lose(record, why)
            if at >= _SWEEP_LIMIT and not self._affinity.loop_is_closed:
                lose_more = partial(self._lose_some, records, why, all_of_them=all_of_them)
                self._loop.call_soon(lose_more)
                return

    async def flush(self) -> None:
        if self._writer is not None:
            await self._writer.flush()

    def finish(self) -> None:
        if self._writer is not None:
            self._writer.finish()

    def forget(self) -> None:
        if self._writer is not None:
            self._writer.forget()

    def close(self, why: Exception) -> None:
        self._refusal = self._refusal or why
        self._alarm.close()
        if self._writer is not None:
            self._writer.close()
        self._buckets.clear()
        self._edges.clear()
        self._empty_count = 0
        self._expiring = iter(())
        self._lose_some(iter(list(self._active.values())), str(why), all_of_them=True)
        self._wake_all()  # waiting pops then raise the error

    def lose(self, record: LeaseRecord, why: str) -> None:
        if record.over is None:
            self._lose(record, why)

    def _lose(self, record: LeaseRecord, why: str) -> None:
        self.lost += 1
        self._end(record, why)
        if record.keeper is not None and not self._affinity.loop_is_closed:
            record.keeper.lost()

    def _end(self, record: LeaseRecord, why: str) -> None:
        record.over = why
        del self._active[record.number]
        if self._writer is not None:
            self._writer.ended(record)
        self._disarm(record)
        if self._refusal is None:
            self.ended(record)
        self._wake_all()

    # Pops that wait for a free lease

    def free_for(self, ticket: int) -> int:
        """Return how many leases a pop may take: 0 while a pop with a lower ticket waits."""
        if self._waiters and self._waiters[0][0] < ticket:
            return 0
        return self.free

    async def wait_for_free(self, deadline: float, ticket: int) -> bool:
        """Wait until a lease is over (True), or until `deadline` (False)."""
        future: asyncio.Future[bool] = self._loop.create_future()
        waiter = (ticket, future)
        insort(self._waiters, waiter, key=_TICKET)
        timer = self._loop.call_at(deadline, expire, future)
        try:
            return await future
        finally:
            timer.cancel()
            self._waiters.remove(waiter)
            self.wake_if_free()  # the next pop, if this one was cancelled

    def _wake_all(self) -> None:
        if self._waiters and not self._affinity.loop_is_closed:
            for _, future in self._waiters:
                if not future.done():
                    future.set_result(True)

    def wake_if_free(self) -> None:
        if self.free > 0:
            self._wake_all()

    # Expiry

    def _arm(self, record: LeaseRecord) -> None:
        edge = record.armed = bucket_edge(record.due_ms, BITS)
        bucket = self._buckets.get(edge)
        if bucket is None:
            if edge not in self._buckets:
                heappush(self._edges, edge)
            else:
                self._empty_count -= 1
            bucket = self._buckets[edge] = {}
        bucket[record.number] = record
        self._alarm.at(edge)

    def _disarm(self, record: LeaseRecord) -> None:
        bucket = self._buckets.get(record.armed)
        if bucket is not None and bucket.pop(record.number, None) is not None and not bucket:
            # Not kept, because a dict that was large stays large.
            self._buckets[record.armed] = None
            self._empty_count += 1
            if self._empty_count > _MAX_EMPTY + len(self._edges) // 2:
                self._sweep_edges()

    def _sweep_edges(self) -> None:
        """Remove emptied buckets: leases of hours are often settled within seconds."""
        self._buckets = {edge: bucket for edge, bucket in self._buckets.items() if bucket}
        self._edges = list(self._buckets)
        heapify(self._edges)
        self._empty_count = 0

    def _ring(self, now: int) -> int | None:
        left = _EXPIRE_LIMIT if self._writer is None else _DURABLE_EXPIRE_LIMIT
        expired: dict[TopicState, list[LeaseRecord]] = {}
        next_ms: int | None = 0  # at once, in the next iteration
        while left > 0:
            for record in islice(self._expiring, left):
                left -= 1
                if record.over is None:
                    self._check_lease(record, now, expired)
            if left <= 0:
                break
            if not (self._edges and self._edges[0] <= now):
                next_ms = self._edges[0] if self._edges else None
                break
            bucket = self._buckets.pop(heappop(self._edges))
            if bucket is None:
                self._empty_count -= 1
            else:
                self._expiring = _drained(bucket)  # no other code changes this bucket any more
        if expired:
            with nullcontext() if self._writer is None else self._writer.one_write():
                for state, records in expired.items():
                    self._expire(state, records)
        return next_ms

    def _check_lease(
        self, record: LeaseRecord, now: int, expired: dict[TopicState, list[LeaseRecord]]
    ) -> None:
        if not record.holds:
            self._lose(record, _SETTLED_OTHERWISE)
        elif record.due_ms > now:
            self._arm(record)
        else:
            expired.setdefault(record.held.entry.topic_state, []).append(record)

    def _expire(self, state: TopicState, records: list[LeaseRecord]) -> None:
        if not self._nack_handler.redeliver_expired(state, [record.held for record in records]):
            for record in records:
                if record.over is None:  # not lost with an earlier lease of its key
                    self._expire_one(record)
            return
        for record in records:
            self._lose(record, "it expired")

    def _expire_one(self, record: LeaseRecord) -> None:
        if self.requeue_early(record):
            self._lose(record, "it expired")
            return
        try:
            self._nack_handler.nack_expired(record.message)
        except Exception:  # only this message stays leased and is retried
            self._logger.exception("an expired lease could not be nacked, again in a second")
            record.due_ms = now_ms(self._loop) + _RETRY_DELAY_MS
            self._arm(record)
        else:
            self._lose(record, "it expired")


#: Every `LeaseTable` in use, by the name in its handles.
_all: Final[WeakValueDictionary[str, LeaseTable]] = WeakValueDictionary()


def _drained(bucket: _Bucket) -> Iterator[LeaseRecord]:
    """Yield and remove each lease, because freeing a million at once takes 0.1 s."""
    for number in bucket:
        record, bucket[number] = bucket[number], None
        if record is not None:
            yield record


def _ignore_end(record: LeaseRecord) -> None:
    """Default of `ended`."""


def _never(record: LeaseRecord) -> bool:
    return False
