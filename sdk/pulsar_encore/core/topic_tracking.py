"""The tracked messages of one topic or partition, and the end of a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .acks import Acks
from .attempts import Attempts
from .due_index import DueIndex
from .duplicate_window import Cause, DuplicateWindow
from .durable import Durable
from .durable_observer import DurableObserver, Observer
from .entry import Entry, EntryKey
from .entry_records import EntryTable
from .held_back import OrderedLeases
from .message_states import AWAY, FORWARDING, NACKED
from .pending_acks import PendingAcks
from .rewind_check import Rewind
from .withheld_indexes import WithheldIndexes


class TopicTracking:
    """The tracked messages of one topic or partition.

    Attributes:
        special: True if acking a held message needs more than the fast path: the topic is
            non-persistent, an ack timeout runs, it has durable state, or a message is held back.
            Read for every message. A message with remembered failures needs more as well.
        era: Number of seeks so far; records of an earlier era mean nothing.
        acked, redelivered: Counts of acked messages, without the originals of letters, and of
            messages that the broker was asked for again.
        ordered: Messages that ordered leases hold back.
        rewind: Entries that a rewind has to bring again; None on Shared and Key_Shared.

    Args:
        owner: The topics of a consumer; compared by identity to recognise its messages.
        number: The transport's number of the topic.
        partition: Partition number or -1.
        shared: Shared or Key_Shared, where single entries are redelivered.
        lead_ms: Time from a request for redelivery until the transport sends it.
        remembers: Keep every failed attempt, for a dead-letter policy.
        letters: A retry letter topic: its messages report earlier attempts.
        in_order: Ordered leases.
    """

    def __init__(
        self,
        owner: object,
        number: int,
        topic: str,
        partition: int,
        *,
        shared: bool,
        nacks: DueIndex,
        timeouts: DueIndex,
        contiguous: bool = True,
        lead_ms: int = 0,
        remembers: bool = False,
        durable: Durable | None = None,
        letters: bool = False,
        in_order: bool = False,
        dispose: Callable[[dict[EntryKey, Entry] | list[Entry]], None] | None = None,
    ) -> None:
        self.owner = owner
        self.number = number
        self.topic = topic
        self.partition = partition
        self.shared = shared
        self.volatile: bool = topic.startswith("non-persistent://")
        self.nacks = nacks
        self.timeouts = timeouts
        self.lead_ms: int = lead_ms
        self.letters: bool = letters
        self.in_order: bool = in_order
        self.era: int = 0
        self.acked: int = 0
        # Messages that came into one of the states of `unacked`, less those that left it without an
        # ack. So the ack of a message changes one number, and not two.
        self._entered = 0
        self.redelivered: int = 0
        self._keeps_some = False  # some messages may be FORWARDING or ACK_PENDING
        self.rewind: Rewind | None = None
        if not (shared or self.volatile):
            self.rewind = Rewind(contiguous=contiguous)
        self.attempts: Attempts = Attempts(remembers=remembers, counts_redeliveries=shared)
        self.window: DuplicateWindow = DuplicateWindow()
        self.acks: Acks = Acks(self.window)
        self.withheld: WithheldIndexes = WithheldIndexes(self._is_ack_to_come)
        self.pending_acks: PendingAcks = PendingAcks()
        self.table: EntryTable = EntryTable(self, self.attempts, dispose)
        self.ordered: OrderedLeases = OrderedLeases()
        self.durable: Durable | None = None if self.volatile else durable
        self._observer = Observer()
        if self.durable is not None:
            self._observer = DurableObserver(self.durable, self.attempts)
        self.special: bool = self.volatile or self._observer.has_records

    @property
    def unacked(self) -> int:
        """Messages that are QUEUED, HELD, NACKED, FORWARDING or ACK_PENDING.

        All but the last fill the broker's unacked window.
        """
        return self._entered - self.acked

    def _is_ack_to_come(self, key: EntryKey) -> bool:
        table = self.table
        return (
            key in table.entries
            or key in table.releasing
            or key in table.packed
            or self.acks.covers(key)
        )

    def _count_acked_away(self, messages: int) -> None:
        """Count acks of messages that are not part of `unacked`."""
        self.acked += messages
        self._entered += messages

    def end_durability(self) -> None:
        self.durable = None
        self._observer = Observer()

    def find(self, key: EntryKey) -> Entry | None:
        return self.table.find(key)

    def held(self) -> Iterator[Entry]:
        return self.table.held()

    def count(self, state: int) -> int:
        """Return the number of messages in a state other than NACKED. Walks all."""
        return self.table.count(state)

    def clear_special(self) -> None:
        """Use the fast path for acks again if nothing special is left."""
        remembered = len(self.timeouts) or self._observer.has_records or len(self.ordered)
        if not (self.volatile or remembered):
            self.special = False

    # The end of a message or record

    def _forget(self, entry: Entry, index: int, before: int) -> None:
        """Drop whatever waits for an acked message, whose state was `before`."""
        due_key = entry.due_key(index)
        if before == NACKED:
            self.nacks.discard(due_key)
        elif len(self.timeouts):
            self.timeouts.discard(due_key)
        self.ordered.drop(due_key)
        self.attempts.forget(due_key)
        if before == AWAY:
            entry.causes |= Cause.REDELIVERY  # acked by id or by an old delivery
            self._count_acked_away(1)
        elif before == FORWARDING:
            self._entered -= 1
        else:
            self.acked += 1

    def _pack(self, entry: Entry) -> None:
        if self.shared:
            self.table.pack(entry)

    def _drop(self, entry: Entry) -> None:
        self.table.drop(entry)
        self.ordered.drop_entry(entry)

    def _waits_whole(self, entry: Entry) -> None:
        if entry.size == 1 and self.shared:
            self._drop(entry)  # the key in `nacks` says everything
        else:
            self._pack(entry)

    def _worth_keeping(self, entry: Entry) -> bool:
        """Return True if the record of an entry that is away says more than a new one would."""
        if entry.size > 1:
            known = entry.unacked < entry.size or entry.failed is not None
        else:  # a failure that stayed here was not counted by the broker
            known = self.in_order and entry.redelivered > 0
        return known or self.ordered.holds(entry)

    def _remember_away(self, entry: Entry) -> None:
        """Remember acked indexes and counts of an entry that is away, within bounds."""
        oldest: Entry | None = entry
        if self._worth_keeping(entry):
            oldest = self.table.remember_away(entry)
        if oldest is not None:
            self._drop(oldest)

    # Tests

    def snapshot(self) -> dict[str, Any]:
        self.table.complete_releases()
        return {
            "entries": {key: bytes(entry.state) for key, entry in self.table.entries.items()},
            "away": list(self.table.away),
            "packed": dict(self.table.packed),
            "held_back": list(self.ordered),
            "unacked": self.unacked,
        }

    def _check(self) -> None:
        table = self.table
        for key, entry in table.entries.items():
            assert entry.key == key and entry.live and entry.unacked > 0, key
            entry._check()
            # Not `_worth_keeping`, so that a mistake there is found.
            says_more = entry.unacked < entry.size or entry.failed is not None
            says_more |= (self.in_order and entry.redelivered > 0) or self.ordered.holds(entry)
            assert entry.active > 0 or (key in table.away and says_more), key
            for index, state in enumerate(entry.state):
                assert (entry.due_key(index) in self.nacks) == (state == NACKED), (key, index)
        total = table.active + len(self.nacks) - table.count(NACKED)
        assert self.unacked == total, (self.unacked, total)
        assert all(each[:2] in table.entries for each in self.ordered)
        table._check()
        for key, packed in table.packed:
            assert self.shared and key not in table.entries, key
            for index in range(packed.size):
                waits = bool(packed.nacked >> index & 1)
                assert ((*key, index) in self.nacks) == waits, (key, index)
