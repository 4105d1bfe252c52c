"""The consumer that a broker holds for one topic: its session, its id and its state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ....errors import ClosedError, NotConnected
from ..connection.session import Session
from .consumer_states import HELD, State, StateMachine, Step

_Answer = TypeVar("_Answer")


class BrokerConsumer(StateMachine):
    """One topic's consumer as the broker knows it, shared by the parts of a `TopicConsumer`.

    Attributes:
        timeout_s: The operation timeout, in s.
        session: The connection to the broker. It is present exactly in the states of `HELD`.
        consumer_id: The consumer id of the current attachment. Each attachment has an id of its
            own, so that late commands for an old attachment reach no consumer.
    """

    def __init__(self, topic: str, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        super().__init__()
        self.topic: str = topic
        self.session: Session | None = None
        self.consumer_id: int = -1
        self.loop: asyncio.AbstractEventLoop = loop
        self.timeout_s: float = timeout_s
        self._is_attached_or_ended = asyncio.Event()

    @property
    def is_ended(self) -> bool:
        return self.state in (State.CLOSING, State.ENDED)

    def attach(self, session: Session, consumer_id: int) -> None:
        self.step(Step.ATTACH)
        self.session, self.consumer_id = session, consumer_id
        self._is_attached_or_ended.set()

    def detach(self, step: Step) -> bool:
        """Make a step, and return True if the broker held the consumer before it and not after."""
        self.step(step)
        if self.session is None or self.state in HELD:
            return False
        self.session = None
        if not self.is_ended:
            self._is_attached_or_ended.clear()
        return True

    def end(self) -> None:
        self.step(Step.END)
        self._is_attached_or_ended.set()  # a seek that waits for an attachment ends

    def finish(self) -> Session | None:
        """Record that the closed consumer leaves its broker, and return its session."""
        self.step(Step.FINISH)
        session, self.session = self.session, None
        return session

    def ready(self) -> Session:
        """Return the session, or raise NotConnected."""
        session = self.session
        if session is None:
            raise NotConnected(
                f"{self.topic}: not connected at the moment; it reconnects by itself"
            )
        return session

    async def until_attached(self, deadline: float) -> Session:
        """Wait until the consumer is attached, and return its session.

        Raises:
            NotConnected: if it was not attached by `deadline`, in loop time.
            ClosedError: if it was closed.
        """
        if not self._is_attached_or_ended.is_set():  # a timer costs more than the question
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._is_attached_or_ended.wait()
        if self.is_ended:
            raise ClosedError(f"{self.topic}: the consumer was closed")
        return self.ready()

    async def when_attached(self, ask: Callable[[Session], Awaitable[_Answer]]) -> _Answer:
        """Send a request once the consumer is attached, and again if the connection is lost.

        Raises:
            NotConnected: if there was no answer within the operation timeout.
            PulsarException: if the broker refused or did not answer in time.
        """
        deadline = self.loop.time() + self.timeout_s
        while True:
            session = await self.until_attached(deadline)
            try:
                return await ask(session)
            except NotConnected:
                if self.loop.time() >= deadline:
                    raise
