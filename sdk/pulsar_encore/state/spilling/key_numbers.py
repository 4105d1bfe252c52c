"""Stable numbers for message keys, so that a bitmap means the same in memory and on disk.

The positions of a ledger are its entries, and for batches *pages* of 64 batch indexes per entry.
Positions are divided into blocks, and a block in use has a *slot*. The number of a key is its slot
and its offset in the block. Unlike in `core.key_space`, a slot is never reused, so a stored number
always stands for one key. A block without keys is forgotten, and later gets another slot.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Final, TypeAlias

from ...core.key_order import groups
from ...core.message_key import DueBatch, MessageKey
from ...errors import StateDamagedError

WHOLE: Final = -1  # the page of unbatched messages
BLOCK_BITS: Final = 13
PAGE_BITS: Final = 6
_BLOCK: Final = 1 << BLOCK_BITS
_PLACE: Final = _BLOCK - 1
_INDEX: Final = (1 << PAGE_BITS) - 1
_ORDER: Final = itemgetter(0, 1, 2)

Numbers: TypeAlias = "array[int]"
"""Ascending numbers, of type "Q"."""

Block = tuple[int, int, int]
"""Ledger, page, block number."""


class Slots:
    def __init__(self) -> None:
        self.next: int = 0  # the next slot to assign
        self._blocks: dict[int, Block] = {}  # by slot
        self._counts: dict[int, int] = {}  # by slot
        self._slots: dict[int, dict[int, dict[int, int]]] = {}  # by ledger, page, block

    def __len__(self) -> int:
        return len(self._blocks)

    def clear(self) -> None:
        self._blocks.clear()
        self._counts.clear()
        self._slots.clear()

    def find(self, key: MessageKey) -> int:
        ledger, entry, index = key
        pages = self._slots.get(ledger)
        if pages is None:
            return -1
        if index < 0:
            blocks = pages.get(WHOLE)
        else:
            blocks = pages.get(index >> PAGE_BITS)
            entry = entry << PAGE_BITS | index & _INDEX
        if blocks is None:
            return -1
        slot = blocks.get(entry >> BLOCK_BITS)
        return -1 if slot is None else slot << BLOCK_BITS | entry & _PLACE

    def claim(self, ledger: int, page: int, block: int) -> int:
        blocks = self._slots.setdefault(ledger, {}).setdefault(page, {})
        slot = blocks.get(block)
        if slot is None:
            slot = blocks[block] = self.next
            self.next += 1
            self._blocks[slot] = (ledger, page, block)
            self._counts[slot] = 0
        return slot

    def restore(self, slot: int, block: Block) -> None:
        """Restore a slot that was assigned when its numbers were written.

        Raises StateDamagedError if the slot or its block has another meaning already.
        """
        ledger, page, at = block
        blocks = self._slots.setdefault(ledger, {}).setdefault(page, {})
        if blocks.setdefault(at, slot) != slot or self._blocks.setdefault(slot, block) != block:
            raise StateDamagedError(f"slot {slot} of snapshots has two meanings")
        self._counts.setdefault(slot, 0)
        self.next = max(self.next, slot + 1)

    def change_count(self, slot: int, count: int) -> None:
        """Change the number of keys in use of a slot. At 0, its block is forgotten."""
        left = self._counts[slot] + count
        if left:
            self._counts[slot] = left
            return
        ledger, page, block = self._blocks.pop(slot)
        del self._counts[slot]
        pages = self._slots[ledger]
        del pages[page][block]
        if not pages[page]:
            del pages[page]
            if not pages:
                del self._slots[ledger]

    def counts(self) -> dict[int, int]:
        return dict(self._counts)

    def block(self, slot: int) -> Block:
        return self._blocks[slot]

    def key_of(self, number: int) -> MessageKey:
        return key_of(number, self._blocks)

    def in_key_order(self, numbers: Numbers) -> Numbers:
        return in_key_order(numbers, self._blocks)

    def of_entry(self, ledger: int, entry: int) -> Iterator[tuple[int, int]]:
        """Iterate over ranges of numbers (start, stop) of the keys of an entry."""
        for page, blocks in self._slots.get(ledger, {}).items():
            start = entry if page == WHOLE else entry << PAGE_BITS
            slot = blocks.get(start >> BLOCK_BITS)
            if slot is not None:
                first = slot << BLOCK_BITS | start & _PLACE
                yield first, first + (1 if page == WHOLE else 1 << PAGE_BITS)

    def through(self, ledger: int, entry: int) -> Iterator[tuple[int, int]]:
        for other, pages in self._slots.items():
            if other > ledger:
                continue
            for page, blocks in pages.items():
                stop = entry + 1 if page == WHOLE else (entry + 1) << PAGE_BITS
                for block, slot in blocks.items():
                    size = _BLOCK if other < ledger else min(stop - (block << BLOCK_BITS), _BLOCK)
                    if size > 0:
                        yield slot << BLOCK_BITS, (slot << BLOCK_BITS) + size

    # Batches

    def claim_numbers(self, batch: DueBatch) -> Numbers:
        """Return the numbers of all keys of a batch. Blocks without a slot get one."""
        return self._numbers(batch, self.claim)

    def known_numbers(self, batch: DueBatch) -> Numbers:
        """Return the numbers of a batch's keys, without keys in blocks that have no slot."""
        return self._numbers(batch, self._known)

    def _known(self, ledger: int, page: int, block: int) -> int:
        return self._slots.get(ledger, {}).get(page, {}).get(block, -1)

    def _numbers(self, batch: DueBatch, slot_of: Callable[[int, int, int], int]) -> Numbers:
        numbers = array("Q")
        for ledger, entries in batch.entries:
            if isinstance(entries, range):
                start = entries.start
                while start < entries.stop:
                    block = start >> BLOCK_BITS
                    stop = min(entries.stop, (block + 1) << BLOCK_BITS)
                    slot = slot_of(ledger, WHOLE, block)
                    if slot >= 0:
                        shift = (slot - block) << BLOCK_BITS
                        numbers.extend(range(start + shift, stop + shift))
                    start = stop
                continue
            at = slot = shift = -1
            for entry in entries:
                if entry >> BLOCK_BITS != at:
                    at = entry >> BLOCK_BITS
                    slot = slot_of(ledger, WHOLE, at)
                    shift = (slot - at) << BLOCK_BITS
                if slot >= 0:
                    numbers.append(entry + shift)
        for ledger, entry, mask in batch.indexes:
            while mask:
                lowest = mask & -mask
                mask ^= lowest
                index = lowest.bit_length() - 1
                position = entry << PAGE_BITS | index & _INDEX
                slot = slot_of(ledger, index >> PAGE_BITS, position >> BLOCK_BITS)
                if slot >= 0:
                    numbers.append(slot << BLOCK_BITS | position & _PLACE)
        return array("Q", sorted(numbers))

    def batch(self, numbers: Numbers) -> DueBatch:
        parts = []
        for slot, members in by_slot(numbers):
            ledger, page, block = self._blocks[slot]
            parts.append((ledger, page, block, (block - slot) << BLOCK_BITS, members))
        if len(parts) > 1:
            parts.sort(key=_ORDER)
        whole: list[tuple[int, list[int]]] = []
        masks: dict[tuple[int, int], int] = {}
        for ledger, page, _, shift, members in parts:
            if page == WHOLE:
                whole.append((ledger, [number + shift for number in members]))
                continue
            for number in members:
                position = number + shift
                name = ledger, position >> PAGE_BITS
                index = page << PAGE_BITS | position & _INDEX
                masks[name] = masks.get(name, 0) | 1 << index
        return DueBatch(merge_groups(whole), [(*name, masks[name]) for name in sorted(masks)])


def by_slot(numbers: Numbers) -> Iterator[tuple[int, Numbers]]:
    start, size = 0, len(numbers)
    while start < size:
        slot = numbers[start] >> BLOCK_BITS
        stop = size
        if numbers[-1] >> BLOCK_BITS != slot:
            stop = bisect_left(numbers, (slot + 1) << BLOCK_BITS, start, size)
        yield slot, numbers[start:stop]
        start = stop


def key_of(number: int, blocks: Mapping[int, Block]) -> MessageKey:
    slot = number >> BLOCK_BITS
    ledger, page, block = blocks[slot]
    position = ((block - slot) << BLOCK_BITS) + number
    if page == WHOLE:
        return ledger, position, WHOLE
    return ledger, position >> PAGE_BITS, page << PAGE_BITS | position & _INDEX


def in_key_order(numbers: Numbers, blocks: Mapping[int, Block]) -> Numbers:
    """Return ascending numbers in order of their keys: ledger, entry, batch index.

    The order differs if slots were assigned out of order, and if batches have several pages.
    """
    members = dict(by_slot(numbers))
    if len(members) < 2:
        return numbers
    found = []
    for slot in members:
        ledger, page, block = blocks[slot]
        first = block << BLOCK_BITS
        found.append((ledger, first if page == WHOLE else first >> PAGE_BITS, page, slot))
    found.sort()
    ordered = array("Q")
    for group in groups(found, BLOCK_BITS, PAGE_BITS):
        if len(group) == 1:
            ordered += members[group[0][3]]
        else:
            mixed = chain.from_iterable(members[slot] for _, _, _, slot in group)
            ordered.extend(sorted(mixed, key=lambda number: key_of(number, blocks)))
    return ordered


def merge_groups(parts: list[tuple[int, list[int]]]) -> list[tuple[int, Sequence[int]]]:
    one: list[tuple[int, list[int]]] = []
    for ledger, entries in parts:
        if one and one[-1][0] == ledger:
            one[-1][1].extend(entries)
        else:
            one.append((ledger, entries))
    return [(ledger, as_range(entries)) for ledger, entries in one]


def as_range(entries: list[int]) -> Sequence[int]:
    if entries[-1] - entries[0] == len(entries) - 1:
        return range(entries[0], entries[-1] + 1)
    return entries


def merge_batches(batches: list[DueBatch]) -> DueBatch:
    if len(batches) == 1:
        return batches[0]
    entries: dict[int, list[int]] = {}
    masks: dict[tuple[int, int], int] = {}
    for batch in batches:
        for ledger, some in batch.entries:
            entries.setdefault(ledger, []).extend(some)
        for ledger, entry, mask in batch.indexes:
            masks[ledger, entry] = masks.get((ledger, entry), 0) | mask
    return DueBatch(
        [(ledger, as_range(sorted(entries[ledger]))) for ledger in sorted(entries)],
        [(*name, masks[name]) for name in sorted(masks)],
    )
