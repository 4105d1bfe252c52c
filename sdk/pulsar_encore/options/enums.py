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
    """How the consumers of a subscription share its messages.

    - Exclusive: there is one consumer.
    - Shared: each message goes to any of the consumers, in no order.
    - Failover: one consumer of each partition is active, and the others are on standby.
    - KeyShared: the messages of a key go to one consumer.
    """

    Exclusive = 0
    Shared = 1
    Failover = 2
    KeyShared = 3


class InitialPosition(PulsarEnum):
    """Where a new subscription begins: with new messages, or with the oldest stored message."""

    Latest = 0
    Earliest = 1


class RegexSubscriptionMode(PulsarEnum):
    """The kinds of topics that a pattern matches."""

    PersistentOnly = 0
    NonPersistentOnly = 1
    AllTopics = 2


class CompressionType(PulsarEnum):
    """How a producer compresses payloads."""

    NONE = 0
    LZ4 = 1
    ZLib = 2
    ZSTD = 3
    SNAPPY = 4


class PartitionsRoutingMode(PulsarEnum):
    """The partition of a message without a key: always the same, in turn, or by a router."""

    UseSinglePartition = 0
    RoundRobinDistribution = 1
    CustomPartition = 2


class BatchingType(PulsarEnum):
    """The messages that share a batch: in the order of sending, or those with the same key."""

    Default = 0
    KeyBased = 1


class ProducerAccessMode(PulsarEnum):
    """Whether other producers may publish to the topic.

    - Shared: any number of producers may.
    - Exclusive: creation fails if there is another producer.
    - WaitForExclusive: creation waits until the other producer is gone.
    - ExclusiveWithFencing: the other producers are closed.
    """

    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class ConsumerCryptoFailureAction(PulsarEnum):
    """The handling of a message that cannot be decrypted.

    - FAIL: it is not delivered, and not acked.
    - DISCARD: it is acked and not delivered.
    - CONSUME: it is delivered encrypted, with its `EncryptionContext`.
    """

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
