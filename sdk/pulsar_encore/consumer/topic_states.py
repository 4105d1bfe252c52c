"""The topics and partitions that a consumer has heard of, and the sums over them.

Owns `TopicStates`: the one place that holds every `TopicState`, makes them, and adds them up. One
that is seen only now was there all along: what happened to the others a while ago happened to it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Container, Iterator
from typing import Any, Final

from ..core.due_index import DueIndex, TimeBucketIndex
from ..core.durable import Durable
from ..core.topic_state import TopicState
from ..eventloop.alarm import now_ms
from ..options import ConsumerOptions
from ..transport.interface import TransportConsumer
from ..values.topic_names import partition_of

# How long after a reconnect an entry may come again because its ack was lost with the connection.
SUSPECT_S: Final = 30.0
OVERTAKEN_S: Final = 2.0  # a redelivery that an ack did not overtake arrives sooner than this

_MOST_NEWS: Final = 32  # of connections: several comings and goings of each part


class _OnFirstSight(dict[int, TopicState]):
    """A dict, because every delivery looks into it, that makes what is not there."""

    def __init__(self, new: Callable[[int], TopicState]) -> None:
        super().__init__()
        self._new = new

    def __missing__(self, number: int) -> TopicState:
        state = self[number] = self._new(number)
        return state


class TopicStates:
    """All sources of one consumer.

    Attributes:
        by_number: Each by the transport's number, made on first sight.

    Args:
        link: Names them.
        options: The subscription.
        loop: The consumer's event loop.
        new_index: Makes what keeps due times; called twice for each source, once with `new_nacks`.
        durable_of: What of a topic outlives the process, by its full name.
        dispose: Frees the records of what is out of use; None frees them at once.
        new_nacks: Makes the index of waiting nacks of a topic, by its full name; None for one of
            `new_index`. Ack timeouts always have one of `new_index`: each belongs to a message that
            is held here, whose record takes a hundred times the memory.
    """

    def __init__(
        self,
        link: TransportConsumer,
        options: ConsumerOptions,
        loop: asyncio.AbstractEventLoop,
        new_index: Callable[[], DueIndex] = TimeBucketIndex,
        durable_of: Callable[[str], Durable | None] | None = None,
        dispose: Callable[[dict[Any, Any] | list[Any]], None] | None = None,
        new_nacks: Callable[[str], DueIndex] | None = None,
    ) -> None:
        self._link = link
        self._new_nacks = new_nacks
        self._options = options
        self._loop = loop
        self._new_index = new_index
        self._durable_of = durable_of
        self._dispose = dispose
        self.by_number: dict[int, TopicState] = _OnFirstSight(self._new)
        # What was last heard of connections: when, what, and of which sources (None: of all).
        self._news: deque[tuple[float, str, Container[int] | None]] = deque(maxlen=_MOST_NEWS)
        self._asked_all_at = -math.inf

    def expect(self, topic: str) -> None:
        """A topic or partition is known from now on, if it is read here and can be told by name."""
        number = self._link.source_of(topic, partition_of(topic))
        if number is not None:
            _ = self.by_number[number]

    def _new(self, number: int) -> TopicState:
        topic, partition = self._link.topic_of(number)
        options, able = self._options, self._link.capabilities
        shared = options.is_shared(topic)
        state = TopicState(
            self,
            number,
            topic,
            partition,
            shared=shared,
            nacks=self._new_index() if self._new_nacks is None else self._new_nacks(topic),
            timeouts=self._new_index(),
            contiguous=not options.is_read_compacted,
            lead_ms=able.redeliver_lead_ms if shared else able.rewind_lead_ms,
            remembers=options.remembers_failures(topic),
            durable=None if self._durable_of is None else self._durable_of(topic),
            letters=options.reads_letters(topic),
            in_order=options.ordered_leases,
            dispose=self._dispose,
        )
        if self._loop.time() - self._asked_all_at < OVERTAKEN_S:
            state.acks.rewound()
            state.window.all_requested = shared
        self._catch_up(state)
        return state

    def _catch_up(self, state: TopicState) -> None:
        """Its messages may have waited in the transport since before a connection was lost."""
        heard = [(at, what) for at, what, of in self._news if of is None or state.number in of]
        match heard[-2:]:
            case [*_, (_, "doubtful")]:
                state.acks.doubtful(now_ms(self._loop))
            case [(_, "doubtful"), (at, "connected")] if at >= self._loop.time() - SUSPECT_S:
                state.acks.doubtful(now_ms(self._loop))
                state.reconnected()

    def __iter__(self) -> Iterator[TopicState]:
        return iter(list(self.by_number.values()))

    def __len__(self) -> int:
        return len(self.by_number)

    def of(self, only: Container[int] | None) -> list[TopicState]:
        """Those of some numbers, or all."""
        return [state for state in self if only is None or state.number in only]

    def beside(self, state: TopicState | None) -> list[TopicState]:
        """What a rewind of one source rewinds, or of all: on Exclusive and Failover a transport may
        not be able to rewind one alone."""
        one = self._link.capabilities.rewind_one_source
        return [each for each in self if state is None or each is state or not (one or each.shared)]

    # What happened to all, or to some

    def heard(self, what: str, only: Container[int] | None) -> list[TopicState]:
        """Note what happened to connections; returns the sources concerned."""
        self._news.append((self._loop.time(), what, only))
        return self.of(only)

    def asked_all(self) -> None:
        """Everything of some sources is asked for, perhaps also of one that is seen only later."""
        self._asked_all_at = self._loop.time()

    # Sums

    @property
    def unacked(self) -> int:
        """Messages that fill the broker's unacked window."""
        return sum(state.unacked for state in self.by_number.values())

    @property
    def nacked(self) -> int:
        """Messages that wait here for their redelivery."""
        return sum(len(state.nacks) for state in self.by_number.values())

    @property
    def unsent_acks(self) -> int:
        """Entries whose ack waits to be sent."""
        return sum(len(state.acks) for state in self.by_number.values())

    @property
    def lost_acks(self) -> int:
        """Entries whose ack was sent and may be lost with a connection that is away."""
        return sum(state.acks.lost for state in self.by_number.values())

    def count(self, *states: int) -> int:
        """Messages in some states other than NACKED. Walks all: for statistics."""
        return sum(state.count(each) for state in self.by_number.values() for each in states)
