"""Ack receipts: which acks the broker has confirmed, and the callers that wait for them.

A caller waits for a topic, not for a single ack: its future is done when every earlier ack of the
topic is sent and confirmed. Acks that were lost with a connection count as unsent, so their callers
keep waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from ...core.acks import Unsent
from ...core.topic_state import TopicState
from ...eventloop.alarm import now_ms


@dataclass(eq=False, slots=True)
class _TopicReceipts:
    """The unconfirmed flushes of one topic, by number, and the futures of the waiting callers.

    Attributes:
        last: Number of the last flush.
        sent_waiters: Futures, each with the number of the last flush that it waits for.
    """

    unconfirmed: dict[int, None] = field(default_factory=dict)
    last: int = 0
    unsent_waiters: list[asyncio.Future[None]] = field(default_factory=list)
    sent_waiters: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)


class AckReceipts:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        not_confirmed: Callable[[TopicState, Unsent], None],
    ) -> None:
        self._loop = loop
        self._not_confirmed = not_confirmed
        self._topics: dict[TopicState, _TopicReceipts] = {}

    def of(self, states: Iterable[TopicState]) -> list[asyncio.Future[None]]:
        """Return a future for each topic with unconfirmed acks.

        The futures are shared by all callers: await them behind a shield.
        """
        found = (self._of(state) for state in states)
        return [future for future in found if future is not None]

    def _of(self, state: TopicState) -> asyncio.Future[None] | None:
        topic = self._topics.setdefault(state, _TopicReceipts())
        if not _all_sent(state):
            if not topic.unsent_waiters:
                topic.unsent_waiters.append(self._loop.create_future())
            return topic.unsent_waiters[-1]
        if not topic.unconfirmed:
            return None
        if not (topic.sent_waiters and topic.sent_waiters[-1][0] == topic.last):
            topic.sent_waiters.append((topic.last, self._loop.create_future()))
        return topic.sent_waiters[-1][1]

    def sent(self, state: TopicState, unsent: Unsent, receipt: Awaitable[None] | None) -> None:
        """Record that acks were sent. Without a receipt they count as confirmed."""
        topic = self._topics.setdefault(state, _TopicReceipts())
        if receipt is not None:
            unsent.flush.await_receipt()
            topic.last += 1
            topic.unconfirmed[topic.last] = None
            answer = asyncio.ensure_future(receipt)
            answer.add_done_callback(partial(self._answered, state, topic, topic.last, unsent))
        self._mark_sent(state, topic)

    def _mark_sent(self, state: TopicState, topic: _TopicReceipts) -> None:
        """Assign the futures of unsent acks to the last flush, once all are sent."""
        if topic.unsent_waiters and _all_sent(state):
            opened, topic.unsent_waiters = topic.unsent_waiters, []
            topic.sent_waiters.extend((topic.last, future) for future in opened)
            _resolve(topic)

    def _answered(
        self,
        state: TopicState,
        topic: _TopicReceipts,
        number: int,
        unsent: Unsent,
        answer: asyncio.Future[None],
    ) -> None:
        failed = answer.cancelled() or answer.exception() is not None
        if number not in topic.unconfirmed:
            return  # after a reconnect these acks are sent again; after a seek they do not matter
        del topic.unconfirmed[number]
        if failed:
            while topic.sent_waiters and topic.sent_waiters[-1][0] >= number:
                topic.unsent_waiters.append(topic.sent_waiters.pop()[1])
            self._not_confirmed(state, unsent)
        else:
            unsent.flush.confirmed(now_ms(self._loop))
            _resolve(topic)

    def disconnected(self, states: Iterable[TopicState]) -> None:
        """Count unconfirmed acks as unsent."""
        for state in states:
            topic = self._topics.get(state)
            if topic is not None:
                topic.unconfirmed.clear()
                topic.unsent_waiters += [future for _, future in topic.sent_waiters]
                topic.sent_waiters.clear()

    def connected(self, states: Iterable[TopicState]) -> None:
        for state in states:
            if state in self._topics:
                self._mark_sent(state, self._topics[state])

    def sought(self, states: Iterable[TopicState]) -> None:
        """End every wait: after a seek, acked messages may be delivered again."""
        for state in states:
            topic = self._topics.pop(state, None)
            if topic is not None:
                topic.unconfirmed.clear()
                for future in _futures_of(topic):
                    future.set_result(None)

    @property
    def awaited(self) -> list[asyncio.Future[None]]:
        return [future for topic in self._topics.values() for future in _futures_of(topic)]

    def fail(self, error: Exception) -> None:
        awaited = [] if self._loop.is_closed() else self.awaited
        for topic in self._topics.values():
            topic.unconfirmed.clear()
        self._topics.clear()
        for future in awaited:
            future.set_exception(error)
            future.exception()  # mark as retrieved, in case no caller awaits it


def _all_sent(state: TopicState) -> bool:
    return not (len(state.acks) or state.acks.lost)


def _resolve(topic: _TopicReceipts) -> None:
    """Resolve the futures whose flush and all earlier ones are confirmed."""
    oldest = next(iter(topic.unconfirmed), None)
    while topic.sent_waiters and (oldest is None or topic.sent_waiters[0][0] < oldest):
        topic.sent_waiters.popleft()[1].set_result(None)


def _futures_of(topic: _TopicReceipts) -> list[asyncio.Future[None]]:
    return [*topic.unsent_waiters, *(future for _, future in topic.sent_waiters)]
