"""The web service (admin API) of the brokers, read only: backlogs, cursors, transactions."""

from __future__ import annotations

from .internal_stats import CursorStats, InternalStats, LedgerStats
from .topic_stats import BacklogAnalysis, ConsumerStats, SubscriptionStats, TopicStats
from .transactions import (
    AckedSubscription,
    CoordinatorStats,
    ProducedTopic,
    TransactionMetadata,
)
from .web_service import WebService

__all__ = [
    "AckedSubscription",
    "BacklogAnalysis",
    "ConsumerStats",
    "CoordinatorStats",
    "CursorStats",
    "InternalStats",
    "LedgerStats",
    "ProducedTopic",
    "SubscriptionStats",
    "TopicStats",
    "TransactionMetadata",
    "WebService",
]
