"""Who has which message until when.

Owns `LeaseTable`: the leases that are out, in buckets by when they end. An end that moves later is
only
noted: the bucket is looked into at its own time, and what ends later moves on then. Every change is
one step without an await, so that a lease is settled or expires, never both.

Invariant: a grant is in `_out` until it is `over`, and until then in the bucket of the edge `armed`
or among those that are being ended.
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
from ..forwarding.nack_handler import NackHandler
from ..settlement.ack_receipts import AckReceipts
from ..settlement.settlement import Settlement
from . import lease_handle as handles
from .lease_record import BITS, LeaseRecord, lost
from .lease_writer import LeaseWriter

logger: logging.Logger = logging.getLogger(__name__)

_Bucket: TypeAlias = dict[int, LeaseRecord | None]

_LOST: Final = 1_000  # leases that are looked at in one turn of the loop when much was given back
_STEP: Final = 250  # leases that expire in one turn of the loop: a ms or two
_WRITTEN: Final = 75  # of those that are on disk
_AGAIN_MS: Final = 1_000  # when one that could not be nacked is tried again
_TICKET: Final = itemgetter(0)
_SPARE: Final = 64  # buckets that were emptied and are kept, whatever is out
_BESIDE: Final = "its message was settled beside it, or given back to the broker"


class LeaseTable:
    """The leases of one consumer.

    Attributes:
        most: So many may be out at once.

    Args:
        settlement: Acks.
        router: Nacks.
        receipts: What acks wait for; None when they do not.
        loop: The consumer's event loop.
        most: Leases that may be out at once.
        writer: Keeps those that have a handle on disk; None where there is no state.
    """

    def __init__(
        self,
        settlement: Settlement,
        router: NackHandler,
        receipts: AckReceipts | None,
        loop: asyncio.AbstractEventLoop,
        most: int,
        writer: LeaseWriter | None = None,
    ) -> None:
        self._settlement = settlement
        self._router = router
        self._receipts = receipts
        self._loop = loop
        self._affinity = LoopAffinity("lease")
        self._writer = writer
        self._record_granter = secrets.token_hex(8)
        _all[self._record_granter] = self
        self._granted = 0
        self._out: dict[int, LeaseRecord] = {}
        self._buckets: dict[int, _Bucket | None] = {}  # by edge; None for an emptied one
        self._edges: list[int] = []  # the same edges, a heap
        self._emptied = 0  # of them
        self._ending: Iterator[LeaseRecord] = iter(
            ()
        )  # of the bucket that is due, those not looked at
        self._rooms: list[tuple[int, asyncio.Future[bool]]] = []  # by ticket of the pop
        self._refusal: Exception | None = None
        #: Called with each lease that is over, but at the end of all.
        self.ended: Callable[[LeaseRecord], None] = _nobody
        #: Called with a lease that expired; True if its message was given back and did not fail.
        self.given_back_early: Callable[[LeaseRecord], bool] = _never
        self.most: int = most
        self._alarm = Alarm(loop)
        self._alarm.start(self._ring)

    def __len__(self) -> int:
        return len(self._out)

    @property
    def free(self) -> int:
        """How many more may go out."""
        return self.most - len(self._out)

    @property
    def going(self) -> bool:
        """The consumer is open, and so is its event loop."""
        return self._refusal is None and not self._affinity.over

    # Out

    def check_open(self) -> None:
        """
        Raises:
            ClosedError: The consumer was closed; or what killed its link.
        """
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)

    def record(self, message: Message, length_ms: int) -> LeaseRecord:
        """A message that was just handed over is somebody's until its lease ends.

        No ack timeout runs beside that.
        """
        held = held_of(message)
        assert held is not None  # a reader grants no leases
        state: TopicState = held.entry.source
        state.untime(held.entry, held.batch_index)
        self._granted = number = self._granted + 1
        record = LeaseRecord(message, held, number, length_ms, due_in_ms(self._loop, length_ms))
        self._out[number] = record
        self._arm(record)
        return record

    def handle(self, record: LeaseRecord) -> str:
        """The text that names a lease."""
        if record.handle is None:
            first_ms = 0 if self._writer is None else self._writer.named(record)
            record.handle = handles.write(
                record.message_id, self._record_granter, record.number, record.attempt, first_ms
            )
        return record.handle

    def granted_elsewhere(self, named: handles.LeaseHandle) -> bool:
        """Whether a handle is of a lease that no consumer of this process has: it was granted
        before a restart, or by one that was closed, or somewhere else."""
        record_granter = _all.get(named.record_granter)
        return record_granter is None or not record_granter.going

    def find(self, text: str) -> LeaseRecord:
        """The lease that a handle names.

        Raises:
            ConfigurationError: It is no handle.
            LeaseLostError: The lease is not out here.
        """
        named = handles.read(text)
        if named.record_granter != self._record_granter:
            raise LeaseLostError(
                f"the lease on a message of {named.topic} was granted by another consumer, or by "
                "this one before a restart, without a state: use it there; the message comes again "
                "by itself"
            )
        record = self._out.get(named.number)
        if record is None:
            raise LeaseLostError(
                f"the lease on a message of {named.topic} is over: it was settled, or was lost "
                "and the message comes again"
            )
        if self.handle(record) != text:
            raise ConfigurationError("not a lease's handle: it was changed; pass it as it was")
        self.check(record)
        return record

    def check(self, record: LeaseRecord) -> None:
        """
        Raises:
            LeaseLostError: The lease is over.
            WrongLoopError: On another event loop than the consumer's.
        """
        self._affinity.check()
        if record.over is None and self._refusal is not None:
            self._lose(record, str(self._refusal))  # before `close` came to it
        elif record.over is None and not record.holds:
            self._lose(record, _BESIDE)
        if record.over is not None:
            raise lost(record)

    def extend(self, record: LeaseRecord, length_ms: int) -> None:
        """A lease ends so long from now.

        Raises:
            LeaseLostError: It is over.
        """
        self.check(record)
        record.due_ms = due_in_ms(self._loop, length_ms)
        if record.due_ms <= record.armed - (1 << BITS):
            self._disarm(record)
            self._arm(record)
        if record.keeper is not None:
            record.keeper.moved()
        if self._writer is not None:
            self._writer.extended(record)

    # Over

    def ack(self, record: LeaseRecord) -> Sequence[asyncio.Future[None]]:
        """The message is done; returns what there is to wait for until that is confirmed.

        Raises:
            LeaseLostError: The lease is over, but by its own ack.
        """
        if record.acked:
            self._affinity.check()
            return ()
        self.check(record)
        source = self._settlement.ack(record.message)
        record.acked = True
        self._end(record, "it was acked")
        return () if self._receipts is None else self._receipts.of((source,))

    def nack(
        self,
        record: LeaseRecord,
        delay: float | timedelta | None,
        error: BaseException | str | None = None,
    ) -> None:
        """The message failed.

        Raises:
            ConfigurationError: A bad delay; nothing was done.
            LeaseLostError: The lease is over.
        """
        self.check(record)
        self._router.nack(record.message, delay, error)
        self._end(record, "it was nacked")

    def sweep(self) -> None:
        """Much was given back at once: the leases on that are lost, in some steps of the loop.

        `check` finds out by itself about a lease that was not come to yet.
        """
        self._walk(iter(list(self._out.values())), "its message was given back to the broker")

    def _walk(self, grants: Iterator[LeaseRecord], why: str, *, all_of_them: bool = False) -> None:
        """Lose leases whose messages are not held any more, or all; some of them now."""
        for at, record in enumerate(grants, 1):
            if record.over is None and (all_of_them or not record.holds):
                self._lose(record, why)
            if at >= _LOST and not self._affinity.over:
                walk = partial(self._walk, grants, why, all_of_them=all_of_them)
                self._loop.call_soon(walk)
                return

    async def flush(self) -> None:
        """Write the ends that leases have, or had when they were closed."""
        if self._writer is not None:
            await self._writer.flush()

    def finish(self) -> None:
        """The same without an event loop."""
        if self._writer is not None:
            self._writer.finish()

    def forget(self) -> None:
        """The subscription was deleted: nothing more is written of them."""
        if self._writer is not None:
            self._writer.forget()

    def close(self, why: Exception) -> None:
        """Everything is given back; from now on a pop gets `why`."""
        self._refusal = self._refusal or why
        self._alarm.close()
        if self._writer is not None:
            self._writer.close()
        self._buckets.clear()
        self._edges.clear()
        self._emptied = 0
        self._ending = iter(())
        self._walk(iter(list(self._out.values())), str(why), all_of_them=True)
        self._wake()  # to find out

    def lose(self, record: LeaseRecord, why: str) -> None:
        """A lease is over for another reason than its end or its holder's call."""
        if record.over is None:
            self._lose(record, why)

    def _lose(self, record: LeaseRecord, why: str) -> None:
        self._end(record, why)
        if record.keeper is not None and not self._affinity.over:
            record.keeper.lost()

    def _end(self, record: LeaseRecord, why: str) -> None:
        record.over = why
        del self._out[record.number]
        if self._writer is not None:
            self._writer.ended(record)
        self._disarm(record)
        if self._refusal is None:
            self.ended(record)
        self._wake()

    # Room

    def free_for(self, ticket: int) -> int:
        """How many more may go out to a pop; 0 while a pop with a lower ticket waits for room."""
        if self._rooms and self._rooms[0][0] < ticket:
            return 0
        return self.free

    async def room(self, deadline: float, ticket: int) -> bool:
        """Wait until a lease is over (True), or the loop's clock reaches `deadline` (False).

        Pops that wait here are served by their tickets: a pop keeps its place until it runs.
        """
        room: asyncio.Future[bool] = self._loop.create_future()
        place = (ticket, room)
        insort(self._rooms, place, key=_TICKET)
        timer = self._loop.call_at(deadline, _expire, room)
        try:
            return await room
        finally:
            timer.cancel()
            self._rooms.remove(place)
            self.wake()  # it may be cancelled, and a pop behind it waits for it only

    def _wake(self) -> None:
        if self._rooms and not self._affinity.over:
            for _, room in self._rooms:
                if not room.done():
                    room.set_result(True)

    def wake(self) -> None:
        """A pop goes on without taking all the room: let the pops behind it try."""
        if self.free > 0:
            self._wake()

    # Time

    def _arm(self, record: LeaseRecord) -> None:
        edge = record.armed = bucket_edge(record.due_ms, BITS)
        bucket = self._buckets.get(edge)
        if bucket is None:
            if edge not in self._buckets:
                heappush(self._edges, edge)
            else:
                self._emptied -= 1
            bucket = self._buckets[edge] = {}
        bucket[record.number] = record
        self._alarm.at(edge)

    def _disarm(self, record: LeaseRecord) -> None:
        bucket = self._buckets.get(record.armed)
        if bucket is not None and bucket.pop(record.number, None) is not None and not bucket:
            self._buckets[record.armed] = None  # a dict that was large once stays so
            self._emptied += 1
            if self._emptied > _SPARE + len(self._edges) // 2:
                self._sweep_edges()

    def _sweep_edges(self) -> None:
        """Forget the buckets that were emptied: a lease of hours is settled within seconds."""
        self._buckets = {edge: bucket for edge, bucket in self._buckets.items() if bucket}
        self._edges = list(self._buckets)
        heapify(self._edges)
        self._emptied = 0

    def _ring(self, now: int) -> int | None:
        left = _STEP if self._writer is None else _WRITTEN
        expired: dict[TopicState, list[LeaseRecord]] = {}
        next_ms: int | None = 0  # at once, but not in this turn
        while left > 0:
            for record in islice(self._ending, left):
                left -= 1
                if record.over is None:
                    self._look(record, now, expired)
            if left <= 0:
                break
            if not (self._edges and self._edges[0] <= now):
                next_ms = self._edges[0] if self._edges else None
                break
            bucket = self._buckets.pop(heappop(self._edges))
            if bucket is None:
                self._emptied -= 1
            else:
                self._ending = _drained(bucket)  # nobody changes it any more
        if expired:
            with nullcontext() if self._writer is None else self._writer.one_write():
                for state, grants in expired.items():
                    self._expire(state, grants)
        return next_ms

    def _look(
        self, record: LeaseRecord, now: int, expired: dict[TopicState, list[LeaseRecord]]
    ) -> None:
        if not record.holds:
            self._lose(record, _BESIDE)
        elif record.due_ms > now:
            self._arm(record)
        else:
            expired.setdefault(record.held.entry.source, []).append(record)

    def _expire(self, state: TopicState, grants: list[LeaseRecord]) -> None:
        """The messages of these leases failed: they wait for the backoff of their attempt, if the
        consumer has one."""
        if not self._router.expire(state, [record.held for record in grants]):
            for record in grants:
                if record.over is None:  # it may be lost with one before it
                    self._expire_one(record)
            return
        for record in grants:
            self._lose(record, "it expired")

    def _expire_one(self, record: LeaseRecord) -> None:
        if self.given_back_early(record):
            self._lose(record, "it expired")
            return
        try:
            self._router.expired(record.message)
        except Exception:  # of this one only; it is leased still, and tried again
            logger.exception("an expired lease could not be nacked, again in a second")
            record.due_ms = now_ms(self._loop) + _AGAIN_MS
            self._arm(record)
        else:
            self._lose(record, "it expired")


#: Every one that is not garbage, by what its handles say.
_all: Final[WeakValueDictionary[str, LeaseTable]] = WeakValueDictionary()


def _drained(bucket: _Bucket) -> Iterator[LeaseRecord]:
    """Each grant of a bucket, which lets go of it: freeing a million at once takes 0.1 s."""
    for number in bucket:
        record, bucket[number] = bucket[number], None
        if record is not None:
            yield record


def _nobody(record: LeaseRecord) -> None:
    """Nobody waits for the end of a lease."""


def _never(record: LeaseRecord) -> bool:
    return False


def _expire(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
