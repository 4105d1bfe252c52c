"""Messages of a batch that have nothing but a value and a sequence id of their own: all at once.

Owns `plain_messages`, which finds where their payloads are without an object or a decoded metadata
for each. Whatever else a metadata holds is another's to read: then the answer is None.

A metadata in a batch is, in that order and if it says no more (SingleMessageMetadata of
PulsarApi.proto)::

    size (4 bytes) | 0x18 payload size (varint) | 0x40 sequence id (varint), or nothing
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_PAYLOAD_SIZE: Final = 0x18
_SEQUENCE: Final = 0x40
_WIDEST: Final = 10  # bytes of a varint

Numbers = NDArray[np.int64]


class PlainMessages(NamedTuple):
    """Where payloads are.

    Attributes:
        buffer: Of the batch.
        begins, ends: Of each payload, in there.
        sequence_ids: Of each, or None where none has one of its own.
    """

    buffer: bytes
    begins: Numbers
    ends: Numbers
    sequence_ids: Numbers | None


def plain_messages(buffer: bytes, starts: Sequence[int]) -> PlainMessages | None:
    """Where the payloads are of messages that start there; None if one holds more.

    Args:
        buffer: Whole messages of a batch.
        starts: Where each begins, at the size of its metadata, ascending.
    """
    data = np.frombuffer(buffer, np.uint8)
    at = np.asarray(starts, np.int64)
    if (data[at] | data[at + 1]).any():
        return None  # metadata of 64 kB
    high, low = data[at + 2].astype(np.int64), data[at + 3].astype(np.int64)
    begins = at + 4 + 256 * high + low
    at += 4
    if (data[np.minimum(at, len(data) - 1)] != _PAYLOAD_SIZE).any():
        return None
    sizes, at = _varints(data, at + 1)
    ends = begins + sizes
    if (sizes < 0).any() or (ends > len(data)).any():
        return None  # a number that is longer than it need be
    if (at == begins).all():
        return PlainMessages(buffer, begins, ends, None)
    if (at >= begins).any() or (data[at] != _SEQUENCE).any():
        return None
    sequence_ids, at = _varints(data, at + 1)
    if (at != begins).any():
        return None
    return PlainMessages(buffer, begins, ends, sequence_ids)


def _varints(data: NDArray[np.uint8], at: Numbers) -> tuple[Numbers, Numbers]:
    """The numbers that begin there, and where each ends; what does not end has no end either."""
    last = len(data) - 1
    numbers = np.zeros(len(at), np.int64)
    going = np.ones(len(at), np.bool_)
    for shift in range(0, 7 * _WIDEST, 7):
        byte = data[np.minimum(at, last)]
        numbers |= np.where(going, byte & 0x7F, 0).astype(np.int64) << shift
        at = at + going
        going &= byte >= 0x80
        if not going.any():
            break
    return numbers, at
