"""The choices Pulsar offers, under stock's names.

Stock's own enum members are accepted wherever these are (`coerce`), so that code written for the
stock client keeps working with nothing but its import changed.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeVar

from ..errors import ConfigurationError


class ConsumerType(Enum):
    Exclusive = 0
    Shared = 1
    Failover = 2
    KeyShared = 3


class InitialPosition(Enum):
    Latest = 0
    Earliest = 1


class RegexSubscriptionMode(Enum):
    PersistentOnly = 0
    NonPersistentOnly = 1
    AllTopics = 2


class ConsumerCryptoFailureAction(Enum):
    FAIL = 0
    DISCARD = 1
    CONSUME = 2


class CompressionType(Enum):
    NONE = 0
    LZ4 = 1
    ZLib = 2
    ZSTD = 3
    SNAPPY = 4


class PartitionsRoutingMode(Enum):
    UseSinglePartition = 0
    RoundRobinDistribution = 1
    CustomPartition = 2


class BatchingType(Enum):
    Default = 0
    KeyBased = 1


class ProducerAccessMode(Enum):
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
