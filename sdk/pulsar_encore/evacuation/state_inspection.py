"""Looking at what waits in a state directory: sums, and one message after the other.

Owns `inspect_state` and `waiting_messages`. Both read as `StateReader` does, also beside a live
owner, change nothing, and keep in memory a line for each source, however much waits.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from ..core.due_time import MessageKey
from ..state.rocks import FoundTopic, StateReader
from ..values.topic_names import partition_of
from .evacuation_plan import choose


@dataclass(kw_only=True, slots=True)
class TopicFound:
    """
    Attributes:
        topic: Full name, of the partition if any.
        subscription: Its name.
        consumer: Which of its consumers, where they are kept apart; else "".
        waiting: Messages that wait.
        earliest_ms: When the first of them is due, ms since the epoch; None where none waits.
        latest_ms: When the last of them is due.
        records: Entries of which attempts are known.
        attempts: Messages by how often they were handed over.
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
class OwnerFound:
    """
    Attributes:
        pid: Of the process that has the directory, or had it last.
        host: Its name.
        since_ms: Since when, ms since the epoch.
        epoch: Its number.
        closed: It closed the directory in order.
    """

    pid: int
    host: str
    since_ms: int
    epoch: int
    closed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class StateFound:
    """
    Attributes:
        path: The directory.
        owner: None when that cannot be told.
        sources: By number.
        unreadable: Keys and records that made no sense, or are of no source.
    """

    path: str
    owner: OwnerFound | None
    sources: list[TopicFound]
    unreadable: int

    @property
    def waiting(self) -> int:
        """Messages that wait, of all sources."""
        return sum(each.waiting for each in self.sources)

    @property
    def records(self) -> int:
        """Entries of which attempts are known, of all sources."""
        return sum(each.records for each in self.sources)


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingMessage:
    """A message that waits.

    Attributes:
        topic: Full name, of the partition if any.
        subscription: Its name.
        consumer: Which of its consumers, where they are kept apart; else "".
        message_id: `ledger:entry:partition`, in a batch `:index` behind it.
        due_ms: Until when, ms since the epoch.
        attempts: How often it was handed over.
    """

    topic: str
    subscription: str
    consumer: str
    message_id: str
    due_ms: int
    attempts: int


def inspect_state(path: str | os.PathLike[str]) -> StateFound:
    """What there is in a state directory. Blocks.

    Raises:
        StateFormatError: There is no state in it, or a newer version's.
        StateDamagedError: Files are lost or damaged.
        ConfigurationError: `rocksdict` is not installed.
    """
    with StateReader(path) as state:
        found = {
            each.number: TopicFound(
                topic=each.topic, subscription=each.subscription, consumer=each.consumer
            )
            for each in state.sources()
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
            if (found_topic := found.get(record.source)) is None:
                unknown += 1
                continue
            found_topic.records += 1
            for attempts, mask in record.record.groups:
                found_topic.attempts[attempts] += mask.bit_count()
        owner = state.owner
        return StateFound(
            path=os.fspath(path),
            owner=None
            if owner is None
            else OwnerFound(
                pid=owner.pid,
                host=owner.host,
                since_ms=owner.since_ms,
                epoch=owner.epoch,
                closed=owner.closed,
            ),
            sources=list(found.values()),
            unreadable=state.unreadable + unknown,
        )


class WaitingMessages:
    """What waits, the earliest due first. A context manager, to be iterated once.

    Args:
        path: The state directory.
        topic: Only this topic, with its partitions, or this partition.
        subscription: Only this subscription.

    Raises:
        StateFormatError: There is no state in it, or a newer version's.
        StateDamagedError: Files are lost or damaged.
        ConfigurationError: Nothing is kept of the topic or subscription; `rocksdict` is missing.
    """

    def __init__(
        self, path: str | os.PathLike[str], topic: str | None, subscription: str | None
    ) -> None:
        self._state = StateReader(path)
        try:
            chosen = choose(self._state.sources(), topic, subscription)
        except BaseException:
            self._state.close()
            raise
        self._sources = {each.number: each for each in chosen}

    @property
    def unreadable(self) -> int:
        """Keys and records so far that made no sense."""
        return self._state.unreadable

    def __iter__(self) -> Iterator[WaitingMessage]:
        for due_ms, number, key in self._state.waiting():
            found_topic = self._sources.get(number)
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._state.close()


def waiting_messages(
    path: str | os.PathLike[str], *, topic: str | None = None, subscription: str | None = None
) -> WaitingMessages:
    """See `WaitingMessages`."""
    return WaitingMessages(path, topic, subscription)


def waiting_id(topic: str, key: MessageKey) -> str:
    """A key as it is named to people: `ledger:entry:partition`, in a batch `:index` behind it."""
    plain = f"{key[0]}:{key[1]}:{partition_of(topic)}"
    return plain if key[2] < 0 else f"{plain}:{key[2]}"
