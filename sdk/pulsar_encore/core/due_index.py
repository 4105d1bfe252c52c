"""The one idea of this package as a protocol: everything that waits is a key with a due time.

Owns `DueIndex`, and is where its users import it, its values and its engine in memory from.
Invariant of every engine: a key is in at most one place, so a key added twice counts once; due
times are rounded up, so nothing leaves early and nothing is later than one bucket. Refuses to
know the time: the caller passes it in.
"""

from __future__ import annotations

from typing import Protocol

from pulsar_encore.core.due_time import DueBatch, MessageKey, bucket_edge, precision_bits
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
    """What waits, and until when. Times are milliseconds on whichever clock the caller keeps.

    Methods that take a key raise `ConfigurationError` when a ledger or entry is not within 0 to
    2**63 - 1, or a batch index not within -1 to 2**20 - 1, and then nothing has changed.
    """

    def add(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        """Track a key; True when it is new. One already tracked stays where it is."""
        ...

    def move(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        """Give a key another due time, earlier or later; tracks it when it was not.

        Returns:
            True when the key was tracked before.
        """
        ...

    def discard(self, key: MessageKey) -> bool:
        """Forget a key; True when it was tracked."""
        ...

    def discard_entry(self, ledger: int, entry: int) -> int:
        """Forget the entry's whole key and all its batch indexes; returns how many there were."""
        ...

    def discard_through(self, ledger: int, entry: int) -> int:
        """Forget every key of this entry and of all before it, as a cumulative ack does."""
        ...

    def pop_due(self, now_ms: int, /, limit: int | None = None) -> DueBatch:
        """Take what is due at `now_ms`; it is not tracked any more.

        The earliest buckets are taken first. If the limit ends within a bucket, its lowest keys are
        taken: in order of ledger, entry and batch index, as Pulsar's own tracker takes them.

        The first of two steps: what becomes of it is told by `done`, or by adding all of it again,
        which takes the place of `done`.

        Args:
            now_ms: The time, on the clock that the due times were given in.
            limit: At most so many keys; what is left stays due.
        """
        ...

    def done(self, batch: DueBatch, /) -> None:
        """What was taken is seen to: it need not be kept any longer for the case of a crash."""
        ...

    def next_due(self) -> int | None:
        """The earliest time at which `pop_due` hands anything over; None when nothing waits."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...

    def __contains__(self, key: MessageKey) -> bool: ...

    def __len__(self) -> int: ...

    def _check(self) -> None:
        """Walk every invariant and raise AssertionError on the first broken one; for tests."""
        ...
