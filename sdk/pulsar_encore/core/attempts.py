"""The one place that counts attempts: how often a message was handed out and not acked.

Owns `Attempts`, one per source. An attempt is a hand-over that ended without an ack; what is
counted is how many of them failed, which is what `redelivery_count` says. Three things are known of
it, and the largest counts:
- of a message that is its entry, the broker's count, less the copies that nobody attempted: given
  back while they were queued, a letter too early, a second copy of what is here;
- in a batch, the attempts at the message that failed here, plus the redeliveries of its entry that
  other consumers caused. The broker counts the entry, and so every sibling. A redelivery that this
  consumer asked for says nothing of a message beyond the attempts that failed here. A redelivery
  that another consumer asked for is taken for a failed attempt at each message of the entry,
  because nothing else tells this consumer of attempts elsewhere;
- where a dead-letter policy needs it, a memory of every failure with what it said, because the
  broker forgets: a partial ack, an unload, a restart and the last consumer leaving all set its
  count back to 0, and a poison message might never reach the dead-letter topic.
All of it is bounded, by messages and by the bytes of what failures said; the oldest are forgotten
first, then what is left counts: the broker's word, or our own without its evidence.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice
from sys import getsizeof
from typing import Final, NamedTuple

from ..letters.evidence import Evidence
from .due_time import MessageKey
from .entry import Entry, EntryKey, set_bits

# Twice the broker's unacked window: more cannot wait here at once, unless both were raised.
MOST_FAILURES: Final = 100_000
# Class, message and stack of a failure take up to 20 kB: a hundred thousand would be 2 GB.
EVIDENCE_BYTES: Final = 16 * 2**20
MOST_OVERLOOKED: Final = 50_000  # the broker's unacked window
# As many as failures: a batch that is forgotten first would have its own failures counted twice.
MOST_SHARED_BATCHES: Final = MOST_FAILURES


class Failures(NamedTuple):
    """Failed attempts at one message, when the first was, and what the last one said."""

    attempts: int
    first_ms: int
    evidence: Evidence | None


class _Redeliveries:
    """The broker's redelivery count of one batch, split by the consumers that asked.

    Any ack of a part of the entry resets the broker's count to 0. `elsewhere` therefore adds up
    what each delivery shows, and never goes down. In doubt an increase counts as this consumer's,
    so that a message on a single consumer never has an attempt too many. A delivery may be under
    way while this consumer asks again or acks, so neither is matched with a single delivery.

    Attributes:
        count: The broker's count at the last delivery to this consumer.
        increases: Sum of the increases of the broker's count that deliveries have shown.
        deliveries: Deliveries to this consumer.
        requests: Redeliveries that this consumer asked for.
        elsewhere: Redeliveries that other consumers asked for, as far as deliveries have shown.
    """

    __slots__ = ("count", "deliveries", "elsewhere", "increases", "requests")

    def __init__(self, deliveries: int) -> None:
        self.count = 0
        self.increases = 0
        self.deliveries = deliveries
        self.requests = 0
        self.elsewhere = 0

    def delivered(self, count: int) -> None:
        """The entry was delivered with this redelivery count."""
        # A lower count than before means that the broker began anew.
        self.increases += count - self.count if count >= self.count else count
        self.count = count
        self.deliveries += 1
        # The broker counts a request of a consumer that has the entry, so one for each delivery.
        # This delivery is one of them: the broker reads the count when it writes the entry to the
        # connection, and may have received a request for this very delivery before.
        own = min(self.requests, self.deliveries)
        self.elsewhere = max(self.elsewhere, self.increases - own)


class Attempts:
    """Counts of one source.

    A remembered failure takes about 350 bytes, so at most 35 MB, and `EVIDENCE_BYTES` more; an
    overlooked copy about 250, as does a batch that was redelivered.

    Attributes:
        failures: By message key, oldest first; always empty without `remembers`. To look at.
        copies: Copies that nobody attempted, by entry, oldest first. To look at.
        batches: Redeliveries of batches, by entry, oldest first. To look at.

    Args:
        remembers: Keep every failure, for a dead-letter policy.
        counts_overlooked: Redeliveries are by entry and the broker counts them (Shared and
            Key_Shared).
    """

    __slots__ = (
        "_counts_overlooked",
        "_weight",
        "_weights",
        "batches",
        "copies",
        "failures",
        "remembers",
    )

    def __init__(self, *, remembers: bool = False, counts_overlooked: bool = True) -> None:
        self.remembers: bool = remembers
        self._counts_overlooked = counts_overlooked
        # Plain dictionaries would walk over all that was forgotten to find the oldest.
        self.failures: OrderedDict[MessageKey, Failures] = OrderedDict()
        # Bytes of the evidence, where it has a text.
        self._weights: OrderedDict[MessageKey, int] = OrderedDict()
        self._weight = 0
        # A plain dictionary, because a rewind adds 45,000 in one step; see `overlooked`.
        self.copies: dict[EntryKey, int] = {}
        self.batches: OrderedDict[EntryKey, _Redeliveries] = OrderedDict()

    # What the broker says

    def delivered(self, key: EntryKey, redelivery_count: int) -> int:
        """A copy of a message that is its entry came: failed attempts at it so far."""
        count = self._attempted(key, redelivery_count)
        if self.failures:
            count = max(count, self._remembered((*key, -1)))
        return count

    def delivered_again(self, entry: Entry, redelivery_count: int) -> None:
        """A copy came of a message that is its entry, of which there is a record."""
        if self.copies:
            redelivery_count = self._attempted(entry.key, redelivery_count)
        entry.redelivered = max(entry.redelivered, redelivery_count)

    def _attempted(self, key: EntryKey, redelivery_count: int) -> int:
        """What the broker's count of a copy that came now leaves of attempts.

        A count below ours began anew (unload, last consumer gone): what was before is forgotten.
        """
        copies = self.copies.get(key, 0)
        if copies > redelivery_count:
            copies = redelivery_count
            if copies:
                self.copies[key] = copies
            else:
                del self.copies[key]
        return redelivery_count - copies

    def overlooked(self, key: EntryKey) -> None:
        """One more copy of a message that is its entry came, and nobody will attempt it."""
        if not self._counts_overlooked:
            return
        self.copies[key] = self.copies.pop(key, 0) + 1
        if len(self.copies) > MOST_OVERLOOKED:
            # Many at once: finding the first walks over those that were forgotten before.
            for oldest in list(islice(self.copies, max(1, MOST_OVERLOOKED // 8))):
                del self.copies[oldest]

    def batch_delivered(self, key: EntryKey, redelivery_count: int) -> int:
        """Count a delivery of a batch.

        Returns:
            Redeliveries of it that other consumers asked for.
        """
        if not self._counts_overlooked:
            return 0
        redeliveries = self.batches.get(key)
        if redeliveries is None:
            if not redelivery_count:
                return 0
            redeliveries = self._new_batch(key, deliveries=0)
        redeliveries.delivered(redelivery_count)
        return redeliveries.elsewhere

    def batch_asked(self, key: EntryKey) -> None:
        """This consumer asks for a redelivery of a batch."""
        if self._counts_overlooked:
            (self.batches.get(key) or self._new_batch(key, deliveries=1)).requests += 1

    def elsewhere_of(self, key: EntryKey) -> int:
        """Redeliveries of a batch that other consumers asked for."""
        redeliveries = self.batches.get(key)
        return 0 if redeliveries is None else redeliveries.elsewhere

    def _new_batch(self, key: EntryKey, *, deliveries: int) -> _Redeliveries:
        if len(self.batches) >= MOST_SHARED_BATCHES:
            self.batches.popitem(last=False)
        redeliveries = self.batches[key] = _Redeliveries(deliveries)
        return redeliveries

    def overlooked_all(self, keys: Sequence[EntryKey]) -> None:
        """`overlooked` for each of many entries, in one step."""
        if not self._counts_overlooked:
            return
        if self.copies:
            for key in keys:
                self.overlooked(key)
        else:
            self.copies = dict.fromkeys(keys[-MOST_OVERLOOKED:], 1)

    # What happens here

    def count(self, entry: Entry, index: int) -> int:
        """Failed attempts at this very message, as known here."""
        if entry.size == 1:
            return entry.redelivered
        return self._failed_here(entry, index) + entry.redelivered

    def tried_here(self, entry: Entry, index: int) -> bool:
        """True if a failed attempt at this very message is known, not only one at its entry."""
        return entry.size == 1 or self._failed_here(entry, index) > 0

    def _failed_here(self, entry: Entry, index: int) -> int:
        failed = 0 if entry.failed is None else entry.failed.get(index, 0)
        return max(failed, self._remembered(entry.due_key(index))) if self.failures else failed

    def ended(self, entry: Entry, index: int) -> int:
        """Failed attempts, once the one under way has failed too.

        Where failures are remembered, the one under way is by now.
        """
        if entry.size == 1:
            return entry.redelivered + 1
        failed = 0 if entry.failed is None else entry.failed.get(index, 0)
        return max(failed + 1, self._remembered(entry.due_key(index))) + entry.redelivered

    def recalled(self, entry: Entry, attempts: Mapping[int, int]) -> None:
        """What is known of a batch's messages from another life of the process, by index."""
        failed = {} if entry.failed is None else entry.failed
        for index, total in attempts.items():
            # The stored total includes redeliveries. The broker's current count includes those
            # that the earlier process requested, so the sum would count them twice.
            count = total - entry.redelivered
            if index < entry.size and count > failed.get(index, 0):
                failed[index] = count
        entry.failed = failed or None

    def failed(self, entry: Entry, mask: int) -> None:
        """Attempts at these indexes ended; of a message that is its entry the broker counts."""
        size = entry.size
        if size == 1:
            return
        if entry.failed is None and mask == (1 << size) - 1:
            entry.failed = dict.fromkeys(range(size), 1)
            return
        for index in set_bits(mask):
            if entry.failed is None:
                entry.failed = {}
            entry.failed[index] = entry.failed.get(index, 0) + 1

    def elsewhere(self, entry: Entry, attempts: int) -> None:
        """The message, which is its entry, says of attempts that no count here knows of."""
        entry.redelivered += attempts

    # What is remembered

    def remember(self, key: MessageKey, wall_now: int, evidence: Evidence | None) -> None:
        """One more attempt at the message failed.

        Args:
            key: Which.
            wall_now: When, in ms since the epoch.
            evidence: What it said, if anything.
        """
        if not self.remembers:
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

    def of(self, key: MessageKey) -> Failures | None:
        """What is remembered of a message."""
        return self.failures.get(key)

    def _remembered(self, key: MessageKey) -> int:
        failures = self.failures.get(key)
        return 0 if failures is None else failures.attempts

    # Endings

    def forget(self, key: MessageKey) -> Failures | None:
        """Forget what is remembered of a message, and return it."""
        self._weight -= self._weights.pop(key, 0)
        return self.failures.pop(key, None)

    def done(self, key: EntryKey) -> None:
        """The entry is acked: of its copies nothing counts any more."""
        self.copies.pop(key, None)
        self.batches.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        self.failures.clear()
        self._weights.clear()
        self._weight = 0
        self.copies.clear()
        self.batches.clear()


def _weight(evidence: Evidence | None) -> int:
    if evidence is None:
        return 0
    texts = (evidence.error_class, evidence.error_message, evidence.error_stack)
    return sum(getsizeof(text) for text in texts if text)
