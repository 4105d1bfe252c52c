"""What the broker has confirmed of the acks that left, and who waits for that.

Owns `AckReceipts`. A caller waits for a source, not for an ack: a future, shared by all who asked
meanwhile, is done once everything that was acked there by then has left and is confirmed. What was
lost with a connection has not left: whoever waits for it goes on to wait. After a seek there is
nothing to wait for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from ...core.acks import Unsent
from ...core.topic_state import TopicState
from ...eventloop.alarm import now_ms


class _Line:
    """The flushes of one source that are not confirmed, by number, and who waits for them.

    Attributes:
        unconfirmed: Numbers, oldest first.
        last: That of the last flush.
        open: Futures of acks that have not all left.
        left: Those of acks that have: the last flush that has any of them, and the future.
    """

    __slots__ = ("last", "left", "open", "unconfirmed")

    def __init__(self) -> None:
        self.unconfirmed: dict[int, None] = {}
        self.last: int = 0
        self.open: list[asyncio.Future[None]] = []
        self.left: deque[tuple[int, asyncio.Future[None]]] = deque()


class AckReceipts:
    """The receipts of one consumer.

    Args:
        loop: Its event loop.
        not_confirmed: Called with a source and acks of it that left and have to be sent again.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        not_confirmed: Callable[[TopicState, Unsent], None],
    ) -> None:
        self._loop = loop
        self._not_confirmed = not_confirmed
        self._lines: dict[TopicState, _Line] = {}

    def of(self, states: Iterable[TopicState]) -> list[asyncio.Future[None]]:
        """What is done once all that is acked of these sources now is confirmed.

        Shared: wait for it behind a shield. A source of which all is confirmed has none.
        """
        found = (self._of(state) for state in states)
        return [future for future in found if future is not None]

    def _of(self, state: TopicState) -> asyncio.Future[None] | None:
        line = self._lines.setdefault(state, _Line())
        if not _all_left(state):
            if not line.open:
                line.open.append(self._loop.create_future())
            return line.open[-1]
        if not line.unconfirmed:
            return None
        if not (line.left and line.left[-1][0] == line.last):
            line.left.append((line.last, self._loop.create_future()))
        return line.left[-1][1]

    def sent(self, state: TopicState, unsent: Unsent, receipt: Awaitable[None] | None) -> None:
        """Acks left; None where nobody is going to confirm them, and they count as confirmed."""
        line = self._lines.setdefault(state, _Line())
        if receipt is not None:
            unsent.flush.await_receipt()
            line.last += 1
            line.unconfirmed[line.last] = None
            answer = asyncio.ensure_future(receipt)
            answer.add_done_callback(partial(self._answered, state, line, line.last, unsent))
        self._close(state, line)

    def _close(self, state: TopicState, line: _Line) -> None:
        """When all has left, those who wait know for which flush."""
        if line.open and _all_left(state):
            opened, line.open = line.open, []
            line.left.extend((line.last, future) for future in opened)
            _tell(line)

    def _answered(
        self,
        state: TopicState,
        line: _Line,
        number: int,
        unsent: Unsent,
        answer: asyncio.Future[None],
    ) -> None:
        failed = answer.cancelled() or answer.exception() is not None
        if number not in line.unconfirmed:
            return  # its connection fell, and the acks are sent again; or they were sought over
        del line.unconfirmed[number]
        if failed:
            while line.left and line.left[-1][0] >= number:
                line.open.append(line.left.pop()[1])
            self._not_confirmed(state, unsent)
        else:
            unsent.flush.confirmed(now_ms(self._loop))
            _tell(line)

    def disconnected(self, states: Iterable[TopicState]) -> None:
        """What was not confirmed is sent again."""
        for state in states:
            line = self._lines.get(state)
            if line is not None:
                line.unconfirmed.clear()
                line.open += [future for _, future in line.left]
                line.left.clear()

    def connected(self, states: Iterable[TopicState]) -> None:
        """What had to be sent again was."""
        for state in states:
            if state in self._lines:
                self._close(state, self._lines[state])

    def sought(self, states: Iterable[TopicState]) -> None:
        """All that was acked may rightly come again: nobody has to wait for it."""
        for state in states:
            line = self._lines.pop(state, None)
            if line is not None:
                line.unconfirmed.clear()
                for future in _waiting(line):
                    future.set_result(None)

    @property
    def awaited(self) -> list[asyncio.Future[None]]:
        """What somebody waits for now."""
        return [future for line in self._lines.values() for future in _waiting(line)]

    def fail(self, error: Exception) -> None:
        """Nothing will be confirmed any more."""
        awaited = [] if self._loop.is_closed() else self.awaited
        for line in self._lines.values():
            line.unconfirmed.clear()
        self._lines.clear()
        for future in awaited:
            future.set_exception(error)
            future.exception()  # who does not await it need not be told


def _all_left(state: TopicState) -> bool:
    return not (len(state.acks) or state.acks.lost)


def _tell(line: _Line) -> None:
    """Those whose last flush, and all before it, are confirmed."""
    oldest = next(iter(line.unconfirmed), None)
    while line.left and (oldest is None or line.left[0][0] < oldest):
        line.left.popleft()[1].set_result(None)


def _waiting(line: _Line) -> list[asyncio.Future[None]]:
    return [*line.open, *(future for _, future in line.left)]
