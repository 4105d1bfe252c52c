"""Inspect the waiting messages of a state directory, even beside a live owner."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

from ..core.message_key import MessageKey
from ..state.rocks import FoundTopic, Owner, StateReader
from ..values.topic_names import partition_of
from .evacuation_plan import choose


@dataclass(kw_only=True, slots=True)
class TopicSummary:
    """The state of one topic and subscription.

    Attributes:
        topic: Full name, of the partition if any.
        consumer: Name of the consumer, if consumers are kept apart; else "".
        earliest_ms: First due time, in ms since the epoch; None if no message waits.
        records: Number of entries with known attempts.
        attempts: Number of messages by delivery attempts.
    """

    topic: str
    subscription: str
    consumer: str
    waiting: int = 0
    earliest_ms: int | None = None
    latest_ms: int | None = None
    records: int = 0
    attempts: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True, kw_only=True, slots=True)
class StateSummary:
    """The content of a state directory.

    Attributes:
        owner: The present or last owner; None if unknown.
        unreadable: Number of keys and records that are corrupted or belong to no topic.
    """

    path: str
    owner: Owner | None
    topics: list[TopicSummary]
    unreadable: int

    @property
    def waiting(self) -> int:
        return sum(each.waiting for each in self.topics)

    @property
    def records(self) -> int:
        return sum(each.records for each in self.topics)


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingMessage:
    """A waiting message.

    Attributes:
        message_id: `ledger:entry:partition`, and `:index` in a batch.
        due_ms: Due time, in ms since the epoch.
    """

    topic: str
    subscription: str
    consumer: str
    message_id: str
    due_ms: int
    attempts: int


def inspect_state(path: str | os.PathLike[str]) -> StateSummary:
    """Return a summary of a state directory. Blocks."""
    with StateReader(path) as state:
        found = {
            each.number: TopicSummary(
                topic=each.topic, subscription=each.subscription, consumer=each.consumer
            )
            for each in state.topics()
        }
        unknown = 0
        for due_ms, number, _ in state.waiting():
            if (found_topic := found.get(number)) is None:
                unknown += 1
                continue
            found_topic.waiting += 1
            if found_topic.earliest_ms is None:
                found_topic.earliest_ms = due_ms
            found_topic.latest_ms = due_ms
        for record in state.records():
            if (found_topic := found.get(record.topic_number)) is None:
                unknown += 1
                continue
            found_topic.records += 1
            for attempts, mask in record.record.groups:
                found_topic.attempts[attempts] += mask.bit_count()
        return StateSummary(
            path=os.fspath(path),
            owner=state.owner,
            topics=list(found.values()),
            unreadable=state.unreadable + unknown,
        )


class WaitingMessages:
    """The waiting messages of a state directory, the earliest due first.

    Use it as a context manager and iterate once. Raises ConfigurationError if the state has nothing
    of the topic (also a partition) or subscription.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        topic: str | None = None,
        subscription: str | None = None,
    ) -> None:
        self._state = StateReader(path)
        try:
            chosen = choose(self._state.topics(), topic, subscription)
        except BaseException:
            self._state.close()
            raise
        self._topics = {each.number: each for each in chosen}

    @property
    def unreadable(self) -> int:
        return self._state.unreadable

    def __iter__(self) -> Iterator[WaitingMessage]:
        for due_ms, number, key in self._state.waiting():
            found_topic = self._topics.get(number)
            if found_topic is not None:
                yield self._waiting(found_topic, due_ms, key)

    def _waiting(self, found_topic: FoundTopic, due_ms: int, key: MessageKey) -> WaitingMessage:
        ledger, entry, index = key
        record = self._state.record(found_topic.number, ledger, entry)
        return WaitingMessage(
            topic=found_topic.topic,
            subscription=found_topic.subscription,
            consumer=found_topic.consumer,
            message_id=waiting_id(found_topic.topic, key),
            due_ms=due_ms,
            attempts=0 if record is None else record.attempts_of(index),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._state.close()


def waiting_id(topic: str, key: MessageKey) -> str:
    """Return a message id for reports: `ledger:entry:partition`, and `:index` in a batch."""
    plain = f"{key[0]}:{key[1]}:{partition_of(topic)}"
    return plain if key[2] < 0 else f"{plain}:{key[2]}"
