"""The runtime index: the one truth about which sealed keys are tracked.

Owns four bitmaps of numbers that exclude each other. A key whose valid copy is in a snapshot is
*live*; taken by `pop_due` and not done yet, it is *taken*; put back into the head while a snapshot
still has an older copy, it is *shadowed*. *Left* are the others of which some snapshot may have a
copy: they are what must not come again. Snapshots may hold what is stale, and a reader of one
believes a copy only when its number is live.

Bitmaps may be read by another thread while this one changes them, one call at a time: so a number
is added where it goes before it is removed where it was.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping

from pyroaring import BitMap64

from ...core.due_time import DueBatch, MessageKey
from .key_numbers import BLOCK_BITS, Block, Numbers, Slots, by_slot

_SMALL = 64  # numbers that are cheaper one by one than as a bitmap


class Membership:
    """Which keys of snapshots are tracked, and which are not any more."""

    def __init__(self) -> None:
        self.slots: Slots = Slots()
        self.live: BitMap64 = BitMap64()
        self.taken: BitMap64 = BitMap64()
        self.shadowed: BitMap64 = BitMap64()
        self.left: BitMap64 = BitMap64()
        self.departed: int = 0  # how many numbers have left so far
        self._len = 0

    def __len__(self) -> int:
        """How many are live."""
        return self._len

    def __contains__(self, key: MessageKey) -> bool:
        number = self.slots.find(key)
        return number >= 0 and number in self.live

    def clear(self) -> None:
        """Nothing is tracked, and no snapshot has anything that could come again."""
        self.live.clear()
        self.taken.clear()
        self.shadowed.clear()
        self.left.clear()
        self.slots.clear()
        self.departed += 1
        self._len = 0

    def wanted(self, ids: BitMap64) -> BitMap64:
        """Those of some numbers whose copy a snapshot has to keep. From any thread."""
        left = ids - self.live
        if not left:
            return ids
        left -= self.taken
        left -= self.shadowed
        return ids - left if left else ids

    def wants(self, number: int) -> bool:
        """As `wanted`, of one."""
        return number in self.live or number in self.taken or number in self.shadowed

    # Into snapshots

    def sealed(self, numbers: Numbers) -> BitMap64:
        """Numbers are in a new snapshot; returns those of which an older one has a copy."""
        older = BitMap64(numbers) & self.left
        self.live.update(numbers)
        for slot, members in by_slot(numbers):
            self.slots.hold(slot, len(members))
        if older:
            self.left -= older
            self._unshadow(older)
        self._len += len(numbers)
        return older

    def restored(self, numbers: BitMap64, slots: Mapping[int, Block]) -> None:
        """Numbers of which a snapshot that was opened has the valid copy.

        Raises:
            StateDamagedError: What the slots stand for contradicts another snapshot.
        """
        self.live |= numbers
        for slot, block in slots.items():
            start = slot << BLOCK_BITS
            count = numbers.range_cardinality(start, start + (1 << BLOCK_BITS))
            if count:
                self.slots.restore(slot, block)
                self.slots.hold(slot, count)
                self._len += count

    # Out of them

    def select_live(self, numbers: Numbers) -> Numbers:
        """Which of some numbers are live."""
        live = self.live
        if len(numbers) <= _SMALL:
            if all(number in live for number in numbers):
                return numbers
            return array("Q", [number for number in numbers if number in live])
        return (BitMap64(numbers) & live).to_array()

    def any_live(self, numbers: Numbers) -> bool:
        """Whether one of some numbers is live."""
        live = self.live
        for number in numbers[:_SMALL]:
            if number in live:
                return True
        return len(numbers) > _SMALL and not live.isdisjoint(BitMap64(numbers[_SMALL:]))

    def take(self, numbers: Numbers) -> None:
        """Live numbers are handed over."""
        self.taken.update(numbers)
        _remove(self.live, numbers)
        self._len -= len(numbers)

    def taken_numbers(self, batch: DueBatch) -> Numbers:
        """The numbers of those keys of a batch that were taken and are not done."""
        taken = self.taken
        if not taken:
            return array("Q")
        return array("Q", [number for number in self.slots.known(batch) if number in taken])

    def mark_done(self, numbers: Numbers) -> None:
        """What was taken is done."""
        self.left.update(numbers)
        _remove(self.taken, numbers)
        self.departed += len(numbers)
        self._release(numbers)

    def leave(self, key: MessageKey) -> bool:
        """A key is not tracked any more; True when it was live."""
        number = self.slots.find(key)
        if number < 0:
            return False
        if number in self.live:
            self.left.add(number)
            self.live.discard(number)
            self._len -= 1
            self.departed += 1
            self.slots.hold(number >> BLOCK_BITS, -1)
            return True
        for where in (self.taken, self.shadowed):
            if number in where:
                self.left.add(number)
                where.discard(number)
                self.departed += 1
                self.slots.hold(number >> BLOCK_BITS, -1)
        return False

    def shadow(self, key: MessageKey) -> bool:
        """A key is in the head from now on, whatever a snapshot says; True when it was live."""
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
        """As `leave` for all keys of an entry; returns how many were live."""
        return self._leave_ranges(list(self.slots.of_entry(ledger, entry)))

    def leave_through(self, ledger: int, entry: int) -> int:
        """As `leave` for all keys of an entry and of all before it."""
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
                self.slots.hold(start >> BLOCK_BITS, -count)
                if where is self.live:
                    gone += count
        self._len -= gone
        return gone

    def select_shadowed(self, batch: DueBatch) -> DueBatch:
        """Those keys of a batch of which a snapshot has an older copy."""
        shadowed = self.shadowed
        known = self.slots.known(batch)
        return self.slots.batch(array("Q", [number for number in known if number in shadowed]))

    def unshadow(self, keys: Iterable[MessageKey]) -> None:
        """Shadowed keys are in no head any more, and not tracked."""
        numbers = (self.slots.find(key) for key in keys)
        self._unshadow(BitMap64([number for number in numbers if number >= 0]))

    def _unshadow(self, numbers: BitMap64) -> None:
        numbers = numbers & self.shadowed
        self.shadowed -= numbers
        self.departed += len(numbers)
        self._release(numbers.to_array())

    def _release(self, numbers: Numbers) -> None:
        for slot, members in by_slot(numbers):
            self.slots.hold(slot, -len(members))

    # On disk

    def durable_left(self) -> BitMap64:
        """What must not come again even after a crash: all but what only the head has."""
        return self.left - self.shadowed

    def check(self) -> None:
        """Walk the invariants; for tests."""
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
