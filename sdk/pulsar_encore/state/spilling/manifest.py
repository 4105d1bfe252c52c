"""The manifest: which snapshots count, and what of them does not any more.

Owns `Manifest` and its encoding. It is the one place that decides after a crash: a blob that it
does not name is removed, a journal before its first one is over.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyroaring import BitMap64

from ...errors import StateDamagedError
from .record_frames import framed, opened

_MAGIC: Final = b"PEMF"
_HEAD: Final = struct.Struct("<QQQII")  # next generation, first journal, next slot, blobs, left
_BLOB: Final = struct.Struct("<QI")  # generation, bytes of its dead ids


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is on disk and counts.

    Attributes:
        next_generation: What the next snapshot is called.
        first_journal: The first journal that is to be read.
        next_slot: The slot that is given out next: none is ever used twice.
        blobs: By generation, rising: numbers whose copy there is stale, though they are tracked.
        left: Numbers that are in some snapshot and are not tracked any more.
    """

    next_generation: int = 0
    first_journal: int = 0
    next_slot: int = 0
    blobs: Mapping[int, BitMap64] = field(default_factory=dict)
    left: BitMap64 = field(default_factory=BitMap64)


def encoded(manifest: Manifest) -> bytes:
    """The bytes of a manifest."""
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
    return framed(_MAGIC, head + zlib.compress(b"".join((left, *parts)), 1))


def decoded(data: bytes) -> Manifest:
    """The manifest that `encoded` wrote.

    Raises:
        StateFormatError: It is something else, or of another version.
        StateDamagedError: It is not what was written.
    """
    body = opened(_MAGIC, data, "the manifest")
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
