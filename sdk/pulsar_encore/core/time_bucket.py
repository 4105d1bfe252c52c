"""`TimeBucketIndex`: the due index in memory, after Pulsar's PIP-393 and its delayed tracker.

A bucket is a bitmap of keys that are due together while it grows, and bytes (`sealed_bucket`) after
it has stopped. Runs of positions say which bucket holds a key, so that a query or a removal opens
at most one bucket.

Invariants: a key is in one bucket, which its run names. The heap and the buckets have the same
edges; some buckets may be empty until they reach the head.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush, merge
from itertools import chain, groupby, islice
from operator import itemgetter

from pyroaring import BitMap64

from pulsar_encore.core import runs as positions
from pulsar_encore.core.bucket_width import bucket_edge
from pulsar_encore.core.key_order import Block, groups
from pulsar_encore.core.key_space import WHOLE, KeySpace, Lane
from pulsar_encore.core.message_key import DueBatch, MessageKey
from pulsar_encore.core.sealed_bucket import holds, listed, seal, size_of, tag_of, unseal, without
from pulsar_encore.errors import ConfigurationError

_FIRST = itemgetter(1)
_NUMBER = itemgetter(2)


class _LastRun:
    """The current run of the lane that grew last, for keys that continue it.

    Keys mostly arrive in order and due together. `TimeBucketIndex.add` then compares and adds,
    without looking up the lane and the bucket again.

    Attributes:
        ledger: Ledger of the lane; None if no run may be continued.
        page: Page of the lane.
        lane: The lane.
        slot: Slot of the run's block.
        stop: End of the positions of the block.
        shift: Difference from position to number.
        after: Due times later than this, and up to `edge`, belong to the run's bucket.
        bits: Precision of these due times.
        ids: The run's bucket.
    """

    __slots__ = ("after", "bits", "edge", "ids", "lane", "ledger", "page", "shift", "slot", "stop")

    def __init__(self) -> None:
        self.ledger: int | None = None
        self.page: int = WHOLE
        self.lane: Lane
        self.slot: int = 0
        self.stop: int = 0
        self.shift: int = 0
        self.after: int = 0
        self.edge: int = 0
        self.bits: int = 0
        self.ids: BitMap64


class TimeBucketIndex:
    """A `DueIndex` in memory: about a byte for each key in dense traffic, a few if scattered.

    Args:
        open_buckets: How many buckets may stay bitmaps before idle ones are sealed.
        block_bits, page_bits: See `KeySpace`; small values are for tests.
    """

    def __init__(self, *, open_buckets: int = 2, block_bits: int = 13, page_bits: int = 6) -> None:
        self._open_buckets = open_buckets
        self._shape = (block_bits, page_bits)
        self.clear()

    def clear(self) -> None:
        self._keys = KeySpace(*self._shape)
        self._buckets: dict[int, BitMap64 | bytes] = {}  # by edge; b"" for an emptied one
        self._heap: list[int] = []
        self._growing: deque[tuple[int, int]] = deque()  # (edge, size at the last look)
        # Runs name a bucket by its tag, a small number. Here are the tags of bitmaps; sealed bytes
        # contain theirs.
        self._numbers: dict[int, int] = {}
        self._edges = array("Q")  # by number
        self._spare: list[int] = []  # numbers to use again
        # The sorted blocks of the bucket that is being taken in parts, so that no part needs a look
        # at the whole bucket.
        self._parted: int = -1  # the edge of that bucket
        self._blocks: list[Block] = []
        self._first_block: int = 0  # index of the first block that is not known to be empty
        self._last = _LastRun()
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __contains__(self, key: MessageKey) -> bool:
        lane, _, position = self._keys.resolve(key)
        return lane is not None and self._find(lane, position)[1] >= 0

    def add(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        # The short way, which is 60 % faster. A key or a due time that is out of range
        # never continues a run, so the long way raises its error.
        last = self._last
        ledger, position, index = key
        if ledger == last.ledger:
            keys = self._keys
            page = index  # WHOLE, or no page at all if the index is not valid
            if index >= 0:
                page = index >> keys.page_bits
                position = position << keys.page_bits | index & keys.page_mask
            growing = last.lane
            if (
                growing.high < position < last.stop
                and last.after < due_ms <= last.edge
                and bits == last.bits
                and page == last.page
            ):
                last.ids.add(position + last.shift)
                growing.high = position
                growing.count += 1
                keys.counts[last.slot] += 1
                self._len += 1
                return True
        edge = bucket_edge(due_ms, bits)
        lane, page, position = self._keys.resolve(key)
        if lane is None:
            lane = self._keys.open(ledger, page)
        elif position <= lane.high and self._find(lane, position)[1] >= 0:
            return False
        if self._insert(lane, position, edge):
            self._continue(lane, edge, bits)
        return True

    def move(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        edge = bucket_edge(due_ms, bits)
        lane, _, position = self._keys.resolve(key)
        number, was = (-1, -1) if lane is None else self._find(lane, position)
        if lane is None or was < 0:
            self.add(key, due_ms, bits)
            return False
        if was != edge:
            self._take(was, number, number + 1)
            self._put(number, edge)
            self._place(lane, number, edge)
        return True

    def discard(self, key: MessageKey) -> bool:
        lane, _, position = self._keys.resolve(key)
        if lane is None:
            return False
        number, edge = self._find(lane, position)
        if edge < 0:
            return False
        self._take(edge, number, number + 1)
        slot = number >> self._keys.block_bits
        runs = self._keys.runs[slot]
        if runs:
            positions.forget(runs, number & self._keys.block_mask)
        self._forget(slot, 1)
        return True

    def discard_entry(self, ledger: int, entry: int) -> int:
        return sum(
            self._strip(lane, start, stop)
            for lane, start, stop in self._keys.of_entry(ledger, entry)
        )

    def discard_through(self, ledger: int, entry: int) -> int:
        return sum(self._strip(lane, 0, stop) for lane, stop in self._keys.through(ledger, entry))

    def keys_through(self, ledger: int, entry: int) -> list[tuple[int, MessageKey]]:
        """Return (edge, key) of all keys that `discard_through` would forget, in no order."""
        return [
            found
            for lane, stop in self._keys.through(ledger, entry)
            for found in self._among(lane, 0, stop)
        ]

    def _among(self, lane: Lane, start: int, stop: int) -> Iterator[tuple[int, MessageKey]]:
        keys = self._keys
        bits = keys.block_bits
        for block, slot, low, high in keys.slots(lane, start, stop):
            if block == lane.block and lane.first < high:
                self._end_run(lane)
            runs = keys.runs[slot]
            if not runs:
                continue
            base, shift = slot << bits, (block - slot) << bits
            asked = BitMap64(range(base + low, base + high))
            for edge in {self._edges[named] for named in positions.cut(runs[:], low, high)}:
                held = self._buckets.get(edge)
                if held:
                    for number in _ids(held) & asked:
                        yield edge, keys.key_at(lane, number + shift)

    def next_due(self) -> int | None:
        heap = self._heap
        while heap and not self._buckets[heap[0]]:
            self._end(heappop(heap))
        return heap[0] if heap else None

    def due_of(self, key: MessageKey) -> int | None:
        lane, _, position = self._keys.resolve(key)
        edge = -1 if lane is None else self._find(lane, position)[1]
        return edge if edge >= 0 else None

    def soonest(self, limit: int) -> list[tuple[int, MessageKey]]:
        """Return (edge, key) of the keys that are due first, linear in their number.

        Sorting the edges takes longer if there are many more buckets than `limit`.
        """
        found: list[tuple[int, MessageKey]] = []
        for edge in sorted(edge for edge, held in self._buckets.items() if held):
            if len(found) >= limit:
                break
            found += ((edge, key) for key in islice(self.in_order(edge), limit - len(found)))
        return found

    def pop_due(self, now_ms: int, limit: int | None = None) -> DueBatch:
        """Take keys that are due at `now_ms`: the earliest bucket first, lowest keys first."""
        if limit is not None and limit < 0:
            raise ConfigurationError(f"limit must not be negative, got {limit}")
        batch = DueBatch()
        left = self._len if limit is None else limit
        while left and (edge := self.next_due()) is not None and edge <= now_ms:
            left -= self._drain(edge, left, batch)
        return batch

    def in_order(self, edge: int) -> Iterator[MessageKey]:
        """Yield the keys that are due at exactly `edge`, lowest keys first.

        The index must not change meanwhile.
        """
        held = self._buckets.get(edge)
        if not held:
            return
        ids = self._open(edge, held) if isinstance(held, bytes) else held
        for number in self._numbers_in_order(edge, ids):
            slot = number >> self._keys.block_bits
            lane, position = self._keys.owner_and_position(slot, number)
            if lane.page == WHOLE:  # without a call: a sealed head has many keys
                yield lane.ledger, position, WHOLE
            else:
                yield self._keys.key_at(lane, position)

    def done(self, batch: DueBatch) -> None:
        """Do nothing."""

    # Where a key is

    def _find(self, lane: Lane, position: int) -> tuple[int, int]:
        """Return the number and the bucket of a key; a bucket of -1 if it is not tracked."""
        if position > lane.high:
            return -1, -1
        keys = self._keys
        block = position >> keys.block_bits
        slot = lane.blocks.get(block)
        if slot is None:
            return -1, -1
        place = position & keys.block_mask
        number = slot << keys.block_bits | place
        if block == lane.block and place >= lane.first:
            edge = lane.edge
        else:
            runs = keys.runs[slot]
            named = -1 if runs is None else positions.find(runs, place)
            if named < 0:
                return number, -1
            edge = self._edges[named]
        held = self._buckets.get(edge)
        if not held:  # the bucket has gone since
            return number, -1
        there = holds(held, number) if isinstance(held, bytes) else number in held
        return number, edge if there else -1

    def _insert(self, lane: Lane, position: int, edge: int) -> bool:
        """Add a new key; return True if it continued the current run of its lane."""
        keys = self._keys
        continued = False
        block = position >> keys.block_bits
        place = position & keys.block_mask
        if position > lane.high:
            if block != lane.block or edge != lane.edge:
                self._end_run(lane)
                lane.slot = keys.claim(lane, block)
                lane.block, lane.first, lane.edge = block, place, edge
            else:
                continued = True
            lane.high = position
            slot = lane.slot
            self._put(slot << keys.block_bits | place, edge)
        else:
            slot = keys.claim(lane, block)
            number = slot << keys.block_bits | place
            self._put(number, edge)
            self._place(lane, number, edge)
        keys.counts[slot] += 1
        lane.count += 1
        self._len += 1
        return continued

    def _continue(self, lane: Lane, edge: int, bits: int) -> None:
        """Let `add` continue the current run of a lane on the short way.

        The methods that end a run, free a slot or replace a bucket call `_stop_continuing`.
        """
        ids = self._buckets[edge]
        if not isinstance(ids, BitMap64):
            return
        last, block_bits = self._last, self._keys.block_bits
        last.ledger, last.page, last.lane, last.slot = lane.ledger, lane.page, lane, lane.slot
        last.stop = (lane.block + 1) << block_bits
        last.shift = (lane.slot - lane.block) << block_bits
        last.after, last.edge, last.bits = max(edge - (1 << bits), -1), edge, bits
        last.ids = ids

    def _stop_continuing(self) -> None:
        self._last.ledger = None

    def _place(self, lane: Lane, number: int, edge: int) -> None:
        keys = self._keys
        slot, place = number >> keys.block_bits, number & keys.block_mask
        if slot == lane.slot and lane.block >= 0 and place >= lane.first:
            self._end_run(lane)
        runs = keys.runs[slot] or positions.new_runs()
        keys.runs[slot] = positions.put(runs, place, self._number(edge))

    def _end_run(self, lane: Lane) -> None:
        if lane.block < 0:
            return
        self._stop_continuing()
        if self._buckets.get(lane.edge):
            keys = self._keys
            runs = keys.runs[lane.slot] or positions.new_runs()
            keys.runs[lane.slot] = positions.append(
                runs, lane.first, lane.high & keys.block_mask, self._number(lane.edge)
            )
        lane.block = -1

    def _number(self, edge: int) -> int:
        held = self._buckets[edge]
        return tag_of(held) if isinstance(held, bytes) else self._numbers[edge]

    # Buckets

    def _put(self, number: int, edge: int) -> None:
        if edge == self._parted:
            self._parted = -1
        ids = self._buckets.get(edge)
        if isinstance(ids, BitMap64):
            ids.add(number)
        elif ids is None:
            self._buckets[edge] = BitMap64((number,))
            self._name(edge)
            heappush(self._heap, edge)
            self._growing.append((edge, 0))
            self._seal_idle()
        else:
            self._open(edge, ids).add(number)
            self._growing.append((edge, 0))

    def _name(self, edge: int) -> None:
        if self._spare:
            name = self._spare.pop()
            self._edges[name] = edge
        else:
            name = len(self._edges)
            self._edges.append(edge)
        self._numbers[edge] = name

    def _open(self, edge: int, held: bytes) -> BitMap64:
        if held:
            ids = unseal(held)
            self._numbers[edge] = tag_of(held)
        else:
            ids = BitMap64()
            self._name(edge)
        self._buckets[edge] = ids
        return ids

    def _seal_idle(self) -> None:
        # Two steps for each new bucket: the first notes the size, the second seals the bucket if
        # its size has not changed.
        growing = self._growing
        steps = 2
        while steps and len(growing) > self._open_buckets:
            edge, size = growing.popleft()
            ids = self._buckets.get(edge)
            if not isinstance(ids, BitMap64):
                continue
            steps -= 1
            if not ids:
                continue
            if len(ids) != size:
                growing.append((edge, len(ids)))
            elif (sealed := seal(ids, self._numbers[edge])) is not None:
                self._buckets[edge] = sealed
                del self._numbers[edge]
                self._stop_continuing()
            ids.run_optimize()

    def _take(self, edge: int, start: int, stop: int) -> int:
        held = self._buckets.get(edge)
        if not held:
            return 0
        if isinstance(held, bytes):
            rest, count = without(held, start, stop)
            self._buckets[edge] = rest
            if isinstance(rest, BitMap64):
                self._numbers[edge] = tag_of(held)
            elif not rest:
                self._spare.append(tag_of(held))
        else:
            count = int(held.range_cardinality(start, stop))
            held.remove_range(start, stop)
        return count

    def _end(self, edge: int) -> None:
        self._stop_continuing()
        held = self._buckets.pop(edge)
        if not isinstance(held, bytes):
            self._spare.append(self._numbers.pop(edge))
        elif held:
            self._spare.append(tag_of(held))

    def _strip(self, lane: Lane, start: int, stop: int) -> int:
        removed = 0
        bits = self._keys.block_bits
        for block, slot, low, high in self._keys.slots(lane, start, stop):
            if block == lane.block and lane.first < high:
                self._end_run(lane)
            runs = self._keys.runs[slot]
            base = slot << bits
            gone = 0
            for named in positions.cut(runs, low, high) if runs else ():
                gone += self._take(self._edges[named], base + low, base + high)
            if gone:
                self._forget(slot, gone)
            removed += gone
        return removed

    def _forget(self, slot: int, count: int) -> None:
        self._stop_continuing()
        self._len -= count
        self._keys.drop(slot, count)

    def _drain(self, edge: int, limit: int, batch: DueBatch) -> int:
        held = self._buckets[edge]
        rest: BitMap64 | None = None
        if size_of(held) <= limit:
            numbers = listed(held)
            self._end(heappop(self._heap))
        else:
            rest = self._open(edge, held) if isinstance(held, bytes) else held
            numbers = array("Q", sorted(islice(self._numbers_in_order(edge, rest), limit)))
        found = batch.entries
        before = len(found)
        masks: list[tuple[int, int, int]] = []
        several_pages = False
        for ledger, page, _, slot, shift, members in self._keys.split(numbers):
            if rest is not None:  # the lowest keys of a slot are its lowest numbers
                rest.remove_range(members[0], members[-1] + 1)
            if page == WHOLE:
                entries = _positions(members, shift)
                if len(found) > before and found[-1][0] == ledger:
                    found[-1] = (ledger, _join(found[-1][1], entries))
                else:
                    found.append((ledger, entries))
            else:
                several_pages = several_pages or page > 0
                masks += self._keys.masks(ledger, page, shift, members)
            self._forget(slot, len(members))
        batch.indexes += _joined(masks) if several_pages else masks
        return len(numbers)

    def _numbers_in_order(self, edge: int, ids: BitMap64) -> Iterator[int]:
        bits = self._keys.block_bits
        if edge != self._parted:
            self._parted, self._blocks = edge, self._blocks_of(ids)
            self._first_block = 0
            self._stop_continuing()  # a key that is added changes the blocks
        blocks = self._blocks
        # Parts that were taken, and discarded keys, leave empty blocks behind.
        while self._first_block < len(blocks):
            start = blocks[self._first_block][3] << bits
            if ids.range_cardinality(start, start + (1 << bits)):
                break
            self._first_block += 1
        apart = groups(blocks, bits, self._keys.page_bits, self._first_block)
        return chain.from_iterable(self._merged(ids, each) for each in apart)

    def _merged(self, ids: BitMap64, group: Sequence[Block]) -> Iterator[int]:
        if len(group) == 1:
            return self._of_slot(ids, group[0][3])
        whole = [self._with_keys(ids, each) for each in group if each[2] == WHOLE]
        pages = groupby((each for each in group if each[2] != WHOLE), key=_FIRST)
        batches = chain.from_iterable(
            merge(*[self._with_keys(ids, each) for each in some]) for _, some in pages
        )
        return map(_NUMBER, merge(*whole, batches) if whole else batches)

    def _blocks_of(self, ids: BitMap64) -> list[Block]:
        bits, at, last = self._keys.block_bits, ids.min(), ids.max()
        slots, following = [at >> bits], ids.next_set_bit
        while (at := (slots[-1] + 1) << bits) <= last:
            slots.append(following(at) >> bits)
        return sorted(self._keys.blocks_of(slots))

    def _of_slot(self, ids: BitMap64, slot: int) -> Iterator[int]:
        start = slot << self._keys.block_bits
        stop = (slot + 1) << self._keys.block_bits
        count = ids.range_cardinality(start, stop)
        return islice(ids.iter_equal_or_larger(start), count)

    def _with_keys(self, ids: BitMap64, block: Block) -> Iterator[tuple[int, int, int]]:
        return self._keys.named(block, self._of_slot(ids, block[3]))

    def _check(self) -> None:
        self._keys.check()
        assert len(set(self._heap)) == len(self._heap)
        assert set(self._heap) == self._buckets.keys()
        assert all(self._heap[(i - 1) // 2] <= e for i, e in enumerate(self._heap) if i)
        named = list(self._spare)
        held: dict[int, int] = {}  # number -> edge
        for edge, ids in self._buckets.items():
            if not isinstance(ids, bytes) or ids:
                named.append(self._number(edge))
                assert self._edges[named[-1]] == edge
                for number in _ids(ids):
                    assert number not in held, "a key in two buckets"
                    held[number] = edge
        assert sorted(named) == list(range(len(self._edges))), "a number in two places, or lost"
        bitmaps = {edge for edge, ids in self._buckets.items() if isinstance(ids, BitMap64)}
        assert self._numbers.keys() == bitmaps
        counts = Counter(number >> self._keys.block_bits for number in held)
        for number, edge in held.items():
            slot = number >> self._keys.block_bits
            lane, position = self._keys.owner_and_position(slot, number)
            assert self._find(lane, position) == (number, edge)
            assert counts[slot] == self._keys.counts[slot]
        assert self._len == len(held) == sum(self._keys.counts)
        last = self._last
        if last.ledger is not None:
            lane = last.lane
            assert self._keys.resolve(self._keys.key_at(lane, lane.high))[0] is lane
            assert (lane.ledger, lane.page, lane.edge) == (last.ledger, last.page, last.edge)
            assert lane.blocks[lane.block] == lane.slot == last.slot
            assert self._buckets[last.edge] is last.ids
            assert self._parted != last.edge


def _ids(held: BitMap64 | bytes) -> BitMap64:
    return unseal(held) if isinstance(held, bytes) else held


def _joined(masks: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the masks in order, with one mask for all pages of an entry."""
    entries: dict[tuple[int, int], int] = {}
    for ledger, entry, mask in masks:
        entries[ledger, entry] = entries.get((ledger, entry), 0) | mask
    return [(ledger, entry, mask) for (ledger, entry), mask in sorted(entries.items())]


def _positions(numbers: array[int], shift: int) -> Sequence[int]:
    first, last = numbers[0], numbers[-1]
    if last - first == len(numbers) - 1:
        return range(first + shift, last + shift + 1)
    return [number + shift for number in numbers]


def _join(before: Sequence[int], after: Sequence[int]) -> Sequence[int]:
    if isinstance(before, range) and isinstance(after, range) and before.stop == after.start:
        return range(before.start, after.stop)
    if isinstance(before, list):
        before.extend(after)
        return before
    return [*before, *after]
