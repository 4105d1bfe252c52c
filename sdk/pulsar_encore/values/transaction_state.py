"""The states of a transaction (PIP-31)."""

from __future__ import annotations

from enum import Enum


class TxnState(Enum):
    """The state of a transaction, as its owner knows it."""

    OPEN = "open"
    """Messages can be sent in it."""

    COMMITTING = "committing"
    """It waits for its sends, or for the coordinator's answer to the commit."""

    ABORTING = "aborting"
    """It waits for its sends, or for the coordinator's answer to the abort. Without an answer, the
    client asks again in the background. If it is closed meanwhile, the state stays so."""

    COMMITTED = "committed"
    """Its messages are visible."""

    ABORTED = "aborted"
    """Its messages will never be visible."""

    UNKNOWN = "unknown"
    """It has ended, or will end, and the client could not find out how."""
