"""The dead-letter policy and the delays of letters, applied to arriving messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from ... import letters
from ...core.entry import Entry
from ...core.nack_verdicts import DeadLetter, Verdicts
from ...core.topic_state import TopicState
from ...errors import UnreadableError
from ...eventloop.alarm import wall_now_ms
from ...letters.reconsume_counts import overflowed_attempts
from ...message import Held, Message, RawMessage
from ...options import ConsumerOptions
from ..delivery.receive_queue import ReceiveQueue
from ..settlement.redelivery import Redelivery
from .forwarder import Forwarder
from .last_attempts import LastAttempts

# A letter that is early by less waits in memory, and is redelivered otherwise.
_MAX_EARLY_MS: Final = 5_000
_MAX_WAITING: Final = 1_000


class ArrivalFilter:
    def __init__(
        self,
        options: ConsumerOptions,
        verdicts: Verdicts,
        forwarder: Forwarder,
        queue: ReceiveQueue,
        redelivery: Redelivery,
        loop: asyncio.AbstractEventLoop,
        last: LastAttempts,
    ) -> None:
        self._last = last
        self._options = options
        self._verdicts = verdicts
        self._forwarder = forwarder
        self._queue = queue
        self._redelivery = redelivery
        self._loop = loop
        self._most = verdicts.max_redeliver_count
        self._waiting: dict[int, asyncio.TimerHandle] = {}  # early letters, by number
        self._letters = 0

    def admit(
        self,
        state: TopicState,
        entry: Entry,
        indexes: Sequence[int],
        messages: Sequence[RawMessage],
    ) -> tuple[Sequence[int], Sequence[RawMessage]]:
        """Return the messages to deliver now. The others are dead-lettered or wait."""
        if state.letters:
            indexes, messages = self._due(state, entry, indexes, messages)
        # The bound is one lower for a batch, because `LastAttempts` must see its messages before
        # their last attempt.
        elif self._most is None or entry.redelivered <= self._most - (entry.size > 1):
            if entry.failed is None and not (entry.size > 1 and state.attempts.failures):
                return indexes, messages  # nearly always
        return self._not_dead(state, entry, indexes, messages)

    def _not_dead(
        self,
        state: TopicState,
        entry: Entry,
        indexes: Sequence[int],
        messages: Sequence[RawMessage],
    ) -> tuple[Sequence[int], Sequence[RawMessage]]:
        if self._most is None:
            return indexes, messages
        kept_indexes, kept_messages = [], []
        for index, raw in zip(indexes, messages, strict=True):
            if not self.dead_letter_if_spent(entry, index, raw):
                self._last.keep(entry, index, raw, state.attempts.count(entry, index))
                kept_indexes.append(index)
                kept_messages.append(raw)
        return kept_indexes, kept_messages

    def dead_letter_if_spent(self, entry: Entry, index: int, raw: RawMessage) -> bool:
        """Dead-letter a queued message if it has used up its attempts; return True if it had.

        A batch message is delivered if no attempt at it is known, however often its entry was
        redelivered.
        """
        failed, verdict = self._arrival_verdict(entry, index)
        if verdict is None:
            return False
        message = Message(raw, self._options.schema, entry, index, failed - 1)
        held = Held(entry, index, failed - 1, 0)
        self._forwarder.dead_letter(message, held, None, verdict.reason)
        return True

    def spent(self, entry: Entry, index: int) -> bool:
        _, verdict = self._arrival_verdict(entry, index)
        return verdict is not None

    def _arrival_verdict(self, entry: Entry, index: int) -> tuple[int, DeadLetter | None]:
        """Return the number of failed attempts, and the verdict."""
        attempts = entry.topic_state.attempts
        failed, tried_here = attempts.count(entry, index), attempts.tried_here(entry, index)
        return failed, self._verdicts.on_arrival(failed, tried_here=tried_here)

    # Early letters

    def _due(
        self,
        state: TopicState,
        entry: Entry,
        indexes: Sequence[int],
        messages: Sequence[RawMessage],
    ) -> tuple[Sequence[int], Sequence[RawMessage]]:
        wall_now = wall_now_ms(self._loop)
        properties = [_properties(raw) for raw in messages]
        early_ms = [
            _early_ms(raw, each, wall_now) for raw, each in zip(messages, properties, strict=True)
        ]
        if entry.size == 1 and properties:
            state.add_letter_attempts(entry, overflowed_attempts(properties[0]))
        due = []
        for at, wait_ms in enumerate(early_ms):
            if wait_ms <= 0:
                due.append(at)
            elif wait_ms > _MAX_EARLY_MS or len(self._waiting) >= _MAX_WAITING:
                state.ignore_copy(entry.key, entry.size)
                self._redelivery.schedule(entry, indexes[at], wait_ms, narrow=True)
            else:
                self._letters += 1
                self._waiting[self._letters] = self._loop.call_later(
                    wait_ms / 1000,
                    self._letter_due,
                    self._letters,
                    entry,
                    indexes[at],
                    messages[at],
                )
        return [indexes[at] for at in due], [messages[at] for at in due]

    def _letter_due(self, number: int, entry: Entry, index: int, raw: RawMessage) -> None:
        del self._waiting[number]
        for at, message in zip(
            *self._not_dead(entry.topic_state, entry, [index], [raw]), strict=True
        ):
            self._queue.push(entry, [at], [message], permits=False)
        self._queue.wake(1)

    def close(self) -> None:
        for handle in self._waiting.values():
            handle.cancel()


def _properties(raw: RawMessage) -> dict[str, str]:
    try:
        return raw.properties()
    except UnreadableError:
        return {}  # a letter of another client, with raw bytes; its delay cannot be read


def _early_ms(raw: RawMessage, properties: dict[str, str], wall_now: int) -> int:
    """Return how many ms too early a letter has arrived.

    Brokers round delays to a tick: `docs/notes/consumer-semantics.md#delayed-delivery`.
    """
    text = properties.get(letters.DELAY_TIME, "")
    if (
        not (text.isascii() and text.isdigit() and len(text) < 16)
        or letters.REAL_TOPIC not in properties
    ):
        return 0
    return raw.publish_timestamp() + int(text) - wall_now
