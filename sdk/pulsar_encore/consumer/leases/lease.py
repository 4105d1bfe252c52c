"""The face of one lease.

Owns `Lease`, and `RenewedLease`, which renews one while a block runs.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final

from ...errors import ConfigurationError, LeaseLostError
from ...eventloop.alarm import due_in_ms, now_ms, wall_now_ms
from ...eventloop.awaitables import AwaitingReceipt
from ...eventloop.fair_yield import FairYield
from ...letters.evidence import check_error
from ...message import Message
from ...values.message_id import MessageId
from .lease_record import LeasedMessage, LeaseGranter, length_ms, lost

_LIMIT: Final = timedelta(hours=3)  # RocketMQ's proxy stops renewing there too
_LATE_MS: Final = 100  # after its end it is known to be over
_SHARE: Final = 3  # renewed each third of its length: one renewal may come late


class Lease:
    """A message that is its holder's until `expires_at`; made by `Consumer.pop`.

    If it is not settled by then, the attempt counts as failed, and the message is redelivered after
    the backoff of that attempt, or at once if the subscription has none. Call its methods on the
    consumer's event loop.
    """

    __slots__ = ("_fair_yield", "_leases", "_loop", "_record")

    def __init__(
        self,
        record: LeasedMessage,
        leases: LeaseGranter[Any],
        fair_yield: FairYield,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._record = record
        self._leases = leases
        self._fair_yield = fair_yield
        self._loop = loop

    def __repr__(self) -> str:
        over = self._record.over
        state = f"until {self.expires_at}" if over is None else f"over: {over}"
        return f"<Lease on {self.message_id!r}, {state}>"

    @property
    def message(self) -> Message:
        """What it is on.

        Raises:
            MessageNotHeldError: The lease was granted before a restart, and the message is not here
                until it comes again; `message_id` is.
        """
        return self._record.message

    @property
    def message_id(self) -> MessageId:
        """Of what it is on."""
        return self._record.message_id

    @property
    def handle(self) -> str:
        """Text by which `Consumer.lease` finds it while it is out.

        With a `state=` also after a restart: asking for it writes that the message is leased, which
        then waits until the lease ends. One whose handle nobody asked for comes at once then.
        """
        return self._leases.handle(self._record)

    @property
    def attempt(self) -> int:
        """Times the message was handed out, this one included."""
        return self._record.attempt

    @property
    def expires_at(self) -> datetime:
        """When it ends, in UTC; unless the wall clock is set meanwhile."""
        left_ms = self._record.due_ms - now_ms(self._loop)
        return datetime.fromtimestamp((wall_now_ms(self._loop) + left_ms) / 1000, UTC)

    async def ack(self) -> None:
        """The message is done. Acking again is harmless.

        With `ack_receipt_enabled` it takes until the broker has confirmed; cancelled meanwhile, the
        message is acked all the same.

        Raises:
            LeaseLostError: The lease is over; the message comes again, or did.
            ClosedError: The consumer was closed before the broker confirmed.
        """
        unconfirmed = self._leases.ack(self._record)
        if unconfirmed:
            await AwaitingReceipt(unconfirmed)
        await self._end_turn()

    async def nack(
        self,
        delay: float | timedelta | None = None,
        *,
        error: BaseException | str | None = None,
    ) -> None:
        """The message failed and comes again, as after `Consumer.negative_acknowledge`.

        Args:
            delay: Seconds or timedelta; None for the subscription's.
            error: Why; kept as evidence for the day the message is dead-lettered.

        Raises:
            ConfigurationError: A bad argument; the lease is still out.
            LeaseLostError: The lease is over.
        """
        check_error(error)
        self._leases.nack(self._record, delay, error)
        await self._end_turn()

    async def extend(self, seconds: float | timedelta) -> None:
        """The lease ends so long from now, which may be sooner than before.

        Raises:
            ConfigurationError: Not above 0, or more than 30 days.
            LeaseLostError: The lease is over.
        """
        self._leases.extend(self._record, length_ms(seconds, "seconds"))
        await self._end_turn()

    def kept(self, *, limit: float | timedelta = _LIMIT) -> RenewedLease:
        """`async with lease.kept():` renews the lease while the block runs.

        A block whose lease is lost (expired, sought over, the consumer closed) is cancelled, and
        LeaseLostError is raised from it. One in which the lease is settled just goes on.

        Args:
            limit: Seconds or timedelta from the block's start, beyond which it is not renewed.

        Raises:
            ConfigurationError: A bad limit; or, on entering, another block keeps it.
        """
        return RenewedLease(self._record, self._leases, length_ms(limit, "limit"), self._loop)

    async def _end_turn(self) -> None:
        if self._fair_yield.clock() >= self._fair_yield.ends:
            await self._fair_yield.end()


class RenewedLease:
    """Renews one lease while a block runs; see `Lease.kept`. Cancels as `asyncio.timeout` does."""

    def __init__(
        self,
        record: LeasedMessage,
        leases: LeaseGranter[Any],
        limit_ms: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._record = record
        self._leases = leases
        self._limit_ms = limit_ms
        self._loop = loop
        self._until_ms = 0
        self._task: asyncio.Task[Any] | None = None
        self._cancels = 0  # of the task, when the block began
        self._lost = False
        self._cancelled = False  # by this
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        self._leases.check(self._record)
        if self._record.keeper is not None or self._lost:
            raise ConfigurationError("a lease is kept by one block at a time; one is enough")
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancels = self._task.cancelling()
        self._until_ms = due_in_ms(self._loop, self._limit_ms)
        self._record.keeper = self
        self._renew()

    def _renew(self) -> None:
        """Until the limit, the lease ends no sooner than its length from now."""
        record = self._record
        if record.over is not None:
            return
        length = min(record.length_ms, self._until_ms - now_ms(self._loop))
        self._stop_timer()
        try:
            if length > 0 and due_in_ms(self._loop, length) > record.due_ms:
                self._leases.extend(record, length)
            else:
                self._leases.check(record)
                self.moved()
        except LeaseLostError:
            return  # `lost` was called

    def moved(self) -> None:
        """The lease ends at another time, perhaps sooner: it is renewed in time for that."""
        self._stop_timer()
        record = self._record
        left = record.due_ms - now_ms(self._loop)
        if now_ms(self._loop) < self._until_ms:
            wait = min(record.length_ms, left) / 1000 / _SHARE
        else:  # its end is looked for
            wait = (left + _LATE_MS) / 1000
        self._timer = self._loop.call_later(max(wait, 0), self._renew)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def lost(self) -> None:
        """The lease is gone: the block is cancelled; by the loop, as the block itself may be what
        found out."""
        self._lost = True
        self._loop.call_soon(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        self._stop_timer()
        if self._record.keeper is self:
            self._record.keeper = None
        ours = False  # the cancellation, and nobody else's besides
        if self._cancelled and task is not None:
            ours = task.uncancel() <= self._cancels
        if not self._lost:
            return
        if kind is None or (ours and issubclass(kind, asyncio.CancelledError)):
            raise lost(self._record) from error
