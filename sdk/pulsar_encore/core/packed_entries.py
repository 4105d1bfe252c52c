"""Records of batches that only wait, in a dozen bytes each.

The keys of a ledger are cut into blocks of a few records, whose bytes follow each other. A record
is found by one bisection and a walk over its block. Invariants: blocks of a ledger rise and are not
empty; `base` of a block is not above its first entry.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final, NamedTuple

from .message_key import set_bits

EntryKey = tuple[int, int]
"""(ledger, entry)."""

_MOST: Final = 8  # more would save a byte or two each, and make walks longer
_NONE: Final[Mapping[int, int]] = {}


class Packed(NamedTuple):
    """The state of a packed batch.

    Attributes:
        acked, nacked: Bit masks; messages in neither mask are AWAY.
        failed: Attempts that failed, by index, if not 0.
    """

    size: int
    acked: int
    nacked: int
    failed: Mapping[int, int] = _NONE


class PackedEntries:
    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._ledgers: dict[int, _Ledger] = {}
        self._order: list[int] = []
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __contains__(self, key: EntryKey) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Iterator[tuple[EntryKey, Packed]]:
        for number in self._order:
            for entry, record in self._ledgers[number].records():
                yield (number, entry), _decoded(record)

    def put(self, key: EntryKey, record: Packed) -> None:
        ledger = self._ledgers.get(key[0])
        if ledger is None:
            ledger = self._ledgers[key[0]] = _Ledger()
            insort(self._order, key[0])
        self._len += ledger.put(key[1], _encoded(record))

    def get(self, key: EntryKey) -> Packed | None:
        ledger = self._ledgers.get(key[0])
        found = None if ledger is None else ledger.get(key[1])
        return None if found is None else _decoded(found)

    def take(self, key: EntryKey) -> Packed | None:
        ledger = self._ledgers.get(key[0])
        found = None if ledger is None else ledger.take(key[1])
        if ledger is None or found is None:
            return None
        self._len -= 1
        if not ledger.blocks:
            self._drop(key[0])
        return _decoded(found)

    def _drop(self, ledger: int) -> None:
        del self._ledgers[ledger]
        self._order.remove(ledger)

    def _check(self) -> None:
        assert self._order == sorted(self._ledgers)
        assert self._len == sum(sum(each.counts) for each in self._ledgers.values())
        for ledger in self._ledgers.values():
            assert len(ledger.bases) == len(ledger.counts) == len(ledger.blocks) > 0
            assert list(ledger.bases) == sorted(set(ledger.bases))
            assert max(ledger.counts) <= _MOST
            walked = [entry for entry, _ in ledger.records()]
            assert walked == sorted(set(walked))
            for at, base in enumerate(ledger.bases):
                entries = [entry for entry, _ in _walk(ledger.blocks[at], base)]
                assert len(entries) == ledger.counts[at] > 0
                assert base <= entries[0]
                assert at + 1 == len(ledger.bases) or entries[-1] < ledger.bases[at + 1]


class _Ledger:
    """Blocks: a base, and records of (entry - base, length, bytes)."""

    __slots__ = ("bases", "blocks", "counts")

    def __init__(self) -> None:
        self.bases = array("Q")
        self.counts = array("B")
        self.blocks: list[bytes] = []

    def records(self) -> Iterator[tuple[int, bytes]]:
        for base, block in zip(self.bases, self.blocks, strict=True):
            yield from _walk(block, base)

    def get(self, entry: int) -> bytes | None:
        at = bisect_right(self.bases, entry) - 1
        if at < 0:
            return None
        _, body, end = _seek(self.blocks[at], entry - self.bases[at])
        return self.blocks[at][body:end] if body else None

    def put(self, entry: int, record: bytes) -> bool:
        at = bisect_right(self.bases, entry) - 1
        if at < 0:
            first = self._records_at(0) if self.blocks else []
            self._replace(0, len(self.blocks[:1]), [(entry, record), *first])
            return True
        block, offset = self.blocks[at], entry - self.bases[at]
        start, body, end = _seek(block, offset)
        if body or self.counts[at] < _MOST:
            self.blocks[at] = block[:start] + _framed(offset, record) + block[end:]
            self.counts[at] += not body
        elif start == len(block):  # in order: leave full blocks behind
            self._replace(at + 1, 0, [(entry, record)])
        else:
            records = self._records_at(at)
            insort(records, (entry, record))
            self._replace(at, 1, records)
        return not body

    def take(self, entry: int) -> bytes | None:
        at = bisect_right(self.bases, entry) - 1
        if at < 0:
            return None
        block = self.blocks[at]
        start, body, end = _seek(block, entry - self.bases[at])
        if not body:
            return None
        if self.counts[at] == 1:
            self._replace(at, 1, [])
        else:
            self.blocks[at] = block[:start] + block[end:]
            self.counts[at] -= 1
        return block[body:end]

    def _records_at(self, at: int) -> list[tuple[int, bytes]]:
        return list(_walk(self.blocks[at], self.bases[at]))

    def _replace(self, at: int, count: int, records: list[tuple[int, bytes]]) -> None:
        """Replace `count` blocks by blocks with these records: two if one is not enough."""
        half = len(records) if len(records) <= _MOST else _MOST // 2
        parts = [part for part in (records[:half], records[half:]) if part]
        stop = at + count
        self.bases[at:stop] = array("Q", [part[0][0] for part in parts])
        self.counts[at:stop] = array("B", [len(part) for part in parts])
        self.blocks[at:stop] = [
            b"".join([_framed(entry - part[0][0], record) for entry, record in part])
            for part in parts
        ]


def _framed(offset: int, record: bytes) -> bytes:
    return _packed((offset, len(record))) + record


def _walk(block: bytes, base: int) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(block):
        offset, at = _number(block, at)
        length, at = _number(block, at)
        yield base + offset, block[at : at + length]
        at += length


def _seek(block: bytes, offset: int) -> tuple[int, int, int]:
    """Return start, first byte and end of the record of an offset.

    If there is no record: the place for it, 0, and that place again.
    """
    at = 0
    while at < len(block):
        start = at
        found, at = _number(block, at)
        length, at = _number(block, at)
        if found >= offset:
            return (start, at, at + length) if found == offset else (start, 0, start)
        at += length
    return at, 0, at


# The bytes of a record: numbers, seven bits a byte. A set of indexes is a count and gaps, or count
# and gaps of the missing indexes, or a mask, whichever is short.

_REST_NACKED: Final = 1  # every unacked index is nacked
_SAME_COUNT: Final = 2  # exactly the nacked indexes failed, equally often
_COUNTS: Final = 4


def _encoded(record: Packed) -> bytes:
    size, acked, nacked, failed = record
    head = 0
    numbers = [size, *_set(acked, size)]
    if nacked == ~acked & ((1 << size) - 1):
        head |= _REST_NACKED
    else:
        numbers += _set(nacked, size)
    if failed:
        counts = set(failed.values())
        if len(counts) == 1 and sum(1 << index for index in failed) == nacked:
            head |= _SAME_COUNT
            numbers += counts
        else:
            head |= _COUNTS
            numbers.append(len(failed))
            numbers += [each for pair in failed.items() for each in pair]
    return _packed([head, *numbers])


def _decoded(data: bytes) -> Packed:
    numbers = _numbers(data)
    head, size = next(numbers), next(numbers)
    acked = _mask(numbers, size)
    nacked = ~acked & ((1 << size) - 1) if head & _REST_NACKED else _mask(numbers, size)
    failed: Mapping[int, int] = _NONE
    if head & _SAME_COUNT:
        failed = dict.fromkeys(set_bits(nacked), next(numbers))
    elif head & _COUNTS:
        failed = {next(numbers): next(numbers) for _ in range(next(numbers))}
    return Packed(size, acked, nacked, failed)


def _set(mask: int, size: int) -> list[int]:
    ones = mask.bit_count()
    few = min(ones, size - ones)
    if few > size >> 3:
        return [2, mask]
    listed = mask if few == ones else ~mask & ((1 << size) - 1)
    indexes = list(set_bits(listed))
    gaps = [after - before for before, after in zip([0, *indexes], indexes, strict=False)]
    return [few << 2 | (few != ones), *gaps]


def _mask(numbers: Iterator[int], size: int) -> int:
    head = next(numbers)
    if head == 2:
        return next(numbers)
    listed = sum(1 << index for index in accumulate(next(numbers) for _ in range(head >> 2)))
    return ~listed & ((1 << size) - 1) if head & 1 else listed


def _packed(numbers: Iterable[int]) -> bytes:
    packed = bytearray()
    for number in numbers:
        while number > 0x7F:
            packed.append(number & 0x7F | 0x80)
            number >>= 7
        packed.append(number)
    return bytes(packed)


def _numbers(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        number, at = _number(data, at)
        yield number


def _number(data: bytes, at: int) -> tuple[int, int]:
    number = data[at]
    at += 1
    if number > 0x7F:
        number &= 0x7F
        shift = 7
        while data[at] > 0x7F:
            number |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
        number |= data[at] << shift
        at += 1
    return number, at
