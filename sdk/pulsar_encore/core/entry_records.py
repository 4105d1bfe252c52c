"""The entry records of one topic.

Nearly always the records are in the order of their keys, and each is a single message. Then all
records up to a position, or all but a few, are ended without a look at each: a cumulative ack or a
rewind of 45,000 messages is one step of the event loop. Such a record keeps its message states. A
message that still refers to it finds the entry by its key.

A release of everything takes several microseconds for each batch. The table therefore ends many
records at once and keeps them in `releasing`. `find` completes the release of the entry that it is
asked for, and `complete_releases` that of a few others at a time, so the result does not depend on
when the loop gets to a record.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any, Final

from .attempts import Attempts
from .entry import Entry, EntryKey, release_singles
from .message_states import HELD, QUEUED
from .packing import PackedBatches

# Unfinished entries that are away, perhaps with another consumer, are remembered up to this number;
# forgetting one costs a duplicate at most.
_MAX_AWAY: Final = 10_000
# Number of single-message records, or of released messages, from which all are ended in one step.
_MANY: Final = 1_000
# The release of one more entry takes as long as that of so many more messages of it.
_COST: Final = 20
_STATE: Final = attrgetter("state")


class EntryTable:
    """Records of the entries of one topic that are not packed, and the packed batches.

    Attributes:
        entries: Records by key. Never holds a key that is packed.
        away: Records without a message here, oldest first: they remember acked indexes and counts.
            To find its first key, a plain dictionary would walk over all deleted ones.
        highest: The highest key in `entries`; stale if `entries` is empty.
        rising: The records are in the order of their keys.
        all_single: Each record is a single message.
        live_records: The `Entry.live` of all records in `entries`.
        releasing: Records that were released together and are out of use. What their release means
            for each of them is not recorded yet. Never holds a key that is in `entries` or packed.

    Args:
        topic_state: Its `complete_release` records the release of one entry.
        dispose: Frees a container of records little by little. To free 45,000 records takes longer
            than the step that ends them.
    """

    __slots__ = (
        "_dispose",
        "_release_order",
        "_topic_state",
        "all_single",
        "away",
        "entries",
        "highest",
        "live_records",
        "packed",
        "releasing",
        "rising",
    )

    def __init__(
        self,
        topic_state: Any,
        attempts: Attempts,
        dispose: Callable[[dict[EntryKey, Entry] | list[Entry]], None] | None = None,
    ) -> None:
        self._dispose = dispose or _free
        self._topic_state = topic_state
        self._release_order: Iterator[EntryKey] = iter(())
        self.releasing: dict[EntryKey, Entry] = {}
        self.entries: dict[EntryKey, Entry] = {}
        self.away: OrderedDict[EntryKey, Entry] = OrderedDict()
        self.packed: PackedBatches = PackedBatches(topic_state, attempts)
        self.live_records: list[bool] = [True]
        self.highest: EntryKey = (-1, -1)
        self.rising: bool = True
        self.all_single: bool = True

    # One record

    def find(self, key: EntryKey) -> Entry | None:
        """Return the record of an entry; completes its release and unpacks a packed batch."""
        entry = self.entries.get(key)
        if entry is None and self.releasing:
            released = self.releasing.pop(key, None)
            if released is not None:
                self._topic_state.complete_release(released)
                return self.entries.get(key)
        if entry is None and len(self.packed):
            entry = self.packed.unpack(key)
            if entry is not None:
                self.keep(entry)
        return entry

    def keep(self, entry: Entry) -> None:
        key, entries = entry.key, self.entries
        if not entries:
            self.rising, self.all_single = True, entry.size == 1
            self.highest = key
        else:
            self.all_single = self.all_single and entry.size == 1
            if key < self.highest:
                self.rising = False
            else:
                self.highest = key
        entry.live = self.live_records
        entries[key] = entry

    def drop(self, entry: Entry) -> None:
        entry.live = False
        self.entries.pop(entry.key, None)
        self.away.pop(entry.key, None)

    def pack(self, entry: Entry) -> None:
        if entry.live and entry.size > 1 and entry.only_waits and not entry.unsent_part:
            del self.entries[entry.key]
            self.packed.pack(entry)

    def unpack_all(self) -> None:
        for entry in self.packed.unpack_all():
            self.keep(entry)

    def remember_away(self, entry: Entry) -> Entry | None:
        """Remember an entry that is away; return the oldest one if there are too many."""
        self.away[entry.key] = entry
        return self.away.popitem(last=False)[1] if len(self.away) > _MAX_AWAY else None

    # Many records

    def up_to(self, through: EntryKey) -> list[Entry]:
        """Return the records up to an entry, in linear time of their number if the keys rise."""
        entries = self.entries
        if self.highest <= through:
            return list(entries.values())
        if not self.rising:
            return [entry for key, entry in entries.items() if key <= through]
        found: list[Entry] = []
        rest, size = iter(entries.items()), 64
        while chunk := list(islice(rest, size)):  # each twice as long as the one before
            if chunk[-1][0] > through:
                stop = bisect_right(chunk, through, key=itemgetter(0))
                found += [entry for _, entry in chunk[:stop]]
                break
            found += [entry for _, entry in chunk]
            size *= 2
        return found

    @property
    def many(self) -> bool:
        """True if there are many records and all can be ended in one step."""
        return len(self.entries) >= _MANY and self.all_single and not self.away

    def is_release_long(self, messages: int) -> bool:
        """True if the release of so many messages is to be completed in later steps."""
        return messages >= _MANY and len(self.entries) > 1

    def few_after(self, through: EntryKey) -> list[Entry] | None:
        """Return the records after `through` if they are the minority of `many`, otherwise None.

        Also None if so few records precede `through` that checking each is cheaper.
        """
        entries = self.entries
        if not self.many:
            return None
        if self.highest <= through:
            return []
        if not self.rising:
            return None
        for probe in (64, _MANY):
            if next(islice(entries, probe - 1, None)) > through:
                return None
        later: list[Entry] = []
        for key, entry in reversed(entries.items()):
            if key <= through:
                return later[::-1]
            later.append(entry)
            if 2 * len(later) > len(entries):
                return None
        return None

    def end_all_but(self, rest: Sequence[Entry] = ()) -> None:
        """End all records except some; no message of an ended one is with the application."""
        self._end_live()
        for entry in rest:
            entry.live = self.live_records
        entries, self.entries = self.entries, {entry.key: entry for entry in rest}
        self._dispose(entries)

    def _end_live(self) -> None:
        self.live_records.clear()
        self.live_records = [True]

    def release_later(self, kept: Sequence[Entry]) -> None:
        """End all records except some in one step, and complete their release later."""
        self._end_live()
        released, self.entries = self.entries, {}
        self.away.clear()
        for entry in kept:
            self.keep(released.pop(entry.key))
        self.releasing = released
        self._release_order = iter(list(released))

    def complete_releases(self, most: int = sys.maxsize) -> None:
        """Complete the release of entries with `most` messages together, in their order."""
        releasing = self.releasing
        while releasing and most > 0:
            released = releasing.pop(next(self._release_order), None)
            if released is not None:
                most -= _COST + released.size
                self._topic_state.complete_release(released)

    def discard(self, ended: list[Entry]) -> None:
        """Remove records that are out of use, in linear time of their number."""
        if not ended:
            return
        entries = self.entries
        if self.away:
            for entry in ended:
                self.away.pop(entry.key, None)
        if 2 * len(ended) > len(entries):
            self.entries = {key: entry for key, entry in entries.items() if entry.live}
            self._dispose(entries)
        else:
            for entry in ended:
                del entries[entry.key]
        self._dispose(ended)

    def release_singles(self) -> tuple[list[EntryKey], list[EntryKey]]:
        """End single-message records and give their messages back to the broker.

        Returns:
            Keys of these entries in the order of `entries`, and keys of the QUEUED ones.
        """
        ended, queued = release_singles(self.entries.values())
        self.discard(ended)
        return [entry.key for entry in ended], queued

    def drop_queued(self) -> int:
        """End the records whose messages are all QUEUED; return the number of these messages.

        One look at each record, because 50,000 records do not fit in the processor's cache.
        """
        entries, dropped = self.entries, 0
        ended: list[Entry] = []
        rest: list[Entry] = []
        if self.many:
            rest = [entry for entry in entries.values() if entry.state[0] != QUEUED]
            dropped = len(entries) - len(rest)
            if 2 * dropped <= len(entries):
                ended = [entry for entry in entries.values() if entry.state[0] == QUEUED]
        else:
            for entry in entries.values():
                size = entry.size
                if entry.state[0] == QUEUED and (
                    size == 1 or (entry.failed is None and entry.state.count(QUEUED) == size)
                ):
                    ended.append(entry)
                    dropped += size
                else:
                    rest.append(entry)
        if not dropped:
            return 0
        if len(rest) < len(entries) - len(rest):
            self.end_all_but(rest)
        else:
            for entry in ended:
                entry.live = False
                del entries[entry.key]
            self._dispose(ended)
        return dropped

    def clear(self) -> None:
        self.end_all_but()
        released, self.releasing = self.releasing, {}
        self._dispose(released)
        self.away.clear()
        self.packed.clear()

    # Sums

    def held(self) -> Iterator[Entry]:
        return (entry for entry in list(self.entries.values()) if HELD in entry.state)

    def count(self, state: int) -> int:
        # A call for each of 50,000 records would take 10 ms. This takes 2 to 4 ms.
        if self.all_single:
            return len([1 for entry in self.entries.values() if entry.state[0] == state])
        return b"".join(map(_STATE, self.entries.values())).count(state)

    @property
    def active(self) -> int:
        return sum(entry.active for entry in self.entries.values())

    def _check(self) -> None:
        assert len(self.away) <= _MAX_AWAY
        assert all(entry.live is self.live_records for entry in self.entries.values())
        assert not any(entry.live for entry in self.releasing.values())
        assert not any(key in self.entries or key in self.packed for key in self.releasing)
        self.packed._check()


def _free(records: dict[EntryKey, Entry] | list[Entry]) -> None:
    """Free the records at once."""
