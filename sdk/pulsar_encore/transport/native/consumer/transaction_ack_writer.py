"""The ACK commands of transactions for one topic of a subscription.

A broker stores each command before it answers, so acks that are made in one turn of the event loop
share a command. An ack without an answer is never sent again: if the first one had arrived, the
second would be a conflict (`docs/notes/wire-protocol.md#transactions`). It fails, and so the
transaction aborts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial as bound
from typing import NamedTuple

from ....errors import TransactionAbortedError, TransactionConflict
from ....eventloop.shielded_work import shielded
from ...interface import AckPlan
from ..connection.pool import ConnectionPool
from ..transactions.native_transaction import NativeTransaction, own_transaction
from .ack_commands import MOST_IDS, cumulative_ack_in_transaction, individual_acks
from .broker_consumer import BrokerConsumer
from .chunked_messages import ChunkedMessages


class _Group:
    """Acks of one transaction that leave together."""

    __slots__ = ("_masks", "cumulative", "entries", "outcome", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.outcome: asyncio.Future[None] = loop.create_future()
        self.cumulative: tuple[int, int, int, int] | None = None
        self.entries: list[tuple[int, int]] = []
        self._masks: dict[tuple[int, int], tuple[int, int]] = {}  # sizes and masks of parts
        self.task: asyncio.Task[None]

    def add(self, plan: AckPlan) -> None:
        if plan.cumulative is not None:
            self.cumulative = plan.cumulative  # the caller leaves out those that cover less
        self.entries += plan.entries
        for ledger, entry, size, mask in plan.partial:
            earlier = self._masks.get((ledger, entry), (size, -1))[1]
            self._masks[ledger, entry] = (size, mask & earlier)

    def partial(self) -> list[tuple[int, int, int, int]]:
        return [(*key, size, mask) for key, (size, mask) in self._masks.items()]


class _Command(NamedTuple):
    """An ACK of single messages, or of a cumulative position, that was written."""

    entries: Sequence[tuple[int, int]]
    partial: Sequence[tuple[int, int, int, int]]
    answer: asyncio.Future[object]


class TransactionAckWriter:
    """Sends the acks of transactions for one topic or partition."""

    def __init__(
        self,
        broker: BrokerConsumer,
        chunked: ChunkedMessages,
        subscription: str,
        pool: ConnectionPool,
        *,
        shared: bool,
    ) -> None:
        self._broker = broker
        self._chunked = chunked
        self._subscription = subscription
        self._pool = pool
        self._shared = shared
        self._unsent: dict[NativeTransaction, _Group] = {}
        self._unanswered: dict[NativeTransaction, set[_Group]] = {}

    def ack(self, plan: AckPlan, txn: object) -> asyncio.Future[None]:
        """Send acks in a transaction (see `TransportConsumer.ack_in_transaction`)."""
        own = own_transaction(txn, self._pool, "consumer")
        own.check_open("ack in it")
        own.add_sender(self)
        group = self._unsent.get(own)
        if group is None:
            group = self._unsent[own] = _Group(self._broker.loop)
            own.work.on_ack()
            self._unanswered.setdefault(own, set()).add(group)
            group.task = self._broker.loop.create_task(self._send(own, group))
            group.task.add_done_callback(bound(self._on_done, own, group))
        group.add(plan)
        return group.outcome

    def _on_done(self, txn: NativeTransaction, group: _Group, task: asyncio.Task[None]) -> None:
        """Report the outcome. The task may have been cancelled before its first step."""
        present = self._unanswered[txn]
        present.discard(group)
        if not present:
            del self._unanswered[txn]
        if self._unsent.get(txn) is group:
            del self._unsent[txn]
        error = _ended_error(txn) if task.cancelled() else task.exception()
        if error is None:
            txn.work.on_acked()
        else:
            txn.work.on_failed(error, "an ack")
        if error is None:
            group.outcome.set_result(None)
        else:
            group.outcome.set_exception(error)
            group.outcome.exception()  # marks it as retrieved: the commit reports it too

    async def _send(self, txn: NativeTransaction, group: _Group) -> None:
        await self._await_answers(txn, await self._write_when_ready(txn, group))

    async def _await_answers(self, txn: NativeTransaction, written: Sequence[_Command]) -> None:
        """Wait for the answers to all commands, then raise the first error."""
        if len(written) == 1:
            await self._await_answer(txn, written[0])
            return
        outcomes = await asyncio.gather(
            *(self._await_answer(txn, command) for command in written), return_exceptions=True
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _write_when_ready(self, txn: NativeTransaction, group: _Group) -> list[_Command]:
        """Write the commands of a group as soon as the topic and the transaction allow it.

        While the consumer is disconnected, the acks wait: nothing was sent.
        """
        registering = txn.work.register_subscription(self._broker.topic, self._subscription)
        if registering is not None:
            await shielded(registering)
        await self._broker.until_attached(txn.deadline_s)
        # From here on to the last command nothing else runs.
        del self._unsent[txn]
        if not txn.may_send:
            raise _ended_error(txn)
        written = []
        if group.cumulative is not None:
            written.append(self._write(txn, cumulative=group.cumulative))
        entries, partial = self._chunked.expand(group.entries), group.partial()
        for at in range(0, max(len(entries), len(partial)), MOST_IDS):
            part = slice(at, at + MOST_IDS)
            written.append(self._write(txn, entries[part], partial[part]))
        if entries is not group.entries:
            acked = group.entries

            def forget(committed: bool) -> None:
                if committed:
                    self._chunked.forget(acked)

            txn.when_ended(forget)
        return written

    def _write(
        self,
        txn: NativeTransaction,
        entries: Sequence[tuple[int, int]] = (),
        partial: Sequence[tuple[int, int, int, int]] = (),
        cumulative: tuple[int, int, int, int] | None = None,
    ) -> _Command:
        session, consumer_id = self._broker.ready(), self._broker.consumer_id
        request_id = session.requests.new_id()
        purpose = f"ack on {self._broker.topic} in transaction {txn.id}"
        answer = session.requests.begin(request_id, purpose, self._broker.timeout_s)
        id_bits = (txn.id.most, txn.id.least)
        if cumulative is not None:
            frame = cumulative_ack_in_transaction(consumer_id, cumulative, request_id, id_bits)
        else:
            # The broker finds each conflict with an entry that is pending as a whole. Of indexes
            # it misses some (`docs/notes/wire-protocol.md#transactions`).
            whole = [(ledger, entry) for ledger, entry, _, mask in partial if not mask]
            parts = [each for each in partial if each[3]]
            frame = individual_acks(consumer_id, [*entries, *whole], parts, request_id, id_bits)
        session.write(frame)
        return _Command(entries, partial, answer)

    async def _await_answer(self, txn: NativeTransaction, command: _Command) -> None:
        """Wait for the answer to a command.

        The broker refuses a whole command for one message, and on Shared and Key_Shared it then
        forgets that this consumer holds the others: neither a nack nor the abort would bring them
        again. So they are sent again, in halves. Then they are pending, and the abort brings them.
        """
        try:
            await command.answer
        except TransactionConflict:
            if self._shared and txn.may_finish:
                halves = _halves(command.entries, command.partial)
                with contextlib.suppress(TransactionConflict):
                    await self._await_answers(txn, [self._write(txn, *half) for half in halves])
            raise

    # `TransactionSender`

    def discard(self, txn: NativeTransaction, error: Exception) -> None:
        """Fail the acks that have not left."""
        group = self._unsent.get(txn)
        if group is not None:
            group.task.cancel()

    def flush_of(self, txn: NativeTransaction) -> list[asyncio.Task[None]]:
        return [group.task for group in self._unanswered.get(txn, ())]

    # The end

    async def close(self, timeout_s: float) -> None:
        """Wait until the present acks have left, for at most `timeout_s`; then fail the others."""
        waiting = [group.task for group in self._unsent.values()]
        if waiting and self._broker.session is not None:
            await asyncio.wait(waiting, timeout=timeout_s)
        self.abandon()

    def abandon(self) -> None:
        """Fail the acks that have not left."""
        for group in list(self._unsent.values()):
            group.task.cancel()


def _halves(
    entries: Sequence[tuple[int, int]], partial: Sequence[tuple[int, int, int, int]]
) -> list[tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int, int, int]]]]:
    """Split the messages of an ACK into two halves; return none for a single message."""
    if len(entries) + len(partial) > 1:
        half, part_half = (len(entries) + 1) // 2, len(partial) // 2
        return [(entries[:half], partial[:part_half]), (entries[half:], partial[part_half:])]
    for ledger, entry, size, mask in partial:
        every = (1 << size) - 1
        indexes = [index for index in range(size) if not mask >> index & 1]
        if len(indexes) > 1:
            middle = indexes[len(indexes) // 2]
            low = (1 << middle) - 1
            return [
                ((), [(ledger, entry, size, mask | (every ^ low))]),
                ((), [(ledger, entry, size, mask | low)]),
            ]
    return []


def _ended_error(txn: NativeTransaction) -> TransactionAbortedError:
    return TransactionAbortedError(
        f"transaction {txn.id} ended before the ack was sent", txn_id=txn.id
    )
