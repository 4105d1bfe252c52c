"""The ACK commands of transactions for one topic of a subscription.

A broker stores each command before it answers, so acks that are made in one turn of the event loop
share a command. An ack without an answer is never sent again: if the first one had arrived, the
second would be a conflict (`docs/notes/wire-protocol.md#transactions`). It fails, and so the
transaction aborts.
"""

from __future__ import annotations

import asyncio
from functools import partial

from ....errors import TransactionAbortedError
from ...interface import AckPlan
from ..connection.pool import ConnectionPool
from ..transactions.native_transaction import NativeTransaction, own_transaction
from . import ack_commands as commands
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
            self.cumulative = plan.cumulative  # the later one covers more
        self.entries += plan.entries
        for ledger, entry, size, mask in plan.partial:
            earlier = self._masks.get((ledger, entry), (size, -1))[1]
            self._masks[ledger, entry] = (size, mask & earlier)

    def partial(self) -> list[tuple[int, int, int, int]]:
        return [(*key, size, mask) for key, (size, mask) in self._masks.items()]


class TransactionAcks:
    """Sends the acks of transactions for one topic or partition."""

    def __init__(
        self,
        broker: BrokerConsumer,
        chunked: ChunkedMessages,
        subscription: str,
        pool: ConnectionPool,
    ) -> None:
        self._broker = broker
        self._chunked = chunked
        self._subscription = subscription
        self._pool = pool
        self._open: dict[NativeTransaction, _Group] = {}  # groups that have not left
        self._present: dict[NativeTransaction, set[_Group]] = {}  # and those without an answer

    def ack(self, plan: AckPlan, txn: object) -> asyncio.Future[None]:
        """Send acks in a transaction (see `TransportConsumer.ack_in_transaction`)."""
        own = own_transaction(txn, self._pool, "consumer")
        own.check_open("ack in it")
        own.add_sender(self)
        group = self._open.get(own)
        if group is None:
            group = self._open[own] = _Group(self._broker.loop)
            own.on_ack()
            self._present.setdefault(own, set()).add(group)
            group.task = self._broker.loop.create_task(self._send(own, group))
            group.task.add_done_callback(partial(self._on_done, own, group))
        group.add(plan)
        return group.outcome

    def _on_done(self, txn: NativeTransaction, group: _Group, task: asyncio.Task[None]) -> None:
        """Report the outcome. The task may have been cancelled before its first step."""
        present = self._present[txn]
        present.discard(group)
        if not present:
            del self._present[txn]
        if self._open.get(txn) is group:
            del self._open[txn]
        error = _ended_error(txn) if task.cancelled() else task.exception()
        if error is None:
            txn.on_acked()
        else:
            txn.on_failed(error, "an ack")
        if group.outcome.done():  # its caller cancelled it
            return
        if error is None:
            group.outcome.set_result(None)
        else:
            group.outcome.set_exception(error)
            group.outcome.exception()  # marks it as retrieved: the commit reports it too

    async def _send(self, txn: NativeTransaction, group: _Group) -> None:
        for answer in await self._write_when_ready(txn, group):
            await answer

    async def _write_when_ready(
        self, txn: NativeTransaction, group: _Group
    ) -> list[asyncio.Future[object]]:
        """Write the commands of a group as soon as the topic and the transaction allow it.

        While the consumer is disconnected, the acks wait: nothing was sent.
        """
        registering = txn.register_subscription(self._broker.topic, self._subscription)
        if registering is not None:
            await asyncio.shield(registering)
        session = await self._broker.until_attached(txn.deadline_s)
        # From here on to the last command nothing else runs.
        del self._open[txn]
        if not txn.may_send:
            raise _ended_error(txn)
        consumer_id, most = self._broker.consumer_id, commands.MOST_IDS
        txn_bits = (txn.id.most, txn.id.least)
        answers: list[asyncio.Future[object]] = []

        def request() -> int:
            request_id = session.requests.new_id()
            purpose = f"ack on {self._broker.topic} in transaction {txn.id}"
            answers.append(session.requests.begin(request_id, purpose, self._broker.timeout_s))
            return request_id

        if group.cumulative is not None:
            command = commands.cumulative_ack_in_transaction
            session.write(command(consumer_id, group.cumulative, request(), txn_bits))
        entries, partial = self._chunked.expand(group.entries), group.partial()
        for at in range(0, max(len(entries), len(partial)), most):
            part = slice(at, at + most)
            session.write(
                commands.individual_acks(
                    consumer_id, entries[part], partial[part], request(), txn_bits
                )
            )
        if entries is not group.entries:
            acked = group.entries

            def forget(committed: bool) -> None:
                if committed:
                    self._chunked.forget(acked)

            txn.when_ended(forget)
        return answers

    # `TransactionSender`

    def discard(self, txn: NativeTransaction, error: Exception) -> None:
        """Fail the acks that have not left."""
        group = self._open.get(txn)
        if group is not None:
            group.task.cancel()

    async def flush_of(self, txn: NativeTransaction) -> None:
        present = [group.task for group in self._present.get(txn, ())]
        if present:
            await asyncio.wait(present)

    # The end

    async def close(self, timeout_s: float) -> None:
        """Wait until the present acks have left, for at most `timeout_s`; then fail the others."""
        waiting = [group.task for group in self._open.values()]
        if waiting and self._broker.session is not None:
            await asyncio.wait(waiting, timeout=timeout_s)
        self.abandon()

    def abandon(self) -> None:
        """Fail the acks that have not left."""
        for group in list(self._open.values()):
            group.task.cancel()


def _ended_error(txn: NativeTransaction) -> TransactionAbortedError:
    return TransactionAbortedError(
        f"transaction {txn.id} ended before the ack was sent", txn_id=txn.id
    )
