"""Redelivery of messages, by request or after a lost connection.

On Shared and Key_Shared, single entries are requested. On Exclusive and Failover the broker can
only rewind: every unacked message of the topic becomes AWAY, and `Rewind` checks that all of them
are delivered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from .acks import Unsent
from .duplicate_window import Cause
from .entry import Entry, EntryKey
from .message_key import DueBatch
from .message_states import ACK_PENDING, AWAY, FORWARDING, QUEUED
from .rewind_check import Rewind
from .topic_arrival import TopicArrival

# Messages whose release is completed in one step of the event loop: 1 to 3 ms.
_RELEASED: Final = 10_000


class TopicRelease(TopicArrival):
    # Due messages

    def next_due(self) -> int | None:
        """Return when something has to be requested, in ms: `lead_ms` before it is due."""
        head = self.nacks.next_due()
        if len(self.timeouts):
            other = self.timeouts.next_due()
            head = other if head is None or other is None else min(head, other)
        return None if head is None else head - self.lead_ms

    def take_nacks(self, now_ms: int, limit: int) -> DueBatch:
        due = self.nacks.pop_due(now_ms + self.lead_ms, limit)
        if due:
            self._observer.due(due)
        return due

    def take_timeouts(self, now_ms: int, limit: int) -> DueBatch:
        return self.timeouts.pop_due(now_ms + self.lead_ms, limit)

    def has_unsent_part(self, due: DueBatch) -> bool:
        entries = self.table.entries
        found = (entries.get((ledger, number)) for ledger, number, _ in due.indexes)
        return any(entry is not None and entry.unsent_part for entry in found)

    def release(self, due: DueBatch, now_ms: int = 0) -> list[tuple[int, list[int]]]:
        """Release due messages for redelivery: NACKED or HELD becomes AWAY.

        A requested message arrives no sooner than the lead after `now_ms`.

        Returns:
            Entries to request, by ledger and in order.
        """
        earliest_ms = now_ms + self.lead_ms
        self.window.bound_requested()
        groups: list[tuple[int, list[int]]] = []
        for ledger, entries in due.entries:
            self._release_plain(ledger, entries, earliest_ms)
            groups.append((ledger, list(entries)))
        for ledger, number, mask in due.indexes:
            entry = self.table.find((ledger, number))
            if entry is not None and self._release_indexes(entry, mask, earliest_ms):
                groups.append((ledger, [number]))
        return [group for group in groups if group[1]]

    def _release_plain(self, ledger: int, entries: Sequence[int], earliest_ms: int) -> None:
        for number in entries:
            entry = self.table.entries.get((ledger, number))
            if entry is not None and entry.size == 1:
                self._release_indexes(entry, 1, earliest_ms)
                continue
            self._entered -= 1
            self.redelivered += 1
            self.window.request((ledger, number, -1), earliest_ms)
            if entry is not None:
                self.attempts.batch_requested(entry.key)

    def _release_indexes(self, entry: Entry, mask: int, earliest_ms: int) -> int:
        released = entry.release(mask)
        if not released:
            return 0
        entry.causes |= Cause.REDELIVERY
        if entry.size > 1:
            # The application has not seen the others since they were requested before.
            failed = self.window.request_each(entry.key, released, earliest_ms)
            self.attempts.add_failed(entry, failed)
            self.attempts.batch_requested(entry.key)
        else:
            self.window.request(entry.due_key(0), earliest_ms)
        count = len(released)
        self._entered -= count
        self.redelivered += count
        if entry.active == 0:
            self._remember_away(entry)
        return count

    def request_failed(self, due: DueBatch, due_ms: int) -> None:
        """Let released messages wait until `due_ms`."""
        for ledger, number, index in due:
            entry = self.table.find((ledger, number))
            if index >= 0 and (entry is None or entry.state[index] != AWAY):
                if entry is not None:
                    continue  # acked, or delivered again
                index = -1  # no record: request the whole entry; `arrive` drops unwanted messages
            # The request counts as made: its attempt is counted, and no copy is too early.
            if not self.nacks.add((ledger, number, index), due_ms, 0):
                continue
            self._entered += 1
            self.redelivered -= 1
            if entry is not None and index >= 0:
                entry.wait_on(index)
                self.table.away.pop(entry.key, None)

    # Everything

    def release_all(self) -> None:
        """Give back every message that is neither being forwarded nor acked in a transaction.

        If there are many, `complete_releases` has to be called until it returns False.
        """
        table, shared, before = self.table, self.shared, self.unacked
        table.complete_releases()
        table.unpack_all()
        self.acks.rewound()
        remembered = self._observer.rewinds(
            table.entries.values(), self.nacks, list(self.ordered), shared
        )
        self.ordered.clear()
        in_order = table.rising
        if self._keeps_some:
            self._keeps_some = table.count(FORWARDING) + table.count(ACK_PENDING) > 0
        later = table.is_release_long(before) and not (remembered or self.in_order)
        singles: list[EntryKey] = []
        others: Iterable[Entry] = table.entries.values()
        if later and table.many and not self._keeps_some:
            singles, others = list(table.entries), ()
        elif not (later or remembered or self.in_order):
            singles, queued = table.release_singles()
            if queued and shared and not self.volatile:
                self._ignore_copies(queued)
            others = table.entries.values()
        if self.rewind is not None:
            self._begin_rewind(self.rewind, singles, others, in_order)
        self.window.all_requested = shared
        if later:
            kept = []
            if self._keeps_some:
                kept = [each for each in table.entries.values() if each.kept]
            table.release_later(kept)
        ended: list[Entry] = []
        for entry in list(table.entries.values()):
            self._release_each(entry)
            if entry.active:
                continue
            if self.in_order or entry.unacked < entry.size or entry.failed is not None:
                self._remember_away(entry)
            else:
                entry.live = False
                ended.append(entry)
        table.discard(ended)
        self.nacks.clear()
        self.timeouts.clear()
        self._entered = self.acked + table.active
        self.redelivered: int = self.redelivered + before - self.unacked

    def _release_each(self, entry: Entry) -> None:
        if entry.state[0] == QUEUED:
            self.ignore_copy(entry.key, entry.size)
        released = entry.release_all()
        if self.shared:
            self.attempts.add_failed(entry, released)
            if entry.size > 1:
                self.attempts.batch_requested(entry.key)
        entry.causes |= Cause.REWIND

    def complete_releases(self) -> bool:
        """Complete the release of some more entries; return True if there are others."""
        self.table.complete_releases(_RELEASED)
        return bool(self.table.releasing)

    def complete_release(self, entry: Entry) -> None:
        """Record the release of an entry that `release_all` has put off."""
        self._release_each(entry)
        if entry.unacked < entry.size or entry.failed is not None:
            self.table.keep(entry)
            self._remember_away(entry)

    def _ignore_copies(self, queued: list[EntryKey]) -> None:
        unsent = self.acks.only_unsent
        if unsent is None:
            queued = [key for key in queued if not self.acks.covers(key)]
        elif unsent:
            queued = [key for key in queued if key not in unsent]
        self.window.ignore_copies(queued)

    def _begin_rewind(
        self, rewind: Rewind, keys: list[EntryKey], others: Iterable[Entry], in_order: bool
    ) -> None:
        """Tell `rewind` which entries are owed, some from an index on.

        `keys` are single-message entries without acked messages. The keys of `others` are added.
        """
        before = len(keys)
        parts: list[tuple[EntryKey, int]] = []
        for entry in others:
            if entry.active == entry.size and not self._keeps_some:
                keys.append(entry.key)
            elif entry.active > entry.kept:
                parts.append((entry.key, entry.lowest_unacked()))
        rewind.begin(parts, keys, in_order=in_order and before in (0, len(keys)))

    @property
    def outstanding(self) -> int:
        return 0 if self.rewind is None else self.rewind.outstanding

    def rewind_repeated(self) -> None:
        """Prepare for a rewind that releases no held message. Expect copies of all messages.

        This topic's rewind is repeated, or the transport rewinds it together with another topic.
        """
        self.acks.rewound()
        for entry in self.table.entries.values():
            entry.causes |= Cause.REWIND
        if self.rewind is not None:
            self.rewind.begin()

    # Connections

    def disconnected(self) -> None:
        """Forget QUEUED messages: the broker sends them again after the reconnect."""
        table = self.table
        self.window.all_requested = False
        if not self.in_order:
            self._entered -= table.drop_queued()
        if self.in_order or not table.all_single:
            for entry in [each for each in table.entries.values() if QUEUED in each.state]:
                self._entered -= entry.drop_queued()
                if entry.active == 0:
                    self._remember_away(entry)
        if self.rewind is not None:
            self.rewind.forget()

    def reconnected(self) -> None:
        self.window.all_requested = False
        self.table.complete_releases()
        # The broker may have forgotten recent partial acks of packed batches. Older ones are sent
        # again when the batch is redelivered.
        for key in self.window.take_lost_parts():
            self.table.find(key)
        parts = []
        for entry in self.table.entries.values():
            entry.causes |= Cause.RECONNECT
            if entry.unacked < entry.size:
                parts.append(entry)
        self.acks.reconnected(parts)

    def pack_sent(self, batches: Iterable[Entry]) -> None:
        for entry in batches:
            self._pack(entry)

    def not_confirmed(self, unsent: Unsent) -> None:
        self.acks.not_confirmed(unsent)
        for each in unsent.parts:
            entry = self.table.find(each.key)
            if entry is not None and entry.unacked < entry.size:
                self.acks.add_part(entry)

    def reset(self) -> None:
        self.era: int = self.era + 1
        self.table.clear()
        self.nacks.clear()
        self.timeouts.clear()
        self.ordered.clear()
        self.acks.clear()
        self.withheld.clear()
        self.window.clear()
        self.attempts.clear()
        self.pending_acks.clear()
        self._observer.cleared()
        if self.rewind is not None:
            self.rewind.forget()
        self._entered = self.acked
