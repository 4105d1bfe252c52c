"""Fingerprints: 8 bytes that tell two entries with the same id apart.

Ids begin again in another cluster, and a state directory would take its messages for old ones. The
protocol does not tell the cluster name, so a fingerprint is made of metadata that is the same at
each delivery: 5 bytes are a hash of publish time and producer name, 3 bytes are of the sequence id,
or 0 if the transport does not show it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, Protocol

#: No fingerprint: of a record of format 1, or of a message known by its id only.
NO_FINGERPRINT: Final = 0

_SEQUENCE_BITS: Final = 24
_SEQUENCE_MASK: Final = (1 << _SEQUENCE_BITS) - 1


class Identified(Protocol):
    """The metadata of a received message that a fingerprint needs."""

    def publish_timestamp(self) -> int:
        """Return the publish time in ms since the epoch."""

    def producer_name(self) -> str:
        """Return the name of the entry's producer."""

    def sequence_id(self) -> int | None:
        """Return the sequence id of the entry; None if the transport does not show it."""


def fingerprint_of(message: Identified) -> int:
    try:
        name = message.producer_name()
    except UnicodeDecodeError:  # raw bytes, which the C++ client cannot show
        return NO_FINGERPRINT
    text = f"{message.publish_timestamp()} {name}".encode("utf-8", "surrogatepass")
    first = int.from_bytes(blake2b(text, digest_size=5).digest()) or 1
    sequence_id = message.sequence_id()
    # No hash: ids of one producer that are near each other stay different, and none is 0.
    second = 0 if sequence_id is None else sequence_id % _SEQUENCE_MASK + 1
    return first << _SEQUENCE_BITS | second


def differ(one: int, other: int) -> bool:
    """Return True if two fingerprints are of different entries.

    An unknown fingerprint differs from none. If one of the two lacks the sequence id, the rest
    decides, so that a directory can move between the native and the stock transport.
    """
    if one == other or not one or not other:
        return False
    if one >> _SEQUENCE_BITS != other >> _SEQUENCE_BITS:
        return True
    return bool(one & _SEQUENCE_MASK and other & _SEQUENCE_MASK)


def fuller(known: int, came: int) -> int:
    """Return whichever of two fingerprints of an entry says more."""
    return known if known & _SEQUENCE_MASK or not came else came
