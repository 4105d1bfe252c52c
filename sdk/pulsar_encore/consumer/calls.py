"""Settling calls: done when made, wherever they are made.

Owns `Calls`. A call on the consumer's loop acts at once and returns what there is to await; one in
a thread without an event loop is made on the consumer's; a long list is acked in several turns of
the loop. What is under way is done before anything that ends or outdates it (`settle_now`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from ..awaiting import Acted, ActedLast, Acting, Handed, Refused
from ..errors import EncoreError
from ..loops import Place, running_loop
from ..mailbox import Mailbox
from ..turn import Turn
from .life import Life
from .receiving.listener import in_callback
from .settling.ownership import Settleable
from .settling.settlement import Settlement

#: A list that may take longer than a turn of the loop.
LONG: Final = 500

Call = Coroutine[Any, Any, None]
"""What a settling call returns."""


class Calls:
    """The settling calls of one consumer.

    Attributes:
        acted: What a call returns that has acted.
        acted_last: The same when it was the last of its turn of the loop.

    Args:
        place: The consumer's loop and process.
        turn: When a call lets the loop run.
        life: Whether the consumer can still be used.
        settlement: Acks the messages of lists.
    """

    def __init__(self, place: Place, turn: Turn, life: Life, settlement: Settlement) -> None:
        self._place = place
        self._loop = loop = place.loop
        self._turn = turn
        self._life = life
        self._settlement = settlement
        self.acted: Acted = Acted(loop)
        self.acted_last: ActedLast = ActedLast(turn)
        self._handed = Mailbox(loop)  # calls of other threads
        self._lists: dict[asyncio.Task[None], deque[Settleable]] = {}  # long ones, being acked

    def act(self, step: Callable[..., None], *args: Any) -> Call:
        """Take a step now.

        What it raises is raised where it is awaited; in a listener's callback here, for that has
        failed then, and nobody may be awaiting it.
        """
        try:
            self._life.check()
            step(*args)
        except EncoreError as error:
            if in_callback():
                raise
            return Refused(error, self._loop)
        return self._end_turn()

    def _end_turn(self) -> Call:
        """What a call that has acted returns: for the loop to run, when the turn is over."""
        turn = self._turn
        over = turn.clock() >= turn.ends
        return self.acted_last if over else self.acted

    def elsewhere(self, call: Callable[..., Call], *args: Any) -> Call:
        """The call, made where the consumer's loop does not run.

        Raises:
            WrongLoopError: In a running loop, or the consumer's is closed.
            ForkedError: In a child of its process.
        """
        self._place.check_process()
        if running_loop() is not None or self._place.over:
            self._place.check()
        outcome: concurrent.futures.Future[None] = concurrent.futures.Future()
        if not self._handed.post(_make, outcome, call, *args):
            self._place.check()
        return Handed(outcome)

    def ack_list(self, messages: Sequence[Settleable]) -> Call:
        """Ack a long list, in several turns of the loop."""
        rest = deque(messages)  # the caller's own list may change
        task = self._loop.create_task(self._ack_all(rest))
        self._lists[task] = rest
        task.add_done_callback(self._lists.pop)
        return Acting(task)

    async def _ack_all(self, rest: deque[Settleable]) -> None:
        while rest:
            self._life.check()
            self._settlement.ack(rest[0])
            rest.popleft()
            await self._end_turn()

    def settle_now(self) -> None:
        """What was called for and is not done yet, before something that ends or outdates it."""
        self._handed.take_all()
        for rest in self._lists.values():
            with contextlib.suppress(EncoreError):  # its own task meets it as well, and says so
                while rest:
                    self._settlement.ack(rest[0])
                    rest.popleft()


def _make(outcome: concurrent.futures.Future[None], call: Callable[..., Call], *args: Any) -> None:
    """Make another thread's call on the loop, and tell it what came of it."""
    try:
        acted = call(*args)
    except Exception as error:
        outcome.set_exception(error)
        return
    if isinstance(acted, Refused):
        outcome.set_exception(acted.exception())
    elif isinstance(acted, Acting):
        acted.task.add_done_callback(partial(_pass_on, outcome))
    else:
        outcome.set_result(None)


def _pass_on(outcome: concurrent.futures.Future[None], task: asyncio.Task[None]) -> None:
    if task.cancelled():
        outcome.cancel()
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(None)
