"""The acks and nacks of one consumer, which take effect when the call is made.

Two kinds of calls are pending for a while: those from threads without an event loop, and long
lists, which are acked over several iterations of the loop. `settle` and `settle_now` complete them
before a close, seek or rewind.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final

from ..core.topic_state import TopicState
from ..errors import EncoreError
from ..eventloop.affinity import LoopAffinity, running_loop
from ..eventloop.awaitables import (
    AwaitingReceipt,
    Done,
    DoneByLast,
    Failing,
    HandedToLoop,
    InProgress,
)
from ..eventloop.fair_yield import FairYield
from ..eventloop.mailbox import Mailbox
from ..transaction import Transaction, need_transport_transaction
from ..transport.interface import TransportTransaction
from .consumer_status import ConsumerStatus
from .delivery.listener import in_callback
from .settlement.ack_receipts import AckReceipts
from .settlement.ownership import Settleable
from .settlement.settlement import Settlement

#: Lists with more messages are acked over several iterations of the loop.
LONG: Final = 500

Call = Coroutine[Any, Any, None]
"""The awaitable that a settling call returns."""


class _Listed:
    def __init__(self, messages: Sequence[Settleable], settlement: Settlement) -> None:
        self.acked: set[TopicState] = set()
        self._messages = tuple(messages)  # a copy, because the caller may change its list
        self._at = 0
        self._settlement = settlement

    @property
    def is_left(self) -> bool:
        return self._at < len(self._messages)

    def ack_next(self) -> None:
        topic_state, self._at = self._settlement.ack_row(self._messages, self._at)
        self.acked.add(topic_state)


class SettlementCalls:
    """The settling calls of one consumer.

    Attributes:
        done: The awaitable of a completed call.
        done_last: The same, but awaiting it lets the loop run.
    """

    def __init__(
        self,
        affinity: LoopAffinity,
        fair_yield: FairYield,
        status: ConsumerStatus,
        settlement: Settlement,
        receipts: AckReceipts | None,
    ) -> None:
        self._affinity = affinity
        self._loop = loop = affinity.loop
        self._fair_yield = fair_yield
        self._status = status
        self._settlement = settlement
        self._receipts = receipts
        self.done: Done = Done(loop)
        self.done_last: DoneByLast = DoneByLast(fair_yield)
        self._mailbox = Mailbox(loop)  # calls from other threads
        self._lists: dict[asyncio.Task[None], _Listed] = {}  # long lists that are being acked
        self._settles = 0  # running calls of `settle`

    def act(self, step: Callable[..., Iterable[TopicState] | None], *args: Any) -> Call:
        """Run a step now and return an awaitable that raises its errors.

        Inside a listener's callback, this call itself raises, because the callback may not await
        the result. A step that acks returns the topic states.
        """
        try:
            self._status.check()
            acked = step(*args)
        except EncoreError as error:
            if in_callback():
                raise
            return Failing(error, self._loop)
        if self._receipts is not None and acked is not None:
            unconfirmed = self._receipts.of(acked)
            if unconfirmed:
                return AwaitingReceipt(unconfirmed)
        return self._end_turn()

    def act_in_transaction(
        self,
        step: Callable[[TransportTransaction], Sequence[asyncio.Future[None]]],
        txn: Transaction,
    ) -> Call:
        """Run a step now and return an awaitable for the futures that it returns, or its error.

        An error that nobody awaits makes the commit abort. Otherwise the application would handle
        the message twice. For example, the broker may have redelivered it before the ack.
        """
        transport_transaction: TransportTransaction | None = None
        try:
            transport_transaction = need_transport_transaction(txn)
            self._status.check()
            futures = step(transport_transaction)
        except EncoreError as error:
            if in_callback():
                raise
            failing = Failing(error, self._loop)
            if transport_transaction is not None:
                transport_transaction.spoil(
                    error, "an ack that nobody awaited", lambda: failing.is_seen
                )
            return failing
        return AwaitingReceipt(futures) if futures else self._end_turn()

    def _end_turn(self) -> Call:
        fair_yield = self._fair_yield
        over = fair_yield.clock() >= fair_yield.ends
        return self.done_last if over else self.done

    def call_on_loop(self, call: Callable[..., Call], *args: Any) -> Call:
        """Run a call on the consumer's loop, from a thread without an event loop."""
        self._affinity.check_process()
        if running_loop() is not None or self._affinity.loop_is_closed:
            self._affinity.check()
        outcome: concurrent.futures.Future[None] = concurrent.futures.Future()
        if not self._mailbox.post(_run_call, outcome, call, *args):
            self._affinity.check()
        return HandedToLoop(outcome)

    def ack_list(self, messages: Sequence[Settleable]) -> Call:
        listed = _Listed(messages, self._settlement)
        task = self._loop.create_task(self._ack_all(listed))
        self._lists[task] = listed
        task.add_done_callback(self._lists.pop)
        return InProgress(task)

    def ack_now(self, messages: Sequence[Settleable]) -> set[TopicState]:
        listed = _Listed(messages, self._settlement)
        while listed.is_left:
            listed.ack_next()
        return listed.acked

    async def _ack_all(self, listed: _Listed) -> None:
        while listed.is_left:
            if not (self._settles or self._status.closing):  # otherwise `settle` completes the list
                self._status.check()
            listed.ack_next()
            await self._end_turn()
        if self._receipts is not None:
            await AwaitingReceipt(self._receipts.of(listed.acked))

    def take_mailbox(self) -> None:
        self._mailbox.take_all()

    def settle_now(self) -> None:
        """Complete pending calls before an operation that ends or outdates them."""
        self._mailbox.take_all()
        for listed in self._lists.values():
            with contextlib.suppress(EncoreError):  # the list's own task raises the same error
                while listed.is_left:
                    listed.ack_next()

    async def settle(self) -> None:
        """Complete pending calls over several iterations of the loop."""
        self._settles += 1
        try:
            self._mailbox.take_all()
            for listed in list(self._lists.values()):
                with contextlib.suppress(EncoreError):
                    while listed.is_left:
                        listed.ack_next()
                        await self._end_turn()
        finally:
            self._settles -= 1


def _run_call(
    outcome: concurrent.futures.Future[None], call: Callable[..., Call], *args: Any
) -> None:
    try:
        done = call(*args)
    except Exception as error:
        outcome.set_exception(error)
        return
    if isinstance(done, Failing):
        outcome.set_exception(done.exception())
    elif isinstance(done, InProgress):
        done.task.add_done_callback(partial(_pass_on, outcome))
    elif isinstance(done, AwaitingReceipt):
        asyncio.gather(*done.futures).add_done_callback(partial(_pass_on, outcome))
    else:
        outcome.set_result(None)


def _pass_on(outcome: concurrent.futures.Future[None], task: asyncio.Future[Any]) -> None:
    if task.cancelled():
        outcome.cancel()
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(None)
