"""Message keys as small dense numbers, so that one bitmap can hold the keys of many ledgers.

A *lane* holds the keys of one ledger of one kind: whole entries, or one page of batch indexes. Its
keys have positions, and each block of positions in use gets a *slot*. The number of a key is its
slot and its place in the block. Slots are numbered in order of first use, so that keys of many
ledgers share Roaring containers, which would otherwise cost more than the ids inside them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import takewhile
from operator import itemgetter

from pulsar_encore.core.key_order import Block
from pulsar_encore.core.message_key import MAX_BATCH_INDEX, MAX_ID_BITS, MessageKey
from pulsar_encore.core.runs import POSITION_BITS, Runs
from pulsar_encore.errors import ConfigurationError

WHOLE = -1  # the page of unbatched messages


class Lane:
    """The keys of one ledger and page, and their current run.

    The current run holds positions of one block that arrived in order and are due together.
    """

    __slots__ = (
        "block",
        "blocks",
        "count",
        "edge",
        "first",
        "high",
        "ledger",
        "page",
        "rising",
        "slot",
    )

    def __init__(self, ledger: int, page: int) -> None:
        self.ledger: int = ledger
        self.page: int = page
        self.blocks: dict[int, int] = {}  # block number -> slot
        self.rising: bool = True  # `blocks` is in order
        self.high: int = -1  # highest position ever added: any above is new
        self.count: int = 0
        self.block: int = -1  # of the current run; -1 without a run
        self.slot: int = -1
        self.first: int = -1  # place in the block where the current run begins; it ends at `high`
        self.edge: int = -1


Part = tuple[int, int, int, int, int, "array[int]"]
"""Ledger, page, block, slot, the difference from number to position, the numbers."""

_VACANT = Lane(-1, WHOLE)
_NONE: dict[int, Lane] = {}
_ORDER = itemgetter(0, 1, 2)


class KeySpace:
    """Lanes and blocks by key.

    Args:
        block_bits: A slot has ``2**block_bits`` positions. At 13, scattered keys of 64 ledgers take
            9 bytes (14: 10, 16: 28), dense ledgers 7 slots each (12: 13).
        page_bits: A page holds ``2**page_bits`` batch indexes of each entry.

    Attributes:
        counts: Number of keys by slot.
        runs: The buckets of the positions by slot, without the current run of the lane.
    """

    def __init__(self, block_bits: int = 13, page_bits: int = 6) -> None:
        assert page_bits <= block_bits <= POSITION_BITS  # a block holds all of an entry's page
        self.block_bits = block_bits
        self.block_mask: int = (1 << block_bits) - 1
        self.page_bits: int = page_bits
        self.page_mask: int = (1 << page_bits) - 1
        self._lanes: dict[int, dict[int, Lane]] = {}
        self._owners: list[Lane] = []
        self._starts = array("Q")  # by slot: the block number
        self._free: list[int] = []
        self.counts: array[int] = array("I")
        self.runs: list[Runs | None] = []

    def resolve(self, key: MessageKey) -> tuple[Lane | None, int, int]:
        """Return the lane of a key if there is one, the page, and the position in the lane."""
        ledger, entry, index = key
        # One shift tests both ids from both sides: a negative number leaves -1.
        if (ledger | entry) >> MAX_ID_BITS or not -1 <= index <= MAX_BATCH_INDEX:
            raise ConfigurationError(
                f"not a message key: {key!r}; ledger and entry must be 0 to 2**63 - 1 and the "
                f"batch index -1 (whole entry) to {MAX_BATCH_INDEX}"
            )
        if index < 0:
            page = WHOLE
        else:
            page = index >> self.page_bits
            entry = entry << self.page_bits | index & self.page_mask
        lanes = self._lanes.get(ledger)
        return (lanes.get(page) if lanes is not None else None), page, entry

    def open(self, ledger: int, page: int) -> Lane:
        lane = self._lanes.setdefault(ledger, {})[page] = Lane(ledger, page)
        return lane

    def claim(self, lane: Lane, block: int) -> int:
        slot = lane.blocks.get(block)
        if slot is not None:
            return slot
        if self._free:
            slot = self._free.pop()
            self._owners[slot] = lane
            self._starts[slot] = block
        else:
            slot = len(self._owners)
            self._owners.append(lane)
            self._starts.append(block)
            self.counts.append(0)
            self.runs.append(None)
        if block < lane.high >> self.block_bits:
            lane.rising = False
        lane.blocks[block] = slot
        return slot

    def drop(self, slot: int, count: int) -> None:
        lane = self._owners[slot]
        lane.count -= count
        self.counts[slot] -= count
        if self.counts[slot]:
            return
        block = self._starts[slot]
        del lane.blocks[block]
        if lane.block == block:
            lane.block = -1
        self._owners[slot] = _VACANT
        self.runs[slot] = None
        self._free.append(slot)
        if not lane.count:
            self._release(lane)

    def _release(self, lane: Lane) -> None:
        lanes = self._lanes[lane.ledger]
        del lanes[lane.page]
        if not lanes:
            del self._lanes[lane.ledger]
        if not self._lanes:
            self._owners.clear()
            self._starts = array("Q")
            self._free.clear()
            self.counts = array("I")
            self.runs.clear()

    def slots(self, lane: Lane, start: int, stop: int) -> list[tuple[int, int, int, int]]:
        """Return slots with positions from `start` up to `stop`: block, slot, first place, end."""
        bits = self.block_bits
        first, last = start >> bits, (stop - 1) >> bits
        found = []
        # Walk the shorter range: the requested blocks, or the blocks in use.
        if last - first < len(lane.blocks):
            blocks: Iterable[int] = range(first, last + 1)
        elif lane.rising:
            blocks = takewhile(last.__ge__, lane.blocks)
        else:
            blocks = lane.blocks
        for block in blocks:
            slot = lane.blocks.get(block)
            if slot is None:
                continue
            low = max(start - (block << bits), 0)
            high = min(stop - (block << bits), 1 << bits)
            if low < high:
                found.append((block, slot, low, high))
        return found

    def of_entry(self, ledger: int, entry: int) -> list[tuple[Lane, int, int]]:
        """Return lanes that may hold keys of the entry, with its first position and its end."""
        self.resolve((ledger, entry, WHOLE))
        found = []
        for lane in self._lanes.get(ledger, _NONE).values():
            shift = 0 if lane.page == WHOLE else self.page_bits
            if entry << shift <= lane.high:
                found.append((lane, entry << shift, (entry + 1) << shift))
        return found

    def through(self, ledger: int, entry: int) -> list[tuple[Lane, int]]:
        """Return lanes that may hold keys up to the entry, and the end of their positions."""
        self.resolve((ledger, entry, WHOLE))
        found = []
        for other, lanes in self._lanes.items():
            if other > ledger:
                continue
            for lane in lanes.values():
                shift = 0 if lane.page == WHOLE else self.page_bits
                found.append((lane, lane.high + 1 if other < ledger else (entry + 1) << shift))
        return found

    def split(self, numbers: array[int]) -> list[Part]:
        bits = self.block_bits
        owners, starts = self._owners, self._starts
        parts = []
        start, size = 0, len(numbers)
        while start < size:
            slot = numbers[start] >> bits
            stop = bisect_left(numbers, (slot + 1) << bits, start, size)
            lane, block = owners[slot], starts[slot]
            shift = (block - slot) << bits
            parts.append((lane.ledger, lane.page, block, slot, shift, numbers[start:stop]))
            start = stop
        parts.sort(key=_ORDER)
        return parts

    def masks(
        self, ledger: int, page: int, shift: int, numbers: array[int]
    ) -> list[tuple[int, int, int]]:
        """Return (ledger, entry, mask of batch indexes) of a part of a page, in order."""
        bits, low, first = self.page_bits, self.page_mask, page << self.page_bits
        shift >>= bits  # no bit is lost: slots and blocks begin with an entry
        found = []
        at, mask = numbers[0] >> bits, 0
        for number in numbers:
            if number >> bits != at:
                found.append((ledger, at + shift, mask << first))
                at, mask = number >> bits, 0
            mask |= 1 << (number & low)
        found.append((ledger, at + shift, mask << first))
        return found

    def key_at(self, lane: Lane, position: int) -> MessageKey:
        if lane.page == WHOLE:
            return lane.ledger, position, WHOLE
        index = lane.page << self.page_bits | position & self.page_mask
        return lane.ledger, position >> self.page_bits, index

    def owner_and_position(self, slot: int, number: int) -> tuple[Lane, int]:
        return self._owners[slot], (self._starts[slot] - slot << self.block_bits) + number

    def blocks_of(self, slots: Iterable[int]) -> list[Block]:
        owners, starts, bits, found = self._owners, self._starts, self.block_bits, []
        page_bits = self.page_bits
        for slot in slots:
            lane, first = owners[slot], starts[slot] << bits
            page = lane.page
            found.append((lane.ledger, first if page < 0 else first >> page_bits, page, slot))
        return found

    def named(self, block: Block, numbers: Iterable[int]) -> Iterator[tuple[int, int, int]]:
        """Yield (entry, batch index, number) of rising numbers of one block."""
        _, _, page, slot = block
        shift = self._starts[slot] - slot << self.block_bits
        if page == WHOLE:
            yield from ((number + shift, WHOLE, number) for number in numbers)
            return
        bits, mask = self.page_bits, self.page_mask
        first = page << bits
        for number in numbers:
            yield number + shift >> bits, first | (number + shift) & mask, number

    def lanes(self) -> Iterator[Lane]:
        for lanes in self._lanes.values():
            yield from lanes.values()

    def check(self) -> None:
        used = set()
        for lane in self.lanes():
            assert self._lanes[lane.ledger][lane.page] is lane
            assert lane.block == -1 or lane.blocks[lane.block] == lane.slot
            assert not lane.rising or list(lane.blocks) == sorted(lane.blocks)
            for block, slot in lane.blocks.items():
                assert self._owners[slot] is lane and self._starts[slot] == block
                assert slot not in used
                used.add(slot)
            assert lane.count == sum(self.counts[slot] for slot in lane.blocks.values())
        assert len(self._free) == len(set(self._free))
        assert used.isdisjoint(self._free)
        assert all(self._owners[slot] is _VACANT for slot in self._free)
        assert all(self.counts[slot] > 0 for slot in used)
        assert len(used) + len(self._free) == len(self._owners) == len(self._starts)
        assert len(self._owners) == len(self.counts) == len(self.runs)
