"""Leases that were granted before a restart, of a consumer with a state.

The message may be at this consumer, at another consumer of the directory, or at the broker, so it
is settled by id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from ...core.bucket_width import precision_bits
from ...core.durable import Durable
from ...core.entry import EntryKey
from ...core.message_key import MessageKey
from ...core.nack_verdicts import Verdicts
from ...core.topic_state import TopicState
from ...errors import ClosedError, LeaseLostError, MessageNotHeldError
from ...eventloop.affinity import LoopAffinity
from ...eventloop.alarm import due_in_ms, now_ms, wall_now_ms
from ...letters.evidence import evidence_of
from ...message import Message
from ...values.backoff import to_ms
from ...values.message_id import MessageId
from ..settlement.ack_receipts import AckReceipts
from ..settlement.ownership import Ownership
from ..settlement.settlement import Settlement
from . import lease_handle as handles
from .lease_record import BITS, LeaseKeeper, lost

_TRUST_TIMEOUT_S: Final = 5.0


@dataclass(eq=False, slots=True)
class RestoredLease:
    """A lease from before a restart: a `LeaseRecord` without a message."""

    handle: str
    attempt: int
    message_id: MessageId
    topic_state: TopicState
    durable: Durable
    key: MessageKey
    first_ms: int
    due_ms: int = 0
    length_ms: int = 0
    over: str | None = None
    acked: bool = False
    keeper: LeaseKeeper | None = None

    @property
    def message(self) -> Message:
        raise MessageNotHeldError(
            f"{self.message_id!r} was leased before a restart and is not here until it is "
            "redelivered: ack, nack or extend its lease, and store further data with the handle"
        )


class RestoredLeases:
    def __init__(
        self,
        ownership: Ownership,
        settlement: Settlement,
        verdicts: Verdicts,
        receipts: AckReceipts | None,
        precision: int | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._ownership = ownership
        self._settlement = settlement
        self._verdicts = verdicts
        self._receipts = receipts
        self._precision = precision
        self._loop = loop
        self._affinity = LoopAffinity("lease")

    async def find(self, named: handles.LeaseHandle, text: str) -> RestoredLease:
        """Return the lease that a handle names; raise if it is over or of another state."""
        message_id = handles.message_id_of(named)
        try:
            state, entry_key, _, message_id = self._ownership.named(message_id)
        except MessageNotHeldError as error:
            raise LeaseLostError(
                f"the lease on a message of {named.topic} is of another consumer, as this one does "
                "not read that topic: use it there"
            ) from error
        index = message_id.batch_index() if message_id.batch_size > 1 else -1
        if state.durable is None or not state.shared:
            raise _lease_over(named)
        await self._wait_until_trusted(state, state.durable, entry_key, named)
        key = (*entry_key, index)
        found = RestoredLease(
            text, named.attempt, message_id, state, state.durable, key, named.first_ms
        )
        due_ms = self._until(found)
        if due_ms is None:
            raise _lease_over(named)
        found.due_ms = due_ms
        found.length_ms = max(due_ms - now_ms(self._loop), 1)
        return found

    async def _wait_until_trusted(
        self, state: TopicState, durable: Durable, key: EntryKey, named: handles.LeaseHandle
    ) -> None:
        """Wait for a message that shows whether the state belongs to this cluster.

        In another cluster the id of a handle means another message. The messages that the last
        process had not acked arrive first, so this wait is short.
        """
        deadline = self._loop.time() + _TRUST_TIMEOUT_S
        while durable.is_trusted(key) is None:
            try:
                async with asyncio.timeout_at(deadline):
                    await durable.next_comparison()
            except TimeoutError:
                raise MessageNotHeldError(
                    f"no message of {named.topic} that the state knows has arrived, so the state "
                    "may be of another cluster, whose ids mean other messages: try again in a "
                    "moment"
                ) from None
            if state.durable is not durable:
                raise ClosedError("the consumer was closed")

    def _until(self, lease: RestoredLease) -> int | None:
        if lease.topic_state.durable is not lease.durable:  # the consumer was closed
            return None
        if lease.durable.first_ms(lease.key[:2]) != lease.first_ms:
            # The message was acked or sought over, and its attempts are counted from 1 again.
            return None
        return lease.durable.leased_until(lease.key, lease.attempt)

    def handle(self, lease: RestoredLease) -> str:
        return lease.handle

    def check(self, lease: RestoredLease) -> None:
        self._affinity.check()
        if lease.over is None and self._until(lease) is None:
            lease.over = "it ended, or was settled elsewhere"
            if lease.keeper is not None:
                lease.keeper.lost()
        if lease.over is not None:
            raise lost(lease)

    def extend(self, lease: RestoredLease, length_ms: int) -> None:
        self.check(lease)
        due_ms = due_in_ms(self._loop, length_ms)
        lease.durable.set_due_at_owner(lease.key, due_ms, BITS, _size(lease), leased=True)
        lease.due_ms = due_ms
        if lease.keeper is not None:
            lease.keeper.moved()

    def ack(self, lease: RestoredLease) -> Sequence[asyncio.Future[None]]:
        """Ack the leased message; return the ack receipts to wait for.

        Raise `MessageNotHeldError` if the message is in a batch that has not arrived and the
        transport cannot ack a part of it. The lease is still active then.
        """
        if lease.acked:
            self._affinity.check()
            return ()
        self.check(lease)
        acked = self._settlement.ack(lease.message_id)
        lease.acked = True
        lease.over = "it was acked"
        lease.durable.ack_at_owner(lease.message_id)
        return () if self._receipts is None else self._receipts.of((acked,))

    def nack(
        self,
        lease: RestoredLease,
        delay: float | timedelta | None,
        error: BaseException | str | None = None,
    ) -> None:
        """Nack the leased message. After its last attempt it is dead-lettered at its arrival."""
        delay_ms = None if delay is None else to_ms(delay, "delay")
        self.check(lease)
        if delay_ms is None:
            delay_ms = self._verdicts.delay_of(lease.attempt - 1)
        bits, due_ms = precision_bits(delay_ms, self._precision), due_in_ms(self._loop, delay_ms)
        lease.durable.set_due_at_owner(lease.key, due_ms, bits, _size(lease), leased=False)
        if error is not None:
            evidence = evidence_of(error, "nack")
            lease.topic_state.attempts.remember(lease.key, wall_now_ms(self._loop), evidence)
        lease.over = "it was nacked"


def _size(lease: RestoredLease) -> int:
    return max(lease.message_id.batch_size, 1)


def _lease_over(named: handles.LeaseHandle) -> LeaseLostError:
    return LeaseLostError(
        f"the lease on a message of {named.topic} is not known here: it has ended, or another "
        "consumer or a process without a state directory (`state=`) granted it. Its message was "
        "settled, or is redelivered"
    )
