"""Two steps for a transport that takes its time: keys are asked for ahead, and wait on until then.

Owns `LeadIndex`. A redeliver command that is handed over `lead` ms before a message is due reaches
the wire when it is due at the earliest; but until then its entry may come for another reason (a
sibling of the batch was asked for, the connection came back), and a message that no longer waits
would be shown early, by up to the lead. So what was asked for stays tracked until its time has
come. Invariant: a key is waiting or asked for, never both. Refuses to read a clock.
"""

from __future__ import annotations

from .due import DueBatch, MessageKey
from .due_index import DueIndex, TimeBucketIndex


class LeadIndex:
    """A `DueIndex` with a step before `pop_due`: `ask`.

    Args:
        waiting: Engine for what was not asked for yet.
    """

    def __init__(self, waiting: DueIndex | None = None) -> None:
        self._waiting = TimeBucketIndex() if waiting is None else waiting
        self._asked = TimeBucketIndex()  # what is due within one lead

    def __len__(self) -> int:
        return len(self._waiting) + len(self._asked)

    def __contains__(self, key: MessageKey) -> bool:
        return key in self._waiting or (len(self._asked) > 0 and key in self._asked)

    def add(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        """Track a key; True when it is new. One already tracked stays where it is.

        Raises:
            ConfigurationError: The key, `due_ms` or `bits` is out of range.
        """
        if len(self._asked) and key in self._asked:
            return False
        return self._waiting.add(key, due_ms, bits)

    def move(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        """Give a key another due time, tracking it when it was not; True when it was.

        One that was asked for already is asked for again at its new time.

        Raises:
            ConfigurationError: The key, `due_ms` or `bits` is out of range.
        """
        known = self._waiting.move(key, due_ms, bits)
        return (len(self._asked) > 0 and self._asked.discard(key)) or known

    def discard(self, key: MessageKey) -> bool:
        """Forget a key; True when it was tracked.

        Raises:
            ConfigurationError: The key is out of range.
        """
        return self._waiting.discard(key) or self._asked.discard(key)

    def discard_entry(self, ledger: int, entry: int) -> int:
        """Forget the entry's whole key and all its batch indexes; returns how many there were.

        Raises:
            ConfigurationError: `ledger` or `entry` is out of range.
        """
        return sum(each.discard_entry(ledger, entry) for each in (self._waiting, self._asked))

    def discard_through(self, ledger: int, entry: int) -> int:
        """Forget every key of this entry and of all before it; returns how many there were.

        Raises:
            ConfigurationError: `ledger` or `entry` is out of range.
        """
        return sum(each.discard_through(ledger, entry) for each in (self._waiting, self._asked))

    def clear(self) -> None:
        """Forget everything."""
        self._waiting.clear()
        self._asked.clear()

    def ask(self, now_ms: int, lead_ms: int, limit: int | None = None) -> DueBatch:
        """Hand over what has to be asked for now; it stays tracked for `lead_ms` more.

        Args:
            now_ms: The time in milliseconds, on the clock of the due times.
            lead_ms: What a redelivery takes at least, in milliseconds.
            limit: At most so many keys; what is left is handed over by the next call.

        Raises:
            ConfigurationError: `limit` is negative.
        """
        until = now_ms + lead_ms
        batch = self._waiting.pop_due(until, limit)
        for key in batch:
            self._asked.add(key, until, 0)
        return batch

    def pop_due(self, now_ms: int, limit: int | None = None) -> DueBatch:
        """Hand over and forget what was asked for and is due at `now_ms`.

        To be called before a delivery is looked at: what it brings may be what was asked for.

        Raises:
            ConfigurationError: `limit` is negative.
        """
        return self._asked.pop_due(now_ms, limit)

    def next_ask(self, lead_ms: int) -> int | None:
        """The earliest time at which `ask` hands anything over; None when nothing waits."""
        due = self._waiting.next_due()
        return None if due is None else max(due - lead_ms, 0)

    def next_due(self) -> int | None:
        """The earliest time at which `pop_due` hands anything over; None if nothing was asked."""
        return self._asked.next_due()

    def _check(self) -> None:
        """Walk every invariant and raise AssertionError on the first broken one; for tests."""
        self._waiting._check()
        self._asked._check()
