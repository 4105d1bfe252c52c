"""What the record of one message says, for tests of state on disk."""

from __future__ import annotations

from typing import NamedTuple

from pulsar_encore.state.rocks import AttemptRecords


class RecalledAttempts(NamedTuple):
    """The record of one message.

    Attributes:
        due_ms: None if the message does not wait.
        held: True if the last attempt has no result.
        settled: True if the message was acked, but not its whole entry.
    """

    attempts: int
    due_ms: int | None
    first_ms: int
    held: bool
    settled: bool


def recall(
    records: AttemptRecords, ledger: int, entry: int, index: int = -1
) -> RecalledAttempts | None:
    """Return the record of a message (index -1: the whole entry), or None."""
    record = records.recall_entry(ledger, entry)
    if record is None:
        return None
    bit = 1 << max(index, 0)
    return RecalledAttempts(
        record.attempts_of(index),
        record.due_of(index),
        record.first_ms,
        record.held & bit != 0,
        record.settled & bit != 0,
    )
