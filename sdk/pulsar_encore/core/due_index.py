"""The interface of every due index: a key waits until its due time.

A key added twice counts once. Due times are rounded up, so no key is handed out early, and none
later than one bucket. No engine reads a clock: the caller passes the time.
"""

from __future__ import annotations

from typing import Protocol

from pulsar_encore.core.bucket_width import bucket_edge, precision_bits
from pulsar_encore.core.message_key import DueBatch, MessageKey
from pulsar_encore.core.time_bucket import TimeBucketIndex

__all__ = [
    "DueBatch",
    "DueIndex",
    "MessageKey",
    "TimeBucketIndex",
    "bucket_edge",
    "precision_bits",
]


class DueIndex(Protocol):
    """Keys and their due times, in milliseconds on the caller's clock.

    Methods that take a key raise `ConfigurationError` if a ledger or entry is not within 0 to 2**63
    - 1, or a batch index not within -1 to 2**20 - 1. Nothing has changed then.
    """

    def add(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        """Track a key; return True if it is new. A tracked key keeps its due time."""

    def move(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        """Set the due time of a key, earlier or later; tracks the key if it is new.

        Returns:
            True if the key was tracked before.
        """

    def discard(self, key: MessageKey) -> bool:
        """Forget a key; return True if it was tracked."""

    def discard_entry(self, ledger: int, entry: int) -> int:
        """Forget the entry's whole key and all its batch indexes; return their number."""

    def discard_through(self, ledger: int, entry: int) -> int:
        """Forget every key up to this entry, as a cumulative ack does; return their number."""

    def pop_due(self, now_ms: int, /, limit: int | None = None) -> DueBatch:
        """Take keys that are due at `now_ms`; they are no longer tracked.

        The earliest buckets are taken first. If the limit ends within a bucket, its lowest keys are
        taken: in order of ledger, entry and batch index, as Pulsar's own tracker takes them.

        This is the first of two steps. The second is `done`, or adding all keys again.

        Args:
            now_ms: The time, on the clock of the due times.
            limit: The most keys to take. Keys that are left stay due.
        """

    def done(self, batch: DueBatch, /) -> None:
        """Report that taken keys are handled and need not survive a crash."""

    def due_of(self, key: MessageKey) -> int | None:
        """Return the due time of a key, None if it is not tracked or its time is not in memory."""

    def soonest(self, limit: int) -> list[tuple[int, MessageKey]]:
        """Return (due time, key) of the keys that are due first, and change nothing.

        An index on disk returns the keys in memory only.
        """

    def next_due(self) -> int | None:
        """Return the earliest time at which `pop_due` returns a key; None if nothing waits."""

    def clear(self) -> None:
        """Forget everything."""

    def __contains__(self, key: MessageKey) -> bool: ...

    def __len__(self) -> int: ...

    def _check(self) -> None:
        """Walk every invariant and raise AssertionError on the first broken one; for tests."""
