"""Where a message of a subscription is: facts from several sources, and the verdict on them."""

from __future__ import annotations

from .message_facts import CopyFacts, CopyKind, MessageFacts, PendingFacts
from .verdict import State, Verdict, decide

__all__ = [
    "CopyFacts",
    "CopyKind",
    "MessageFacts",
    "PendingFacts",
    "State",
    "Verdict",
    "decide",
]
