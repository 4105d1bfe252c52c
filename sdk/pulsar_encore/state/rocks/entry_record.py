"""What is known of one entry: how often which of its messages were handed over, in a few bytes.

Owns `EntryRecord`, its steps and its bytes. A batch of a thousand messages is one record: sets of
messages are masks, written as runs, so that "all of them", "the first 300" and "all but three"
take a byte or two each. Invariants: masks of `groups` do not meet, and no count in it is 0; what is
settled is in no other mask. Refuses to know the time, and where the bytes are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from pulsar_encore.core.due import MAX_BATCH_INDEX

MOST_ATTEMPTS: Final = 2**16 - 1
MOST_MESSAGES: Final = MAX_BATCH_INDEX + 1

Groups = tuple[tuple[int, int], ...]
"""(attempts, mask), by attempts."""


class EntryRecord(NamedTuple):
    """
    Attributes:
        size: Messages in the entry; 1 also for one that is no batch.
        groups: (attempts, mask) of messages that were handed over: how often.
        held: Mask of what is handed over and not settled, or given back, since.
        settled: Mask of what is settled.
        first_ms: When the first of them was handed over for the first time, ms since the epoch.
        epoch: Of the owner that handed over what is `held`, or the last of it.
    """

    size: int
    groups: Groups
    held: int
    settled: int
    first_ms: int
    epoch: int

    def attempts_of(self, index: int) -> int:
        """How often a message was handed over."""
        bit = 1 << max(index, 0)
        for attempts, mask in self.groups:
            if mask & bit:
                return attempts
        return 0

    @property
    def done(self) -> bool:
        """Everything of the entry is settled."""
        return self.settled == (1 << self.size) - 1


def fresh(size: int, first_ms: int, epoch: int) -> EntryRecord:
    """Of an entry of which nothing was handed over so far."""
    return EntryRecord(size, (), 0, 0, first_ms, epoch)


def handed_over(record: EntryRecord, mask: int, attempt: int, epoch: int) -> EntryRecord:
    """These messages are handed over for the `attempt`th time; a count that is higher stays."""
    groups = _raised(record.groups, mask, attempt)
    # What an owner before held, and this one has not handed over again, may be leased still.
    held = mask | record.held
    # What was settled comes again when its ack was lost with a process, or the cursor set back.
    settled = record.settled & ~mask
    return EntryRecord(record.size, groups, held, settled, record.first_ms, epoch)


def given_back(record: EntryRecord, mask: int, attempts: int) -> EntryRecord:
    """The attempt at these messages ended without an ack, and `attempts` have been made."""
    mask &= ~record.settled
    groups = _raised(record.groups, mask, attempts)
    return record._replace(groups=groups, held=record.held & ~mask)


def lowered(record: EntryRecord, mask: int, attempts: int) -> EntryRecord:
    """These messages went back and nobody failed at them: no more than `attempts` count."""
    found: dict[int, int] = {}
    down = 0
    for n, each in record.groups:
        if n > attempts:
            down |= each & mask
            each &= ~mask
        if each:
            found[n] = each
    if down and attempts:
        found[attempts] = found.get(attempts, 0) | down
    return record._replace(groups=tuple(sorted(found.items())), held=record.held & ~mask)


def times_of(data: bytes) -> tuple[int, int]:
    """`first_ms` and `epoch` of what `to_bytes` made, without a look at the rest.

    Raises:
        ValueError: The bytes are no record.
    """
    if not data or data[0] & 0x0F != _VERSION:
        raise ValueError(f"not a record of version {_VERSION}: {data[:8].hex()}")
    found = list(islice(_numbers(data), 3))
    if len(found) < 3:
        raise ValueError(f"a record is cut short: {data.hex()}")
    return found[1], found[2]


def settled(record: EntryRecord, mask: int) -> EntryRecord:
    """These messages need no count any more."""
    mask &= (1 << record.size) - 1
    groups = tuple((n, rest) for n, each in record.groups if (rest := each & ~mask))
    return record._replace(groups=groups, held=record.held & ~mask, settled=record.settled | mask)


def merged(record: EntryRecord, newer: EntryRecord) -> EntryRecord:
    """What was counted without knowing what is on disk, with that: of each message the higher count
    and the later fate."""
    groups = record.groups
    told = newer.held | newer.settled
    for attempts, mask in newer.groups:
        groups = _raised(groups, mask, attempts)
        told |= mask
    both = record._replace(
        size=max(record.size, newer.size),
        groups=groups,
        held=newer.held | record.held & ~told,
        settled=record.settled & ~told,
        first_ms=min(record.first_ms, newer.first_ms),
        epoch=newer.epoch,
    )
    return settled(both, newer.settled)


def unfinished(record: EntryRecord, epoch: int) -> int:
    """Mask of what an owner before this one had handed over when it ended."""
    return 0 if record.epoch == epoch else record.held


def _raised(groups: Groups, mask: int, attempts: int) -> Groups:
    if not mask or attempts < 1:
        return groups
    attempts = min(attempts, MOST_ATTEMPTS)
    if not groups:
        return ((attempts, mask),)
    found: dict[int, int] = {}
    for n, each in groups:
        if n < attempts:
            each &= ~mask
        else:
            mask &= ~each
        if each:
            found[n] = each
    if mask:
        found[attempts] = found.get(attempts, 0) | mask
    return tuple(sorted(found.items()))


# Bytes

_VERSION: Final = 1
_WORD: Final = 7  # bytes: eight as a number of seven bits a byte
_HELD_IS_REST: Final = 0x10  # all that was handed over
_HAS_HELD: Final = 0x20
_HAS_SETTLED: Final = 0x40


def to_bytes(record: EntryRecord) -> bytes:
    """As it is stored; 13 bytes for a message that is its entry, handed over once."""
    head = _VERSION
    handed = 0
    for _, mask in record.groups:
        handed |= mask
    numbers = [record.size, record.first_ms, record.epoch, len(record.groups)]
    for attempts, mask in record.groups:
        numbers.append(attempts)
        numbers += _runs(mask)
    if record.held and record.held == handed:
        head |= _HELD_IS_REST
    elif record.held:
        head |= _HAS_HELD
        numbers += _runs(record.held)
    if record.settled:
        head |= _HAS_SETTLED
        numbers += _runs(record.settled)
    packed = bytearray((head,))
    for each in numbers:
        while each > 0x7F:
            packed.append(each & 0x7F | 0x80)
            each >>= 7
        packed.append(each)
    return bytes(packed)


def from_bytes(data: bytes) -> EntryRecord:
    """
    Raises:
        ValueError: The bytes are no record, or one that a newer version wrote.
    """
    if not data or data[0] & 0x0F != _VERSION:
        raise ValueError(f"not a record of version {_VERSION}: {data[:8].hex()}")
    head = data[0]
    numbers = _numbers(data)
    try:
        size, first_ms, epoch, count = (next(numbers) for _ in range(4))
        if not 1 <= size <= MOST_MESSAGES or count > size:
            raise ValueError(f"not a record: {size} messages in {count} groups")
        groups = tuple((next(numbers), _mask(numbers, size)) for _ in range(count))
        held = 0
        if head & _HELD_IS_REST:
            for _, mask in groups:
                held |= mask
        elif head & _HAS_HELD:
            held = _mask(numbers, size)
        done = _mask(numbers, size) if head & _HAS_SETTLED else 0
    except RuntimeError as error:  # what a generator makes of StopIteration
        raise ValueError(f"a record is cut short: {data.hex()}") from error
    except StopIteration as error:
        raise ValueError(f"a record is cut short: {data.hex()}") from error
    if next(numbers, None) is not None:
        raise ValueError(f"a record goes on behind its end: {data.hex()}")
    return EntryRecord(size, groups, held, done, first_ms, epoch)


def _runs(mask: int) -> list[int]:
    """A mask as numbers: how many runs, and of each what is left out before it and its length;
    or, where that is shorter, its words. A bit of the first number says which."""
    count = (mask & ~(mask << 1)).bit_count()
    if count * 16 > mask.bit_length():
        data = mask.to_bytes((mask.bit_length() + 7) // 8, "little")
        words = [data[at : at + _WORD] for at in range(0, len(data), _WORD)]
        return [len(words) << 1 | 1, *(int.from_bytes(word, "little") for word in words)]
    runs = [count << 1]
    while mask:
        skipped = (mask & -mask).bit_length() - 1
        mask >>= skipped
        length = (~mask & mask + 1).bit_length() - 1
        mask >>= length
        runs += (skipped, length)
    return runs


def _mask(numbers: Iterator[int], size: int) -> int:
    head = next(numbers)
    count, at = head >> 1, 0
    if count > size:
        raise ValueError(f"a mask of {count} parts for {size} messages")
    if head & 1:
        words = [next(numbers) for _ in range(count)]
        if max(words, default=0) >> 8 * _WORD:
            raise ValueError("a word of a mask is too long")
        mask = int.from_bytes(b"".join(word.to_bytes(_WORD, "little") for word in words), "little")
    else:
        mask = 0
        for _ in range(count):
            start = at + next(numbers)
            at = start + next(numbers)
            if at > size:
                break
            mask |= (1 << at) - (1 << start)
    if at > size or mask >> size:
        raise ValueError(f"a mask reaches beyond the {size} messages of its entry")
    return mask


def _numbers(data: Iterable[int]) -> Iterator[int]:
    number = shift = 0
    rest = iter(data)
    next(rest)
    for byte in rest:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
    if shift:
        raise ValueError("a number is cut short")
