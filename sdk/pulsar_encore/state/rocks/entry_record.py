"""`EntryRecord`: delivery attempts and due times of the messages of one entry, and its fingerprint.

Sets of batch messages are masks, encoded as runs, so "all" and "all but three" take a byte or two
each. An unbatched message has a record of fixed size, because nearly all records are of that kind
and each nack reads and writes one.

Masks of `groups` are disjoint, and so are those of `dues`. Settled messages are in no other mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from pulsar_encore.core.fingerprint import fuller
from pulsar_encore.core.message_key import MAX_BATCH_INDEX, set_bits

MAX_ATTEMPTS: Final = 2**16 - 1
MAX_MESSAGES: Final = MAX_BATCH_INDEX + 1

Groups = tuple[tuple[int, int], ...]
"""(attempts, mask), by attempts."""

Dues = tuple[tuple[int, int], ...]
"""(due time in ms since the epoch, mask), by due time."""


class EntryRecord(NamedTuple):
    """The record of one entry, as stored.

    Attributes:
        size: Messages in the entry; 1 if it is not a batch.
        held: Mask of messages that were delivered and since then neither settled nor released.
        settled: Mask of acked or dead-lettered messages, which need no record.
        first_ms: First delivery of a message of the entry, in ms since the epoch.
        epoch: Epoch of the last owner that delivered messages of the entry.
    """

    size: int
    groups: Groups
    held: int
    settled: int
    first_ms: int
    epoch: int
    dues: Dues = ()
    fingerprint: int = 0

    def attempts_of(self, index: int) -> int:
        bit = 1 << max(index, 0)
        for attempts, mask in self.groups:
            if mask & bit:
                return attempts
        return 0

    def due_of(self, index: int) -> int | None:
        bit = 1 << max(index, 0)
        return next((due_ms for due_ms, mask in self.dues if mask & bit), None)

    def dues_by_index(self) -> dict[int, int]:
        """Return due times by batch index; by -1 for a single message."""
        if self.size == 1:
            return {-1: self.dues[0][0]} if self.dues else {}
        return {index: due_ms for due_ms, mask in self.dues for index in set_bits(mask)}

    @property
    def is_settled(self) -> bool:
        return self.settled == (1 << self.size) - 1


def new_record(size: int, first_ms: int, epoch: int, fingerprint: int = 0) -> EntryRecord:
    return EntryRecord(size, (), 0, 0, first_ms, epoch, (), fingerprint)


def with_delivery(
    record: EntryRecord, mask: int, attempt: int, epoch: int, due_ms: int | None = None
) -> EntryRecord:
    """Record the `attempt`th delivery of messages. A higher count stays.

    A leased message waits until `due_ms`, in case this process ends. None keeps the due times: the
    call is repeated for a lease that is held for long.
    """
    size, before, held, settled, first_ms, _, dues, fingerprint = record
    groups = _with_attempts(before, mask, attempt)
    # Messages that an earlier owner held, and this one has not delivered, may still be leased.
    held |= mask
    # The broker redelivers a settled message if its ack was lost with a process, or after a seek.
    settled &= ~mask
    if due_ms is not None:
        dues = _with_due_times(dues, mask, due_ms)
    return EntryRecord(size, groups, held, settled, first_ms, epoch, dues, fingerprint)


def with_attempt_ended(
    record: EntryRecord, mask: int, attempts: int, due_ms: int | None = None
) -> EntryRecord:
    """End an attempt without an ack. The messages wait until `due_ms`; None keeps the due times."""
    size, groups, held, settled, first_ms, epoch, dues, fingerprint = record
    if due_ms is not None:
        dues = _with_due_times(dues, mask, due_ms)
    mask &= ~settled
    groups = _with_attempts(groups, mask, attempts)
    return EntryRecord(size, groups, held & ~mask, settled, first_ms, epoch, dues, fingerprint)


def with_due(record: EntryRecord, mask: int, due_ms: int) -> EntryRecord:
    return record._replace(dues=_with_due_times(record.dues, mask, due_ms))


def without_due(record: EntryRecord, mask: int = -1) -> EntryRecord:
    return record._replace(dues=_with_due_times(record.dues, mask)) if record.dues else record


def with_fewer_attempts(record: EntryRecord, mask: int, attempts: int) -> EntryRecord:
    """Lower the attempts of messages that were released without a failure."""
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


def with_settled(record: EntryRecord, mask: int) -> EntryRecord:
    mask &= (1 << record.size) - 1
    groups = tuple((n, rest) for n, each in record.groups if (rest := each & ~mask))
    return record._replace(
        groups=groups,
        held=record.held & ~mask,
        settled=record.settled | mask,
        dues=_with_due_times(record.dues, mask),
    )


def merged(record: EntryRecord, newer: EntryRecord) -> EntryRecord:
    """Merge a record that was counted while the disk could not be read into the one on disk.

    Each message keeps its higher count, and otherwise its newer state.
    """
    groups = record.groups
    counted = newer.held | newer.settled
    for attempts, mask in newer.groups:
        groups = _with_attempts(groups, mask, attempts)
        counted |= mask
    both = record._replace(
        size=max(record.size, newer.size),
        groups=groups,
        held=newer.held | record.held & ~counted,
        settled=record.settled & ~counted,
        first_ms=min(record.first_ms, newer.first_ms),
        epoch=newer.epoch,
        fingerprint=fuller(record.fingerprint, newer.fingerprint),
        dues=_with_due_times(record.dues, counted),
    )
    for due_ms, mask in newer.dues:
        both = with_due(both, mask, due_ms)
    return with_settled(both, newer.settled)


def _with_due_times(dues: Dues, mask: int, due_ms: int | None = None) -> Dues:
    rest = tuple([(each, kept) for each, was in dues if (kept := was & ~mask)]) if dues else ()
    if due_ms is None:
        return rest
    if not rest:
        return ((due_ms, mask),)
    found = dict(rest)
    found[due_ms] = found.get(due_ms, 0) | mask
    return tuple(sorted(found.items()))


def _with_attempts(groups: Groups, mask: int, attempts: int) -> Groups:
    if not mask or attempts < 1:
        return groups
    attempts = min(attempts, MAX_ATTEMPTS)
    if not groups:
        return ((attempts, mask),)
    if len(groups) == 1 and groups[0][1] == mask:  # always true for an unbatched message
        return groups if groups[0][0] >= attempts else ((attempts, mask),)
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


# Encoding. The low half of the first byte is the kind. Kind 1 comes from directories of format 1;
# it has neither due times nor a fingerprint, and can still be read.

_KIND_FORMAT_1: Final = 1
_KIND_GENERAL: Final = 2
_KIND_SINGLE: Final = 3  # a single message that is not settled

_HELD_IS_ALL: Final = 0x10  # every delivered message is held
_HAS_HELD: Final = 0x20
_HAS_SETTLED: Final = 0x40
_HAS_DUES: Final = 0x80
WITH_DUES: Final = bytes((_HAS_DUES,))
"""Records whose bytes are not less than this have due times."""

_WORD_BYTES: Final = 7  # 56 bits, which take eight bytes at seven bits a byte
# Head, attempts, epoch, `first_ms`, fingerprint, and the due time if the message waits.
_SINGLE_STRUCT: Final = Struct(">BHIQQ")
_SINGLE_WITH_DUE_STRUCT: Final = Struct(">BHIQQQ")
_U64: Final = Struct(">Q")


def to_bytes(record: EntryRecord) -> bytes:
    """Encode a record: 23 bytes for a single message, 31 if it waits."""
    size, groups, held, settled, first_ms, epoch, dues, fingerprint = record
    if size == 1 and not settled and not epoch >> 32:
        attempts = groups[0][0] if groups else 0
        head = _KIND_SINGLE | held << 4
        if dues:
            head |= _HAS_DUES
            return _SINGLE_WITH_DUE_STRUCT.pack(
                head, attempts, epoch, first_ms, fingerprint, dues[0][0]
            )
        return _SINGLE_STRUCT.pack(head, attempts, epoch, first_ms, fingerprint)
    head = _KIND_GENERAL
    handed = 0
    for _, mask in groups:
        handed |= mask
    numbers = [size, first_ms, epoch, len(groups)]
    for attempts, mask in groups:
        numbers.append(attempts)
        numbers += _encode_mask(mask)
    if held and held == handed:
        head |= _HELD_IS_ALL
    elif held:
        head |= _HAS_HELD
        numbers += _encode_mask(held)
    if settled:
        head |= _HAS_SETTLED
        numbers += _encode_mask(settled)
    if dues:
        head |= _HAS_DUES
        numbers.append(len(dues))
        for due_ms, mask in dues:
            numbers.append(due_ms)
            numbers += _encode_mask(mask)
    packed = bytearray((head,))
    packed += _U64.pack(fingerprint)
    for each in numbers:
        while each > 0x7F:
            packed.append(each & 0x7F | 0x80)
            each >>= 7
        packed.append(each)
    return bytes(packed)


def from_bytes(data: bytes) -> EntryRecord:
    """Decode a record, or raise ValueError if it is corrupted or newer."""
    head = data[0] if data else 0
    kind = head & 0x0F
    if kind == _KIND_SINGLE:
        return _decode_single(data, head)
    if kind not in (_KIND_FORMAT_1, _KIND_GENERAL):
        raise ValueError(f"not a record that this version knows: {data[:8].hex()}")
    try:
        fingerprint = 0 if kind == _KIND_FORMAT_1 else _U64.unpack_from(data, 1)[0]
        numbers = iter(_decode_numbers(data[1 if kind == _KIND_FORMAT_1 else 9 :]))
        size, first_ms, epoch, count = (next(numbers) for _ in range(4))
        if not 1 <= size <= MAX_MESSAGES or count > size:
            raise ValueError(f"not a record: {size} messages in {count} groups")
        groups = tuple([(next(numbers), _decode_mask(numbers, size)) for _ in range(count)])
        held = 0
        if head & _HELD_IS_ALL:
            for _, mask in groups:
                held |= mask
        elif head & _HAS_HELD:
            held = _decode_mask(numbers, size)
        done = _decode_mask(numbers, size) if head & _HAS_SETTLED else 0
        dues: Dues = ()
        if head & _HAS_DUES and kind != _KIND_FORMAT_1:
            count = next(numbers)
            if not 1 <= count <= size:
                raise ValueError(f"not a record: {size} messages with {count} due times")
            dues = tuple([(next(numbers), _decode_mask(numbers, size)) for _ in range(count)])
    except (StopIteration, RuntimeError, StructError) as error:  # RuntimeError: PEP 479
        raise ValueError(f"a record is cut short: {data.hex()}") from error
    if next(numbers, None) is not None:
        raise ValueError(f"a record continues after its end: {data.hex()}")
    return EntryRecord(size, groups, held, done, first_ms, epoch, dues, fingerprint)


def _decode_single(data: bytes, head: int) -> EntryRecord:
    dues: Dues = ()
    try:
        if head & _HAS_DUES:
            _, attempts, epoch, first_ms, fingerprint, due_ms = _SINGLE_WITH_DUE_STRUCT.unpack(data)
            dues = ((due_ms, 1),)
        else:
            _, attempts, epoch, first_ms, fingerprint = _SINGLE_STRUCT.unpack(data)
    except StructError as error:
        raise ValueError(f"a record of another length: {data.hex()}") from error
    groups = ((attempts, 1),) if attempts else ()
    held = 1 if head & _HELD_IS_ALL else 0
    return EntryRecord(1, groups, held, 0, first_ms, epoch, dues, fingerprint)


def is_stale(data: bytes, before_ms: int, old_epoch: int) -> bool:
    """Return whether a message is no longer expected, judged by the bytes of its record.

    A waiting message is stale if it was due before `before_ms`. Any other is stale if its first
    delivery was before that, and its last one under an epoch below `old_epoch`: a poison message
    may be redelivered for months.
    """
    try:
        if data[0] & 0x0F == _KIND_SINGLE:  # nearly always
            if data[0] & _HAS_DUES:
                return bool(_U64.unpack_from(data, _SINGLE_STRUCT.size)[0] < before_ms)
            _, _, epoch, first_ms, _ = _SINGLE_STRUCT.unpack_from(data)
            return bool(first_ms < before_ms and epoch < old_epoch)
        record = from_bytes(data)
    except (ValueError, IndexError, StructError):
        return False  # an unreadable record is logged and kept when it is read
    if record.dues:
        return record.dues[-1][0] < before_ms
    return record.first_ms < before_ms and record.epoch < old_epoch


def _encode_mask(mask: int) -> list[int]:
    """Encode a mask as runs (their number, then gap and length of each), or as words if shorter.

    The lowest bit of the first number tells the form.
    """
    count = (mask & ~(mask << 1)).bit_count()
    if count * 16 > mask.bit_length():
        data = mask.to_bytes((mask.bit_length() + 7) // 8, "little")
        words = [data[at : at + _WORD_BYTES] for at in range(0, len(data), _WORD_BYTES)]
        return [len(words) << 1 | 1, *(int.from_bytes(word, "little") for word in words)]
    runs = [count << 1]
    while mask:
        skipped = (mask & -mask).bit_length() - 1
        mask >>= skipped
        length = (~mask & mask + 1).bit_length() - 1
        mask >>= length
        runs += (skipped, length)
    return runs


def _decode_mask(numbers: Iterator[int], size: int) -> int:
    head = next(numbers)
    count, at = head >> 1, 0
    if count > size:
        raise ValueError(f"a mask of {count} parts for {size} messages")
    if head & 1:
        words = [next(numbers) for _ in range(count)]
        if max(words, default=0) >> 8 * _WORD_BYTES:
            raise ValueError("a word of a mask is too long")
        mask = int.from_bytes(
            b"".join(word.to_bytes(_WORD_BYTES, "little") for word in words), "little"
        )
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


def _decode_numbers(data: bytes) -> list[int]:
    numbers: list[int] = []
    number = shift = 0
    for byte in data:
        if byte > 0x7F:
            number |= (byte & 0x7F) << shift
            shift += 7
        elif shift:
            numbers.append(number | byte << shift)
            number = shift = 0
        else:
            numbers.append(byte)
    if shift:
        raise ValueError("a number is cut short")
    return numbers
