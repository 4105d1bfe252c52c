"""Who holds what, for one source: from arrival to settled, every message has one owner.

Owns `SourceState`. A message is AWAY (with the broker), QUEUED here, HELD by the application,
NACKED (waiting for its due time), LEAVING or ACKED; `entry.TRANSITIONS` says what may follow what,
and every public method here is one synchronous step, which returns what the shell has to do. Rules:
- a message QUEUED, HELD or NACKED is not handed out again when its entry is redelivered, so
  siblings in a batch do not disturb each other, and a reconnect does not repeat what the
  application still has;
- ACKED indexes of an unfinished entry are remembered, filtered, and sent when they come again;
- each hand-over has a number, and only the current one can nack: counts do not tell
  hand-overs apart, a message may come to another consumer and back while it is held here;
- a wholly nacked plain entry keeps no record here: only its key waits, in the `DueIndex`;
- a batch of which some wait and the rest is acked or away is packed (Shared and Key_Shared): a
  dozen bytes in place of its `Entry`, until anything is asked of it. As long as a message refers to
  that `Entry`, it is what comes back, so a hand-over of before is the same after;
- on Exclusive and Failover the broker only rewinds: everything is given back at once, and
  `rewind` sees to it that all of it comes again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import islice
from operator import itemgetter
from typing import Final
from weakref import WeakValueDictionary

from .acks import Acks, Unsent
from .attempts import Attempts
from .due import DueBatch, MessageKey
from .due_index import DueIndex
from .duplicate_window import ASKED, RECONNECTED, REWOUND, UNKNOWN, Duplicates
from .durable import Durable
from .entry import (
    ACKED,
    AWAY,
    HELD,
    LEAVING,
    NACKED,
    QUEUED,
    Entry,
    EntryKey,
    ack_alone,
    drop_queued_alone,
    release_alone,
    set_bits,
)
from .fingerprint import NO_FINGERPRINT, Identified, fingerprint_of
from .packed import Packed, PackedEntries
from .rewind import Rewind

# Unfinished entries that left (redelivered, perhaps to another consumer) are remembered up to here;
# forgetting one costs a duplicate at most.
_MAX_AWAY: Final = 10_000
_LAST: Final = (1 << 63) - 1
# Number of single-message records from which all are ended in one step.
_MANY: Final = 1_000
_ANSWER_MS: Final = 1_000  # what was asked for comes sooner, or not at all


class SourceState:
    """State of one topic or partition.

    Args:
        owner: Of all sources of a consumer; compared by identity to tell its messages from others'.
        number: The transport's, for the topic.
        topic: Full name; of the partition, if any.
        partition: Partition number or -1.
        shared: Shared and Key_Shared, where single entries are redelivered.
        nacks: Where nacked messages wait.
        timeouts: Where ack timeouts wait.
        contiguous: Entry ids follow each other (see `Rewind`).
        lead_ms: What the transport takes from being asked for a redelivery to asking the broker.
        remembers: Keep every failed attempt, for a dead-letter policy.
        durable: What outlives the process; None when nothing does.
        letters: It is a retry-letter topic, whose messages say themselves of earlier attempts.
        in_order: What failed is not asked for again, but stays here and is queued, so that the
            broker sends nothing of its key to anybody else meanwhile.
        dispose: Takes over a container whose records are out of use. Freeing 45,000 records takes
            longer than the step that ends them, so the caller frees them little by little.
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
        self.durable: Durable | None = None if self.volatile else durable
        self.letters: bool = letters
        self.in_order: bool = in_order
        self._dispose = dispose or _let_go
        self._not_before: dict[MessageKey, int] = {}  # what failed and stays here: until when, ms
        # Volatile, or with ack timeouts, or something is remembered: to ack what is held is more
        # than that. Asked for each message.
        self.special: bool = self.volatile or remembers or bool(self.durable)
        self.era: int = 0  # seeks so far: records of an earlier one say nothing any more
        self.rewind: Rewind | None = None
        if not (shared or self.volatile):
            self.rewind = Rewind(contiguous=contiguous)
        self.attempts: Attempts = Attempts(remembers=remembers, counts_overlooked=shared)
        self.duplicates: Duplicates = Duplicates()
        self.acks: Acks = Acks(self.duplicates)
        # QUEUED, HELD, NACKED, LEAVING: what fills the broker's unacked window
        self.unacked: int = 0
        self._entries: dict[EntryKey, Entry] = {}
        self._highest: EntryKey = (-1, -1)  # of those
        self._rising = True  # they are in order
        self._alone = True  # each is one message
        self._left = False  # a copy of a message was sent once: some may be LEAVING
        # `Entry.live` of records of one message; emptied, all of them are out of use.
        self.live_alone: list[bool] = [True]
        # Ordered: a plain dict walks over all that was forgotten to find its first.
        self._away: OrderedDict[EntryKey, Entry] = OrderedDict()
        self._packed = PackedEntries()  # of other entries than `_entries`
        self._referred: WeakValueDictionary[EntryKey, Entry] = WeakValueDictionary()  # theirs

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
        came_as: Identified | int = NO_FINGERPRINT,
    ) -> tuple[Entry | None, Sequence[int]]:
        """A delivery: its record, and which of `indexes` to queue (positions in `indexes`).

        A nacked message may come before it is due, with a sibling or over a reconnect: it waits on.

        Returns:
            (None, ()) when nothing of it is wanted; else the entry and the positions to queue.
        """
        if self.volatile:
            # Every id there is the same and acks mean nothing: no memory from one to the next.
            passing = Entry(self, key, batch_size or 1, batch_size > 0)
            passing.queue_all()
            return passing, range(len(indexes))
        known = self.durable is not None and self.durable.knows(key)
        if known and self.durable is not None:
            if not isinstance(came_as, int):
                came_as = fingerprint_of(came_as)
            if not self.durable.is_of(key, came_as):
                self._replaced(key)
                known = False
        entry = self.find(key)
        if entry is None:
            if self.acks.covers(key):
                self.acks.add_whole(key)
                self.attempts.done(key)
                return None, ()
            if batch_size <= 1 and self._still_waits((*key, -1), now_ms):
                if self.duplicates.asked_all:
                    self.overlook(key, 1)
                return None, ()
            if not self.shared:
                self.acks.cumulative.retract(key)
                ack_set &= self.acks.cumulative.remaining_of(key)
            size, attempts = batch_size or 1, self.attempts
            if size > 1:  # the broker's count is of the entry, not of one message
                redelivered = 0
                if redelivery_count or attempts.batches:
                    redelivered = attempts.batch_delivered(key, redelivery_count)
            elif attempts.failures or attempts.copies:
                redelivered = attempts.delivered(key, redelivery_count)
            else:
                redelivered = redelivery_count
            entry = Entry(self, key, size, batch_size > 0, redelivered, first_chunk, self.era)
            entry.came_as = came_as
            if size == 1:
                entry.live = self.live_alone
            self._keep(key, entry)
            duplicates = self.duplicates
            entry.again = duplicates.expects | ASKED if redelivery_count else duplicates.expects
            if duplicates.asked and duplicates.came((*key, -1)):
                entry.again |= ASKED  # perhaps a reconnect's copy, with the one asked for to come
            if ack_set != -1:
                entry.learn_acked(ack_set)
            count = len(indexes)
            if count == entry.size and entry.unacked == count:
                entry.queue_all()
                self.unacked += count
                if known and self.durable is not None:
                    return self._recalled(self.durable, entry, indexes, range(count))
                return entry, range(count)
        else:
            if not entry.came_as:
                entry.came_as = came_as
            self._away.pop(key, None)
            if entry.size == 1:
                if self.duplicates.asked_all:
                    self.overlook(key, 1)
                self.attempts.delivered_again(entry, redelivery_count)
            elif redelivery_count or self.attempts.batches:
                entry.redelivered = self.attempts.batch_delivered(key, redelivery_count)
            if ack_set != -1:
                entry.learn_acked(ack_set)
        wanted = self._admit(entry, indexes, now_ms)
        if entry.active == 0:
            self._rest(entry)
        elif not wanted:
            self._pack(entry)
        if wanted and known and self.durable is not None:
            return self._recalled(self.durable, entry, indexes, wanted)
        return entry, wanted

    def _replaced(self, key: EntryKey) -> None:
        """Another message has this id now: forget the one that had it."""
        waiting = self.nacks.discard_entry(*key)
        self.timeouts.discard_entry(*key)
        self.attempts.done(key)
        self.attempts.forget((*key, -1))
        entry = self.find(key)
        if entry is None:
            self.unacked -= waiting
            return
        self.unacked -= waiting - entry.state.count(NACKED) + entry.active
        self.acks.drop_part(entry)
        self._drop(entry)

    def _recalled(
        self, durable: Durable, entry: Entry, indexes: Sequence[int], wanted: Sequence[int]
    ) -> tuple[Entry, Sequence[int]]:
        """Of messages that came something was known, perhaps to a process that is dead: they go on
        waiting, or are handed over with all their attempts."""
        self.special = True  # to ack them is to forget that
        # Of the others more is known here: what was counted already would be counted again.
        here = {indexes[position] for position in wanted}
        known = durable.recall(entry.key)
        attempts = {index: count for index, count in known.attempts.items() if index in here}
        waiting = {index: due_ms for index, due_ms in known.dues.items() if index in here}
        durable.passed(entry.due_key(index) for index in here if index not in waiting)
        if not waiting or self.in_order:
            self._count_recalled(entry, attempts)
            for each, until_ms in waiting.items():
                self._not_before[entry.due_key(each)] = until_ms
            return entry, wanted
        # What waits has failed once more when it is released: then that is counted.
        before = {index: count - (index in waiting) for index, count in attempts.items()}
        self._count_recalled(entry, before)
        left = []
        for position in wanted:
            index = indexes[position]
            due_ms = waiting.get(index)
            if due_ms is None:
                left.append(position)
                continue
            self.nacks.add(entry.due_key(index), due_ms, 0)
            entry.nack(index)
        if len(left) < len(wanted) and not left:
            self._waits_whole(entry)
        return entry, left

    def _count_recalled(self, entry: Entry, attempts: Mapping[int, int]) -> None:
        if not attempts:
            return
        if entry.size > 1:
            self.attempts.recalled(entry, attempts)
        elif not self.letters:  # of a letter, once it is known what it says itself
            entry.redelivered = max(entry.redelivered, attempts.get(0, 0))

    def elsewhere(self, entry: Entry, attempts: int) -> None:
        """A message, which is its entry, says of attempts that no count here knows of."""
        self.attempts.elsewhere(entry, attempts)
        if self.durable is not None and self.durable.knows(entry.key):
            known = self.durable.recall(entry.key).attempts.get(0, 0)
            entry.redelivered = max(entry.redelivered, known)

    def arrive_first(self, keys: Sequence[EntryKey]) -> list[Entry]:
        """Plain messages that the broker never delivered before, in order: their records.

        What `arrive` does for each where nothing is special, which is nearly always.

        Returns:
            All of them, QUEUED; or fewer, where the next one is for `arrive`.
        """
        attempts, duplicates, unsent = self.attempts, self.duplicates, self.acks.only_unsent
        rewind = self.rewind
        special = (
            unsent is None
            or self.volatile
            or (rewind is not None and not rewind.idle)
            or attempts.failures
            or attempts.copies
            or duplicates.asked
            or duplicates.asked_all
            or len(self._packed)
            or len(self.nacks)
        )
        if special or unsent is None:
            return []
        arrived: list[Entry] = []
        known, again, era, durable = self._entries, duplicates.expects, self.era, self.durable
        if not durable:
            durable = None
        highest = self._highest if known else (-1, -1)
        rising = self._rising or not known
        self._alone = self._alone or not known
        for key in keys:
            if key in known or key in unsent or (durable is not None and durable.knows(key)):
                break
            known[key] = entry = Entry.alone(self, key, era, again)
            arrived.append(entry)
            if key < highest:
                rising = False
            else:
                highest = key
        self._highest, self._rising = highest, rising
        self.unacked += len(arrived)
        if rewind is not None and arrived:
            rewind.passed(arrived[-1].key)
        return arrived

    def overlook(self, key: EntryKey, size: int) -> None:
        """A copy of an entry came that nobody attempts, and its redelivery will be counted."""
        if size == 1 and self.shared and not (self.volatile or self.acks.covers(key)):
            self.attempts.overlooked(key)

    def _rest(self, entry: Entry) -> None:
        """Nothing of a delivered entry is new: it waits with those that are away, or is done."""
        if entry.unacked:
            self._remember_away(entry)
        else:
            self.acks.drop_part(entry)
            self._drop(entry)
            self.acks.add_whole(entry.key, again=entry.again != 0)

    def _still_waits(self, due_key: MessageKey, now_ms: int) -> bool:
        """A nacked message came before it is due: it keeps waiting.

        On Exclusive and Failover too, where Java's comes at once: with it the rewind would be off
        that brings what the application let go behind it.
        """
        if self.duplicates.asked:
            if self._came_early(due_key, now_ms):
                return True
            if self.duplicates.earliest(due_key) is not None:  # what was asked for
                self.unacked -= self.nacks.discard(due_key)
                return False
        return len(self.nacks) > 0 and due_key in self.nacks

    def _came_early(self, due_key: MessageKey, now_ms: int) -> bool:
        """It was asked for ahead of its time, and came sooner for another reason.

        What was asked for comes as well. Should it not, it is asked for once more: then it may come
        whenever it comes.
        """
        earliest = self.duplicates.earliest(due_key)
        if earliest is None or now_ms >= earliest:
            return False
        if not self.nacks.move(due_key, earliest + _ANSWER_MS + self.lead_ms, 0):
            self.unacked += 1
        return True

    def _admit(self, entry: Entry, indexes: Sequence[int], now_ms: int) -> Sequence[int]:
        state, asked = entry.state, bool(self.duplicates.asked)
        wanted = []
        for position, index in enumerate(indexes):
            before = state[index]
            if before == AWAY or (before == NACKED and asked):
                if self._comes(entry, index, now_ms, asked):
                    wanted.append(position)
            elif before == ACKED:
                self.acks.add_part(entry)  # the broker forgot: tell it again
        return wanted

    def _comes(self, entry: Entry, index: int, now_ms: int, asked: bool) -> bool:
        """A message came that is away, or waits: whether the application shall see it now."""
        if asked:
            due_key = entry.due_key(index)
            if entry.state[index] == NACKED:
                earliest = self.duplicates.earliest(due_key)
                if earliest is None or now_ms < earliest:
                    return False
                self.nacks.discard(due_key)  # what was asked for came after all
                self.unacked -= 1
            elif self._came_early(due_key, now_ms):
                entry.wait_on(index)
                return False
            self.duplicates.came(due_key)
        self.unacked += 1
        entry.queue(index)
        return True

    def adopt(self, entry: Entry) -> None:
        """Keep a record again of a batch that is not here, to ack a part of it."""
        if self.acks.covers(entry.key):  # all of it is acked already: no part is left to ack
            entry.ack_all()
            return
        entry.readopt()
        entry.learn_acked(self.acks.cumulative.remaining_of(entry.key))
        self._keep(entry.key, entry)
        self._away[entry.key] = entry

    # Settling

    def find(self, key: EntryKey) -> Entry | None:
        """The record of an entry, if there is one; it is not packed any more."""
        entry = self._entries.get(key)
        if entry is None and len(self._packed):
            packed = self._packed.take(key)
            if packed is not None:
                return self._unpack(key, packed)
        return entry

    def ack(self, entry: Entry, index: int) -> int:
        """Any state -> ACKED. `entry` must be live.

        Returns:
            How many messages `acks` has more to send than before: all of an entry that is done, one
            for an entry partly acked anew, 0 where an ack of the entry waits already.
        """
        if entry.state[index] == HELD and not self.special:  # nearly always
            entry.state[index] = ACKED  # the step `ack`, without a call for each message
            entry.unacked -= 1
            entry.active -= 1
            self.unacked -= 1
            if entry.size == 1:
                self._settled_alone(entry)
                return 1
        else:
            before = entry.ack(index)
            if before == ACKED or self.volatile:
                return 0
            self._forget(entry, index, before)
            if self.durable is not None:
                mask = 1 << index if entry.unacked else None
                if before == LEAVING:
                    self.durable.buried(entry.key, 1 << index, mask is None)
                else:
                    self.durable.settled(entry.key, mask)
        if entry.unacked == 0:
            self._drop(entry)
            self.attempts.done(entry.key)
            if entry.unsent_part:
                self.acks.drop_part(entry)
            self.acks.add_whole(entry.key, again=entry.again != 0)
            if self.rewind is not None:
                self.rewind.settled(entry.key)
            return entry.size
        if entry.active == 0:
            self._remember_away(entry)
        if self.rewind is not None and self.rewind.owed:
            self.rewind.settled_part(entry.key, entry.lowest_unacked())
        if entry.unsent_part:
            return 0
        self.acks.add_part(entry)
        return 1

    def ack_each(self, entry: Entry, indexes: Sequence[int]) -> int:
        """The same for several messages of an entry that is live."""
        if self.special:
            return sum(self.ack(entry, index) for index in indexes)
        last = next((index for index in reversed(indexes) if entry.state[index] != ACKED), None)
        if last is None:
            return 0
        # All but one of what is held: what becomes of the entry is decided once.
        others = [index for index in indexes if index != last]
        settled = entry.ack_held(others)
        self.unacked -= settled
        if settled == len(others):
            return self.ack(entry, last)
        return sum(self.ack(entry, index) for index in indexes)

    def _settled_alone(self, entry: Entry) -> None:
        """A held message that is its entry is acked: what `ack` does, without a call for each."""
        key = entry.key
        entry.live = False
        del self._entries[key]
        if self._away:
            self._away.pop(key, None)
        if self.attempts.copies:
            self.attempts.done(key)
        self.acks.add_whole(key, again=entry.again != 0)
        if self.rewind is not None:
            self.rewind.settled(key)

    def _forget(self, entry: Entry, index: int, before: int) -> None:
        """A message in the state `before` was acked: nothing waits for it any more."""
        due_key = entry.due_key(index)
        if before == NACKED:
            self.nacks.discard(due_key)
        elif len(self.timeouts):
            self.timeouts.discard(due_key)
        if self._not_before:
            self._not_before.pop(due_key, None)
        self.attempts.forget(due_key)
        if before == AWAY:
            entry.again |= UNKNOWN  # by an older hand-over or an id: it may be on its way here
        else:
            self.unacked -= 1

    def ack_entry(self, key: EntryKey) -> int:
        """The whole entry is acked, seen or not; returns how many messages that settled here."""
        waiting = self.nacks.discard_entry(*key)
        self.timeouts.discard_entry(*key)
        if self.durable is not None:
            self.durable.settled(key)
        entry = self.find(key)
        # Without a record (nacked, given back, never seen here) nobody knows what is on its way.
        again = entry is None or entry.again != 0 or self.duplicates.expects != 0
        self.acks.add_whole(key, again=again)
        self.attempts.done(key)
        if self.rewind is not None:
            self.rewind.settled(key)
        self.attempts.forget((*key, -1))
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
        if not self.acks.cumulative.advance(key, size, mask):
            return 0
        self._unpack_all()
        # Before an entry that is acked in part: the last one that is acked whole.
        through = key if not partial else (key[0], key[1] - 1) if key[1] else (key[0] - 1, _LAST)
        behind = self._few_behind(through)
        settled = recorded = 0
        if behind is not None:
            settled = len(self._entries) - len(behind)
            self._end_all_but(behind)
        else:
            covered = self._up_to(through)
            settled, recorded = self._settle_alone(covered)
            for entry in covered:
                if entry.live:
                    recorded += entry.state.count(NACKED)
                    settled += self._settle_entry(entry)
        if self.rewind is not None:
            self.rewind.settled_through(through)
        if through[0] >= 0:
            self.unacked -= self.nacks.discard_through(*through) - recorded
            self.timeouts.discard_through(*through)
            if self.durable is not None:
                self.durable.settled_through(through)
        if behind is not None:
            self._count_unacked()
        rest = self._entries.get(key) if partial else None
        if rest is not None:
            was_unsent = rest.unsent_part
            rest.unsent_part = True  # the cumulative ack says it: no second one for these indexes
            for each in range(index + 1):
                self.ack(rest, each)
            settled += index + 1
            rest.unsent_part = was_unsent and bool(rest.live)
        return settled

    # Many at once. A record that is ended together with others keeps its states: it is out of use,
    # and whoever has the message goes by its key.

    def _are_many(self) -> bool:
        """Whether all records can be ended in one step, and are so many that it is worth it."""
        return len(self._entries) >= _MANY and self._alone and not (self._away or self._not_before)

    def _few_behind(self, through: EntryKey) -> list[Entry] | None:
        """Return the records after `through` if they are the minority, else None.

        None where there are few records, or few up to that entry: then a look at each of those is
        cheaper than a look at each of the others.
        """
        entries = self._entries
        if not self._are_many():
            return None
        if self._highest <= through:
            return []
        if not self._rising:
            return None
        for probe in (64, _MANY):
            if next(islice(entries, probe - 1, None)) > through:
                return None
        behind: list[Entry] = []
        for key, entry in reversed(entries.items()):
            if key <= through:
                return behind[::-1]
            behind.append(entry)
            if 2 * len(behind) > len(entries):
                return None
        return None

    def _end_all_but(self, rest: Sequence[Entry]) -> None:
        """All records are out of use but some; each is of one message."""
        self.live_alone.clear()
        self.live_alone = [True]
        for entry in rest:
            entry.live = self.live_alone
        entries, self._entries = self._entries, {entry.key: entry for entry in rest}
        self._dispose(entries)

    def _count_unacked(self) -> None:
        """Recompute `unacked`; every record must be a single message."""
        recorded = sum(entry.state[0] == NACKED for entry in self._entries.values())
        active = sum(entry.active for entry in self._entries.values())
        self.unacked = active + len(self.nacks) - recorded

    def _settle_alone(self, covered: Sequence[Entry]) -> tuple[int, int]:
        """Settle those of some records that are one message each, as `_settle_entry` does.

        One loop without a call for each record: an application may hold 45,000 of them, and all of
        it is one step of the event loop.

        Returns:
            How many messages that settled, and how many of them were NACKED.
        """
        if self._not_before:
            return 0, 0
        dead, recorded, active = ack_alone(covered)
        self.unacked -= active
        self._discard(dead)
        return len(dead), recorded

    def _discard(self, dead: list[Entry]) -> None:
        """Take records that are out of use out of `_entries` and `_away`; linear in `dead`."""
        entries = self._entries
        if self._away:
            for entry in dead:
                self._away.pop(entry.key, None)
        if not dead:
            return
        if 2 * len(dead) > len(entries):
            self._entries = {key: entry for key, entry in entries.items() if entry.live}
            self._dispose(entries)
        else:
            for entry in dead:
                del entries[entry.key]
        self._dispose(dead)

    def _settle_entry(self, entry: Entry) -> int:
        self.acks.drop_part(entry)
        self.unacked -= entry.active
        self._drop(entry)
        return entry.ack_all()

    def holds(self, entry: Entry, index: int, hand_over: int) -> bool:
        """Whether the hand-over with that number is the current one: its message was not given
        back since."""
        if not entry.live:
            self.find(entry.key)  # perhaps it is packed
        return bool(entry.live) and entry.hand_over_number(index) == hand_over

    def nack(self, entry: Entry, index: int, due_ms: int, bits: int) -> bool:
        """The message waits until `due_ms`; False when there is nothing to wait for."""
        if self.volatile:
            return False
        before = entry.state[index]
        due_key = entry.due_key(index)
        if before == NACKED:
            self.nacks.move(due_key, due_ms, bits)
            self._remember_due(due_key, due_ms, bits, 0, entry.size, entry)
            self._pack(entry)
            return True
        if before not in (HELD, QUEUED):
            return False
        self.nacks.add(due_key, due_ms, bits)  # first: what it refuses stays held
        if self.durable is not None:
            attempts = self.attempts.ended(entry, index) if before == HELD else 0
            self._remember_due(due_key, due_ms, bits, attempts, entry.size, entry)
        if len(self.timeouts):
            self.timeouts.discard(due_key)
        entry.nack(index)
        self._waits_whole(entry)
        return True

    def _waits_whole(self, entry: Entry) -> None:
        """Something of an entry waits: perhaps that is all there is to know of it."""
        if entry.size == 1 and self.shared:
            self._drop(entry)  # the key in `nacks` is all that is needed
        else:
            self._pack(entry)

    def _remember_due(
        self,
        key: MessageKey,
        due_ms: int,
        bits: int,
        attempts: int,
        size: int,
        entry: Entry | None = None,
    ) -> None:
        if self.durable is not None:
            fingerprint = NO_FINGERPRINT if entry is None else entry.fingerprint()
            self.durable.waits(key, due_ms, bits, attempts, size, fingerprint)
            self.special = True

    def leave(self, entry: Entry, index: int) -> bool:
        """A copy of the message is about to be sent; False in a state in which it is not here."""
        if not entry.leave(index):
            return False
        self._left = True
        if len(self.timeouts):
            self.timeouts.discard(entry.due_key(index))
        if self.durable is not None and self.special:
            self.durable.ends_waiting((entry.due_key(index),))  # its lease
        return True

    def untime(self, entry: Entry, index: int) -> None:
        """No ack timeout runs for a message that was handed over: it has another deadline."""
        if len(self.timeouts):
            self.timeouts.discard(entry.due_key(index))

    def lease(self, entry: Entry, index: int, due_ms: int, bits: int, attempt: int) -> None:
        """A message that is held for the `attempt`th time is its holder's until `due_ms`, also over
        the end of this process; called again, until then."""
        if self.durable is not None:
            self.durable.leased(
                entry.due_key(index), due_ms, bits, attempt, entry.size, entry.fingerprint()
            )
            self.special = True  # to ack it is to forget that

    def in_hands(self, key: MessageKey) -> bool:
        """Whether the application has a message, or a copy of it is under way."""
        entry = self._entries.get(key[:2])
        at = max(key[2], 0)
        return entry is not None and at < entry.size and entry.state[at] in (HELD, LEAVING)

    def attempts_in_hands(self, key: EntryKey) -> dict[int, int]:
        """Attempts, by index, at messages of an entry that the application has."""
        entry = self._entries.get(key)
        if entry is None or HELD not in entry.state:
            return {}
        return {
            index: self.attempts.count(entry, index) + 1
            for index, what in enumerate(entry.state)
            if what == HELD
        }

    def attempted_elsewhere(self, key: EntryKey, mask: int, attempt: int) -> None:
        """Another consumer of this process has handed over messages for the `attempt`th time.

        Copies of them that are queued here are attempts after that one.
        """
        entry = self._entries.get(key)
        if entry is None:
            return
        for index in set_bits(mask):
            if index < entry.size and entry.state[index] == QUEUED:
                if entry.size == 1:
                    entry.redelivered = max(entry.redelivered, attempt)
                else:
                    self.attempts.recalled(entry, {index: attempt})

    def moved(self, key: MessageKey, due_ms: int, bits: int) -> None:
        """What waits here, if it does, waits until `due_ms`."""
        if key in self.nacks:
            self.nacks.move(key, due_ms, bits)
        elif key in self._not_before:
            self._not_before[key] = due_ms

    def nack_unseen(self, key: EntryKey, due_ms: int, bits: int) -> None:
        """Nack of a plain entry that has no record here: by id, or nacked before."""
        if not self.nacks.move((*key, -1), due_ms, bits):
            self.unacked += 1
        self._remember_due((*key, -1), due_ms, bits, 0, 1)

    # In order

    def stays(self, entry: Entry, index: int, due_ms: int, bits: int) -> bool:
        """A message that is held failed, or one that is queued is to wait: it is queued here, not
        to be handed over before `due_ms`. False, and nothing done, in any other state."""
        held = entry.live and entry.state[index] == HELD
        if self.volatile or not (held or (entry.live and entry.state[index] == QUEUED)):
            return False
        due_key = entry.due_key(index)
        self._remember_due(
            due_key,
            due_ms,
            bits,
            self.attempts.ended(entry, index) if held else 0,
            entry.size,
            entry,
        )
        if held:
            entry.offer_again(index)
            if entry.size == 1:  # the broker does not know of it
                self.attempts.elsewhere(entry, 1)
            else:
                self.attempts.failed(entry, 1 << index)
        self._not_before[due_key] = due_ms
        self.special = True  # to ack it is to forget that
        return True

    def returns(self, entry: Entry, index: int) -> bool:
        """A message that is held is queued here again, and did not fail: no attempt is counted.

        Returns:
            False, and nothing was done, if the message is not held.
        """
        if not (entry.live and entry.state[index] == HELD):
            return False
        if self.durable is not None:
            self.durable.returned(entry.key, {index: self.attempts.count(entry, index)})
            if self.special:
                self.durable.ends_waiting((entry.due_key(index),))  # its lease
        return entry.offer_again(index)

    def stay_all(self) -> None:
        """All that is held failed, and it and what waits here may be handed over at once."""
        with nullcontext() if self.durable is None else self.durable.one_write():
            for entry in list(self.held()):
                for index, what in enumerate(entry.state):
                    if what == HELD:
                        self.stays(entry, index, 0, 0)
        if self.durable and self._not_before:
            self.durable.ends_waiting(list(self._not_before))
        self._not_before.clear()
        for entry in list(self._away.values()):  # some were kept for that
            self._remember_away(entry)

    def not_before(self, entry: Entry, index: int) -> int:
        """When a queued message may be handed over, in ms; 0 for at any time."""
        return self._not_before.get(entry.due_key(index), 0) if self._not_before else 0

    def _still_not_due(self, entry: Entry) -> bool:
        """Whether something of an entry is to wait, should it come again."""
        times = self._not_before
        return bool(times) and any(entry.due_key(index) in times for index in range(entry.size))

    def comes_due(self, entry: Entry, index: int) -> None:
        """The time of a message that stayed here has come."""
        due_key = entry.due_key(index)
        if self._not_before.pop(due_key, None) is not None and self.durable:
            self.durable.passed((due_key,))

    # Redelivery

    def next_due(self) -> int | None:
        """When something has to be asked for, in ms: before it is due by `lead_ms`."""
        head = self.nacks.next_due()
        if len(self.timeouts):
            other = self.timeouts.next_due()
            head = other if head is None or other is None else min(head, other)
        return None if head is None else head - self.lead_ms

    def take_nacks(self, now_ms: int, limit: int) -> DueBatch:
        """Nacks that are due by the time the transport has asked for them."""
        due = self.nacks.pop_due(now_ms + self.lead_ms, limit)
        if self.durable and due:
            self.durable.passed(due)
        return due

    def take_timeouts(self, now_ms: int, limit: int) -> DueBatch:
        """Ack timeouts that are over by the time the transport has asked for them."""
        return self.timeouts.pop_due(now_ms + self.lead_ms, limit)

    def has_unsent_part(self, due: DueBatch) -> bool:
        """Whether an ack waits to be sent of a batch that something is due of."""
        entries = self._entries
        for ledger, number, _ in due.indexes:
            entry = entries.get((ledger, number))
            if entry is not None and entry.unsent_part:
                return True
        return False

    def release(self, due: DueBatch, now_ms: int = 0) -> list[tuple[int, list[int]]]:
        """Due nacks or timeouts -> AWAY; returns the entries to ask for, by ledger, in order.

        Args:
            due: What is due, by the time the transport has asked for it.
            now_ms: The time; what was asked for comes no sooner than the transport's lead later.
        """
        earliest_ms = now_ms + self.lead_ms
        self.duplicates.bound_asked()
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
                self.duplicates.ask((ledger, number, -1), earliest_ms)
                if entry is not None:
                    self.attempts.batch_asked(entry.key)
            else:
                released = self._release_indexes(entry, 1, earliest_ms)
                self.unacked += released  # counted twice: above, and there
        return wanted

    def _release_indexes(self, entry: Entry, mask: int, earliest_ms: int) -> int:
        again = 0  # asked for once more: nobody looked at it since
        if self.duplicates.asked:
            for index in set_bits(mask):
                asked = self.duplicates.earliest(entry.due_key(index)) is not None
                again |= asked << index
        released = entry.release(mask)
        if not released:
            return 0
        entry.again |= ASKED
        self.attempts.failed(entry, released & ~again)
        if entry.size > 1:
            self.attempts.batch_asked(entry.key)
        self.unacked -= released.bit_count()
        for index in set_bits(released):
            self.duplicates.ask(entry.due_key(index), earliest_ms)
        if entry.active == 0:
            self._remember_away(entry)
        return released.bit_count()

    def not_asked(self, due: DueBatch, due_ms: int) -> None:
        """What was released could not be asked for: it waits on, until `due_ms`."""
        for ledger, number, index in due:
            entry = self.find((ledger, number))
            if index >= 0 and (entry is None or entry.state[index] != AWAY):
                if entry is not None:
                    continue  # settled, or here again
                index = -1  # of a batch that no record is kept of: all of it, which is filtered
            # It counts as asked for: its attempt is counted, and what comes of it is not too early.
            if not self.nacks.add((ledger, number, index), due_ms, 0):
                continue
            self.unacked += 1
            if entry is not None and index >= 0:
                entry.wait_on(index)
                self._away.pop(entry.key, None)

    def release_all(self) -> None:
        """Everything not acked, not LEAVING -> AWAY."""
        self._unpack_all()
        self.acks.rewound()
        if self.durable and self._not_before:
            self.durable.ends_waiting(list(self._not_before))
        self._not_before.clear()
        in_order = self._rising
        alone = self._release_alone()
        if self.rewind is not None:
            self._begin_rewind(self.rewind, alone, in_order)
        self.duplicates.asked_all = self.shared
        leased: list[MessageKey] = []  # perhaps
        dead: list[Entry] = []
        for entry in list(self._entries.values()):
            if entry.state[0] == QUEUED:
                self.overlook(entry.key, entry.size)
            if self.durable and not self.shared:
                self._return_held(self.durable, entry)
            elif self.durable and HELD in entry.state:
                held = (each for each, what in enumerate(entry.state) if what == HELD)
                leased += map(entry.due_key, held)
            released = entry.release_all()
            if self.shared:
                self.attempts.failed(entry, released)
                if entry.size > 1:
                    self.attempts.batch_asked(entry.key)
            entry.again |= REWOUND
            if entry.active:
                continue
            if entry.unacked < entry.size or entry.failed is not None or self.in_order:
                self._remember_away(entry)
            else:  # what `_remember_away` does with an entry of which nothing is remembered
                entry.live = False
                dead.append(entry)
        self._discard(dead)
        if self.durable and leased:
            self.durable.ends_waiting(leased)
        if self.durable and len(self.nacks):
            self.durable.ends_waiting(self.nacks.pop_due(_LAST))
        self.nacks.clear()
        self.timeouts.clear()
        self.unacked = sum(entry.active for entry in self._entries.values())

    def _begin_rewind(self, rewind: Rewind, keys: list[EntryKey], in_order: bool) -> None:
        """Tell the rewind what it owes: whole entries, and the first index of others.

        Args:
            rewind: Of this source.
            keys: Entries of one message each that have been released; others are added.
            in_order: Whether the records were in the order of their keys.
        """
        before = len(keys)
        parts: list[tuple[EntryKey, int]] = []
        for entry in self._entries.values():
            if entry.active == entry.size and not self._left:
                keys.append(entry.key)
            elif entry.active > entry.state.count(LEAVING):
                parts.append((entry.key, entry.lowest_unacked()))
        in_order = in_order and before in (0, len(keys))
        rewind.begin(parts, keys, in_order=in_order)

    def _release_alone(self) -> list[EntryKey]:
        """Release the records that are one message each and that nothing is remembered of.

        What `release_all` does for each, in one loop without a call: the record is out of use,
        because the next delivery of the message makes a new one.

        Returns:
            Their keys, in the order of `_entries`.
        """
        if self.durable or self.in_order:
            return []
        dead: list[Entry] = []
        if self._are_many() and not self._left:
            overlooked = []
            if self.shared:
                each = self._entries.items()
                overlooked = [key for key, entry in each if entry.state[0] == QUEUED]
            keys = list(self._entries)
            self._end_all_but(())
        else:
            dead, overlooked = release_alone(self._entries.values())
            keys = [entry.key for entry in dead]
        if overlooked and self.shared and not self.volatile:
            unsent = self.acks.only_unsent
            if unsent is None:
                overlooked = [key for key in overlooked if not self.acks.covers(key)]
            elif unsent:
                overlooked = [key for key in overlooked if key not in unsent]
            self.attempts.overlooked_all(overlooked)
        self._discard(dead)
        return keys

    def _return_held(self, durable: Durable, entry: Entry) -> None:
        """What a rewind takes along has not failed: the broker counts nothing there either."""
        held = [index for index, state in enumerate(entry.state) if state == HELD]
        if held:
            counts = {index: self.attempts.count(entry, index) for index in held}
            durable.returned(entry.key, counts)

    @property
    def owed(self) -> int:
        """Entries that a rewind has to bring again and has not."""
        return 0 if self.rewind is None else self.rewind.owed

    def rewound_beside(self) -> None:
        """The link rewinds this source too, though nothing here was given back."""
        self.acks.rewound()
        for entry in self._entries.values():
            entry.again |= REWOUND
        if self.rewind is not None:
            self.rewind.begin()

    def disconnected(self) -> None:
        """The connection is gone, and with it all that was not handed over: it comes again."""
        self.duplicates.asked_all = False
        self._drop_queued_alone()
        walks = self.in_order or not self._alone  # else none is left
        here = self._entries.values() if walks else ()
        for entry in [each for each in here if QUEUED in each.state]:
            self.unacked -= entry.drop_queued()
            if entry.active == 0:
                self._remember_away(entry)
        if self.rewind is not None:
            self.rewind.forget()

    def _drop_queued_alone(self) -> None:
        """Drop the queued records that are one message each and that nothing is remembered of."""
        if self.in_order:
            return
        if self._are_many():
            queued = [entry for entry in self._entries.values() if entry.state[0] == QUEUED]
            if 2 * len(queued) > len(self._entries):
                self.unacked -= len(queued)
                kept = [entry for entry in self._entries.values() if entry.state[0] != QUEUED]
                self._end_all_but(kept)
                return
            dead = drop_queued_alone(queued)
        else:
            dead = drop_queued_alone(self._entries.values())
        self.unacked -= len(dead)
        self._discard(dead)

    def reset(self) -> None:
        """After a seek: nothing from before counts any more."""
        self.era += 1
        if not self._alone:
            for entry in self._entries.values():
                entry.live = False
        self._end_all_but(())
        self._away.clear()
        self._packed.clear()
        self._referred.clear()
        self.nacks.clear()
        self.timeouts.clear()
        self._not_before.clear()
        self.acks.clear()
        self.duplicates.clear()
        self.attempts.clear()
        if self.durable is not None:
            self.durable.clear()
        if self.rewind is not None:
            self.rewind.forget()
        self.unacked = 0

    def reconnected(self) -> None:
        """The broker sends everything unacked again, what is here included.

        What the broker forgot of a packed entry, though it was told long ago, it is told again when
        the entry comes.
        """
        self.duplicates.asked_all = False
        for key in self.duplicates.take_lost_parts():
            self.find(key)
        parts = []
        for entry in self._entries.values():
            entry.again |= RECONNECTED
            if entry.unacked < entry.size:
                parts.append(entry)
        self.acks.reconnected(parts)

    def sent(self, parts: Iterable[Entry]) -> None:
        """Partial acks left: of these entries perhaps nothing is to be done for a while."""
        for entry in parts:
            self._pack(entry)

    def not_confirmed(self, unsent: Unsent) -> None:
        """Whether acks that left arrived is not known: they wait to be sent again."""
        self.acks.not_confirmed(unsent)
        for each in unsent.parts:
            entry = self.find(each.key)
            if entry is not None and entry.unacked < entry.size:
                self.acks.add_part(entry)

    # Book-keeping

    def _pack(self, entry: Entry) -> None:
        """Keep the few bytes that are needed of a batch that only waits."""
        if not (self.shared and entry.live and entry.size > 1 and entry.only_waits):
            return
        if not entry.unsent_part:
            del self._entries[entry.key]
            entry.live = False
            self._packed.put(entry.key, entry.to_packed())
            self._referred[entry.key] = entry

    def _unpack(self, key: EntryKey, packed: Packed) -> Entry:
        entry = self._referred.pop(key, None)
        if entry is None:
            entry = Entry.of_packed(self, key, packed, self.era)
            entry.redelivered = self.attempts.elsewhere_of(key)
        entry.live = True
        entry.again |= RECONNECTED  # one may have been meanwhile, and sent it
        self._keep(key, entry)
        return entry

    def _unpack_all(self) -> None:
        records = list(self._packed)
        self._packed.clear()
        for key, packed in records:
            self._unpack(key, packed)

    def _keep(self, key: EntryKey, entry: Entry) -> None:
        if not self._entries:
            self._rising, self._alone = True, entry.size == 1
        elif key < self._highest:
            self._rising = False
            self._alone = self._alone and entry.size == 1
            self._entries[key] = entry
            return
        else:
            self._alone = self._alone and entry.size == 1
        self._highest = key
        self._entries[key] = entry

    def _up_to(self, through: EntryKey) -> list[Entry]:
        """The entries here, up to that one."""
        entries = self._entries
        if self._highest <= through:  # nothing here is higher
            return list(entries.values())
        if not self._rising:
            return [entry for key, entry in entries.items() if key <= through]
        found: list[Entry] = []
        rest, size = iter(entries.items()), 64
        while chunk := list(islice(rest, size)):  # each twice as long: linear in what is found
            if chunk[-1][0] > through:
                stop = bisect_right(chunk, through, key=itemgetter(0))
                found += [entry for _, entry in chunk[:stop]]
                break
            found += [entry for _, entry in chunk]
            size *= 2
        return found

    def _drop(self, entry: Entry) -> None:
        entry.live = False
        self._entries.pop(entry.key, None)
        self._away.pop(entry.key, None)
        if self._not_before:
            for index in range(entry.size):
                self._not_before.pop(entry.due_key(index), None)

    def _remember_away(self, entry: Entry) -> None:
        """Nothing of it is here: remember its acked indexes and counts, within bounds."""
        if entry.size == 1:
            # What failed and stayed here, the broker has not counted.
            worth_keeping = self.in_order and entry.redelivered > 0
        else:
            worth_keeping = entry.unacked < entry.size or entry.failed is not None
        if not (worth_keeping or self._still_not_due(entry)):
            self._drop(entry)
            return
        self._away[entry.key] = entry
        if len(self._away) > _MAX_AWAY:
            self._drop(self._away.popitem(last=False)[1])

    def held(self) -> Iterator[Entry]:
        """Entries of which the application has something. Walks all."""
        return (entry for entry in list(self._entries.values()) if HELD in entry.state)

    def consider(self) -> None:
        """Nothing that has to be forgotten may be left: acks are cheap again then."""
        remembered = len(self.timeouts) or self.durable or self._not_before
        if not (self.volatile or self.attempts.remembers or remembered):
            self.special = False

    def count(self, state: int) -> int:
        """Messages in a state other than NACKED. Walks all: for statistics."""
        return sum(entry.state.count(state) for entry in self._entries.values())

    def _check(self) -> None:
        """Walk every invariant; for tests."""
        for key, entry in self._entries.items():
            assert entry.key == key and entry.live and entry.unacked > 0, key
            entry._check()
            worth_keeping = entry.unacked < entry.size or entry.failed is not None
            worth_keeping |= self.in_order and entry.redelivered > 0
            worth_keeping |= self._still_not_due(entry)
            assert entry.active > 0 or (key in self._away and worth_keeping), key
            for index, state in enumerate(entry.state):
                assert (entry.due_key(index) in self.nacks) == (state == NACKED), (key, index)
        recorded = sum(entry.state.count(NACKED) for entry in self._entries.values())
        total = sum(entry.active for entry in self._entries.values()) + len(self.nacks) - recorded
        assert self.unacked == total, (self.unacked, total)
        assert len(self._away) <= _MAX_AWAY
        assert all(each[:2] in self._entries for each in self._not_before)
        self._packed._check()
        for key, packed in self._packed:
            assert key not in self._entries, key
            assert self.shared and packed.nacked and not packed.nacked & packed.acked, key
            for index in range(packed.size):
                waits = bool(packed.nacked >> index & 1)
                assert ((*key, index) in self.nacks) == waits, (key, index)
            asleep = self._referred.get(key)
            assert asleep is None or (not asleep.live and asleep.to_packed() == packed), key
        assert all(key in self._packed for key in self._referred)


def _let_go(records: dict[EntryKey, Entry] | list[Entry]) -> None:
    """Free them at once."""
