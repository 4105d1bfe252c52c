"""The mutable part: the head, the head before it that goes into a snapshot, and what was taken.

Owns the `TimeBucketIndex` of each. Invariant: a key is in one of head and old head at most; what
was taken of them by `pop_due` and is not done yet is in `taken`, with its due time.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from ...core.due_time import MAX_ID_BITS, DueBatch, MessageKey
from ...core.time_bucket import TimeBucketIndex

MAX_DUE_MS: Final = 2**63 - 1  # what can be asked for; rounded up, an edge can be later
_KEYS_PER_STEP: Final = 512
_MAX_ID: Final = (1 << MAX_ID_BITS) - 1


class TakenKeys:
    """Keys and when they were due, which can be walked while they come and go.

    A key is in one of the parts; a walk carries those of the others over into the last one.
    """

    def __init__(self) -> None:
        self._parts = [TimeBucketIndex()]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def clear(self) -> None:
        """None at all."""
        self._parts = [TimeBucketIndex()]

    def put(self, key: MessageKey, edge: int) -> None:
        """A key that is not here was taken; it was due then."""
        self._parts[-1].add(key, min(edge, MAX_DUE_MS), 0)

    def discard(self, key: MessageKey) -> bool:
        """Forget a key; True when it was here."""
        for part in self._parts:
            if part.discard(key):
                return True
        return False

    def discard_entry(self, ledger: int, entry: int) -> int:
        """Forget all keys of an entry; returns how many were here."""
        return sum(part.discard_entry(ledger, entry) for part in self._parts)

    def discard_through(self, ledger: int, entry: int) -> int:
        """Forget all keys of an entry and of those before it."""
        return sum(part.discard_through(ledger, entry) for part in self._parts)

    def walk(self) -> Generator[list[tuple[MessageKey, int]], None, None]:
        """Those that are here now and still are when it comes to them, some at a time; one walk
        at once."""
        # A walk that was given up leaves parts, of which nothing may be left by now.
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
        """Walk the invariants; for tests."""
        for part in self._parts:
            part._check()
        keys = [key for part in self._parts for _, key in part.keys_through(_MAX_ID, _MAX_ID)]
        assert len(set(keys)) == len(keys) == len(self)


class Heads:
    """Head and old head.

    Args:
        remembers_taken: Keep keys in `taken` until they are done, for a crash.
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
        existed = self.head.move(key, due_ms, bits)
        if not existed and self.old is not None:
            existed = self.old.discard(key)
        if len(self.taken):
            self.taken.discard(key)
        return existed

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

    def ready(self, edge: int) -> list[TimeBucketIndex]:
        """Return the heads that hold keys of the earliest edge."""
        both = (self.head, self.old)
        return [each for each in both if each is not None and each.next_due() == edge]

    def take(self, head: TimeBucketIndex, edge: int, limit: int) -> DueBatch:
        """Take the lowest keys of the earliest edge from a head, at most `limit`."""
        batch = head.pop_due(edge, limit)
        if self._remembers_taken:
            for key in batch:
                self.taken.put(key, edge)
        return batch

    def mark_done(self, batch: DueBatch) -> list[MessageKey]:
        """What was taken is done; returns which keys that were."""
        taken = self.taken
        if not len(taken):
            return []
        return [key for key in batch if taken.discard(key)]

    def reclaim(self) -> None:
        """What was taken and is not done is due again, as it was."""
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
