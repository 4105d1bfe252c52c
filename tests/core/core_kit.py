"""Shared helpers of the core tests: a topic state with due indexes, and acks without a loop."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from pulsar_encore.consumer.forwarding.nack_handler import NackHandler
from pulsar_encore.consumer.settlement.ownership import Ownership
from pulsar_encore.consumer.settlement.settlement import Settlement
from pulsar_encore.core.due_index import TimeBucketIndex
from pulsar_encore.core.entry import Entry, EntryKey
from pulsar_encore.core.nack_verdicts import Verdicts
from pulsar_encore.core.topic_state import TopicState

TOPIC = "persistent://public/default/t"


def make_topic_state(*, shared: bool = True, number: int = 0, lead_ms: int = 0) -> TopicState:
    return TopicState(
        object(),
        number,
        f"{TOPIC}{number or ''}",
        -1,
        shared=shared,
        nacks=TimeBucketIndex(),
        timeouts=TimeBucketIndex(),
        lead_ms=lead_ms,
    )


class Settling:
    """Settles messages of one topic state as a consumer does, with a clock set by hand.

    Args:
        now: The time in ms.
    """

    def __init__(self, topic_state: TopicState, now: Callable[[], int]) -> None:
        topic_states: Any = SimpleNamespace(by_number={0: topic_state})
        topic_state.owner = topic_states
        capabilities = SimpleNamespace(ack_unseen_index=True, name="model")
        transport_consumer: Any = SimpleNamespace(
            capabilities=capabilities, topic_number_of=lambda *_: 0
        )
        self.added = 0
        acks: Any = SimpleNamespace(added=self._add)
        redelivery: Any = Waiting(now)
        ownership = Ownership(topic_states, transport_consumer)
        settlement = Settlement(ownership, transport_consumer, acks, redelivery)
        self.ack = settlement.ack
        self.ack_row = settlement.ack_row
        self.ack_cumulative = settlement.ack_cumulative
        loop: Any = None
        self.nack = NackHandler(
            ownership, Verdicts(lambda failed: 0), redelivery, topic_states, loop
        ).nack

    def _add(self, _: TopicState, messages: int) -> None:
        self.added += messages


class Waiting:
    """The part of `Redelivery` that a nack needs. It does not round due times."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now

    def schedule(self, entry: Entry, index: int, delay_ms: int) -> None:
        entry.topic_state.nack(entry, index, self._now() + delay_ms, 0)

    def schedule_unseen(self, state: TopicState, key: EntryKey, delay_ms: int) -> None:
        state.nack_unseen(key, self._now() + delay_ms, 0)
