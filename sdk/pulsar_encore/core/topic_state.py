"""The owner of each message of one topic, from arrival to the ack.

Arrival, redelivery and transactions are inherited from files of their own (`topic_arrival`,
`topic_release`, `topic_transactions`). This file settles messages. Every public method is one
synchronous step, and the caller does the I/O. Two rules hold in all of them:

- Each delivery to the application has a number, and only the current one can nack. Counts cannot
  tell deliveries apart: a message may go to another consumer and come back while it is held here.
- On Shared and Key_Shared, a nacked unbatched message keeps no record. Only its key waits, in the
  `DueIndex`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..letters.evidence import Evidence
from .entry import Entry, EntryKey, ack_singles
from .message_key import MessageKey, set_bits
from .message_states import ACK_PENDING, ACKED, FORWARDING, HELD, NACKED, QUEUED
from .topic_transactions import TopicTransactions

_LAST: Final = (1 << 63) - 1


class TopicState(TopicTransactions):
    # Acks

    def ack(self, entry: Entry, index: int) -> int:
        """Ack a message in any state; `entry` must be live.

        Returns:
            The number of acks that were added to `acks`: the size of the entry if all of it is
            acked now, 1 for a partly acked entry, 0 if an ack of the entry waits already.
        """
        # The fast path: the application acks a message that it holds, or its letter is stored, and
        # nothing else waits for the message. The step `ack` of `TRANSITIONS` is made in place (see
        # `entry`).
        failures = self.attempts.failures
        before = entry.state[index]
        if (
            (before == HELD or before == FORWARDING)
            and not self.special
            and (not failures or entry.due_key(index) not in failures)
        ):
            entry.state[index] = ACKED
            entry.unacked = left = entry.unacked - 1
            entry.active = active = entry.active - 1
            if before == HELD:
                self.acked += 1  # and so one less in `unacked`
            else:
                self._entered -= 1
            if entry.size == 1:
                key, table = entry.key, self.table
                entry.live = False
                del table.entries[key]
                if table.away:
                    table.away.pop(key, None)
                if self.window.unattempted:
                    self.window.unattempted.pop(key, None)
                self.acks.add_whole(key, copy_expected=entry.causes != 0)
                if self.rewind is not None:
                    self.rewind.settled(key)
                return 1
            if left and active and entry.unsent_part and self.rewind is None:
                return 0  # nearly always, for a batch
        else:
            before = entry.ack(index)
            if before == ACKED:
                return 0
            if self.volatile:
                self._count_acked_away(1)
                return 0
            self._forget(entry, index, before)
            self._observer.acked(entry, index, before)
        if entry.unacked == 0:
            self._drop(entry)
            self._done(entry.key)
            if entry.unsent_part:
                self.acks.drop_part(entry)
            self.acks.add_whole(entry.key, copy_expected=entry.causes != 0)
            if self.rewind is not None:
                self.rewind.settled(entry.key)
            return entry.size
        if entry.active == 0:
            self._remember_away(entry)
        if self.rewind is not None and self.rewind.outstanding:
            lowest = entry.lowest_unacked()
            if lowest < entry.size:
                self.rewind.settled_part(entry.key, lowest)
            else:  # the rest is being forwarded, or acked in a transaction
                self.rewind.settled(entry.key)
        if entry.unsent_part:
            return 0
        self.acks.add_part(entry)
        return 1

    def attempt_ended(self, entry: Entry, index: int) -> None:
        """Note that the present attempt at a held message has not failed. It stays held."""
        self._observer.returned(entry, (index,))

    def ack_each(self, entry: Entry, indexes: Sequence[int]) -> int:
        if self.special or self.attempts.failures:
            return sum(self.ack(entry, index) for index in indexes)
        last = next((index for index in reversed(indexes) if entry.state[index] != ACKED), None)
        if last is None:
            return 0
        # The last one decides once about the entry.
        others = [index for index in indexes if index != last]
        settled = entry.ack_held(others)
        self.acked += settled
        if settled == len(others):
            return self.ack(entry, last)
        return sum(self.ack(entry, index) for index in indexes)

    def ack_entry(self, key: EntryKey) -> int:
        """Ack a whole entry, seen here or not; return how many messages this settles here."""
        waiting = self.nacks.discard_entry(*key)
        self.timeouts.discard_entry(*key)
        self._observer.acked_entry(key)
        entry = self.table.find(key)
        # Without a record (nacked, released, never seen here), no cause is known.
        expected = entry is None or entry.causes != 0 or self.window.causes != 0
        self.acks.add_whole(key, copy_expected=expected)
        self._done(key)
        if self.rewind is not None:
            self.rewind.settled(key)
        self.attempts.forget((*key, -1))
        if entry is None:
            self.acked += waiting
            self._count_acked_away(1 - waiting)
            return 1
        if entry.size > 1:  # a nack by id, from before the entry was known to be a batch
            self._entered -= waiting - entry.state.count(NACKED)
        return self._settle_entry(entry)

    def ack_cumulative(self, key: EntryKey, index: int, size: int) -> int:
        """Ack everything up to (key, index); return how many messages this settles here.

        Index -1 stands for the entry.
        """
        partial = 0 <= index < size - 1
        mask = ((1 << size) - 1) >> (index + 1) << (index + 1) if partial else -1
        if not self.acks.cumulative.advance(key, size, mask):
            return 0
        table = self.table
        table.complete_releases()
        table.unpack_all()
        # The last entry that is acked whole.
        through = key if not partial else (key[0], key[1] - 1) if key[1] else (key[0] - 1, _LAST)
        later = None if len(self.ordered) else table.few_after(through)
        settled = recorded = 0
        if later is not None:
            settled = len(table.entries) - len(later)
            self.acked += settled  # `unacked` is set below
            table.end_all_but(later)
        else:
            covered = table.up_to(through)
            settled, recorded = self._settle_singles(covered)
            for entry in covered:
                if entry.live:
                    recorded += entry.state.count(NACKED)
                    settled += self._settle_entry(entry)
        if self.rewind is not None:
            self.rewind.settled_through(through)
        if through[0] >= 0:
            waiting = self.nacks.discard_through(*through) - recorded
            self.acked += waiting
            self.timeouts.discard_through(*through)
            self._observer.acked_through(through)
        if later is not None:
            waiting = len(self.nacks) - table.count(NACKED)
            self._entered = self.acked + table.active + waiting
        rest = table.entries.get(key) if partial else None
        if rest is not None:
            was_unsent = rest.unsent_part
            rest.unsent_part = True  # the cumulative ack says it: no second one for these indexes
            for each in range(index + 1):
                self.ack(rest, each)
            settled += index + 1
            rest.unsent_part = was_unsent and bool(rest.live)
        return settled

    def _settle_singles(self, covered: Sequence[Entry]) -> tuple[int, int]:
        """Settle single-message records without a call for each.

        Returns:
            How many messages this settles, and how many of them were NACKED.
        """
        if len(self.ordered):
            return 0, 0
        ended, recorded, active = ack_singles(covered)
        self.acked += active
        self._count_acked_away(len(ended) - active)
        self.table.discard(ended)
        return len(ended), recorded

    def _settle_entry(self, entry: Entry) -> int:
        self.acks.drop_part(entry)
        self._drop(entry)
        active = entry.active
        settled = entry.ack_all()
        self.acked: int = self.acked + active
        self._count_acked_away(settled - active)
        return settled

    # Nacks

    def is_latest_delivery(self, entry: Entry, index: int, deliver: int) -> bool:
        """Return True if the message was not released since the delivery with this number."""
        if not entry.live:
            self.table.find(entry.key)  # perhaps it is packed
        return bool(entry.live) and entry.delivery_number(index) == deliver

    def nack(self, entry: Entry, index: int, due_ms: int, bits: int) -> bool:
        if self.volatile:
            return False
        before = entry.state[index]
        due_key = entry.due_key(index)
        if before == NACKED:
            self.nacks.move(due_key, due_ms, bits)
            self.special |= self._observer.note_wait(entry, index, due_ms, bits)
            self._pack(entry)
            return True
        if before not in (HELD, QUEUED):
            return False
        self.nacks.add(due_key, due_ms, bits)  # first: if it raises, the message stays held
        self.special |= self._observer.note_wait(entry, index, due_ms, bits, before == HELD)
        if len(self.timeouts):
            self.timeouts.discard(due_key)
        entry.nack(index)
        self._waits_whole(entry)
        return True

    def nack_unseen(self, key: EntryKey, due_ms: int, bits: int) -> None:
        """Let an unbatched message without a record wait: by id, or nacked before."""
        if not self.nacks.move((*key, -1), due_ms, bits):
            self._entered += 1
        self.special |= self._observer.note_wait_unseen((*key, -1), due_ms, bits)

    def set_due(self, key: MessageKey, due_ms: int, bits: int) -> None:
        if key in self.nacks:
            self.nacks.move(key, due_ms, bits)
        else:
            self.ordered.move(key, due_ms)

    # Letters and leases

    def begin_forwarding(self, entry: Entry, index: int) -> bool:
        if not entry.begin_forwarding(index):
            return False
        self._keeps_some = True
        self.end_timeout(entry, index)
        if self.special:
            self._observer.ends_waiting((entry.due_key(index),))
        return True

    def end_timeout(self, entry: Entry, index: int) -> None:
        """End the ack timeout of a message that has another deadline."""
        if len(self.timeouts):
            self.timeouts.discard(entry.due_key(index))

    def lease(self, entry: Entry, index: int, due_ms: int, bits: int, attempt: int) -> None:
        """Lease a message, held for the `attempt`th time, until `due_ms`, or move its deadline.

        With durable state the lease outlives this process.
        """
        self.special |= self._observer.leased(entry, index, due_ms, bits, attempt)

    # Held messages

    def holds(self, entry: Entry, index: int, deliver: int) -> bool:
        """Return True if the delivery with this number is the current one and is not settled."""
        return entry.state[index] == HELD and self.is_latest_delivery(entry, index, deliver)

    def fail_in_place(
        self, entry: Entry, index: int, wall_now: int, evidence: Evidence | None
    ) -> None:
        """Count a failed attempt at a held message, which stays held for its next attempt."""
        due_key = entry.due_key(index)
        if not self.volatile:  # there, all entries have the same id
            self.attempts.remember(due_key, wall_now, evidence, in_place=True)
        if entry.size == 1:
            entry.redelivered += 1
        else:
            self.attempts.add_failed(entry, (index,))
        entry.fail_in_place(index)
        self.end_timeout(entry, index)
        self._observer.failed_in_place(entry, index)
        self.special |= self._observer.has_records  # siblings have to report their acks, too

    # Ordered leases

    def hold_back(self, entry: Entry, index: int, due_ms: int, bits: int) -> bool:
        """Hold back a message until `due_ms`: a queued one, or a held one that failed.

        Returns:
            False, and nothing was done, in any other state.
        """
        if self.volatile or not entry.live or entry.state[index] not in (HELD, QUEUED):
            return False
        held = entry.state[index] == HELD
        self._observer.note_wait(entry, index, due_ms, bits, held)
        if held:
            entry.requeue(index)
            if entry.size == 1:  # the broker does not count it
                entry.redelivered += 1
            else:
                self.attempts.add_failed(entry, (index,))
        self.ordered.hold(entry.due_key(index), due_ms)
        self.special: bool = True  # an ack has to drop that time
        return True

    def requeue_unfailed(self, entry: Entry, index: int) -> bool:
        """Queue a held message again. Its attempt has not failed and is not counted."""
        if not (entry.live and entry.state[index] == HELD):
            return False
        self.end_timeout(entry, index)
        self._observer.returned(entry, (index,))
        if self.special:
            self._observer.ends_waiting((entry.due_key(index),))  # its lease
        return entry.requeue(index)

    def requeue_all(self) -> None:
        """Fail every held message, and hold nothing back any longer."""
        with self._observer.one_write():
            for entry in list(self.held()):
                for index, state in enumerate(entry.state):
                    if state == HELD:
                        self.hold_back(entry, index, 0, 0)
        if len(self.ordered) and self._observer.has_records:
            self._observer.ends_waiting(list(self.ordered))
        self.ordered.clear()
        for entry in list(self.table.away.values()):  # some were kept only for their times
            self._remember_away(entry)

    def end_hold_back(self, entry: Entry, index: int) -> None:
        due_key = entry.due_key(index)
        if self.ordered.drop(due_key):
            self._observer.due((due_key,))

    # Other consumers of this process

    def is_held(self, key: MessageKey) -> bool:
        entry = self.table.entries.get(key[:2])
        at = max(key[2], 0)
        return (
            entry is not None
            and at < entry.size
            and entry.state[at] in (HELD, FORWARDING, ACK_PENDING)
        )

    def held_attempts(self, key: EntryKey) -> dict[int, int]:
        entry = self.table.entries.get(key)
        if entry is None or HELD not in entry.state:
            return {}
        return {
            index: self.attempts.count(entry, index) + 1
            for index, state in enumerate(entry.state)
            if state == HELD
        }

    def attempted_elsewhere(self, key: EntryKey, mask: int, attempt: int) -> None:
        """Note the `attempt`th delivery by another consumer of this process.

        Copies of the messages that are queued here are later attempts.
        """
        entry = self.table.entries.get(key)
        if entry is None:
            return
        for index in set_bits(mask):
            if index < entry.size and entry.state[index] == QUEUED:
                if entry.size == 1:
                    entry.redelivered = max(entry.redelivered, attempt)
                else:
                    self.attempts.recalled(entry, {index: attempt})
