"""Counts of a consumer's messages by topic."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.message_states import QUEUED
from .topic_states import TopicStates


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicCounts:
    """Counts of one topic or partition. `Counters` and `Statistics` explain them.

    Deliveries, nacks and letters are missing: they are counted for all topics together, because a
    count by topic would cost time for each message.

    Attributes:
        topic: Full name of the topic or partition.
    """

    topic: str
    acked: int
    redelivered: int
    queued: int
    in_flight: int
    nacked: int
    unacked: int
    unsent_acks: int


def topic_counts(states: TopicStates) -> list[TopicCounts]:
    """Return the counts of each topic that has had messages. Walks over all held messages."""
    found = []
    for state in states:
        queued, nacked = state.count(QUEUED), len(state.nacks)
        found.append(
            TopicCounts(
                topic=state.topic,
                acked=state.acked,
                redelivered=state.redelivered,
                queued=queued,
                in_flight=state.unacked - nacked - queued,
                nacked=nacked,
                unacked=state.unacked,
                unsent_acks=len(state.acks),
            )
        )
    return found
