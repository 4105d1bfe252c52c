"""The public `Lease`, and `RenewedLease`, which renews it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Generic

from ...errors import ConfigurationError, LeaseLostError
from ...eventloop.alarm import due_in_ms, now_ms, wall_now_ms
from ...eventloop.awaitables import AwaitingReceipt
from ...eventloop.fair_yield import FairYield
from ...letters.evidence import check_error
from ...message import Message
from ...values.message_id import MessageId
from ...values.type_variables import T_co
from .lease_length import length_ms
from .lease_record import LeasedMessage, LeaseGranter, lost

_LIMIT: Final = timedelta(hours=3)  # RocketMQ's proxy stops renewing at the same limit
_LATE_MS: Final = 100  # delay after the end at which the lease is checked
_SHARE: Final = 3  # renewed after each third of its length, so that one renewal may be late


class Lease(Generic[T_co]):
    """The exclusive claim on a message until `expires_at`, made by `Consumer.pop`.

    If the message is not settled by then, the attempt counts as failed. The message is redelivered
    after the backoff of that attempt, or at once if the subscription has none. Call the methods on
    the consumer's event loop.

    Example:
        Lease up to ten messages for five minutes each::

            for lease in await consumer.pop(10, lease=300):
                async with lease.kept():
                    await transcode(lease.message.value())
                    await lease.ack()
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
    def message(self) -> Message[T_co]:
        """The leased message.

        Raises:
            MessageNotHeldError: if the lease was granted before a restart and the message has not
                been redelivered. `message_id` works.
        """
        return self._record.message

    @property
    def message_id(self) -> MessageId:
        """Id of the leased message."""
        return self._record.message_id

    @property
    def handle(self) -> str:
        """Text by which `Consumer.lease` finds the lease while it is active.

        With `state=` the handle also works after a restart: reading it writes the lease to disk,
        and the message then waits until the lease ends. Without a handle, the message is
        redelivered at once after a restart.
        """
        return self._leases.handle(self._record)

    @property
    def attempt(self) -> int:
        """Number of this delivery attempt, from 1."""
        return self._record.attempt

    @property
    def expires_at(self) -> datetime:
        """End of the lease in UTC. It is wrong after the wall clock was set."""
        left_ms = self._record.due_ms - now_ms(self._loop)
        return datetime.fromtimestamp((wall_now_ms(self._loop) + left_ms) / 1000, UTC)

    async def ack(self) -> None:
        """Ack the message. Acking again is harmless.

        With `ack_receipt_enabled` the call waits until the broker has confirmed the ack. Cancelling
        it does not cancel the ack.

        Raises:
            LeaseLostError: if the lease is over. The message is redelivered.
            ClosedError: if the consumer was closed before the broker confirmed.
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
        """Nack the message, which is redelivered as after `Consumer.negative_acknowledge`.

        Args:
            delay: Seconds or timedelta until the redelivery; None for the subscription's delay.
            error: The reason, kept as evidence in case the message is dead-lettered.

        Raises:
            ConfigurationError: if an argument is invalid; the lease is still active.
            LeaseLostError: if the lease is over.
        """
        check_error(error)
        self._leases.nack(self._record, delay, error)
        await self._end_turn()

    async def extend(self, seconds: float | timedelta) -> None:
        """End the lease this long from now, which may be earlier than before.

        Args:
            seconds: Seconds or timedelta.

        Raises:
            ConfigurationError: if the length is not above 0, or is more than 30 days.
            LeaseLostError: if the lease is over.
        """
        self._leases.extend(self._record, length_ms(seconds, "seconds"))
        await self._end_turn()

    def kept(self, *, limit: float | timedelta = _LIMIT) -> RenewedLease:
        """Renew the lease while the block `async with lease.kept():` runs.

        If the lease is lost (it expired, a seek passed it, or the consumer was closed), the block
        is cancelled and raises LeaseLostError. If the lease is settled inside the block, the block
        continues.

        Args:
            limit: Seconds or timedelta from the start of the block, after which the lease is not
                renewed.

        Raises:
            ConfigurationError: if `limit` is invalid or, on entering, another block renews the
                lease.
        """
        return RenewedLease(self._record, self._leases, length_ms(limit, "limit"), self._loop)

    async def _end_turn(self) -> None:
        if self._fair_yield.clock() >= self._fair_yield.ends:
            await self._fair_yield.end()


class RenewedLease:
    """Renews one lease while a block runs (`Lease.kept`), and cancels as `asyncio.timeout` does."""

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
        self._cancels = 0  # cancellations of the task when the block began
        self._lost = False
        self._cancelled = False  # by this object
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        self._leases.check(self._record)
        if self._record.keeper is not None or self._lost:
            raise ConfigurationError(
                "another block renews this lease: use one `async with lease.kept()` at a time"
            )
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancels = self._task.cancelling()
        self._until_ms = due_in_ms(self._loop, self._limit_ms)
        self._record.keeper = self
        self._renew()

    def _renew(self) -> None:
        """Extend the lease to its length from now, up to the limit."""
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
        """Set the timer again after the end of the lease has moved."""
        self._stop_timer()
        record = self._record
        left = record.due_ms - now_ms(self._loop)
        if now_ms(self._loop) < self._until_ms:
            wait = min(record.length_ms, left) / 1000 / _SHARE
        else:  # past the limit, only its end is checked
            wait = (left + _LATE_MS) / 1000
        self._timer = self._loop.call_later(max(wait, 0), self._renew)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def lost(self) -> None:
        """Cancel the block through the loop, because the block itself may have found the loss."""
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
        ours = False  # True if this object's cancellation is the only one
        if self._cancelled and task is not None:
            ours = task.uncancel() <= self._cancels
        if not self._lost:
            return
        if kind is None or (ours and issubclass(kind, asyncio.CancelledError)):
            raise lost(self._record) from error
