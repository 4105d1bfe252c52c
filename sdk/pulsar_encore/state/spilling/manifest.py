"""The manifest: which snapshots and journals are valid after a crash.

A blob that it does not name is removed, and so is a journal before its first one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyroaring import BitMap64

from ...errors import StateDamagedError
from .record_frames import frame, unframe

_MAGIC: Final = b"PEMF"
# Next generation, first journal, next slot, number of blobs, bytes of `left`.
_HEAD: Final = struct.Struct("<QQQII")
_BLOB: Final = struct.Struct("<QI")  # generation, bytes of its superseded numbers


@dataclass(frozen=True, slots=True)
class Manifest:
    """The valid data of a store.

    Attributes:
        blobs: Generations, ascending, and for each the tracked numbers with a stale copy in it.
        left: Numbers in snapshots that are no longer tracked.
    """

    next_generation: int = 0
    first_journal: int = 0
    next_slot: int = 0
    blobs: Mapping[int, BitMap64] = field(default_factory=dict)
    left: BitMap64 = field(default_factory=BitMap64)


def encoded(manifest: Manifest) -> bytes:
    left = manifest.left.serialize()
    parts = []
    for generation, superseded in manifest.blobs.items():
        data = superseded.serialize()
        parts += [_BLOB.pack(generation, len(data)), data]
    head = _HEAD.pack(
        manifest.next_generation,
        manifest.first_journal,
        manifest.next_slot,
        len(manifest.blobs),
        len(left),
    )
    return frame(_MAGIC, head + zlib.compress(b"".join((left, *parts)), 1))


def decoded(data: bytes) -> Manifest:
    body = unframe(_MAGIC, data, "the manifest")
    try:
        next_generation, journal, slot, count, size = _HEAD.unpack_from(body)
        rest = zlib.decompress(body[_HEAD.size :])
        left = BitMap64.deserialize(rest[:size])
        blobs = {}
        for _ in range(count):
            generation, length = _BLOB.unpack_from(rest, size)
            start = size + _BLOB.size
            size = start + length
            blobs[generation] = BitMap64.deserialize(rest[start:size])
    except (struct.error, zlib.error, ValueError) as error:
        raise StateDamagedError(f"the manifest is corrupted: {error}") from error
    return Manifest(next_generation, journal, slot, blobs, left)
