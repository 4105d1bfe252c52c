"""Batch messages that have only a value and a sequence id, read all at once with numpy.

The metadata of such a message has this layout (SingleMessageMetadata of PulsarApi.proto). If any
message has another field, all are read one by one elsewhere::

    size (4 bytes) | 0x18 payload size (varint) | 0x40 sequence id (varint), or nothing
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_PAYLOAD_SIZE: Final = 0x18
_SEQUENCE: Final = 0x40
_MAX_VARINT_BYTES: Final = 10  # bytes of the longest varint

Numbers = NDArray[np.int64]


class PlainMessages(NamedTuple):
    """The offsets of payloads in `buffer`, and the sequence ids, if any."""

    buffer: bytes
    begins: Numbers
    ends: Numbers
    sequence_ids: Numbers | None


def plain_messages(buffer: bytes, starts: Sequence[int]) -> PlainMessages | None:
    """Return the offsets of the payloads; None if a message is not plain.

    `starts` are the ascending offsets of the messages in `buffer`.
    """
    data = np.frombuffer(buffer, np.uint8)
    at = np.asarray(starts, np.int64)
    if (data[at] | data[at + 1]).any():
        return None  # metadata of 64 kB or more
    high, low = data[at + 2].astype(np.int64), data[at + 3].astype(np.int64)
    begins = at + 4 + 256 * high + low
    at += 4
    if (data[np.minimum(at, len(data) - 1)] != _PAYLOAD_SIZE).any():
        return None
    sizes, at = _varints(data, at + 1)
    ends = begins + sizes
    if (sizes < 0).any() or (ends > len(data)).any():
        return None  # an invalid size, as in a varint that is longer than necessary
    if (at == begins).all():
        return PlainMessages(buffer, begins, ends, None)
    if (at >= begins).any() or (data[at] != _SEQUENCE).any():
        return None
    sequence_ids, at = _varints(data, at + 1)
    if (at != begins).any():
        return None
    return PlainMessages(buffer, begins, ends, sequence_ids)


def _varints(data: NDArray[np.uint8], at: Numbers) -> tuple[Numbers, Numbers]:
    """Decode the varints at these offsets; return the numbers and the offsets after them."""
    last = len(data) - 1
    numbers = np.zeros(len(at), np.int64)
    unfinished = np.ones(len(at), np.bool_)
    for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
        byte = data[np.minimum(at, last)]
        numbers |= np.where(unfinished, byte & 0x7F, 0).astype(np.int64) << shift
        at = at + unfinished
        unfinished &= byte >= 0x80
        if not unfinished.any():
            break
    return numbers, at
