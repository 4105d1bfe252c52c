"""One consumer of a subscription: its permits and its held entries.

Invariant: `unacked` is the sum of `held`. Permits may be negative after a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from .key_ranges import Range
from .topic_log import LogEntry


class SubscriptionType(Enum):
    """Subscription types, with the protocol's numbers."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def shares(self) -> bool:
        """True if several consumers hold entries, each entry on its own."""
        return self in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)


class NoticeKind(Enum):
    ACTIVE = "active"
    STANDBY = "standby"
    END_OF_TOPIC = "end of topic"


@dataclass(slots=True, eq=False)
class SubscribedConsumer:
    """A consumer connected to a subscription.

    Args:
        name: Consumer name. It orders Failover consumers and distributes Key_Shared keys.
        priority: 0 is served first.
        epoch: Sent with every message of Exclusive and Failover; None if the client sent none.
        ranges: Declared STICKY ranges.
        owner: An object of the caller.
        writable: False while the client leaves too many bytes unread.
    """

    name: str = ""
    priority: int = 0
    epoch: int | None = None
    ranges: Sequence[Range] = ()
    owner: Any = None
    writable: bool = True
    permits: int = 0
    unacked: int = 0
    blocked: bool = False
    held: dict[int, int] = field(default_factory=dict)
    queue: list[int] = field(default_factory=list)
    end_notified: bool = False

    @property
    def ready(self) -> bool:
        return self.permits > 0 and not self.blocked and self.writable


class Notice(NamedTuple):
    consumer: SubscribedConsumer
    kind: NoticeKind


Delivery: TypeAlias = tuple[SubscribedConsumer, LogEntry, int, int | None]
"""Consumer, entry, redelivery count, and the mask of a partly acked entry."""
