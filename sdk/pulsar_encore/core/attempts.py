"""Counts delivery attempts: deliveries to the application that ended without an ack.

`redelivery_count` is the number of failed attempts at a message:

- Unbatched, or in a batch of one: the broker's redelivery count without unattempted copies
  (`DuplicateWindow.attempts_in`), or the remembered failures (below) if they are more.
- In a batch: the attempts that failed here, plus the redeliveries of the batch that other consumers
  requested. The broker counts the entry and so every sibling. A redelivery that this consumer
  requested says nothing about one message. A redelivery that another consumer requested counts at
  each message, because no other sign of attempts elsewhere exists.

With a dead-letter policy this consumer also remembers failures, because the broker forgets its
count after a partial ack, an unload, a restart, or when the last consumer leaves. A poison message
might otherwise never reach the dead letter topic. The remembered failures replace the count of
attempts that failed here if they are more. A failure in place is always remembered.

All collections are bounded and forget the oldest first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from sys import getsizeof
from typing import Final, NamedTuple

from ..letters.evidence import Evidence
from .entry import Entry, EntryKey
from .message_key import MessageKey

# Twice the broker's default unacked window. More failures are possible only if the window was
# raised.
MOST_FAILURES: Final = 100_000
# Class, message and stack of a failure take up to 20 kB: a hundred thousand would be 2 GB.
EVIDENCE_BYTES: Final = 16 * 2**20
# The same bound as for failures. If a batch were forgotten sooner, redeliveries that this consumer
# requested would be counted as those of other consumers, in addition to its failures.
MOST_SHARED_BATCHES: Final = MOST_FAILURES


class Failures(NamedTuple):
    """Failed attempts at one message; the evidence is of the last."""

    attempts: int
    first_ms: int
    evidence: Evidence | None


class _Redeliveries:
    """The broker's redelivery count of one batch, split by the consumers that requested them.

    Any ack of a part of the entry resets the broker's count to 0. `by_others` therefore adds up the
    increases and never goes down. If in doubt, an increase counts as this consumer's, so that a
    message on a single consumer never has an attempt too many. Requests and acks are not matched
    with single deliveries, because a delivery may be in flight meanwhile.
    """

    __slots__ = ("by_others", "count", "deliveries", "increases", "requests")

    def __init__(self, deliveries: int) -> None:
        self.count = 0
        self.increases = 0
        self.deliveries = deliveries
        self.requests = 0
        self.by_others = 0

    def delivered(self, count: int) -> None:
        # A lower count than before means that the broker began again at 0.
        self.increases += count - self.count if count >= self.count else count
        self.count = count
        self.deliveries += 1
        self.by_others = max(self.by_others, self.not_own)

    @property
    def not_own(self) -> int:
        # The broker counts one request for each delivery. This delivery is one of them: the broker
        # may have received a request for it before it wrote the entry and the count.
        return max(0, self.increases - min(self.requests, self.deliveries))


class Attempts:
    """Failed attempts at the messages of one topic.

    A remembered failure takes about 350 bytes, so at most 35 MB, and `EVIDENCE_BYTES` more. A
    redelivered batch takes about 250 bytes.

    Attributes:
        failures: By message key, oldest first. Without `remembers`, only of messages that failed in
            place.

    Args:
        remembers: Keep every failure, for a dead-letter policy.
        counts_redeliveries: True on Shared and Key_Shared, where the broker redelivers and counts
            single entries.
    """

    __slots__ = (
        "_counts_redeliveries",
        "_weight",
        "_weights",
        "batches",
        "failures",
        "remembers",
    )

    def __init__(self, *, remembers: bool = False, counts_redeliveries: bool = True) -> None:
        self.remembers: bool = remembers
        self._counts_redeliveries = counts_redeliveries
        # To find its oldest key, a plain dictionary would walk over all deleted ones.
        self.failures: OrderedDict[MessageKey, Failures] = OrderedDict()
        self._weights: OrderedDict[MessageKey, int] = OrderedDict()  # bytes of evidence
        self._weight = 0
        self.batches: OrderedDict[EntryKey, _Redeliveries] = OrderedDict()

    # Counts of the broker

    def batch_delivered(self, key: EntryKey, redelivery_count: int) -> int:
        """Count a delivery of a batch; return redeliveries that other consumers requested."""
        if not self._counts_redeliveries:
            return 0
        redeliveries = self.batches.get(key)
        if redeliveries is None:
            if not redelivery_count:
                return 0
            redeliveries = self._new_batch(key, deliveries=0)
        redeliveries.delivered(redelivery_count)
        return redeliveries.by_others

    def batch_requested(self, key: EntryKey) -> None:
        if self._counts_redeliveries:
            (self.batches.get(key) or self._new_batch(key, deliveries=1)).requests += 1

    def note_answered_request(self, key: EntryKey) -> int:
        """Count a request that the latest delivery has answered already.

        Returns:
            Redeliveries that other consumers requested, without this one.
        """
        redeliveries = self.batches.get(key)
        if redeliveries is None:
            return 0
        redeliveries.requests += 1
        redeliveries.by_others = redeliveries.not_own
        return redeliveries.by_others

    def requested_by_others(self, key: EntryKey) -> int:
        redeliveries = self.batches.get(key)
        return 0 if redeliveries is None else redeliveries.by_others

    def _new_batch(self, key: EntryKey, *, deliveries: int) -> _Redeliveries:
        if len(self.batches) >= MOST_SHARED_BATCHES:
            self.batches.popitem(last=False)
        redeliveries = self.batches[key] = _Redeliveries(deliveries)
        return redeliveries

    # Counts of this consumer

    def count(self, entry: Entry, index: int) -> int:
        if entry.size == 1:
            return entry.redelivered
        return self._failed_here(entry, index) + entry.redelivered

    def tried_here(self, entry: Entry, index: int) -> bool:
        """Return True if a failed attempt at this very message is known, not only at its batch."""
        return entry.size == 1 or self._failed_here(entry, index) > 0

    def _failed_here(self, entry: Entry, index: int) -> int:
        failed = 0 if entry.failed is None else entry.failed.get(index, 0)
        return max(failed, self.remembered(entry.due_key(index))) if self.failures else failed

    def count_with_current(self, entry: Entry, index: int) -> int:
        """Return the failed attempts, the present one included.

        With a dead-letter policy the present one has been remembered already.
        """
        if entry.size == 1:
            return entry.redelivered + 1
        failed = 1 if entry.failed is None else entry.failed.get(index, 0) + 1
        return max(failed, self.remembered(entry.due_key(index))) + entry.redelivered

    def recalled(self, entry: Entry, attempts: Mapping[int, int]) -> None:
        failed = {} if entry.failed is None else entry.failed
        for index, total in attempts.items():
            # Both the stored total and the broker's count include redeliveries that the earlier
            # process requested.
            count = total - entry.redelivered
            if index < entry.size and count > failed.get(index, 0):
                failed[index] = count
        entry.failed = failed or None

    def add_failed(self, entry: Entry, indexes: Sequence[int]) -> None:
        """Count failed attempts at messages of a batch; the broker counts unbatched messages."""
        if entry.size == 1 or not indexes:
            return
        failed = entry.failed
        if failed is None:
            entry.failed = dict.fromkeys(indexes, 1)
            return
        for index in indexes:
            failed[index] = failed.get(index, 0) + 1

    # Remembered failures

    def remember(
        self,
        key: MessageKey,
        wall_now: int,
        evidence: Evidence | None,
        *,
        in_place: bool = False,
    ) -> None:
        """Remember one more failed attempt at a message; `wall_now` is in ms since the epoch.

        Without `remembers`, only messages that failed in place are remembered, because the broker
        counts nothing there.
        """
        if not (self.remembers or in_place or key in self.failures):
            return
        before = self.forget(key)
        if before is None:
            failures = Failures(1, wall_now, evidence)
            if len(self.failures) >= MOST_FAILURES:
                self.forget(next(iter(self.failures)))
        else:
            said = evidence or before.evidence
            failures = Failures(before.attempts + 1, before.first_ms, said)
        self.failures[key] = failures
        weight = _weight(failures.evidence)
        if weight:
            self._weights[key] = weight
            self._weight += weight
            while self._weight > EVIDENCE_BYTES:
                self._forget_evidence(next(iter(self._weights)))

    def _forget_evidence(self, key: MessageKey) -> None:
        self._weight -= self._weights.pop(key)
        attempts, first_ms, _ = self.failures[key]
        self.failures[key] = Failures(attempts, first_ms, None)

    def failures_of(self, key: MessageKey) -> Failures | None:
        return self.failures.get(key)

    def remembered(self, key: MessageKey) -> int:
        failures = self.failures.get(key)
        return 0 if failures is None else failures.attempts

    # Endings

    def forget(self, key: MessageKey) -> Failures | None:
        self._weight -= self._weights.pop(key, 0)
        return self.failures.pop(key, None)

    def forget_batch(self, key: EntryKey) -> None:
        self.batches.pop(key, None)

    def clear(self) -> None:
        self.failures.clear()
        self._weights.clear()
        self._weight = 0
        self.batches.clear()


def _weight(evidence: Evidence | None) -> int:
    if evidence is None:
        return 0
    texts = (evidence.error_class, evidence.error_message, evidence.error_stack)
    return sum(getsizeof(text) for text in texts if text)
