"""Ack timeouts, which begin when the application receives its message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ...core.bucket_width import precision_bits
from ...core.entry import Entry
from ...core.topic_state import TopicState
from ...eventloop.alarm import Alarm, due_in_ms


class AckTimeouts:
    """The ack timeouts of one consumer.

    Args:
        timeout_ms: Longest time that a message may be held, in ms.
    """

    def __init__(self, timeout_ms: int, loop: asyncio.AbstractEventLoop, alarm: Alarm) -> None:
        self._timeout_ms = timeout_ms
        self._bits = precision_bits(timeout_ms)
        self._loop = loop
        self._alarm = alarm

    def begin(self, entry: Entry, indexes: Sequence[int]) -> None:
        state: TopicState = entry.topic_state
        if state.volatile:
            return  # non-persistent topics cannot redeliver, and acks never untrack (issue 26548)
        due_ms = due_in_ms(self._loop, self._timeout_ms)
        state.special = True
        for index in indexes:
            state.timeouts.move(entry.due_key(index), due_ms, self._bits)
        self._alarm.at(state.next_due())

    def extend(self, entry: Entry, index: int, length_ms: int) -> None:
        """End the timeout of a held message this long from now, unless a lease has replaced it."""
        state: TopicState = entry.topic_state
        key = entry.due_key(index)
        if key in state.timeouts:
            due_ms = due_in_ms(self._loop, length_ms)
            state.timeouts.move(key, due_ms, precision_bits(length_ms))
            self._alarm.at(state.next_due())
