"""The base class of the enums that correspond to those of `pulsar-client`.

Members of both packages are their number, so they are equal and have one hash.
"""

from __future__ import annotations

from enum import Enum, IntEnum


class PulsarEnum(IntEnum):
    """An int enum that is shown by its name and is always true, as in `pulsar-client`."""

    __str__ = Enum.__str__
    __format__ = Enum.__format__

    def __bool__(self) -> bool:
        return True
