"""What is kept of a snapshot beside its segments: the bytes of a blob's meta.

Owns `SnapshotMeta` and its encoding: a span for each segment, the slots its numbers are in, and one
bitmap of all its ids, from which membership is rebuilt without reading a segment. Invariant: spans
are in order of their due times.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from dataclasses import dataclass, field
from typing import Final

from pyroaring import BitMap64

from ...errors import StateDamagedError
from .key_numbers import Block
from .record_frames import framed, from_bytes, opened, to_bytes

_MAGIC: Final = b"PESN"
_HEAD: Final = struct.Struct("<III")  # segments, slots, bytes of spans and slots


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """A snapshot.

    Attributes:
        firsts: By segment: the first edge, ms.
        lasts: By segment: the last edge, ms.
        counts: By segment: how many ids.
        ids: The numbers of all of them.
        slots: What the slots of these numbers stand for.
    """

    firsts: array[int] = field(default_factory=lambda: array("Q"))
    lasts: array[int] = field(default_factory=lambda: array("Q"))
    counts: array[int] = field(default_factory=lambda: array("I"))
    ids: BitMap64 = field(default_factory=BitMap64)
    slots: dict[int, Block] = field(default_factory=dict)


def encoded(meta: SnapshotMeta) -> bytes:
    """The bytes of a snapshot's meta. Run-optimises its ids in place."""
    slots, ids = meta.slots, meta.ids
    ids.run_optimize()
    pages = array("q", [page for _, page, _ in slots.values()])
    columns = zlib.compress(
        b"".join(
            (
                to_bytes(meta.firsts),
                to_bytes(meta.lasts),
                to_bytes(meta.counts),
                to_bytes(array("Q", slots)),
                to_bytes(array("Q", [ledger for ledger, _, _ in slots.values()])),
                to_bytes(pages),
                to_bytes(array("Q", [block for _, _, block in slots.values()])),
            )
        ),
        1,
    )
    head = _HEAD.pack(len(meta.counts), len(slots), len(columns))
    return framed(_MAGIC, head + columns + ids.serialize())


def ids_of(data: bytes, what: str) -> BitMap64:
    """Only the ids of what `decoded` gives, which is quick; raises as that does."""
    return _ids(opened(_MAGIC, data, what), what)


def _ids(body: bytes, what: str) -> BitMap64:
    try:
        _, _, size = _HEAD.unpack_from(body)
        return BitMap64.deserialize(body[_HEAD.size + size :])
    except (struct.error, ValueError) as error:
        raise StateDamagedError(f"{what} is corrupted: {error}") from error


def decoded(data: bytes, what: str) -> SnapshotMeta:
    """The meta that `encoded` wrote.

    Raises:
        StateFormatError: It is something else, or of another version.
        StateDamagedError: It is not what was written.
    """
    body = opened(_MAGIC, data, what)
    ids = _ids(body, what)
    try:
        spans, slots, size = _HEAD.unpack_from(body)
        columns = zlib.decompress(body[_HEAD.size : _HEAD.size + size])
        if len(columns) != 20 * spans + 32 * slots:
            raise ValueError("the columns do not fit")
    except (zlib.error, ValueError) as error:
        raise StateDamagedError(f"{what} is corrupted: {error}") from error
    cuts = [0]
    for each in (8, 8, 4):
        cuts.append(cuts[-1] + each * spans)
    for _ in range(4):
        cuts.append(cuts[-1] + 8 * slots)
    firsts, lasts, counts, named, ledgers, pages, blocks = (
        from_bytes(code, columns[cuts[at] : cuts[at + 1]]) for at, code in enumerate("QQIQQqQ")
    )
    where = zip(ledgers, pages, blocks, strict=True)
    return SnapshotMeta(firsts, lasts, counts, ids, dict(zip(named, where, strict=True)))
