"""The mutable part: the head, the head before it that goes into a snapshot, and what was taken.

Owns three `TimeBucketIndex`. Invariant: a key is in one of head and old head at most; what was
taken of them by `pop_due` and is not done yet is in `taken`, with its due time.
"""

from __future__ import annotations

from typing import Final

from ...core.due import DueBatch, MessageKey
from ...core.time_bucket import TimeBucketIndex

MAX_DUE_MS: Final = 2**63 - 1  # what can be asked for; rounded up, an edge can be later


class Heads:
    """Head and old head."""

    def __init__(self) -> None:
        self.head: TimeBucketIndex = TimeBucketIndex()
        self.old: TimeBucketIndex | None = None
        self.taken: TimeBucketIndex = TimeBucketIndex()

    def __len__(self) -> int:
        return len(self.head) + (len(self.old) if self.old is not None else 0)

    def __contains__(self, key: MessageKey) -> bool:
        return key in self.head or (self.old is not None and key in self.old)

    def rotate(self) -> TimeBucketIndex:
        """Begin another head; returns the one before."""
        assert self.old is None
        self.old, self.head = self.head, TimeBucketIndex()
        return self.old

    def clear(self) -> None:
        """Forget everything."""
        self.head.clear()
        self.old = None
        self.taken.clear()

    def put(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        """The key is due then; True when it was in a head."""
        was = self.head.move(key, due_ms, bits)
        if not was and self.old is not None:
            was = self.old.discard(key)
        if len(self.taken):
            self.taken.discard(key)
        return was

    def discard(self, key: MessageKey) -> bool:
        """Forget a key; True when it was in a head."""
        return self.head.discard(key) or (self.old is not None and self.old.discard(key))

    def discard_entry(self, ledger: int, entry: int) -> int:
        """Forget all keys of an entry; returns how many were in a head."""
        gone = self.head.discard_entry(ledger, entry)
        return gone + (self.old.discard_entry(ledger, entry) if self.old is not None else 0)

    def discard_through(self, ledger: int, entry: int) -> int:
        """Forget all keys of an entry and of those before it."""
        gone = self.head.discard_through(ledger, entry)
        return gone + (self.old.discard_through(ledger, entry) if self.old is not None else 0)

    def next_due(self) -> int | None:
        """The earliest edge."""
        edge = self.head.next_due()
        if self.old is not None and (other := self.old.next_due()) is not None:
            return other if edge is None else min(edge, other)
        return edge

    def take(self, edge: int, limit: int) -> list[DueBatch]:
        """What is due at the earliest edge, from one head or both."""
        batches = []
        for each in (self.head, self.old):
            if each is not None and limit and each.next_due() == edge:
                batch = each.pop_due(edge, limit)
                limit -= len(batch)
                batches.append(batch)
                for key in batch:
                    self.taken.move(key, min(edge, MAX_DUE_MS), 0)
        return batches

    def settle(self, batch: DueBatch) -> list[MessageKey]:
        """What was taken is done; returns which keys that were."""
        taken = self.taken
        if not len(taken):
            return []
        return [key for key in batch if taken.discard(key)]

    def remembered(self) -> list[tuple[MessageKey, int]]:
        """What was taken and is not done, and when it was due."""
        found: list[tuple[MessageKey, int]] = []
        taken, self.taken = self.taken, TimeBucketIndex()
        while (edge := taken.next_due()) is not None:
            for key in taken.pop_due(edge):
                found.append((key, edge))
                self.taken.add(key, edge, 0)
        return found

    def reclaim(self) -> None:
        """What was taken and is not done is due again, as it was."""
        taken, self.taken = self.taken, TimeBucketIndex()
        while (edge := taken.next_due()) is not None:
            for key in taken.pop_due(edge):
                if key not in self:
                    self.head.add(key, edge, 0)

    def _check(self) -> None:
        for each in (self.head, self.old, self.taken):
            if each is not None:
                each._check()
