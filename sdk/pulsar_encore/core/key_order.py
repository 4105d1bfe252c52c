"""The order of message keys, for indexes that keep keys as numbers in blocks.

A block holds consecutive positions of one ledger: entries, or the batch indexes of one page of
consecutive entries. Blocks of one ledger overlap where whole entries and batch messages mix, and
where batches have several pages. This module cuts sorted blocks into groups that do not overlap, so
that only a group of several blocks has to be merged key by key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Block(NamedTuple):
    """A block of keys. Sorting blocks puts them in the order of their first keys.

    Attributes:
        ledger: Ledger id.
        first: First entry id that the block can hold.
        page: Page of batch indexes, or -1 for whole entries.
        slot: The number of the block in its index.
        stop: The entry id after the last one that the block can hold.
    """

    ledger: int
    first: int
    page: int
    slot: int
    stop: int


def block_at(ledger: int, page: int, number: int, slot: int, bits: int, page_bits: int) -> Block:
    """Describe a block.

    Args:
        ledger: Ledger id.
        page: Page of batch indexes, or -1 for whole entries.
        number: Which block of the page's positions it is, from 0.
        slot: The number of the block in its index.
        bits: A block has ``2**bits`` positions.
        page_bits: A page has ``2**page_bits`` positions for each entry.
    """
    shift = 0 if page < 0 else page_bits
    first = number << bits >> shift
    return Block(ledger, first, page, slot, max(((number + 1) << bits) >> shift, first + 1))


def groups(blocks: Sequence[Block]) -> Iterator[Sequence[Block]]:
    """Cut sorted blocks into the smallest groups whose keys do not interleave."""
    at, size = 0, len(blocks)
    while at < size:
        ledger, stop, end = blocks[at].ledger, blocks[at].stop, at + 1
        while end < size and blocks[end].ledger == ledger and blocks[end].first < stop:
            stop = max(stop, blocks[end].stop)
            end += 1
        yield blocks[at:end]
        at = end
