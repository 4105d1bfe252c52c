"""The choices Pulsar offers, under stock's names.

Stock's own enum members are accepted wherever these are (`coerce`), so that code written for the
stock client keeps working with nothing but its import changed; and they are equal to these, either
way round, with the same hash: both are their number. So they are enums, which a type checker can
see through, and need no C++ library. One exception: stock's `ConsumerCryptoFailureAction` says
"not equal" to whatever is not of it, so those are equal only with ours on the left.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeVar

from .. import stock
from ..errors import ConfigurationError
from ..values.pulsar_enum import PulsarEnum


class ConsumerType(PulsarEnum):
    Exclusive = 0
    Shared = 1
    Failover = 2
    KeyShared = 3


class InitialPosition(PulsarEnum):
    Latest = 0
    Earliest = 1


class RegexSubscriptionMode(PulsarEnum):
    PersistentOnly = 0
    NonPersistentOnly = 1
    AllTopics = 2


class CompressionType(PulsarEnum):
    NONE = 0
    LZ4 = 1
    ZLib = 2
    ZSTD = 3
    SNAPPY = 4


class PartitionsRoutingMode(PulsarEnum):
    UseSinglePartition = 0
    RoundRobinDistribution = 1
    CustomPartition = 2


class BatchingType(PulsarEnum):
    Default = 0
    KeyBased = 1


class ProducerAccessMode(PulsarEnum):
    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class ConsumerCryptoFailureAction(PulsarEnum):
    FAIL = 0
    DISCARD = 1
    CONSUME = 2

    def __eq__(self, other: object) -> bool:
        if stock.is_one(other, "_pulsar.ConsumerCryptoFailureAction"):
            return self.name == getattr(other, "name", None)
        return self.value == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = PulsarEnum.__hash__


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
