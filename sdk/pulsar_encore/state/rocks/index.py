"""`RocksIndex`: a due index that survives the process, for one source.

Owns what is on disk of it: one key of 32 bytes for each message that waits. Which keys are
tracked, and when each is due, is known in memory, by a `TimeBucketIndex` (a byte for a key in dense
traffic, some more when scattered), filled from disk when the store is opened: so no question and
no look at the clock reads the disk, nothing has to be scanned for what is due, and a clock that was
set back strands nothing. What is taken stays on disk until it is done with.

Invariants: on disk is what is tracked and what is taken, each key once, under the edge that memory
has for it; one write for a step. Times are wall-clock ms, because a monotonic clock does not
survive either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from pulsar_encore.core.due import MAX_BITS, MAX_ID_BITS, DueBatch, MessageKey, bucket_edge
from pulsar_encore.core.time_bucket import TimeBucketIndex
from pulsar_encore.errors import ConfigurationError

from .journal import Journal
from .keys import bucket_range, due_key, due_packed, read_due_key
from .writes import DUE, Span

# A range costs readers more than a few keys do.
_FEW: Final = 8
_LATE: Final = 16  # batches of which nothing is left that are known when `done` comes after that
_LAST: Final = (1 << MAX_ID_BITS) - 1

Part: TypeAlias = tuple[int, DueBatch | list[MessageKey]]
"""What was taken of one bucket: its edge, its keys."""


class RocksIndex:
    """A `DueIndex` on disk. Made by `RocksStore.source`.

    Writes that fail raise nothing here: what is in memory goes on, and they are tried again (see
    `RocksStore.trouble`).

    Args:
        journal: Where writes go.
        source: The number of the source.
        index: What of it was found on disk.
    """

    def __init__(self, journal: Journal, source: int, index: TimeBucketIndex) -> None:
        self._journal = journal
        self._source = source
        self._live = index
        self._taken: list[_Taken] = []
        self._over: deque[DueBatch] = deque(maxlen=_LATE)

    def add(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        """Track a key; True when it is new. One already tracked stays where it is.

        Raises:
            ConfigurationError: The key, `due_ms` or `bits` is out of range.
        """
        if not self._live.add(key, due_ms, bits):
            return False
        self._put(key, bucket_edge(due_ms, bits), self._untake(key) if self._taken else None)
        return True

    def move(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        """Give a key another due time, tracking it when it was not; True when it was.

        Raises:
            ConfigurationError: The key, `due_ms` or `bits` is out of range.
        """
        before = self._live.replace(key, due_ms, bits)
        edge = -(-due_ms >> bits) << bits  # `bucket_edge`, of what was looked at just now
        if before is None:
            self._put(key, edge, self._untake(key) if self._taken else None)
            return False
        if before != edge:
            self._put(key, edge, before)
        return True

    def discard(self, key: MessageKey) -> bool:
        """Forget a key; True when it was tracked.

        Raises:
            ConfigurationError: The key is out of range.
        """
        edge = self._live.pull(key)
        if edge is not None:
            self._remove(edge, key)
        elif (before := self._untake(key)) is not None:
            self._remove(before, key)
        self._journal.commit()
        return edge is not None

    def discard_each(self, keys: Iterable[MessageKey], *, at_once: bool = False) -> None:
        """Forget several keys; those that are not tracked are left out.

        Args:
            keys: Which.
            at_once: Not even a kill that comes now brings them back.
        """
        with self._journal:
            for key in keys:
                self.discard(key)
        if at_once:
            self._journal.flush()

    def discard_entry(self, ledger: int, entry: int) -> int:
        """Forget the entry's whole key and all its batch indexes; returns how many there were.

        Raises:
            ConfigurationError: `ledger` or `entry` is out of range.
        """
        found = self._live.keys_of_entry(ledger, entry)
        if found:
            self._live.discard_entry(ledger, entry)
        gone = list(found)
        for taken in self._taken:
            more = taken.keys.keys_of_entry(ledger, entry)
            taken.keys.discard_entry(ledger, entry)
            gone += more
        self._forget(gone)
        return len(found)

    def discard_through(self, ledger: int, entry: int) -> int:
        """Forget every key of this entry and of all before it; returns how many there were.

        Raises:
            ConfigurationError: `ledger` or `entry` is out of range.
        """
        found = self._live.keys_through(ledger, entry)
        if found:
            self._live.discard_through(ledger, entry)
        gone = list(found)
        for taken in self._taken:
            more = taken.keys.keys_through(ledger, entry)
            taken.keys.discard_through(ledger, entry)
            gone += more
        self._forget(gone)
        return len(found)

    def pop_due(self, now_ms: int, limit: int | None = None) -> DueBatch:
        """Take what is due, the earliest bucket first; on disk it stays until `done`.

        Args:
            now_ms: The time, in ms since the epoch.
            limit: At most so many keys; what is left stays due.

        Raises:
            ConfigurationError: `limit` is negative.
        """
        if limit is not None and limit < 0:
            raise ConfigurationError(f"limit must not be negative, got {limit}")
        index = self._live
        batch = DueBatch()
        parts: list[Part] = []
        left = len(index) if limit is None else limit
        while left and (edge := index.next_due()) is not None and edge <= now_ms:
            part = index.pop_due(edge, left)
            left -= len(part)
            parts.append((edge, part))
            batch.entries += part.entries
            batch.indexes += part.indexes
        if parts:
            self._taken.append(_Taken(batch, parts))
        return batch

    def done(self, batch: DueBatch) -> None:
        """What was taken is seen to: after a crash it is not due again.

        Keys of it that were added again meanwhile stay, also when they were taken again.
        """
        if any(each is batch for each in self._over):
            return
        for at, taken in enumerate(self._taken):
            if taken.batch is batch:
                del self._taken[at]
                self._remove_parts(taken.left())
                break
        else:
            for key in batch:
                before = self._untake(key)
                if before is not None:
                    self._journal.delete(DUE, due_key(before, self._source, key))
        self._journal.commit()

    def next_due(self) -> int | None:
        """The earliest time at which `pop_due` hands anything over; None when nothing waits."""
        return self._live.next_due()

    def due_of(self, key: MessageKey) -> int | None:
        """When a key is due, rounded up as it was; None when it is not tracked.

        Raises:
            ConfigurationError: The key is out of range.
        """
        return self._live.due_of(key)

    def dues_of_entry(self, ledger: int, entry: int) -> dict[int, int]:
        """When its messages are due, by batch index, -1 for the entry itself."""
        return {key[2]: due_ms for due_ms, key in self._live.keys_of_entry(ledger, entry)}

    def waiting(self) -> list[tuple[int, MessageKey]]:
        """(due time, rounded up as it was; key) of all that is tracked, in no order. One list."""
        return list(self._live.keys_through(_LAST, _LAST))

    def clear(self) -> None:
        """Forget everything."""
        edges = set(self._live.edges())
        for taken in self._taken:
            edges.update(edge for edge, _ in taken.parts)
        self._live.clear()
        self._end_taken(self._taken)
        spans = [bucket_range(edge, self._source) for edge in edges]
        self._journal.delete_ranges(DUE, spans)
        self._journal.commit()

    def reclaim(self) -> None:
        """What was taken and not done with is due again, as after a crash."""
        for taken in self._taken:
            for edge, part in taken.left():
                for key in part:
                    place(self._live, key, edge)
        self._end_taken(self._taken)

    def __contains__(self, key: MessageKey) -> bool:
        return key in self._live

    def __len__(self) -> int:
        return len(self._live)

    # On disk

    def _put(self, key: MessageKey, edge: int, before: int | None) -> None:
        source, journal = self._source, self._journal
        ledger, entry, index = key
        index += 1
        points = journal.points(DUE)
        if before is not None:  # before the new one: equal, it would remove that (#10276)
            points[due_packed(before, source, ledger, entry, index)] = None
        points[due_packed(edge, source, ledger, entry, index)] = b""
        journal.commit()

    def _remove(self, edge: int, key: MessageKey) -> None:
        # Later: should it be lost, the broker is asked for what is acked, and ignores it.
        self._journal.delete_later(DUE, due_key(edge, self._source, key))

    def _forget(self, gone: Iterable[tuple[int, MessageKey]]) -> None:
        by_edge: dict[int, list[MessageKey]] = {}
        for edge, key in gone:
            by_edge.setdefault(edge, []).append(key)
        spans: list[Span] = []
        for edge, keys in by_edge.items():
            if self._alone(edge, len(keys)):
                spans.append(bucket_range(edge, self._source))
            else:
                for key in keys:
                    self._remove(edge, key)
        self._journal.delete_ranges_later(DUE, spans)
        self._end_taken([taken for taken in self._taken if not len(taken)])
        self._journal.commit()

    def _remove_parts(self, parts: Iterable[Part]) -> None:
        spans: list[Span] = []
        for edge, keys in parts:
            if self._alone(edge, len(keys)):
                spans.append(bucket_range(edge, self._source))
            else:
                for key in keys:
                    self._journal.delete(DUE, due_key(edge, self._source, key))
        self._journal.delete_ranges(DUE, spans)

    def _alone(self, edge: int, count: int) -> bool:
        """Whether so many keys are better removed as their whole bucket: nothing else is in it."""
        return (
            count >= _FEW
            and not self._live.holds_at(edge)
            and not any(taken.holds_at(edge) for taken in self._taken)
        )

    def _untake(self, key: MessageKey) -> int | None:
        """The edge under which a key is on disk that was taken; from now on it is not."""
        for taken in self._taken:
            edge = taken.keys.due_of(key)
            if edge is not None:
                taken.keys.discard(key)
                if not len(taken.keys):
                    self._end_taken([taken])
                return edge
        return None

    def _end_taken(self, ended: list[_Taken]) -> None:
        """Nothing is left of them."""
        if ended:
            self._over.extend(taken.batch for taken in ended)
            self._taken = [taken for taken in self._taken if taken not in ended]

    def _check(self) -> None:
        """Walk every invariant and raise AssertionError on the first broken one; for tests."""
        self._live._check()
        known = list(self._live.keys_through(_LAST, _LAST))
        assert len(known) == len(self._live) == len({key for _, key in known})
        for taken in self._taken:
            assert len(taken)
            known += [(edge, key) for edge, part in taken.left() for key in part]
        self._journal.flush()
        found = [
            (due_ms, key)
            for due_ms, source, key in (
                read_due_key(data) for data, _ in self._journal.database.scan(DUE)
            )
            if source == self._source
        ]
        assert sorted(known) == sorted(found), (known, found)


class _Taken:
    """A batch that was taken: its parts, and once anyone asks for a single key, an index."""

    def __init__(self, batch: DueBatch, parts: list[Part]) -> None:
        self.batch = batch
        self.parts = parts
        self._keys: TimeBucketIndex | None = None

    @property
    def keys(self) -> TimeBucketIndex:
        """What is left of it, as an index."""
        if self._keys is None:
            self._keys = TimeBucketIndex()
            for edge, part in self.parts:
                for key in part:
                    place(self._keys, key, edge)
        return self._keys

    def left(self) -> Iterator[Part]:
        """What is left of it."""
        for edge, part in self.parts:
            if self._keys is None:
                yield edge, part
            elif rest := [key for key in part if self._keys.due_of(key) == edge]:
                yield edge, rest

    def holds_at(self, edge: int) -> bool:
        """Whether anything of that edge is left, as far as that is known."""
        if self._keys is not None:
            return self._keys.holds_at(edge)
        return any(each == edge for each, _ in self.parts)

    def __len__(self) -> int:
        return len(self.batch) if self._keys is None else len(self._keys)


def place(index: TimeBucketIndex, key: MessageKey, edge: int) -> bool:
    """Track a key under an edge, which may be the one after the last time; True when it is new."""
    if edge > _LAST:
        return index.add(key, _LAST, MAX_BITS)
    return index.add(key, edge, 0)
