"""Settling calls: done when made, wherever they are made.

Owns `SettlementCalls`. A call on the consumer's loop acts at once and returns what there is to
await; one in a thread without an event loop is made on the consumer's; a long list is acked in
several turns of the loop. What is under way is done before anything that ends or outdates it
(`settle_now`).
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
from .consumer_status import ConsumerStatus
from .delivery.listener import in_callback
from .settlement.ack_receipts import AckReceipts
from .settlement.ownership import Settleable
from .settlement.settlement import Settlement

#: A list that may take longer than a turn of the loop.
LONG: Final = 500

Call = Coroutine[Any, Any, None]
"""What a settling call returns."""


class _Listed:
    """A list that is being acked, and the sources it was of so far."""

    def __init__(self, messages: Sequence[Settleable], settlement: Settlement) -> None:
        self.acked: set[TopicState] = set()
        self._messages = tuple(messages)  # the caller's own list may change
        self._at = 0
        self._settlement = settlement

    @property
    def is_left(self) -> bool:
        return self._at < len(self._messages)

    def ack_next(self) -> None:
        source, self._at = self._settlement.ack_row(self._messages, self._at)
        self.acked.add(source)


class SettlementCalls:
    """The settling calls of one consumer.

    Attributes:
        acted: What a call returns that has acted.
        acted_last: The same when it was the last of its turn of the loop.

    Args:
        affinity: The consumer's loop and process.
        fair_yield: When a call lets the loop run.
        status: Whether the consumer can still be used.
        settlement: Acks the messages of lists.
        receipts: What acks wait for; None when they do not.
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
        self.acted: Done = Done(loop)
        self.acted_last: DoneByLast = DoneByLast(fair_yield)
        self._handed = Mailbox(loop)  # calls of other threads
        self._lists: dict[asyncio.Task[None], _Listed] = {}  # long ones, being acked
        self._settles = 0  # calls of `settle` that run

    def act(self, step: Callable[..., Iterable[TopicState] | None], *args: Any) -> Call:
        """Take a step now.

        What it raises is raised where it is awaited; in a listener's callback here, for that has
        failed then, and nobody may be awaiting it.

        Args:
            step: Returns the sources in which it acked something, if it acks.
            args: What it is called with.
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

    def _end_turn(self) -> Call:
        """What a call that has acted returns: for the loop to run, when the turn is over."""
        fair_yield = self._fair_yield
        over = fair_yield.clock() >= fair_yield.ends
        return self.acted_last if over else self.acted

    def elsewhere(self, call: Callable[..., Call], *args: Any) -> Call:
        """The call, made where the consumer's loop does not run.

        Raises:
            WrongLoopError: In a running loop, or the consumer's is closed.
            ForkedError: In a child of its process.
        """
        self._affinity.check_process()
        if running_loop() is not None or self._affinity.over:
            self._affinity.check()
        outcome: concurrent.futures.Future[None] = concurrent.futures.Future()
        if not self._handed.post(_make, outcome, call, *args):
            self._affinity.check()
        return HandedToLoop(outcome)

    def ack_list(self, messages: Sequence[Settleable]) -> Call:
        """Ack a long list, in several turns of the loop."""
        listed = _Listed(messages, self._settlement)
        task = self._loop.create_task(self._ack_all(listed))
        self._lists[task] = listed
        task.add_done_callback(self._lists.pop)
        return InProgress(task)

    def ack_now(self, messages: Sequence[Settleable]) -> set[TopicState]:
        """Ack a short list in one step; returns the sources it was of."""
        listed = _Listed(messages, self._settlement)
        while listed.is_left:
            listed.ack_next()
        return listed.acked

    async def _ack_all(self, listed: _Listed) -> None:
        while listed.is_left:
            if not (self._settles or self._status.closing):  # then `settle` finishes the list
                self._status.check()
            listed.ack_next()
            await self._end_turn()
        if self._receipts is not None:
            await AwaitingReceipt(self._receipts.of(listed.acked))

    def take_handed(self) -> None:
        """Make the calls that other threads have handed over."""
        self._handed.take_all()

    def settle_now(self) -> None:
        """What was called for and is not done yet, before something that ends or outdates it."""
        self._handed.take_all()
        for listed in self._lists.values():
            with contextlib.suppress(EncoreError):  # its own task meets it as well, and says so
                while listed.is_left:
                    listed.ack_next()

    async def settle(self) -> None:
        """Like `settle_now`, in several turns of the loop.

        Lists that are being acked finish even if the consumer already refuses new calls.
        """
        self._settles += 1
        try:
            self._handed.take_all()
            for listed in list(self._lists.values()):
                with contextlib.suppress(EncoreError):
                    while listed.is_left:
                        listed.ack_next()
                        await self._end_turn()
        finally:
            self._settles -= 1


def _make(outcome: concurrent.futures.Future[None], call: Callable[..., Call], *args: Any) -> None:
    """Make another thread's call on the loop, and tell it what came of it."""
    try:
        acted = call(*args)
    except Exception as error:
        outcome.set_exception(error)
        return
    if isinstance(acted, Failing):
        outcome.set_exception(acted.exception())
    elif isinstance(acted, InProgress):
        acted.task.add_done_callback(partial(_pass_on, outcome))
    elif isinstance(acted, AwaitingReceipt):
        asyncio.gather(*acted.futures).add_done_callback(partial(_pass_on, outcome))
    else:
        outcome.set_result(None)


def _pass_on(outcome: concurrent.futures.Future[None], task: asyncio.Future[Any]) -> None:
    if task.cancelled():
        outcome.cancel()
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(None)
