"""Acks in transactions (PIP-31): pending until the transaction ends.

The broker neither delivers a message with a pending ack nor counts it as unacked. A commit acks it.
After an abort, Shared and Key_Shared subscriptions redeliver it, and the broker counts that. On
Exclusive and Failover the client has to rewind the topic, because the broker would deliver it
behind messages that wait here, and after a cumulative ack not at all
(`docs/notes/wire-protocol.md#transactions`).
"""

from __future__ import annotations

from collections.abc import Sequence

from .duplicate_window import Cause
from .entry import Entry, EntryKey
from .message_states import ACK_PENDING, FORWARDING, HELD, NACKED, QUEUED
from .pending_acks import TransactionMarks
from .topic_release import TopicRelease


class TopicTransactions(TopicRelease):
    def ack_pending(self, txn: object, entry: Entry, indexes: Sequence[int]) -> int:
        """Ack messages in an open transaction; return the mask of the newly acked ones.

        Messages that are not QUEUED, HELD, NACKED or FORWARDING are left alone.
        """
        mask = 0
        for index in indexes:
            was_nacked = entry.state[index] == NACKED
            if not entry.begin_pending_ack(index):
                continue
            mask |= 1 << index
            due_key = entry.due_key(index)
            if was_nacked:
                self.nacks.discard(due_key)
            if len(self.timeouts):
                self.timeouts.discard(due_key)
            if self.special:
                self._observer.ends_waiting((due_key,))
        if mask:
            self._keeps_some: bool = True
            masks = self.pending_acks.open_marks(txn).masks
            masks[entry] = masks.get(entry, 0) | mask
        return mask

    def ack_pending_through(self, txn: object, key: EntryKey, index: int, size: int) -> None:
        """Ack every message up to (key, index) in an open transaction.

        Messages that are being forwarded are left alone: each is acked when its letter is stored.
        """
        self.table.complete_releases()
        self.table.unpack_all()
        for entry in self.table.up_to(key):
            last = index if entry.key == key and index >= 0 else entry.size - 1
            here = [at for at in range(last + 1) if entry.state[at] in (QUEUED, HELD, NACKED)]
            self.ack_pending(txn, entry, here)
        self.pending_acks.open_marks(txn).cumulative = (key, index, size)

    def commit_pending(self, marks: TransactionMarks, most: int) -> int:
        """Ack about `most` messages of a committed transaction. The broker has acked all.

        Args:
            marks: Taken from `pending_acks`. Call again until its `masks` are empty.

        Returns:
            The number of plain acks that were added to `acks`.
        """
        unsent = 0
        while marks.masks and most > 0:
            entry, mask = marks.masks.popitem()
            self.pending_acks.take_copies(entry, mask)
            self.pending_acks.take_failures(entry, mask)
            letters = marks.letters.get(entry, 0)  # `acked` does not count their originals
            pending = entry.pending(mask)
            most -= 1 + len(pending)
            for index in pending:
                entry.ack(index)
                self._forget(entry, index, FORWARDING if letters >> index & 1 else ACK_PENDING)
                self._observer.acked(entry, index, ACK_PENDING)
            if pending and entry.unacked == 0:
                unsent += self._acked_by_commit(entry)
            elif pending and entry.active == 0:
                self._remember_away(entry)
        return unsent

    def _acked_by_commit(self, entry: Entry) -> int:
        self._drop(entry)
        self._done(entry.key)
        if entry.unsent_part:  # plain acks of other messages of the entry
            self.acks.drop_part(entry)
            self.acks.add_whole(entry.key, copy_expected=entry.causes != 0)
            return 1
        if entry.causes:
            self.window.acked(entry.key)
        return 0

    def give_up_pending(self, marks: TransactionMarks) -> list[tuple[int, list[int]]]:
        """Give back the messages of a transaction that was aborted, or whose end is unknown.

        On Exclusive and Failover they are held again, and the caller rewinds the topic at once.

        Returns:
            Entries to request, by ledger. On Shared and Key_Shared the broker's own copy often
            arrives before the answer to the abort, and is dropped because the ack is pending. An
            ack that failed may not have reached the broker, which then redelivers nothing.
        """
        groups: list[tuple[int, list[int]]] = []
        for entry, mask in marks.masks.items():
            copies = self.pending_acks.take_copies(entry, mask)
            failures = self.pending_acks.take_failures(entry, mask)
            if not self.shared:
                entry.hold_again(mask)
                continue
            given_up = entry.give_up_pending_ack(mask)
            if not given_up:
                continue
            self._entered -= len(given_up)
            self._observer.returned(entry, given_up)
            entry.causes |= Cause.REDELIVERY
            if copies:
                self._ignore_last_copy(entry)
            if copies or failures:
                groups.append((entry.key[0], [entry.key[1]]))
            self._ignore_next_copy(entry)
            if entry.active == 0:
                self._remember_away(entry)
        return groups

    def _ignore_next_copy(self, entry: Entry) -> None:
        """Note that the broker counts a redelivery without a failed attempt."""
        if entry.size == 1:
            self.ignore_copy(entry.key, 1)
        else:
            self.attempts.batch_requested(entry.key)

    def _ignore_last_copy(self, entry: Entry) -> None:
        """Note that the last delivery was counted without a failed attempt."""
        if entry.size == 1:
            self.ignore_copy(entry.key, 1)
        else:
            entry.redelivered = self.attempts.note_answered_request(entry.key)
