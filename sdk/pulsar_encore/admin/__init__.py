"""The web service (admin API) of the brokers, read only: backlogs, cursors and lists of topics."""

from __future__ import annotations

from .internal_stats import CursorStats, InternalStats, LedgerStats
from .topic_stats import BacklogAnalysis, ConsumerStats, SubscriptionStats, TopicStats
from .web_service import WebService

__all__ = [
    "BacklogAnalysis",
    "ConsumerStats",
    "CursorStats",
    "InternalStats",
    "LedgerStats",
    "SubscriptionStats",
    "TopicStats",
    "WebService",
]
