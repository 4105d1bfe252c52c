"""Rewinds: the broker redelivers every unacked message of a topic, in order.

On Exclusive and Failover, REDELIVER ignores message ids
(`docs/notes/wire-protocol.md#rewind-during-a-read`). As in Java's client, one due nack or ack
timeout therefore rewinds its whole topic. A rewind that does not bring every unacked message is
repeated (see `core.rewind_check`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ...core.topic_state import TopicState
from ...transport.interface import TransportConsumer
from ..delivery.receive_queue import ReceiveQueue
from ..topic_states import TopicStates
from .ack_sender import AckSender

# A rewind that brought nothing for this long, despite permits, is repeated, with a doubled wait
# each time. After `_MAX_REWINDS` the missing entries count as gone from the topic.
_TIMEOUT_S: Final = 1.0
_MAX_REWINDS: Final = 6


class Rewinds:
    def __init__(
        self,
        transport_consumer: TransportConsumer,
        topic_states: TopicStates,
        loop: asyncio.AbstractEventLoop,
        acks: AckSender,
        queue: ReceiveQueue,
        queue_size: int,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self._logger = logger_of(__name__)
        self._transport_consumer = transport_consumer
        self._topic_states = topic_states
        self._loop = loop
        self._acks = acks
        self._queue = queue
        self._queue_size = queue_size
        self._progress: dict[int, _Progress] = {}  # by topic number
        self._timer: asyncio.TimerHandle | None = None
        self._completing: asyncio.Handle | None = None

    def begin_if_unshared(self, state: TopicState) -> bool:
        """Rewind the whole topic on Exclusive and Failover, where nothing less can be requested.

        Returns:
            False, and nothing was done, on Shared and Key_Shared.
        """
        if state.shared:
            return False
        self.begin(state)
        return True

    def begin(self, state: TopicState | None) -> None:
        """Release every unacked message of a topic and request all of them again.

        A transport that cannot rewind one topic alone rewinds all Exclusive and Failover topics.
        Without unacked messages in this consumer, these topics need no rewind: the broker's unacked
        messages are already on their way, and a rewind would deliver them twice.

        Args:
            state: An Exclusive or Failover topic; None for all topics, Shared ones included.
        """
        rewound = self._topic_states.rewound_with(state)
        if not any(each.shared or each.unacked or each.outstanding for each in rewound):
            return
        for each in rewound:
            each.release_all()
        self._request(state)
        # This comes last: the permits that it returns must not bring messages before the rewind.
        self._queue.drop(rewound)
        if self._completing is None and any(each.table.releasing for each in rewound):
            self._completing = self._loop.call_soon(self._complete_releases)

    def _complete_releases(self) -> None:
        """Complete a release in steps, with a pass of the event loop after each.

        Nothing depends on when this ends, or if the consumer is closed before: an entry that
        arrives or is settled earlier completes its own release.
        """
        self._completing = None
        for each in self._topic_states:
            if each.complete_releases():
                self._completing = self._loop.call_soon(self._complete_releases)
                return

    def repeat(self, state: TopicState) -> None:
        """Repeat a rewind. Messages that arrived are kept."""
        for each in self._topic_states.rewound_with(state):
            each.rewind_repeated()
        self._request(state)

    def _request(self, state: TopicState | None) -> None:
        # An ack that is sent after the rewind does not keep its message from being redelivered.
        self._acks.flush()
        self._acks.watch_duplicates()
        self._topic_states.rewind_requested()
        self._transport_consumer.redeliver_all(None if state is None else state.number)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(_TIMEOUT_S, self._check_rewinds)

    def _check_rewinds(self) -> None:
        self._timer = None
        for state in self._topic_states:
            if state.rewind is None or not state.rewind.outstanding:
                self._progress.pop(state.number, None)
                continue
            self._set_timer()
            now, taken = self._loop.time(), self._queue.taken
            progress = self._progress.setdefault(state.number, _Progress(now))
            if progress.update(state.rewind.owed_arrived, now, taken):
                continue
            if len(self._queue) and taken - progress.taken < self._max_ahead():
                continue  # the missing entries may be queued after messages that are not taken yet
            if not progress.has_timed_out(now):
                continue
            if progress.rewinds < _MAX_REWINDS:
                progress.record_rewind(now, taken)
                self.repeat(state)
            else:
                self._progress.pop(state.number)
                missing_count = state.rewind.give_up()
                self._logger.info(
                    "%s: %d entries were not redelivered after %d rewinds: they are gone from the "
                    "topic, or another consumer has them",
                    state.topic,
                    missing_count,
                    _MAX_REWINDS,
                )

    def _max_ahead(self) -> int:
        """Return how many messages of other topics may arrive before those of a rewind."""
        return 2 * self._queue_size * len(self._topic_states)

    def close(self) -> None:
        for each in (self._timer, self._completing):
            if each is not None:
                each.cancel()


class _Progress:
    """How long a rewind has brought nothing, and how often it was repeated."""

    __slots__ = ("owed_arrived", "rewinds", "since_s", "taken")

    def __init__(self, now: float) -> None:
        self.owed_arrived = -1
        self.since_s = now
        self.taken = 0  # messages of any topic that the application had taken by then
        self.rewinds = 0

    def update(self, owed_arrived: int, now: float, taken: int) -> bool:
        """Note how many owed entries have arrived. Return True if there are more than before."""
        if owed_arrived == self.owed_arrived:
            return False
        self.owed_arrived, self.since_s, self.taken, self.rewinds = owed_arrived, now, taken, 0
        return True

    def has_timed_out(self, now: float) -> bool:
        return now - self.since_s >= _TIMEOUT_S * (1 << self.rewinds)

    def record_rewind(self, now: float, taken: int) -> None:
        self.since_s, self.taken = now, taken
        self.rewinds += 1
