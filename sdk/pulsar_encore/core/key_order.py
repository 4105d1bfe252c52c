"""The order of message keys, for indexes that keep keys as numbers in blocks.

A block holds consecutive positions of one ledger: entries, or the batch indexes of one page of
consecutive entries. Blocks overlap where whole entries and batch messages mix, and where batches
have several pages. Only blocks that overlap have to be merged key by key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

Block: TypeAlias = tuple[int, int, int, int]
"""Ledger, first entry id that the block can hold, page of batch indexes (-1 for whole entries), and
the block's slot. A tuple, because a bucket can have thousands of blocks made in one step."""


def groups(
    blocks: Sequence[Block], bits: int, page_bits: int, start: int = 0
) -> Iterator[Sequence[Block]]:
    """Cut sorted blocks into the smallest groups whose keys do not interleave, from `start` on.

    A block has ``2**bits`` positions, and a page ``2**page_bits`` positions for each entry.
    """
    at, size = start, len(blocks)
    whole, paged = 1 << bits, max(1, (1 << bits) >> page_bits)  # entries in a block
    while at < size:
        ledger, first, page, _ = blocks[at]
        stop, end = first + (whole if page < 0 else paged), at + 1
        while end < size and blocks[end][0] == ledger and blocks[end][1] < stop:
            stop = max(stop, blocks[end][1] + (whole if blocks[end][2] < 0 else paged))
            end += 1
        yield blocks[at:end]
        at = end
