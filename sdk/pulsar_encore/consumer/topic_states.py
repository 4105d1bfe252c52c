"""The topics and partitions of a consumer, and sums over them."""

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
from ..message import MessageConsumer
from ..options import ConsumerOptions
from ..transport.interface import TransportConsumer
from ..values.topic_names import partition_of

# How long after a reconnect an entry may be redelivered because its ack was lost.
RECONNECT_S: Final = 30.0
REDELIVERY_S: Final = 2.0  # bound of the arrival of a redelivery that crossed an ack

_MAX_CHANGES: Final = 32  # several connection changes for each topic


class _StatesByNumber(dict[int, TopicState]):
    """A dict, because every delivery reads it."""

    def __init__(self, new: Callable[[int], TopicState]) -> None:
        super().__init__()
        self._new = new

    def __missing__(self, number: int) -> TopicState:
        state = self[number] = self._new(number)
        return state


class TopicStates:
    """All topic states of one consumer.

    Attributes:
        by_number: The topic states by the transport's number, created on first access.
        consumer: The consumer of these topics, for the methods of `Message`.

    Args:
        dispose: Frees unused records gradually; None frees them at once.
        new_nacks: Makes the due index of a topic's nacks, by its full name; None to use
            `new_index`, as ack timeouts always do: the record of a held message takes a hundred
            times the memory of its timeout.
    """

    def __init__(
        self,
        transport_consumer: TransportConsumer,
        options: ConsumerOptions,
        loop: asyncio.AbstractEventLoop,
        new_index: Callable[[], DueIndex] = TimeBucketIndex,
        durable_of: Callable[[str], Durable | None] | None = None,
        dispose: Callable[[dict[Any, Any] | list[Any]], None] | None = None,
        new_nacks: Callable[[str], DueIndex] | None = None,
    ) -> None:
        self.consumer: MessageConsumer | None = None
        self._transport_consumer = transport_consumer
        self._new_nacks = new_nacks
        self._options = options
        self._loop = loop
        self._new_index = new_index
        self._durable_of = durable_of
        self._dispose = dispose
        self.by_number: dict[int, TopicState] = _StatesByNumber(self._new)
        # The last connection changes: time, kind, and topic numbers (None for all).
        self._changes: deque[tuple[float, str, Container[int] | None]] = deque(maxlen=_MAX_CHANGES)
        self._rewound_at = -math.inf

    def expect(self, topic: str) -> None:
        """Create the state of a topic, if this consumer reads it."""
        number = self._transport_consumer.topic_number_of(topic, partition_of(topic))
        if number is not None:
            _ = self.by_number[number]

    def _new(self, number: int) -> TopicState:
        topic, partition = self._transport_consumer.topic_of(number)
        options, able = self._options, self._transport_consumer.capabilities
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
        if self._loop.time() - self._rewound_at < REDELIVERY_S:
            state.acks.rewound()
            state.window.all_requested = shared
        self._apply_changes(state)
        return state

    def _apply_changes(self, state: TopicState) -> None:
        """Apply earlier connection changes, which concern messages that were in the transport."""
        changes = [(at, what) for at, what, of in self._changes if of is None or state.number in of]
        match changes[-2:]:
            case [*_, (_, "uncertain")]:
                state.acks.maybe_disconnected(now_ms(self._loop))
            case [(_, "uncertain"), (at, "connected")] if at >= self._loop.time() - RECONNECT_S:
                state.acks.maybe_disconnected(now_ms(self._loop))
                state.reconnected()

    def __iter__(self) -> Iterator[TopicState]:
        return iter(list(self.by_number.values()))

    def __len__(self) -> int:
        return len(self.by_number)

    def of(self, only: Container[int] | None) -> list[TopicState]:
        return [state for state in self if only is None or state.number in only]

    def rewound_with(self, state: TopicState | None) -> list[TopicState]:
        """Return the topic states that a rewind of one topic, or of all (None), concerns."""
        one = self._transport_consumer.capabilities.rewind_one_topic
        return [each for each in self if state is None or each is state or not (one or each.shared)]

    # Changes of several topics

    def record_change(self, what: str, only: Container[int] | None) -> list[TopicState]:
        self._changes.append((self._loop.time(), what, only))
        return self.of(only)

    def rewind_requested(self) -> None:
        """Record a rewind for topic states that are created later."""
        self._rewound_at = self._loop.time()

    # Sums

    @property
    def unacked(self) -> int:
        return sum(state.unacked for state in self.by_number.values())

    @property
    def nacked(self) -> int:
        return sum(len(state.nacks) for state in self.by_number.values())

    @property
    def acked(self) -> int:
        return sum(state.acked for state in self.by_number.values())

    @property
    def redelivered(self) -> int:
        return sum(state.redelivered for state in self.by_number.values())

    @property
    def unsent_acks(self) -> int:
        return sum(len(state.acks) for state in self.by_number.values())

    @property
    def lost_acks(self) -> int:
        """Count the entries with sent acks that may be lost with a connection."""
        return sum(state.acks.lost for state in self.by_number.values())

    def count(self, *states: int) -> int:
        """Count the messages in these states (not NACKED). Walks over all entries."""
        return sum(state.count(each) for state in self.by_number.values() for each in states)
