"""The choices Pulsar offers, under stock's names.

Stock's own enum members are accepted wherever these are (`coerce`), so that code written for the
stock client keeps working with nothing but its import changed; and they are equal to these, either
way round, with the same hash: both are their number. So they are enums, which a type checker can
see through, and need no native library. Only `ConsumerCryptoFailureAction` is stock's own object:
its native class says "not equal" to whatever is not of it.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ConfigurationError

if TYPE_CHECKING:

    class ConsumerCryptoFailureAction(Enum):
        FAIL = 0
        DISCARD = 1
        CONSUME = 2

else:
    from ..stock import ConsumerCryptoFailureAction  # noqa: F401


class _Choice(IntEnum):
    """A member is shown by its name and is true, as stock's are."""

    __str__ = Enum.__str__
    __format__ = Enum.__format__

    def __bool__(self) -> bool:
        return True


class ConsumerType(_Choice):
    Exclusive = 0
    Shared = 1
    Failover = 2
    KeyShared = 3


class InitialPosition(_Choice):
    Latest = 0
    Earliest = 1


class RegexSubscriptionMode(_Choice):
    PersistentOnly = 0
    NonPersistentOnly = 1
    AllTopics = 2


class CompressionType(_Choice):
    NONE = 0
    LZ4 = 1
    ZLib = 2
    ZSTD = 3
    SNAPPY = 4


class PartitionsRoutingMode(_Choice):
    UseSinglePartition = 0
    RoundRobinDistribution = 1
    CustomPartition = 2


class BatchingType(_Choice):
    Default = 0
    KeyBased = 1


class ProducerAccessMode(_Choice):
    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


E = TypeVar("E", bound=Enum)


def coerce(kind: type[E], value: Any, name: str) -> E:
    """`value` as a member of `kind`: a member, or stock's member of the same name.

    Raises:
        ConfigurationError: Neither; the text lists the choices.
    """
    if isinstance(value, kind):
        return value
    label = getattr(value, "name", None)
    if (
        type(value).__name__ == kind.__name__
        and isinstance(label, str)
        and label in kind.__members__
    ):
        return kind[label]
    choices = ", ".join(kind.__members__)
    raise ConfigurationError(f"{name} must be a {kind.__name__} ({choices}), got {value!r}")
