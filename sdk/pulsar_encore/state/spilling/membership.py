"""`Membership`: the truth about which keys of snapshots are tracked.

Four disjoint bitmaps of numbers, except that a shadowed number is also left:

- *live*: a snapshot has the valid copy of the key;
- *taken*: `pop_due` took the key from a snapshot, and it is not done;
- *shadowed*: the key is in the head again, and a snapshot still has an older copy;
- *left*: a snapshot may have a copy of the key, which must not come due again.

Another thread may read the bitmaps during a change, one call at a time. A number is therefore added
to its new bitmap before it is removed from the old one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping

from pyroaring import BitMap64

from ...core.message_key import DueBatch, MessageKey
from .key_numbers import BLOCK_BITS, Block, Numbers, Slots, by_slot

_SMALL = 64  # for fewer numbers, single operations are cheaper than a bitmap


class Membership:
    def __init__(self) -> None:
        self.slots: Slots = Slots()
        self.live: BitMap64 = BitMap64()
        self.taken: BitMap64 = BitMap64()
        self.shadowed: BitMap64 = BitMap64()
        self.left: BitMap64 = BitMap64()
        self.departed: int = 0  # how many numbers have left so far; grows only
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __contains__(self, key: MessageKey) -> bool:
        number = self.slots.find(key)
        return number >= 0 and number in self.live

    def clear(self) -> None:
        self.live.clear()
        self.taken.clear()
        self.shadowed.clear()
        self.left.clear()
        self.slots.clear()
        self.departed += 1
        self._len = 0

    def wanted(self, ids: BitMap64) -> BitMap64:
        """Return those numbers that a snapshot must keep. May be called from any thread."""
        left = ids - self.live
        if not left:
            return ids
        left -= self.taken
        left -= self.shadowed
        return ids - left if left else ids

    def wants(self, number: int) -> bool:
        return number in self.live or number in self.taken or number in self.shadowed

    # Into snapshots

    def add_sealed(self, numbers: Numbers) -> BitMap64:
        """Add the numbers of a new snapshot. Return the ones that an older snapshot has, too."""
        older = BitMap64(numbers) & self.left
        self.live.update(numbers)
        for slot, members in by_slot(numbers):
            self.slots.change_count(slot, len(members))
        if older:
            self.left -= older
            self._unshadow(older)
        self._len += len(numbers)
        return older

    def add_restored(self, numbers: BitMap64, slots: Mapping[int, Block]) -> None:
        """Add numbers of a snapshot that was opened, if it has their valid copies."""
        self.live |= numbers
        for slot, block in slots.items():
            start = slot << BLOCK_BITS
            count = numbers.range_cardinality(start, start + (1 << BLOCK_BITS))
            if count:
                self.slots.restore(slot, block)
                self.slots.change_count(slot, count)
                self._len += count

    # Out of them

    def select_live(self, numbers: Numbers) -> Numbers:
        live = self.live
        if len(numbers) <= _SMALL:
            if all(number in live for number in numbers):
                return numbers
            return array("Q", [number for number in numbers if number in live])
        return (BitMap64(numbers) & live).to_array()

    def any_live(self, numbers: Numbers) -> bool:
        live = self.live
        for number in numbers[:_SMALL]:
            if number in live:
                return True
        return len(numbers) > _SMALL and not live.isdisjoint(BitMap64(numbers[_SMALL:]))

    def take(self, numbers: Numbers) -> None:
        self.taken.update(numbers)
        _remove(self.live, numbers)
        self._len -= len(numbers)

    def taken_numbers(self, batch: DueBatch) -> Numbers:
        taken = self.taken
        if not taken:
            return array("Q")
        return array("Q", [number for number in self.slots.known_numbers(batch) if number in taken])

    def mark_done(self, numbers: Numbers) -> None:
        self.left.update(numbers)
        _remove(self.taken, numbers)
        self.departed += len(numbers)
        self._release(numbers)

    def leave(self, key: MessageKey) -> bool:
        number = self.slots.find(key)
        if number < 0:
            return False
        if number in self.live:
            self.left.add(number)
            self.live.discard(number)
            self._len -= 1
            self.departed += 1
            self.slots.change_count(number >> BLOCK_BITS, -1)
            return True
        for where in (self.taken, self.shadowed):
            if number in where:
                self.left.add(number)
                where.discard(number)
                self.departed += 1
                self.slots.change_count(number >> BLOCK_BITS, -1)
        return False

    def shadow(self, key: MessageKey) -> bool:
        """Note that the head has a key from now on. Return whether it was live."""
        number = self.slots.find(key)
        if number < 0:
            return False
        if number in self.live:
            self.shadowed.add(number)
            self.left.add(number)
            self.live.discard(number)
            self._len -= 1
            return True
        if number in self.taken:
            self.shadowed.add(number)
            self.left.add(number)
            self.taken.discard(number)
        return False

    def leave_entry(self, ledger: int, entry: int) -> int:
        return self._leave_ranges(list(self.slots.of_entry(ledger, entry)))

    def leave_through(self, ledger: int, entry: int) -> int:
        return self._leave_ranges(list(self.slots.through(ledger, entry)))

    def _leave_ranges(self, ranges: Iterable[tuple[int, int]]) -> int:
        gone = 0
        for start, stop in ranges:
            for where in (self.live, self.taken, self.shadowed):
                count = where.range_cardinality(start, stop)
                if not count:
                    continue
                numbers = BitMap64(range(start, stop)) & where
                self.left |= numbers
                where.remove_range(start, stop)
                self.departed += count
                self.slots.change_count(start >> BLOCK_BITS, -count)
                if where is self.live:
                    gone += count
        self._len -= gone
        return gone

    def select_shadowed(self, batch: DueBatch) -> DueBatch:
        shadowed = self.shadowed
        known = self.slots.known_numbers(batch)
        return self.slots.batch(array("Q", [number for number in known if number in shadowed]))

    def unshadow(self, keys: Iterable[MessageKey]) -> None:
        numbers = (self.slots.find(key) for key in keys)
        self._unshadow(BitMap64([number for number in numbers if number >= 0]))

    def _unshadow(self, numbers: BitMap64) -> None:
        numbers = numbers & self.shadowed
        self.shadowed -= numbers
        self.departed += len(numbers)
        self._release(numbers.to_array())

    def _release(self, numbers: Numbers) -> None:
        for slot, members in by_slot(numbers):
            self.slots.change_count(slot, -len(members))

    def check(self) -> None:
        assert self._len == len(self.live)
        assert self.live.isdisjoint(self.taken) and self.live.isdisjoint(self.shadowed)
        assert self.taken.isdisjoint(self.shadowed)
        assert self.left.isdisjoint(self.live) and self.left.isdisjoint(self.taken)
        assert self.shadowed <= self.left
        counts: dict[int, int] = {}
        for number in self.live | self.taken | self.shadowed:
            counts[number >> BLOCK_BITS] = counts.get(number >> BLOCK_BITS, 0) + 1
        assert counts == self.slots.counts(), (counts, self.slots.counts())


def _remove(ids: BitMap64, numbers: Numbers) -> None:
    if len(numbers) <= _SMALL:
        for number in numbers:
            ids.discard(number)
    else:
        ids -= BitMap64(numbers)
