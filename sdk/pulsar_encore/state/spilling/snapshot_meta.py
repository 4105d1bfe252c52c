"""`SnapshotMeta`: the data of a snapshot beside its segments, stored as the meta of its blob.

Its bitmap of all numbers restores membership without reading a segment.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from dataclasses import dataclass, field
from typing import Final

from pyroaring import BitMap64

from ...errors import StateDamagedError
from ..blobs.blob_store import BlobStore
from ..little_endian import from_bytes, to_bytes
from .key_numbers import Block
from .record_frames import frame, unframe

_MAGIC: Final = b"PESN"
_HEAD: Final = struct.Struct("<III")  # segments, slots, bytes of spans and slots


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """The segments, numbers and slots of a snapshot.

    Attributes:
        firsts, lasts: First and last edge of each segment, ms.
    """

    firsts: array[int] = field(default_factory=lambda: array("Q"))
    lasts: array[int] = field(default_factory=lambda: array("Q"))
    counts: array[int] = field(default_factory=lambda: array("I"))
    ids: BitMap64 = field(default_factory=BitMap64)
    slots: dict[int, Block] = field(default_factory=dict)

    def add_segment(self, first: int, last: int, count: int) -> None:
        self.firsts.append(first)
        self.lasts.append(last)
        self.counts.append(count)


def encoded(meta: SnapshotMeta) -> bytes:
    """Encode a meta. Run-optimizes its ids in place."""
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
    return frame(_MAGIC, head + columns + ids.serialize())


def _ids(body: bytes, what: str) -> BitMap64:
    try:
        _, _, size = _HEAD.unpack_from(body)
        return BitMap64.deserialize(body[_HEAD.size + size :])
    except (struct.error, ValueError) as error:
        raise StateDamagedError(f"{what} is corrupted: {error}") from error


def decoded(data: bytes, what: str) -> SnapshotMeta:
    body = unframe(_MAGIC, data, what)
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


def read(store: BlobStore, generation: int) -> SnapshotMeta:
    return decoded(store.meta(generation), f"snapshot {generation}")


def read_ids(store: BlobStore, generation: int) -> BitMap64:
    """Read only the ids, which is quick."""
    what = f"snapshot {generation}"
    return _ids(unframe(_MAGIC, store.meta(generation), what), what)
