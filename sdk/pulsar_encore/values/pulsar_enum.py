"""The kind of enum that Pulsar's choices are: equal to stock's, and shown as they are.

Stock's members and these are both their number: they are equal either way round, with one hash.
"""

from __future__ import annotations

from enum import Enum, IntEnum


class PulsarEnum(IntEnum):
    """A member is shown by its name and is true, as stock's are."""

    __str__ = Enum.__str__
    __format__ = Enum.__format__

    def __bool__(self) -> bool:
        return True
