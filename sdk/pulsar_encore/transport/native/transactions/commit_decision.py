"""Decides how a transaction has ended from the coordinator's answer to COMMIT. Pure: no I/O.

Only an end by the owner, an end by id, and the timeout remove a transaction, and afterwards the
coordinator does not know it: "not found" is also the answer to a repeated COMMIT that had worked
(`docs/notes/wire-protocol.md#transactions`).
"""

from __future__ import annotations

from enum import Enum

from .coordinators import EndAnswer


class Decision(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    ASK_TOPIC = "ask the topic"
    """Whether a message of the transaction is visible decides."""
    UNKNOWN = "unknown"


def decide(answer: EndAnswer | None, *, stored: bool, in_time: bool) -> Decision:
    """Return how a transaction has ended, or how to find out.

    Args:
        answer: None if none came.
        stored: The id of one of its messages is known.
        in_time: The local deadline has not passed, so the timeout cannot have ended it.
    """
    if answer is EndAnswer.DONE:
        return Decision.COMMITTED
    if answer is EndAnswer.OTHER_WAY:
        return Decision.ABORTED
    if stored:
        return Decision.ASK_TOPIC
    if answer is EndAnswer.NOT_FOUND_ON_RETRY and in_time:
        return Decision.COMMITTED  # unless another client ended it by its id
    return Decision.UNKNOWN
