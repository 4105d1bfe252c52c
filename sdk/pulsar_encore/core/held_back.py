"""Ordered leases: a message that failed stays here, and its key queue waits behind it.

If the consumer gave the message back, the broker would send the next messages of its key to any
consumer meanwhile. So the message is QUEUED here again, with a time before which it must not be
delivered.
"""

from __future__ import annotations

from collections.abc import Iterator

from .entry import Entry
from .message_key import MessageKey


class OrderedLeases:
    """Queued messages of one topic that must not be delivered before a time, in ms."""

    __slots__ = ("_not_before",)

    def __init__(self) -> None:
        self._not_before: dict[MessageKey, int] = {}

    def __len__(self) -> int:
        return len(self._not_before)

    def __iter__(self) -> Iterator[MessageKey]:
        return iter(self._not_before)

    def hold(self, key: MessageKey, until_ms: int) -> None:
        self._not_before[key] = until_ms

    def move(self, key: MessageKey, until_ms: int) -> None:
        if key in self._not_before:
            self._not_before[key] = until_ms

    def not_before(self, entry: Entry, index: int) -> int:
        """Return when a queued message may be delivered, in ms; 0 for at any time."""
        return self._not_before.get(entry.due_key(index), 0) if self._not_before else 0

    def holds(self, entry: Entry) -> bool:
        """Return True if a message of the entry is held back, also when it is delivered again."""
        times = self._not_before
        return bool(times) and any(entry.due_key(index) in times for index in range(entry.size))

    def drop(self, key: MessageKey) -> bool:
        return self._not_before.pop(key, None) is not None

    def drop_entry(self, entry: Entry) -> None:
        if self._not_before:
            for index in range(entry.size):
                self._not_before.pop(entry.due_key(index), None)

    def clear(self) -> None:
        self._not_before.clear()
