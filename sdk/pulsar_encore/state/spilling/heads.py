"""The keys in memory: the head, the old head that is being sealed, and keys that were taken.

A key is in at most one of the heads. A key that `pop_due` took from a head is in `taken`, with its
due time, until it is done.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from ...core.message_key import MAX_ID_BITS, DueBatch, MessageKey
from ...core.time_bucket import TimeBucketIndex

MAX_DUE_MS: Final = 2**63 - 1  # highest due time; rounded up, an edge can be later
_KEYS_PER_STEP: Final = 512
_MAX_ID: Final = (1 << MAX_ID_BITS) - 1


class TakenKeys:
    """Taken keys and their due times. Keys may be added and removed during a walk.

    A walk moves the keys of all other parts into the last one.
    """

    def __init__(self) -> None:
        self._parts = [TimeBucketIndex()]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def clear(self) -> None:
        self._parts = [TimeBucketIndex()]

    def put(self, key: MessageKey, edge: int) -> None:
        self._parts[-1].add(key, min(edge, MAX_DUE_MS), 0)

    def discard(self, key: MessageKey) -> bool:
        for part in self._parts:
            if part.discard(key):
                return True
        return False

    def discard_entry(self, ledger: int, entry: int) -> int:
        return sum(part.discard_entry(ledger, entry) for part in self._parts)

    def discard_through(self, ledger: int, entry: int) -> int:
        return sum(part.discard_through(ledger, entry) for part in self._parts)

    def walk(self) -> Generator[list[tuple[MessageKey, int]], None, None]:
        """Iterate over the keys, some at a time. Only one walk may run at a time."""
        # An aborted walk leaves several parts. Some may be empty by now.
        before, after = [part for part in self._parts if len(part)], TimeBucketIndex()
        self._parts = [*before, after]
        found: list[tuple[MessageKey, int]] = []
        for part in before:
            while (edge := part.next_due()) is not None:
                for key in part.pop_due(edge, _KEYS_PER_STEP - len(found)):
                    after.add(key, edge, 0)
                    found.append((key, edge))
                if len(found) >= _KEYS_PER_STEP:
                    yield found
                    found = []
        if found:
            yield found
        self._parts = [after]

    def check(self) -> None:
        for part in self._parts:
            part._check()
        keys = [key for part in self._parts for _, key in part.keys_through(_MAX_ID, _MAX_ID)]
        assert len(set(keys)) == len(keys) == len(self)


class Heads:
    """Head and old head.

    Args:
        remembers_taken: Keep taken keys until they are done, to survive a crash.
    """

    def __init__(self, *, remembers_taken: bool = True) -> None:
        self._remembers_taken = remembers_taken
        self.head: TimeBucketIndex = TimeBucketIndex()
        self.old: TimeBucketIndex | None = None
        self.taken: TakenKeys = TakenKeys()

    def __len__(self) -> int:
        return len(self.head) + (len(self.old) if self.old is not None else 0)

    def __contains__(self, key: MessageKey) -> bool:
        return key in self.head or (self.old is not None and key in self.old)

    def rotate(self) -> TimeBucketIndex:
        assert self.old is None
        self.old, self.head = self.head, TimeBucketIndex()
        return self.old

    def clear(self) -> None:
        self.head.clear()
        self.old = None
        self.taken.clear()

    def put(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        """Set the due time of a key. Return whether it was in a head."""
        existed = self.head.move(key, due_ms, bits)
        if not existed and self.old is not None:
            existed = self.old.discard(key)
        if len(self.taken):
            self.taken.discard(key)
        return existed

    def discard(self, key: MessageKey) -> bool:
        return self.head.discard(key) or (self.old is not None and self.old.discard(key))

    def discard_entry(self, ledger: int, entry: int) -> int:
        gone = self.head.discard_entry(ledger, entry)
        return gone + (self.old.discard_entry(ledger, entry) if self.old is not None else 0)

    def discard_through(self, ledger: int, entry: int) -> int:
        gone = self.head.discard_through(ledger, entry)
        return gone + (self.old.discard_through(ledger, entry) if self.old is not None else 0)

    def next_due(self) -> int | None:
        edge = self.head.next_due()
        if self.old is not None and (other := self.old.next_due()) is not None:
            return other if edge is None else min(edge, other)
        return edge

    def due_of(self, key: MessageKey) -> int | None:
        edge = self.head.due_of(key)
        return self.old.due_of(key) if edge is None and self.old is not None else edge

    def soonest(self, limit: int) -> list[tuple[int, MessageKey]]:
        found = self.head.soonest(limit)
        return found if self.old is None else sorted(found + self.old.soonest(limit))[:limit]

    def ready(self, edge: int) -> list[TimeBucketIndex]:
        both = (self.head, self.old)
        return [each for each in both if each is not None and each.next_due() == edge]

    def take(self, head: TimeBucketIndex, edge: int, limit: int) -> DueBatch:
        batch = head.pop_due(edge, limit)
        if self._remembers_taken:
            for key in batch:
                self.taken.put(key, edge)
        return batch

    def mark_done(self, batch: DueBatch) -> list[MessageKey]:
        taken = self.taken
        if not len(taken):
            return []
        return [key for key in batch if taken.discard(key)]

    def reclaim(self) -> None:
        for found in self.taken.walk():
            for key, edge in found:
                if key not in self:
                    self.head.add(key, edge, 0)
        self.taken.clear()

    def _check(self) -> None:
        for each in (self.head, self.old):
            if each is not None:
                each._check()
        self.taken.check()
