"""Packed batches: a dozen bytes in place of the `Entry` of a batch that only waits.

On Shared and Key_Shared, a batch is packed when some of its messages are NACKED and all others are
ACKED or AWAY. The first query unpacks it. While a message of the application still refers to the
`Entry`, that same object is used again, so that an earlier delivery is still recognised afterwards.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from .attempts import Attempts
from .duplicate_window import Cause
from .entry import Entry, EntryKey
from .packed_entries import Packed, PackedEntries


class PackedBatches(PackedEntries):
    def __init__(self, topic_state: Any, attempts: Attempts) -> None:
        self._topic_state: Any = topic_state
        self._attempts = attempts
        super().__init__()

    def clear(self) -> None:
        super().clear()
        self._referred: WeakValueDictionary[EntryKey, Entry] = WeakValueDictionary()

    def pack(self, entry: Entry) -> None:
        entry.live = False
        self.put(entry.key, entry.to_packed())
        self._referred[entry.key] = entry

    def unpack(self, key: EntryKey) -> Entry | None:
        packed = self.take(key)
        return None if packed is None else self._record(key, packed)

    def unpack_all(self) -> list[Entry]:
        records, referred = list(self), self._referred
        self.clear()
        self._referred = referred
        return [self._record(key, packed) for key, packed in records]

    def _record(self, key: EntryKey, packed: Packed) -> Entry:
        entry = self._referred.pop(key, None)
        if entry is None:
            entry = Entry.of_packed(self._topic_state, key, packed, self._topic_state.era)
            entry.redelivered = self._attempts.requested_by_others(key)
        entry.live = True
        # A packed batch notes no reconnect. One may have happened, and its copy be in flight.
        entry.causes |= Cause.RECONNECT
        return entry

    def peek(self, key: EntryKey) -> Entry | None:
        packed = self.get(key)
        if packed is None:
            return None
        entry = self._referred.get(key)
        return Entry.of_packed(self._topic_state, key, packed) if entry is None else entry

    def _check(self) -> None:
        super()._check()
        for key, packed in self:
            assert packed.nacked and not packed.nacked & packed.acked, key
            asleep = self._referred.get(key)
            assert asleep is None or (not asleep.live and asleep.to_packed() == packed), key
        assert all(key in self for key in self._referred)
