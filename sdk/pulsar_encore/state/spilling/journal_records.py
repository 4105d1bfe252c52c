"""The records of a journal: their encoding, and their replay.

Every record is an assignment ("this key is due then", "this key is gone"). Replaying a journal
again from any earlier record therefore ends in the same state.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import Final, Protocol, TypeAlias

from ...core.message_key import DueBatch, MessageKey
from ...errors import StateDamagedError
from ..little_endian import from_bytes, to_bytes
from .record_frames import frame, record, records, unframe

_MAGIC: Final = b"PEJL"
_PUT: Final = 1
_GONE: Final = 2
_ENTRY_GONE: Final = 3
_THROUGH_GONE: Final = 4
_CLEAR: Final = 5
_DONE: Final = 6

_KEYED: Final = struct.Struct("<BBHiQQQ")  # kind, bits, unused, batch index, ledger, entry, due
_GROUPS: Final = struct.Struct("<BxxxII")  # kind, groups of entries, messages in batches
_GROUP: Final = struct.Struct("<QI")  # ledger, number of entries; 0: first and last of a range
_MASK: Final = struct.Struct("<QQI")  # ledger, entry, bytes of the mask

Put: TypeAlias = "tuple[int, MessageKey, int, int]"
HEADER: Final = frame(_MAGIC, b"")


def put(key: MessageKey, due_ms: int, bits: int) -> bytes:
    return record(_KEYED.pack(_PUT, bits, 0, key[2], key[0], key[1], due_ms))


def gone(key: MessageKey) -> bytes:
    return record(_KEYED.pack(_GONE, 0, 0, key[2], key[0], key[1], 0))


def entry_gone(ledger: int, entry: int) -> bytes:
    return record(_KEYED.pack(_ENTRY_GONE, 0, 0, 0, ledger, entry, 0))


def through_gone(ledger: int, entry: int) -> bytes:
    return record(_KEYED.pack(_THROUGH_GONE, 0, 0, 0, ledger, entry, 0))


def clear() -> bytes:
    return record(_KEYED.pack(_CLEAR, 0, 0, 0, 0, 0, 0))


def done(batch: DueBatch) -> bytes:
    parts = [_GROUPS.pack(_DONE, len(batch.entries), len(batch.indexes))]
    for ledger, entries in batch.entries:
        if isinstance(entries, range) and len(entries) > 1:
            parts += [_GROUP.pack(ledger, 0), to_bytes(array("Q", (entries[0], entries[-1])))]
        else:
            parts += [_GROUP.pack(ledger, len(entries)), to_bytes(array("Q", entries))]
    for ledger, entry, mask in batch.indexes:
        bits = mask.to_bytes((mask.bit_length() + 7) >> 3, "little")
        parts += [_MASK.pack(ledger, entry, len(bits)), bits]
    return record(b"".join(parts))


class JournalReplay(Protocol):
    def put(self, key: MessageKey, due_ms: int, bits: int) -> None: ...

    def gone(self, key: MessageKey) -> None: ...

    def entry_gone(self, ledger: int, entry: int) -> None: ...

    def through_gone(self, ledger: int, entry: int) -> None: ...

    def clear(self) -> None: ...


def play(data: bytes, to: JournalReplay, what: str) -> int:
    """Replay a journal. Return the size of an incomplete record at its end, left by a crash."""
    if (len(data) < len(HEADER) and HEADER.startswith(data)) or not any(data):
        return len(data)
    unframe(_MAGIC, data[: len(HEADER)], what)
    end = len(HEADER)
    for end, body in records(data, end, what):  # noqa: B007, B020
        try:
            _apply(body, to)
        except (struct.error, ValueError, IndexError) as error:
            raise StateDamagedError(f"{what} has a record of an unknown kind: {error}") from error
    return len(data) - end


def _apply(body: bytes, to: JournalReplay) -> None:
    if body[0] == _DONE:
        for key in _batch(body):
            to.gone(key)
        return
    kind, bits, _, index, ledger, entry, due_ms = _KEYED.unpack(body)
    if kind == _PUT:
        to.put((ledger, entry, index), due_ms, bits)
    elif kind == _GONE:
        to.gone((ledger, entry, index))
    elif kind == _ENTRY_GONE:
        to.entry_gone(ledger, entry)
    elif kind == _THROUGH_GONE:
        to.through_gone(ledger, entry)
    elif kind == _CLEAR:
        to.clear()
    else:
        raise ValueError(f"kind {kind}")


def _batch(body: bytes) -> Iterator[MessageKey]:
    _, groups, masks = _GROUPS.unpack_from(body)
    at = _GROUPS.size
    batch = DueBatch()
    for _ in range(groups):
        ledger, count = _GROUP.unpack_from(body, at)
        at += _GROUP.size
        numbers = from_bytes("Q", body[at : at + 8 * (count or 2)])
        at += 8 * (count or 2)
        batch.entries.append((ledger, numbers if count else range(numbers[0], numbers[1] + 1)))
    for _ in range(masks):
        ledger, entry, size = _MASK.unpack_from(body, at)
        at += _MASK.size
        batch.indexes.append((ledger, entry, int.from_bytes(body[at : at + size], "little")))
        at += size
    return iter(batch)
