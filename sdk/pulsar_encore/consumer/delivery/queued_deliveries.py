"""The deliveries in a receive queue: the messages of one entry, or a run of plain entries."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, TypeAlias

from ...core.entry import Entry
from ...core.message_states import QUEUED
from ...message import Message, RawMessage, unopened

SINGLE_INDEX: Final = (0,)  # the batch index of a message that is its own entry

Queued: TypeAlias = tuple[Entry, int, RawMessage]
"""A queued message: its entry, its batch index and its content."""


class QueuedDelivery:
    """The messages of one entry, or some of them.

    Attributes:
        at: Index of the next message.
        permits: How many permits the messages occupy.
        weights: Cumulative bytes up to each message; None until needed.
        made: `Message` objects that `make` has made in advance, or None.
        made_for: `Entry.redelivered` at that time.
    """

    __slots__ = (
        "at",
        "end",
        "entry",
        "indexes",
        "made",
        "made_for",
        "messages",
        "permits",
        "weights",
    )

    def __init__(
        self, entry: Entry, indexes: Sequence[int], messages: Sequence[RawMessage], permits: int
    ) -> None:
        self.entry: Entry = entry
        self.indexes: Sequence[int] = indexes
        self.messages: Sequence[RawMessage] = messages
        self.at: int = 0
        self.end: int = len(messages)
        self.permits: int = permits
        self.weights: list[int] | None = None
        self.made: list[Message] | None = None
        self.made_for: int = 0

    def entry_at(self, at: int) -> tuple[Entry, int]:
        return self.entry, self.indexes[at]

    @property
    def is_over(self) -> bool:
        """True if no message can be delivered any more."""
        return not self.entry.live

    def dequeue(self) -> Queued | None:
        """Pass settled messages; return the next QUEUED one, or None at the end."""
        while (at := self.at) < self.end:
            self.at = at + 1
            entry, index = self.entry_at(at)
            if entry.live and entry.state[index] == QUEUED:
                return entry, index, self.messages[at]
        return None

    def trim(self) -> int:
        """Forget the messages before `at`; return their number."""
        at, self.at = self.at, 0
        self.indexes, self.messages = self.indexes[at:], self.messages[at:]
        self.end -= at
        self.made = None
        if self.weights and at:
            before = self.weights[at - 1]
            self.weights = [weight - before for weight in self.weights[at:]]
        return at

    def weigh(self) -> int:
        if self.weights is None:
            self.weights = list(accumulate(message.length() for message in self.messages))
        return self.weights[-1]

    def make(self, schema: Any) -> None:
        self.made_for = self.entry.redelivered
        self.made = Message.of_entry(self.entry, schema, self.indexes, self.messages)


class QueuedRun(QueuedDelivery):
    """Consecutive plain entries of one topic."""

    __slots__ = ("entries",)

    def __init__(
        self, entries: Sequence[Entry], messages: Sequence[RawMessage], permits: int
    ) -> None:
        super().__init__(entries[0], SINGLE_INDEX, messages, permits)
        self.entries: Sequence[Entry] = entries

    def entry_at(self, at: int) -> tuple[Entry, int]:
        return self.entries[at], 0

    def trim(self) -> int:
        self.entries = self.entries[self.at :]
        self.entry: Entry = self.entries[0]
        return super().trim()

    @property
    def is_over(self) -> bool:
        """True if the topic's records were ended together.

        The first and the last entry then share `EntryTable.live_records`, and so do those between.
        """
        live = self.entries[0].live
        return live is not False and not live and self.entries[-1].live is live

    def make(self, schema: Any) -> None:
        self.made: list[Message] | None = [
            Message(source, schema, entry, 0, entry.redelivered, 0, at)
            for entry, source, at in zip(self.entries, *unopened(self.messages), strict=False)
        ]


class QueuedReturns(QueuedDelivery):
    """Messages of one topic that the application gave back, in the order of the topic.

    They have no permits: those were returned when the messages were first taken.
    """

    __slots__ = ("_positions", "entries")

    def __init__(self, entry: Entry, index: int, message: RawMessage) -> None:
        self.indexes: list[int]
        self.messages: list[RawMessage]
        super().__init__(entry, [index], [message], 0)
        self.entries: list[Entry] = [entry]
        self._positions = [(entry.key, index)]

    def insert(self, entry: Entry, index: int, message: RawMessage) -> None:
        """Insert a message among those that are not taken yet."""
        position = (entry.key, index)
        at = bisect_left(self._positions, position, self.at)
        self._positions.insert(at, position)
        self.entries.insert(at, entry)
        self.indexes.insert(at, index)
        self.messages.insert(at, message)
        self.end: int = self.end + 1
        if self.weights is not None:
            if at == self.end - 1:
                self.weights.append(self.weights[-1] + message.length())
            else:
                self.weights: list[int] | None = None
                self.weigh()

    def left(self) -> Iterator[Queued]:
        """Yield the messages that are still queued."""
        for at in range(self.at, self.end):
            entry, index = self.entry_at(at)
            if entry.live and entry.state[index] == QUEUED:
                yield entry, index, self.messages[at]

    def entry_at(self, at: int) -> tuple[Entry, int]:
        return self.entries[at], self.indexes[at]

    def trim(self) -> int:
        del self.entries[: self.at], self._positions[: self.at]
        self.entry: Entry = self.entries[0]
        return super().trim()

    @property
    def is_over(self) -> bool:
        return False

    def make(self, schema: Any) -> None:
        """Make nothing: these messages were delivered before, so each needs a check."""
