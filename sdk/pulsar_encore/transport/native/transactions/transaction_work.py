"""The registrations, sends and acks of an open transaction, and their answers.

Brokers check neither at SEND and ACK nor at the end whether a message still belongs to an open
transaction. So a topic is registered before the first message, and a subscription before the first
ack, and an end is requested when every send and ack has its answer or its error
(`docs/notes/wire-protocol.md#transactions`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from ....eventloop.shielded_work import seen
from ....values.message_id import MessageId
from ....values.transaction_id import TxnId
from .coordinators import Coordinators
from .stored_messages import StoredMessages

_Registration: TypeAlias = str | tuple[str, str]
"""A topic that gets messages, or a topic and a subscription whose messages are acked."""


class WorkFailure(NamedTuple):
    """A failed operation that makes the commit abort."""

    error: BaseException
    operation: str
    is_seen: Callable[[], bool] = lambda: False


class TransactionWork:
    """The registrations, sends and acks of one transaction.

    Attributes:
        stored: The messages that the broker has stored.
        pending: Sends and acks without an answer.
        has_acked: The broker has answered an ack.
        failure: Makes the commit abort, and is set by `find_failure` at the latest.
    """

    def __init__(
        self,
        coordinators: Coordinators,
        txn_id: TxnId,
        loop: asyncio.AbstractEventLoop,
        stored: StoredMessages,
    ) -> None:
        self._coordinators = coordinators
        self._txn_id = txn_id
        self._loop = loop
        self.stored: StoredMessages = stored
        self.pending: int = 0
        self.has_acked: bool = False
        self._registered: set[_Registration] = set()
        self._registering: dict[_Registration, asyncio.Task[None]] = {}
        self._all_done: asyncio.Future[None] | None = None
        self.failure: WorkFailure | None = None
        self._refusals: list[WorkFailure] = []  # each counts unless a caller has seen it

    # Registrations

    def register(self, topic: str) -> asyncio.Future[None] | None:
        """Return None if messages for a topic or partition may leave, else the future for that."""
        return self._register(topic)

    def register_subscription(self, topic: str, name: str) -> asyncio.Future[None] | None:
        """Return None if acks of a subscription may leave, else the future for that."""
        return self._register((topic, name))

    def _register(self, registration: _Registration) -> asyncio.Future[None] | None:
        if registration in self._registered:
            return None
        task = self._registering.get(registration)
        if task is None:
            task = self._registering[registration] = seen(
                self._loop.create_task(self._add(registration))
            )
            task.add_done_callback(lambda _: self._registering.pop(registration))
        return task

    async def _add(self, registration: _Registration) -> None:
        if isinstance(registration, str):
            await self._coordinators.add_partitions(self._txn_id, [registration])
        else:
            await self._coordinators.add_subscriptions(self._txn_id, [registration])
        self._registered.add(registration)

    def cancel_registrations(self) -> None:
        for task in self._registering.values():
            task.cancel()

    async def until_registered(self) -> None:
        """Wait until no registration is on its way."""
        if self._registering:
            await asyncio.wait(list(self._registering.values()))

    # Sends and acks

    def on_send(self) -> None:
        self.pending += 1

    def on_ack(self) -> None:
        self.pending += 1

    def on_stored(self, message_id: MessageId) -> None:
        self.stored.add(message_id)
        self._on_answered()

    def on_acked(self) -> None:
        self.has_acked = True
        self._on_answered()

    def on_failed(self, error: BaseException, operation: str = "a send") -> None:
        self.spoil(error, operation)
        self._on_answered()

    def spoil(
        self,
        error: BaseException,
        operation: str,
        is_seen: Callable[[], bool] | None = None,
    ) -> None:
        """Have `commit` abort instead (see `TransportTransaction.spoil`)."""
        if is_seen is not None:
            self._refusals.append(WorkFailure(error, operation, is_seen))
        elif self.failure is None:
            self.failure = WorkFailure(error, operation)

    def _on_answered(self) -> None:
        self.pending -= 1
        if not self.pending and self._all_done is not None and not self._all_done.done():
            self._all_done.set_result(None)

    # Before the end

    async def until_answered(self) -> None:
        """Wait until every send and ack has its answer or its error."""
        if self.pending:
            self._all_done = self._loop.create_future()
            await self._all_done

    def find_failure(self) -> WorkFailure | None:
        """Return the failure that makes the commit abort, or None."""
        if self.failure is None:
            self.failure = next((each for each in self._refusals if not each.is_seen()), None)
        return self.failure
