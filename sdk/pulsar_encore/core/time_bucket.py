"""`TimeBucketIndex`: the due index in memory, after Pulsar's PIP-393 and its delayed tracker.

Owns due time -> bucket of packed keys. A bucket is a bitmap while it grows and bytes (`sealed`)
once it has stopped; which of the two is the type of the value, and nothing outside sees it.

Invariants: a key is in one bucket; a lane's `edges` name at least the buckets that hold its
keys; the heap and the buckets have the same edges, some of which may be empty until they reach
the head. Membership of a lane is one comparison while keys arrive in order; the first question
which that cannot answer makes its bitmap, kept from then on. Refuses to read a clock.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from pyroaring import BitMap64

from pulsar_encore.core.due import DueBatch, MessageKey, bucket_edge
from pulsar_encore.core.key_space import WHOLE, KeySpace, Lane
from pulsar_encore.core.sealed import seal, unseal
from pulsar_encore.errors import ConfigurationError


class TimeBucketIndex:
    """A `DueIndex` in memory: about a byte for each key in dense traffic, a few when scattered.

    Args:
        open_buckets: How many buckets may stay growing before idle ones are sealed.
        block_bits: See `KeySpace`; small values are for tests.
        page_bits: See `KeySpace`.
    """

    def __init__(self, *, open_buckets: int = 2, block_bits: int = 13, page_bits: int = 8) -> None:
        self._open_buckets = open_buckets
        self._shape = (block_bits, page_bits)
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._keys = KeySpace(*self._shape)
        self._buckets: dict[int, BitMap64 | bytes] = {}
        self._heap: list[int] = []
        self._growing: deque[tuple[int, int]] = deque()  # (edge, size when last looked at)
        self._members = BitMap64()  # every key of the lanes that are `known`
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __contains__(self, key: MessageKey) -> bool:
        lane, _, position = self._keys.resolve(key)
        return lane is not None and self._tracked(lane, position) >= 0

    def add(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        """Track a key; True when it is new. One already tracked stays where it is.

        Raises:
            ConfigurationError: The key, `due_ms` or `bits` is out of range.
        """
        edge = bucket_edge(due_ms, bits)
        lane, page, position = self._keys.resolve(key)
        if lane is None:
            lane = self._keys.open(key[0], page)
        number = self._keys.pack(lane, position)
        if position > lane.high:
            lane.high = position
        else:
            if not lane.known:
                self._learn(lane)
            if number in self._members:
                return False
        if lane.known:
            self._members.add(number)
        lane.count += 1
        self._len += 1
        self._put(lane, number, edge)
        return True

    def move(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        """Give a key another due time, tracking it when it was not; True when it was.

        Raises:
            ConfigurationError: The key, `due_ms` or `bits` is out of range.
        """
        edge = bucket_edge(due_ms, bits)
        lane, _, position = self._keys.resolve(key)
        number = -1 if lane is None else self._tracked(lane, position)
        if lane is None or number < 0:
            self.add(key, due_ms, bits)
            return False
        was = self._where(lane, number)
        if was != edge:
            self._take(was, number)
            self._put(lane, number, edge)
        return True

    def discard(self, key: MessageKey) -> bool:
        """Forget a key; True when it was tracked.

        Raises:
            ConfigurationError: The key is out of range.
        """
        lane, _, position = self._keys.resolve(key)
        if lane is None:
            return False
        number = self._tracked(lane, position)
        if number < 0:
            return False
        self._drop(lane, number)
        return True

    def discard_entry(self, ledger: int, entry: int) -> int:
        """Forget the entry's whole key and all its batch indexes; returns how many there were.

        Raises:
            ConfigurationError: `ledger` or `entry` is out of range.
        """
        removed = 0
        for lane, start, stop in self._keys.of_entry(ledger, entry):
            if lane.page != WHOLE:
                removed += self._strip(lane, self._keys.numbers(lane, start, stop))
            elif (number := self._tracked(lane, start)) >= 0:
                self._drop(lane, number)
                removed += 1
        return removed

    def discard_through(self, ledger: int, entry: int) -> int:
        """Forget every key of this entry and of all before it; returns how many there were.

        Raises:
            ConfigurationError: `ledger` or `entry` is out of range.
        """
        return sum(
            self._strip(lane, self._keys.numbers(lane, 0, stop))
            for lane, stop in self._keys.through(ledger, entry)
        )

    def next_due(self) -> int | None:
        """The earliest time at which `pop_due` hands anything over; None when nothing waits."""
        heap = self._heap
        while heap and not self._buckets[heap[0]]:
            del self._buckets[heappop(heap)]
        return heap[0] if heap else None

    def pop_due(self, now_ms: int, limit: int | None = None) -> DueBatch:
        """Hand over and forget what is due at `now_ms`.

        Args:
            now_ms: The time in milliseconds, on the clock of the due times.
            limit: At most so many keys, the first in order; what is left stays due.

        Raises:
            ConfigurationError: `limit` is negative.
        """
        if limit is not None and limit < 0:
            raise ConfigurationError(f"limit must not be negative, got {limit}")
        batch = DueBatch()
        left = self._len if limit is None else limit
        while left and (edge := self.next_due()) is not None and edge <= now_ms:
            left -= self._drain(edge, left, batch)
        return batch

    def _tracked(self, lane: Lane, position: int) -> int:
        """The key's number when it is tracked, else -1."""
        if position > lane.high:
            return -1
        number = self._keys.find(lane, position)
        if number < 0:
            return -1
        if not lane.known:
            self._learn(lane)
        return number if number in self._members else -1

    def _learn(self, lane: Lane) -> None:
        mask = self._keys.numbers(lane, 0, lane.high + 1)
        for _, ids in self._holding(lane):
            self._members |= ids & mask
        self._members.run_optimize()
        lane.known = True

    def _holding(self, lane: Lane) -> Iterator[tuple[int, BitMap64]]:
        """Buckets that may hold keys of the lane, the newest first."""
        head = self.next_due() or 0
        if lane.edges.min() < head:  # popped or emptied since
            lane.edges.remove_range(0, head)
            if lane.edge < head:
                lane.edge = -1
        for edge in reversed(lane.edges.to_array()):
            ids = self._buckets.get(edge)
            if ids is not None:
                yield edge, unseal(ids) if isinstance(ids, bytes) else ids

    def _where(self, lane: Lane, number: int) -> int:
        ids = self._buckets.get(lane.edge)
        if isinstance(ids, BitMap64) and number in ids:
            return lane.edge
        return next(edge for edge, ids in self._holding(lane) if number in ids)

    def _put(self, lane: Lane, number: int, edge: int) -> None:
        ids = self._buckets.get(edge)
        if isinstance(ids, BitMap64):
            ids.add(number)
        elif ids is None:
            self._buckets[edge] = BitMap64((number,))
            heappush(self._heap, edge)
            self._growing.append((edge, 0))
            self._seal_idle()
        else:
            ids = self._buckets[edge] = unseal(ids)
            ids.add(number)
            self._growing.append((edge, 0))
        if edge != lane.edge:
            lane.edge = edge
            lane.edges.add(edge)

    def _seal_idle(self) -> None:
        # Two looks for each new bucket: the first takes note of a size, the second seals when it
        # has not changed. Work stays in proportion to buckets made, however keys are scattered.
        growing = self._growing
        looks = 2
        while looks and len(growing) > self._open_buckets:
            edge, size = growing.popleft()
            ids = self._buckets.get(edge)
            if not isinstance(ids, BitMap64):
                continue
            looks -= 1
            if len(ids) == size:
                self._buckets[edge] = seal(ids)
            else:
                ids.run_optimize()
                growing.append((edge, len(ids)))

    def _take(self, edge: int, number: int) -> None:
        ids = self._buckets[edge]
        if isinstance(ids, bytes):
            loose = unseal(ids)
            loose.remove(number)
            self._buckets[edge] = seal(loose)
        else:
            ids.remove(number)

    def _drop(self, lane: Lane, number: int) -> None:
        self._take(self._where(lane, number), number)
        self._members.remove(number)
        self._forget(lane, 1)

    def _strip(self, lane: Lane, doomed: BitMap64) -> int:
        if not lane.known:
            self._learn(lane)
        doomed &= self._members
        if not doomed:
            return 0
        removed = 0
        for edge, ids in self._holding(lane):
            size = len(ids)
            ids -= doomed
            if len(ids) < size:
                removed += size - len(ids)
                if isinstance(self._buckets[edge], bytes):
                    self._buckets[edge] = seal(ids)
        self._members -= doomed
        self._forget(lane, removed)
        return removed

    def _forget(self, lane: Lane, count: int) -> None:
        self._len -= count
        lane.count -= count
        if not lane.count:
            self._keys.release(lane)

    def _drain(self, edge: int, limit: int, batch: DueBatch) -> int:
        held = self._buckets[edge]
        ids = unseal(held) if isinstance(held, bytes) else held
        whole = len(ids) <= limit
        gone = ids if whole else BitMap64()
        groups = batch.entries
        before = len(groups)
        masks: dict[tuple[int, int], int] = {}
        left = limit
        for ledger, page, _, lane, shift, numbers in self._keys.split(ids.to_array()):
            if not whole:
                numbers = numbers[:left]
                gone.update(numbers)
            left -= len(numbers)
            if page == WHOLE:
                positions = _positions(numbers, shift)
                if len(groups) > before and groups[-1][0] == ledger:
                    groups[-1] = (ledger, _join(groups[-1][1], positions))
                else:
                    groups.append((ledger, positions))
            else:
                for number in numbers:
                    entry, index = self._keys.entry_and_index(lane, number + shift)
                    name = (ledger, entry)
                    masks[name] = masks.get(name, 0) | 1 << index
            if whole:
                lane.edges.discard(edge)
                if lane.edge == edge:
                    lane.edge = -1
            self._forget(lane, len(numbers))
            if not left:
                break
        for (ledger, entry), mask in sorted(masks.items()):
            batch.indexes.append((ledger, entry, mask))
        if self._members:
            self._members -= gone
        if whole:
            del self._buckets[heappop(self._heap)]
        else:
            ids -= gone
            self._buckets[edge] = ids
        return limit - left

    def _check(self) -> None:
        """Walk every invariant and raise AssertionError on the first broken one; for tests."""
        self._keys.check()
        assert len(set(self._heap)) == len(self._heap)
        assert set(self._heap) == self._buckets.keys()
        assert all(self._heap[(i - 1) // 2] <= e for i, e in enumerate(self._heap) if i)
        held: dict[int, int] = {}  # number -> edge
        for edge, ids in self._buckets.items():
            for number in unseal(ids) if isinstance(ids, bytes) else ids:
                assert number not in held, "a key in two buckets"
                held[number] = edge
        lanes = list(self._keys.lanes())
        for lane in lanes:
            own = [
                number for number in self._keys.numbers(lane, 0, lane.high + 1) if number in held
            ]
            assert len(own) == lane.count > 0
            assert all(held[number] in lane.edges for number in own)
            assert lane.edge == -1 or lane.edge in lane.edges
            known = self._keys.numbers(lane, 0, lane.high + 1) & self._members
            assert list(known) == (own if lane.known else [])
        assert self._len == len(held) == sum(lane.count for lane in lanes)
        assert len(self._members) == sum(lane.count for lane in lanes if lane.known)


def _positions(numbers: array[int], shift: int) -> Sequence[int]:
    first, last = numbers[0], numbers[-1]
    if last - first == len(numbers) - 1:
        return range(first + shift, last + shift + 1)
    return [number + shift for number in numbers]


def _join(before: Sequence[int], after: Sequence[int]) -> Sequence[int]:
    """Two blocks of one ledger as one group."""
    if isinstance(before, range) and isinstance(after, range) and before.stop == after.start:
        return range(before.start, after.stop)
    if isinstance(before, list):
        before.extend(after)
        return before
    return [*before, *after]
