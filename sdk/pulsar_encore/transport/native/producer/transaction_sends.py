"""Holds messages of transactions until their topic or partition is registered.

A message that arrives at a topic before the coordinator knows of it can hold up the topic's readers
for ever. Plain messages pass the held ones; messages of one transaction keep their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from ....values.outgoing_message import OutgoingMessage
from ..transactions.native_transaction import NativeTransaction
from .partition_producer import PartitionProducer
from .send_queue import SendQueue
from .send_results import ended_error, set_failed
from .unconfirmed_frames import Waiter


class _Held(NamedTuple):
    part: PartitionProducer
    message: OutgoingMessage
    waiter: Waiter


class TransactionSends:
    """The messages of transactions that one producer may not send yet."""

    def __init__(self, queue: SendQueue) -> None:
        self._queue = queue
        self._held: dict[tuple[NativeTransaction, str], list[_Held]] = {}

    def put(
        self,
        part: PartitionProducer,
        message: OutgoingMessage,
        waiter: Waiter,
        txn: NativeTransaction,
    ) -> None:
        """Send a message now or as soon as the topic of `part` is registered in `txn`."""
        key = (txn, part.topic)
        held = self._held.get(key)
        if held is None:
            registering = txn.work.register(part.topic)
            if registering is None:
                self._queue.put(part, message, waiter)
                return
            held = self._held[key] = []
            registering.add_done_callback(partial(self._on_registered, key))
        held.append(_Held(part, message, waiter))

    @property
    def waiters(self) -> list[Waiter]:
        return [each.waiter for held in self._held.values() for each in held]

    def _on_registered(
        self, key: tuple[NativeTransaction, str], registering: asyncio.Future[None]
    ) -> None:
        held = self._held.pop(key, [])
        if registering.cancelled():
            self._fail(held, ended_error(key[0]))
            return
        error = registering.exception()
        if error is not None:
            self._fail(held, error if isinstance(error, Exception) else ended_error(key[0]))
            return
        for part, message, waiter in held:
            if waiter.done():
                continue  # the caller has given up
            if not key[0].may_send:
                set_failed((waiter,), ended_error(key[0]))
            elif part.error is not None:
                set_failed((waiter,), part.error)
            else:
                self._put(part, message, waiter)

    def _put(self, part: PartitionProducer, message: OutgoingMessage, waiter: Waiter) -> None:
        try:
            self._queue.put(part, message, waiter)
        except Exception as error:  # the others must still be sent, and the commit waits for this
            set_failed((waiter,), error)

    def discard(self, txn: NativeTransaction, error: Exception) -> None:
        for key in [key for key in self._held if key[0] is txn]:
            self._fail(self._held.pop(key), error)

    def fail_all(self, error: Exception) -> None:
        held, self._held = self._held, {}
        for each in held.values():
            self._fail(each, error)

    def _fail(self, held: Iterable[_Held], error: Exception) -> None:
        set_failed((each.waiter for each in held), error)
