"""One consumer as a subscription sees it: permits, what it holds, and how much of that is unacked.

A value with arithmetic; who is served, and when, is `dispatch`. Invariant: `unacked` is the sum of
`held`. Permits grow only through `Subscription.flow`, and may be negative after a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from .key_ranges import Range
from .topic_log import LogEntry


class SubscriptionType(Enum):
    """The four types, with the protocol's numbers."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def shares(self) -> bool:
        """Whether entries are held one by one, by several consumers."""
        return self in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)


class NoticeKind(Enum):
    """What a consumer is told besides messages."""

    ACTIVE = "active"
    STANDBY = "standby"
    END_OF_TOPIC = "end of topic"


@dataclass(slots=True, eq=False)
class SubscribedConsumer:
    """A consumer connected to a subscription.

    Args:
        name: Consumer name; orders Failover and places Key_Shared.
        priority: 0 is served first.
        epoch: Echoed with every message of Exclusive and Failover; None when the client sent none.
        ranges: Declared STICKY ranges.
        owner: Whatever the caller wants to find again; never looked at here.
        writable: False while its connection has too much unsent.
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
        """Whether an entry may be sent to it now."""
        return self.permits > 0 and not self.blocked and self.writable


class Notice(NamedTuple):
    """Something to tell a consumer."""

    consumer: SubscribedConsumer
    kind: NoticeKind


Delivery: TypeAlias = tuple[SubscribedConsumer, LogEntry, int, int | None]
"""To whom, what, its redelivery count, and the mask of a partly acked entry."""
