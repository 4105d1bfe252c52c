"""The enums of `pulsar-client`, as enums of this package.

A member and its counterpart in `pulsar-client` are equal and have the same hash. One exception:
`ConsumerCryptoFailureAction` of `pulsar-client` compares unequal to members of other classes, so
these are equal only with ours on the left.
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
    """Return the member of an enum class for a member of this package or of `pulsar-client`."""
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


def coerce_fields(options: object, **kinds: type[Enum]) -> None:
    """Coerce the named fields of a frozen option class."""
    for name, kind in kinds.items():
        object.__setattr__(options, name, coerce(kind, getattr(options, name), name))
