"""What is known of a consumer's topics besides their messages, and telling the application.

Owns `Announcer`. The application's listener runs in a turn of the loop of its own, when all that
the event means is done here: it may call whatever it likes, and what it raises is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable

from ..transport.base import ConsumerLink
from .events import (
    BecameActive,
    BecameInactive,
    Connected,
    ConsumerEvent,
    Disconnected,
    EndOfTopic,
    TopicAdded,
)

logger: logging.Logger = logging.getLogger(__name__)


class Announcer:
    """Tells of one consumer's topics.

    Args:
        link: The subscription.
        listener: The application's, if it has one.
        loop: The consumer's event loop.
    """

    def __init__(
        self,
        link: ConsumerLink,
        listener: Callable[[ConsumerEvent], object] | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._link = link
        self._listener = listener
        self._loop = loop
        self._ended: set[int] = set()
        self._lost: set[int] = set()  # of which it was told, and not yet that they are back
        self._active: dict[int, bool] = {}  # Failover: of those that the broker has told

    # What the transport says

    def connected(self, only: Container[int] | None) -> None:
        """Subscribed again, to these sources or to all; after a seek that is no news."""
        back = {each for each in self._lost if only is None or each in only}
        self._lost -= back
        if back:
            self._tell(lambda: Connected(self._topics(back)))

    def disconnected(self, only: Container[int] | None) -> None:
        """The connection to these sources is lost: whose turn it is then is told anew."""
        for source in [each for each in self._active if only is None or each in only]:
            del self._active[source]
        self.doubtful(only)

    def doubtful(self, only: Container[int] | None) -> None:
        """That to one of them is lost."""
        self._lost.update(each for each in self._link.sources() if only is None or each in only)
        self._tell(lambda: Disconnected(self._topics(only)))

    def active_changed(self, source: int, active: bool) -> None:
        """Failover: whose turn it is; brokers repeat it."""
        if self._active.get(source) is not active:
            self._active[source] = active
            event = BecameActive if active else BecameInactive
            self._tell(lambda: event(self._topic(source)))

    def end_of_topic(self, source: int) -> None:
        """All of a terminated topic is acked."""
        if source not in self._ended:
            self._ended.add(source)
            self._tell(lambda: EndOfTopic(self._topic(source)))

    def new_source(self, source: int) -> None:
        """One more is read."""
        self._tell(lambda: TopicAdded(self._topic(source)))

    def sought(self, only: Container[int] | None) -> None:
        """What was at its end may have messages again."""
        self._ended = {each for each in self._ended if not (only is None or each in only)}

    # What is known

    @property
    def ended_topics(self) -> tuple[str, ...]:
        """Names of those that are at their end."""
        return self._names(sorted(self._ended))

    @property
    def inactive_topics(self) -> tuple[str, ...]:
        """Names of those that another consumer gets the messages of, on Failover."""
        return self._names(source for source, active in self._active.items() if not active)

    @property
    def all_ended(self) -> bool:
        """Whether nothing more comes, of any topic that is read now."""
        return bool(self._ended) and self._ended.issuperset(self._link.sources())

    def _topics(self, only: Container[int] | None) -> tuple[str, ...]:
        return self._names(each for each in self._link.sources() if only is None or each in only)

    def _names(self, sources: Iterable[int]) -> tuple[str, ...]:
        return tuple(map(self._topic, sources))

    def _topic(self, source: int) -> str:
        return self._link.topic_of(source)[0]

    # The application

    def _tell(self, event: Callable[[], ConsumerEvent]) -> None:
        if self._listener is not None:
            self._loop.call_soon(self._call, event())

    def _call(self, event: ConsumerEvent) -> None:
        if self._listener is None:
            return  # closed meanwhile
        try:
            self._listener(event)
        except Exception:
            logger.exception("the event_listener failed at %r", event)

    def close(self) -> None:
        """Tell nothing more."""
        self._listener = None
