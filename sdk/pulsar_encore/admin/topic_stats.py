"""The backlogs and consumers of a topic, from its `stats`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .answer_fields import listed, named, number


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A connected consumer; texts are as the broker gives them."""

    name: str
    address: str
    connected_since: str
    unacked: int
    permits: int


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """The backlog of one subscription.

    Attributes:
        type: "Exclusive", "Shared", "Failover" or "Key_Shared"; "None" without a consumer so far.
        backlog: Entries that are not acked whole. Each batch counts as one. Entries that are in
            flight or delayed are included.
        delayed: Messages with a delivery time that is not reached.
        unacked: Messages in flight at the consumers.
        earliest_publish_ms: Publish time of the first unacked entry, in ms since the epoch; None
            if there is none, or if it was not asked for.
    """

    type: str
    backlog: int
    delayed: int
    unacked: int
    earliest_publish_ms: int | None
    consumers: tuple[ConsumerStats, ...]


@dataclass(frozen=True, slots=True)
class TopicStats:
    """The subscriptions of a topic or partition.

    Attributes:
        partitions: The same by partition name, if a partitioned topic was asked for.
    """

    subscriptions: Mapping[str, SubscriptionStats]
    partitions: Mapping[str, TopicStats]


@dataclass(frozen=True, slots=True)
class BacklogAnalysis:
    """A backlog as counted by a broker that read it. `complete` is False if it stopped early."""

    entries: int
    messages: int
    complete: bool


def topic_stats(answer: Mapping[str, Any]) -> TopicStats:
    return TopicStats(
        {name: _subscription(each) for name, each in named(answer, "subscriptions").items()},
        {name: topic_stats(each) for name, each in named(answer, "partitions").items()},
    )


def backlog_analysis(answer: Mapping[str, Any]) -> BacklogAnalysis:
    return BacklogAnalysis(
        number(answer, "entries"),
        number(answer, "messages"),
        answer.get("aborted") is not True,
    )


def _subscription(answer: Mapping[str, Any]) -> SubscriptionStats:
    published = number(answer, "earliestMsgPublishTimeInBacklog")
    return SubscriptionStats(
        type=str(answer.get("type")),
        backlog=number(answer, "msgBacklog"),
        delayed=number(answer, "msgDelayed"),
        unacked=number(answer, "unackedMessages"),
        earliest_publish_ms=published if published > 0 else None,
        consumers=tuple(_consumer(each) for each in listed(answer, "consumers")),
    )


def _consumer(answer: Mapping[str, Any]) -> ConsumerStats:
    return ConsumerStats(
        name=str(answer.get("consumerName", "")),
        address=str(answer.get("address", "")).lstrip("/"),
        connected_since=str(answer.get("connectedSince", "")),
        unacked=number(answer, "unackedMessages"),
        permits=number(answer, "availablePermits"),
    )
