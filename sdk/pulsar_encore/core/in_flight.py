"""Who holds what, for one source: from arrival to settled, every message has one owner.

Owns `InFlight`. A message is AWAY (with the broker), QUEUED here, HELD by the application, NACKED
(waiting for its due time) or ACKED; every public method is one step of that machine, synchronous,
and returns what the shell has to do. Rules:
- a message QUEUED, HELD or NACKED is not handed out again when its entry is redelivered, so
  siblings in a batch do not disturb each other, and a reconnect does not repeat what the
  application still has;
- ACKED indexes of an unfinished entry are remembered, filtered, and sent when they come again;
- each hand-over has a number (`Entry.turn`), and only the current one can nack: counts do not tell
  hand-overs apart, a message may come to another consumer and back while it is held here;
- a wholly nacked plain entry keeps no record here: only its key waits, in the `DueIndex`;
- a batch of which some wait and the rest is acked or away is parked (Shared and Key_Shared): a
  dozen bytes in place of its `Entry`, until anything is asked of it. As long as a message refers to
  that `Entry`, it is what comes back, so a turn of before is the same turn after;
- a copy of a plain entry that nobody looked at is taken off the broker's count (`Unlooked`);
- on Exclusive and Failover the broker only rewinds: everything is given back at once, and
  `rewind` sees to it that all of it comes again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final
from weakref import WeakValueDictionary

from .ack_sets import AckTracker
from .attempts import Attempts
from .due_index import DueBatch, DueIndex, MessageKey, TimeBucketIndex
from .entry import ACKED, AWAY, HELD, LEAVING, NACKED, QUEUED, Entry, EntryKey, set_bits
from .parked import Parked, ParkedEntries
from .rewind import Rewind
from .unlooked import Unlooked

# Unfinished entries that left (redelivered, perhaps to another consumer) are remembered up to here;
# forgetting one costs a duplicate at most.
_MAX_AWAY: Final = 10_000
# Redeliveries that never came (another consumer got them); forgetting one costs a duplicate too.
_MAX_ASKED: Final = 100_000
_LAST: Final = (1 << 63) - 1
_ANSWER_MS: Final = 1_000  # what was asked for comes sooner, or not at all


class InFlight:
    """State of one topic or partition.

    Args:
        owner: The consumer; compared by identity to tell its messages from others'.
        source: The transport's number for the topic.
        topic: Full name; of the partition, if any.
        partition: Partition number or -1.
        shared: Shared and Key_Shared, where single entries are redelivered.
        contiguous: Entry ids follow each other (see `Rewind`).
    """

    def __init__(
        self,
        owner: object,
        source: int,
        topic: str,
        partition: int,
        *,
        shared: bool,
        contiguous: bool = True,
    ) -> None:
        self.owner = owner
        self.source = source
        self.topic = topic
        self.partition = partition
        self.shared = shared
        self.volatile: bool = topic.startswith("non-persistent://")
        self.acks: AckTracker = AckTracker()
        self.nacks: DueIndex = TimeBucketIndex()
        self.timeouts: DueIndex = TimeBucketIndex()
        self.timed = False  # there are ack timeouts at all; asked for each message
        self.era: int = 0  # seeks so far: records of an earlier one say nothing any more
        self.rewind: Rewind | None = None
        if not (shared or self.volatile):
            self.rewind = Rewind(contiguous=contiguous)
        self.attempts: Attempts | None = None  # kept where a dead-letter policy needs them
        # Everything was asked for on this connection: the broker counted each copy that now comes
        # of a message that is here.
        self.crossing: bool = False
        self._unlooked = Unlooked()
        # QUEUED, HELD, NACKED, LEAVING: what fills the broker's unacked window
        self.unacked: int = 0
        self._entries: dict[EntryKey, Entry] = {}
        self._highest: EntryKey = (-1, -1)  # of those
        self._rising = True  # they are in order
        # Ordered: a plain dict walks over all that was forgotten to find its first.
        self._away: OrderedDict[EntryKey, Entry] = OrderedDict()
        self._parked = ParkedEntries()  # of other entries than `_entries`
        self._asleep: WeakValueDictionary[EntryKey, Entry] = WeakValueDictionary()  # theirs
        # Messages whose redelivery was asked for, and when it can be here at the earliest.
        self._asked: dict[MessageKey, int] = {}
        self._lead_ms = 0

    # Arrival

    def arrive(
        self,
        key: EntryKey,
        batch_size: int,
        redelivery_count: int,
        indexes: Sequence[int],
        ack_set: int = -1,
        first_chunk: EntryKey | None = None,
        now_ms: int = _LAST,
    ) -> tuple[Entry | None, Sequence[int]]:
        """A delivery: its record, and which of `indexes` to queue (positions in `indexes`).

        A nacked message may come before it is due, with a sibling or over a reconnect: it waits on.

        Returns:
            (None, ()) when nothing of it is wanted; else the entry and the positions to queue.
        """
        if self.volatile:
            # Every id there is the same and acks mean nothing: no memory from one to the next.
            passing = Entry(self, key, batch_size or 1, batch_size > 0, 0)
            passing.state = bytearray([QUEUED]) * passing.size
            return passing, range(len(indexes))
        entry = self.find(key)
        if entry is None:
            if self.acks.covers(key):
                self.acks.add_whole(key)
                self._unlooked.forget(key)
                return None, ()
            if batch_size <= 1 and self._still_waits((*key, -1), now_ms):
                if self.crossing:
                    self.overlook(key, 1)
                return None, ()
            if not self.shared:
                self.acks.retract(key)
                ack_set &= self.acks.remaining_of(key)
            size = batch_size or 1
            base = 0
            if size == 1:
                base = self._attempts_by(key, redelivery_count)
                if self.attempts:
                    base = max(base, self.attempts.count((*key, -1)))
            entry = Entry(self, key, size, batch_size > 0, base, first_chunk, self.era)
            self._keep(key, entry)
            if redelivery_count or self.acks.expects_echoes:
                entry.doubled = True  # a copy of it may be on its way besides
            if self._asked and self._asked.pop((*key, -1), None) is not None:
                entry.doubled = True  # perhaps a reconnect's copy, with the one asked for to come
            if ack_set != -1:
                entry.learn_acked(ack_set)
            count = len(indexes)
            if count == size and entry.unacked == size:
                entry.state = bytearray(b"\x01") * size
                entry.active = size
                self.unacked += size
                return entry, range(count)
        else:
            self._away.pop(key, None)
            if entry.size == 1:
                if self.crossing:
                    self.overlook(key, 1)
                entry.base = max(entry.base, self._attempts_by(key, redelivery_count))
            if ack_set != -1:
                entry.learn_acked(ack_set)
        wanted = self._admit(entry, indexes, now_ms)
        if entry.active == 0:
            self._rest(entry)
        elif not wanted:
            self._park(entry)
        return entry, wanted

    def _attempts_by(self, key: EntryKey, redelivery_count: int) -> int:
        if self._unlooked:
            return self._unlooked.attempts(key, redelivery_count)
        return redelivery_count

    def overlook(self, key: EntryKey, size: int) -> None:
        """A copy of an entry came that nobody looks at, and its redelivery will be counted."""
        if size == 1 and self.shared and not (self.volatile or self.acks.covers(key)):
            self._unlooked.add(key)

    def _rest(self, entry: Entry) -> None:
        """Nothing of a delivered entry is new: it waits with those that are away, or is done."""
        if entry.unacked:
            self._remember_away(entry)
        else:
            self.acks.drop_part(entry)
            self._drop(entry)
            self.acks.add_whole(entry.key, redelivered=entry.doubled)

    def _still_waits(self, due_key: MessageKey, now_ms: int) -> bool:
        """A nacked message came before it is due: it keeps waiting.

        On Exclusive and Failover too, where Java's comes at once: with it the rewind would be off
        that brings what the application let go behind it.
        """
        if self._asked and self._came_early(due_key, now_ms):
            return True
        if self._asked and due_key in self._asked:  # what was asked for
            self.unacked -= self.nacks.discard(due_key)
            return False
        return len(self.nacks) > 0 and due_key in self.nacks

    def _came_early(self, due_key: MessageKey, now_ms: int) -> bool:
        """It was asked for ahead of its time, and came sooner for another reason.

        What was asked for comes as well. Should it not, it is asked for once more: then it may come
        whenever it comes.
        """
        earliest = self._asked.get(due_key, 0)
        if now_ms >= earliest:
            return False
        if not self.nacks.move(due_key, earliest + _ANSWER_MS + self._lead_ms, 0):
            self.unacked += 1
        return True

    def _admit(self, entry: Entry, indexes: Sequence[int], now_ms: int) -> Sequence[int]:
        state = entry.state
        wanted = []
        for position, index in enumerate(indexes):
            now = state[index]
            if now == NACKED and self._asked and entry.due_key(index) in self._asked:
                if now_ms < self._asked[entry.due_key(index)]:
                    continue
                self.nacks.discard(entry.due_key(index))  # what was asked for came after all
                entry.active -= 1
                self.unacked -= 1
                now = AWAY
            if now == AWAY:
                entry.active += 1
                if self._asked:
                    due_key = entry.due_key(index)
                    if self._came_early(due_key, now_ms):
                        state[index] = NACKED
                        continue
                    self._asked.pop(due_key, None)
                self.unacked += 1
                state[index] = QUEUED
                wanted.append(position)
            elif now == ACKED:
                self.acks.add_part(entry)  # the broker forgot: tell it again
        return wanted

    def adopt(self, entry: Entry) -> None:
        """Keep a record again of a batch that is not here, to ack a part of it."""
        if self.acks.covers(entry.key):  # all of it is acked already: no part is left to ack
            entry.state = bytearray([ACKED]) * entry.size
            entry.unacked = 0
            return
        for index, state in enumerate(entry.state):
            if state != ACKED:
                entry.state[index] = AWAY
        entry.active = 0
        entry.live = True
        entry.learn_acked(self.acks.remaining_of(entry.key))
        self._keep(entry.key, entry)
        self._away[entry.key] = entry

    # Settling

    def find(self, key: EntryKey) -> Entry | None:
        """The record of an entry, if there is one; it is not parked any more."""
        entry = self._entries.get(key)
        if entry is None and len(self._parked):
            parked = self._parked.take(key)
            if parked is not None:
                return self._unpark(key, parked)
        return entry

    def ack(self, entry: Entry, index: int) -> int:
        """Any state -> ACKED. `entry` must be live.

        Returns:
            How many messages `acks` has more to send than before: all of an entry that is done, one
            for an entry partly acked anew, 0 where an ack of the entry waits already.
        """
        state = entry.state
        before = state[index]
        if before == ACKED:
            return 0
        if self.volatile:
            state[index] = ACKED
            return 0
        if before == NACKED:
            self.nacks.discard(entry.due_key(index))
        elif self.timed:
            self.timeouts.discard(entry.due_key(index))
        state[index] = ACKED
        if before == AWAY:
            entry.doubled = True  # by an older look or an id: it may be on its way here
        else:
            entry.active -= 1
            self.unacked -= 1
        entry.unacked -= 1
        if self.attempts:
            self.attempts.pop(entry.due_key(index), None)
        if entry.unacked == 0:
            self._drop(entry)
            self._unlooked.forget(entry.key)
            if entry.dirty:
                self.acks.drop_part(entry)
            self.acks.add_whole(entry.key, redelivered=entry.doubled)
            if self.rewind is not None:
                self.rewind.settled(entry.key)
            return entry.size
        if entry.active == 0:
            self._remember_away(entry)
        if self.rewind is not None and self.rewind.owed:
            self.rewind.settled_part(entry.key, entry.lowest_unacked())
        if entry.dirty:
            return 0
        self.acks.add_part(entry)
        return 1

    def ack_entry(self, key: EntryKey) -> int:
        """The whole entry is acked, seen or not; returns how many messages that settled here."""
        waiting = self.nacks.discard_entry(*key)
        self.timeouts.discard_entry(*key)
        entry = self.find(key)
        # Without a record (nacked, given back, never seen here) nobody knows what is on its way.
        doubled = entry is None or entry.doubled or self.acks.expects_echoes
        self.acks.add_whole(key, redelivered=doubled)
        self._unlooked.forget(key)
        if self.rewind is not None:
            self.rewind.settled(key)
        if self.attempts:
            self.attempts.pop((*key, -1), None)
        if entry is None:
            self.unacked -= waiting
            return 1
        if entry.size > 1:  # a nack of the whole entry from before it was known to be a batch
            self.unacked -= waiting - entry.state.count(NACKED)
        return self._settle_entry(entry)

    def ack_cumulative(self, key: EntryKey, index: int, size: int) -> int:
        """All up to (key, index; -1 for the entry) is acked; returns how many that settled here."""
        partial = 0 <= index < size - 1
        mask = ((1 << size) - 1) >> (index + 1) << (index + 1) if partial else -1
        if not self.acks.advance(key, size, mask):
            return 0
        self._unpark_all()
        settled = recorded = 0
        # Before an entry that is acked in part: the last one that is acked whole.
        through = key if not partial else (key[0], key[1] - 1) if key[1] else (key[0] - 1, _LAST)
        for entry in self._up_to(through):
            recorded += entry.state.count(NACKED)
            settled += self._settle_entry(entry)
        if self.rewind is not None:
            self.rewind.settled_through(through)
        if through[0] >= 0:
            self.unacked -= self.nacks.discard_through(*through) - recorded
            self.timeouts.discard_through(*through)
        rest = self._entries.get(key) if partial else None
        if rest is not None:
            was_dirty = rest.dirty
            rest.dirty = True  # the cumulative ack says it: no second ack for the same indexes
            for each in range(index + 1):
                self.ack(rest, each)
            settled += index + 1
            rest.dirty = was_dirty and rest.live
        return settled

    def _settle_entry(self, entry: Entry) -> int:
        self.acks.drop_part(entry)
        self.unacked -= entry.active
        self._drop(entry)
        return entry.settle()

    def holds(self, entry: Entry, index: int, turn: int) -> bool:
        """Whether the hand-over with that number is the current one: its message was not given
        back since."""
        if not entry.live:
            self.find(entry.key)  # perhaps it is parked
        return entry.live and entry.turn(index) == turn

    def nack(self, entry: Entry, index: int, due_ms: int, bits: int) -> bool:
        """HELD or NACKED -> NACKED until `due_ms`; False when there is nothing to wait for."""
        before = entry.state[index]
        if self.volatile:
            return False
        due_key = entry.due_key(index)
        if before == NACKED:
            self.nacks.move(due_key, due_ms, bits)
            self._park(entry)
            return True
        if before not in (HELD, QUEUED):
            return False
        self.nacks.add(due_key, due_ms, bits)  # first: what it refuses stays held
        if len(self.timeouts):
            self.timeouts.discard(due_key)
        entry.state[index] = NACKED
        if entry.size == 1 and self.shared:
            self._drop(entry)  # the key in `nacks` is all that is needed
        else:
            self._park(entry)
        return True

    def leave(self, entry: Entry, index: int) -> bool:
        """HELD or QUEUED -> LEAVING: a copy of it is about to be sent; False in another state."""
        if not entry.live or entry.state[index] not in (HELD, QUEUED):
            return False
        if len(self.timeouts):
            self.timeouts.discard(entry.due_key(index))
        entry.state[index] = LEAVING
        return True

    def stay(self, entry: Entry, index: int) -> bool:
        """LEAVING -> HELD: the copy failed. False when the message was settled meanwhile."""
        if not entry.live or entry.state[index] != LEAVING:
            return False
        entry.state[index] = HELD
        return True

    def nack_unseen(self, key: EntryKey, due_ms: int, bits: int) -> None:
        """Nack of a plain entry that has no record here: by id, or nacked before."""
        if not self.nacks.move((*key, -1), due_ms, bits):
            self.unacked += 1

    # Giving back

    def has_unsent_part(self, due: DueBatch) -> bool:
        """Whether an ack waits to be sent of a batch that something is due of."""
        entries = self._entries
        for ledger, number, _ in due.indexes:
            entry = entries.get((ledger, number))
            if entry is not None and entry.dirty:
                return True
        return False

    def release(
        self, due: DueBatch, now_ms: int = 0, lead_ms: int = 0
    ) -> list[tuple[int, list[int]]]:
        """Due nacks or timeouts -> AWAY; returns the entries to ask for, by ledger, in order.

        Args:
            due: What is due, `lead_ms` from now at the latest.
            now_ms: The time.
            lead_ms: What the transport takes; what comes sooner waits for so long.
        """
        earliest_ms, self._lead_ms = now_ms + lead_ms, lead_ms
        if len(self._asked) > _MAX_ASKED:
            self._asked.clear()
        groups: list[tuple[int, list[int]]] = []
        for ledger, entries in due.entries:
            groups.append((ledger, self._release_plain(ledger, entries, earliest_ms)))
        for ledger, number, mask in due.indexes:
            entry = self.find((ledger, number))
            if entry is not None and self._release_indexes(entry, mask, earliest_ms):
                groups.append((ledger, [number]))
        return [group for group in groups if group[1]]

    def _release_plain(self, ledger: int, entries: Sequence[int], earliest_ms: int) -> list[int]:
        wanted = list(entries)
        self.unacked -= len(wanted)
        for number in wanted:
            entry = self._entries.get((ledger, number))
            if entry is None or entry.size > 1:
                self._ask((ledger, number, -1), earliest_ms)
            else:
                released = self._release_indexes(entry, 1, earliest_ms)
                self.unacked += released  # counted twice: above, and there
        return wanted

    def _ask(self, due_key: MessageKey, earliest_ms: int) -> None:
        # 0: what was asked for did not come, and this time nothing that comes is too early.
        self._asked[due_key] = 0 if due_key in self._asked else earliest_ms

    def _release_indexes(self, entry: Entry, mask: int, earliest_ms: int) -> int:
        again = 0  # asked for once more: nobody looked at it since
        if self._asked:
            for index in set_bits(mask):
                again |= (entry.due_key(index) in self._asked) << index
        released = entry.release(mask, seen=mask & ~again)
        self.unacked -= released.bit_count()
        for index in set_bits(released):
            self._ask(entry.due_key(index), earliest_ms)
        if released and entry.active == 0:
            self._remember_away(entry)
        return released.bit_count()

    def release_all(self) -> None:
        """Everything not acked, not LEAVING -> AWAY."""
        self._unpark_all()
        self.acks.expect_echoes()
        if self.rewind is not None:
            self.rewind.begin(
                (entry.key, entry.lowest_unacked())
                for entry in self._entries.values()
                if entry.active > entry.state.count(LEAVING)
            )
        self.crossing = self.shared
        for entry in list(self._entries.values()):
            if entry.state[0] == QUEUED:
                self.overlook(entry.key, entry.size)
            entry.release_all(count_looks=self.shared)
            if entry.active == 0:
                self._remember_away(entry)
        self.nacks.clear()
        self.timeouts.clear()
        self.unacked = sum(entry.active for entry in self._entries.values())

    @property
    def owed(self) -> int:
        """Entries that a rewind has to bring again and has not."""
        return 0 if self.rewind is None else self.rewind.owed

    def rewound_beside(self) -> None:
        """The link rewinds this source too, though nothing here was given back."""
        self.acks.expect_echoes()
        for entry in self._entries.values():
            entry.doubled = True
        if self.rewind is not None:
            self.rewind.begin()

    def disconnected(self) -> None:
        """The connection is gone, and with it all that was not handed over: it comes again."""
        self.crossing = False
        for entry in list(self._entries.values()):
            self.unacked -= entry.drop_queued()
            if entry.active == 0:
                self._remember_away(entry)
        if self.rewind is not None:
            self.rewind.forget()

    def reset(self) -> None:
        """After a seek: nothing from before counts any more."""
        self.era += 1
        for entry in self._entries.values():
            entry.live = False
        self._entries.clear()
        self._away.clear()
        self._parked.clear()
        self._asleep.clear()
        self._asked.clear()
        self._unlooked.clear()
        self.crossing = False
        self.nacks.clear()
        self.timeouts.clear()
        self.acks.clear()
        if self.rewind is not None:
            self.rewind.forget()
        if self.attempts:
            self.attempts.clear()
        self.unacked = 0

    def reconnected(self) -> None:
        """The broker sends everything unacked again, what is here included.

        What the broker forgot of a parked entry, though it was told long ago, it is told again when
        the entry comes.
        """
        self.crossing = False
        for key in self.acks.pop_uncertain_parts():
            self.find(key)
        for entry in self._entries.values():
            entry.doubled = True
        self.acks.reconnected(self._entries.values())

    def sent(self, parts: Iterable[Entry]) -> None:
        """Partial acks left: of these entries perhaps nothing is to be done for a while."""
        for entry in parts:
            self._park(entry)

    # Book-keeping

    def _park(self, entry: Entry) -> None:
        """Keep the few bytes that are needed of a batch that only waits."""
        if not (self.shared and entry.live and entry.size > 1 and entry.only_waits):
            return
        if not entry.dirty:
            del self._entries[entry.key]
            entry.live = False
            self._parked.put(entry.key, entry.to_parked())
            self._asleep[entry.key] = entry

    def _unpark(self, key: EntryKey, parked: Parked) -> Entry:
        entry = self._asleep.pop(key, None)
        if entry is None:
            entry = Entry(self, key, parked.size, True, 0, None, self.era)
            entry.restore(parked)
        entry.live = True
        entry.doubled = True  # a reconnect may have been meanwhile, and sent it
        self._keep(key, entry)
        return entry

    def _unpark_all(self) -> None:
        records = list(self._parked)
        self._parked.clear()
        for key, parked in records:
            self._unpark(key, parked)

    def _keep(self, key: EntryKey, entry: Entry) -> None:
        if not self._entries:
            self._rising = True
        elif key < self._highest:
            self._rising = False
            self._entries[key] = entry
            return
        self._highest = key
        self._entries[key] = entry

    def _up_to(self, through: EntryKey) -> list[Entry]:
        """The entries here, up to that one."""
        found = []
        for key, entry in self._entries.items():
            if key <= through:
                found.append(entry)
            elif self._rising:
                break
        return found

    def _drop(self, entry: Entry) -> None:
        entry.live = False
        self._entries.pop(entry.key, None)
        self._away.pop(entry.key, None)

    def _remember_away(self, entry: Entry) -> None:
        """Nothing of it is here: remember its acked indexes and counts, within bounds."""
        if entry.size == 1 or (entry.unacked == entry.size and entry.looks is None):
            self._drop(entry)
            return
        self._away[entry.key] = entry
        if len(self._away) > _MAX_AWAY:
            self._drop(next(iter(self._away.values())))

    def count(self, state: int) -> int:
        """Messages in a state other than NACKED. Walks all: for statistics."""
        return sum(entry.state.count(state) for entry in self._entries.values())

    def _check(self) -> None:
        """Walk every invariant; for tests."""
        for key, entry in self._entries.items():
            assert entry.key == key and entry.live and entry.unacked > 0, key
            entry._check()
            worth_keeping = entry.unacked < entry.size or entry.looks is not None
            assert entry.active > 0 or (key in self._away and worth_keeping), key
            for index, state in enumerate(entry.state):
                assert (entry.due_key(index) in self.nacks) == (state == NACKED), (key, index)
        recorded = sum(entry.state.count(NACKED) for entry in self._entries.values())
        total = sum(entry.active for entry in self._entries.values()) + len(self.nacks) - recorded
        assert self.unacked == total, (self.unacked, total)
        assert len(self._away) <= _MAX_AWAY
        assert not (self._unlooked and not self.shared)
        self._parked._check()
        for key, parked in self._parked:
            assert key not in self._entries, key
            assert self.shared and parked.nacked and not parked.nacked & parked.acked, key
            for index in range(parked.size):
                waits = bool(parked.nacked >> index & 1)
                assert ((*key, index) in self.nacks) == waits, (key, index)
            asleep = self._asleep.get(key)
            assert asleep is None or (not asleep.live and asleep.to_parked() == parked), key
        assert all(key in self._parked for key in self._asleep)
