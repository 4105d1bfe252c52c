"""Message keys, and batches of keys that are due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

MessageKey = tuple[int, int, int]
"""(ledger, entry, batch index); the index is -1 for an unbatched message."""

MAX_ID_BITS = 63  # ledger and entry ids are signed 64-bit numbers on the wire
MAX_BATCH_INDEX = 2**20 - 1  # a 5 MB entry holds fewer messages; bounds the masks of a `DueBatch`


def set_bits(mask: int) -> list[int]:
    found = []
    while mask:
        lowest = mask & -mask
        mask ^= lowest
        found.append(lowest.bit_length() - 1)
    return found


@dataclass(slots=True)
class DueBatch:
    """Due keys, grouped so that a redeliver command is cheap to build.

    Buckets are in order of their due time. Within a bucket, `entries` and `indexes` are each in
    order of ledger and entry, as Pulsar's own tracker returns them. Iteration yields the keys of
    `entries`, then those of `indexes`.

    Attributes:
        entries: (ledger, rising entry ids) of unbatched messages, one for each ledger of a bucket.
        indexes: (ledger, entry, mask) of batch messages; bit i stands for batch index i.
    """

    entries: list[tuple[int, Sequence[int]]] = field(default_factory=list)
    indexes: list[tuple[int, int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        whole = sum(len(entries) for _, entries in self.entries)
        return whole + sum(mask.bit_count() for _, _, mask in self.indexes)

    def __bool__(self) -> bool:
        return bool(self.entries or self.indexes)

    def __iter__(self) -> Iterator[MessageKey]:
        for ledger, entries in self.entries:
            for entry in entries:
                yield ledger, entry, -1
        for ledger, entry, mask in self.indexes:
            for index in set_bits(mask):
                yield ledger, entry, index
