"""Rewinds on Exclusive and Failover: no message is delivered past a missing one.

If a broker gets a rewind request while a read is in progress, it lets that read move its position
on, and skips a block (`docs/notes/wire-protocol.md#rewind-during-a-read`). Messages that the client
had queued before the rewind still arrive first. So `Rewind` keeps a list of *owed* entries: all
unacked entries of the topic at the rewind, in order.

- Deliveries that still come from before the rewind are dropped and become owed too. The rewind has
  begun when a delivery is not after the one before it.
- If a delivery arrives while an earlier owed entry is missing, another rewind is requested.
- Entry ids after the highest delivered entry should have no holes. A hole soon after a rewind may
  be such a skipped block, so it causes another rewind. Markers and compaction also make holes:
  after `_HOLES` holes that no rewind filled, holes are ignored.

An entry that does not arrive in `_TRIES` more rewinds is gone from the topic (trimmed, expired,
acked by another consumer). After a silence, the caller requests a rewind again.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from .entry import EntryKey

# How often one missing entry may cause another rewind. In every test, one was enough.
_TRIES: Final = 2
# Number of entries after the highest delivered one in which a hole counts as suspect. The broker
# skipped up to 1,500 messages in our runs (`docs/notes/wire-protocol.md#rewind-during-a-read`).
_REACH: Final = 5_000
_HOLES: Final = 3  # after this number that no rewind filled, holes are normal in this topic
_TRIM: Final = 1_000  # removed keys at the front of a list before they are deleted


class Admission(Enum):
    ADMIT = 0
    DROP = 1  # from before the rewind: it is delivered again
    REWIND = 2  # an earlier entry is missing: drop this one, and rewind again


class _Owed:
    """Entries in order, each with the lowest batch index to arrive.

    A dict, and a sorted list of its keys from which removed keys go lazily. A rewind adds 45,000
    keys in order in one step: a `list.extend`, where a sorted container takes 1 us per key.
    """

    __slots__ = ("_at", "_keys", "_lowest")

    def __init__(self) -> None:
        self._lowest: dict[EntryKey, int] = {}
        self._keys: list[EntryKey] = []  # sorted; those not in `_lowest` were removed
        self._at = 0  # where the first key may be

    def __len__(self) -> int:
        return len(self._lowest)

    def __contains__(self, key: EntryKey) -> bool:
        return key in self._lowest

    def get(self, key: EntryKey, default: int) -> int:
        return self._lowest.get(key, default)

    def set(self, key: EntryKey, lowest: int) -> None:
        if key not in self._lowest:
            keys = self._keys
            if not keys or key > keys[-1]:
                keys.append(key)
            else:
                insort(keys, key, self._at)
        self._lowest[key] = lowest

    def add_all(self, keys: Sequence[EntryKey], *, in_order: bool = False) -> None:
        if self._lowest:
            self._lowest.update(dict.fromkeys(keys, 0))
            keys, in_order = list(self._lowest), False
        else:
            self._lowest = dict.fromkeys(keys, 0)
        self._keys = list(keys) if in_order else sorted(keys)
        self._at = 0

    def last(self) -> EntryKey:
        """Return the last entry; only after `add_all`."""
        return self._keys[-1]

    def pop(self, key: EntryKey) -> int | None:
        lowest = self._lowest.pop(key, None)
        if not self._lowest:
            self._keys.clear()
            self._at = 0
        return lowest

    def first(self) -> tuple[EntryKey, int]:
        keys, lowest = self._keys, self._lowest
        while keys[self._at] not in lowest:
            self._at += 1
        if self._at > _TRIM and 2 * self._at > len(keys):
            del keys[: self._at]
            self._at = 0
        return keys[self._at], lowest[keys[self._at]]

    def items(self) -> list[tuple[EntryKey, int]]:
        return sorted(self._lowest.items())

    def drop_below(self, key: EntryKey) -> None:
        keys, lowest, at = self._keys, self._lowest, self._at
        while at < len(keys) and keys[at] < key:
            lowest.pop(keys[at], None)
            at += 1
        self._at = at

    def clear(self) -> None:
        self._lowest = {}
        self._keys = []
        self._at = 0


class Rewind:
    """Checks that rewinds of one topic deliver every owed entry.

    Attributes:
        owed_arrived: Number of owed entries that arrived, which shows the progress of a rewind.

    Args:
        contiguous: True if entry ids have no holes; False for a compacted read.
    """

    __slots__ = (
        "_awaiting_rewind",
        "_contiguous",
        "_edge",
        "_last_delivery",
        "_lowest_instead",
        "_missing",
        "_owed",
        "_reach",
        "_suspected",
        "_tries",
        "_unfilled_holes",
        "owed_arrived",
    )

    def __init__(self, *, contiguous: bool = True) -> None:
        self._contiguous = contiguous
        self._owed = _Owed()
        self._awaiting_rewind = False  # a rewind was requested and has not begun to deliver
        self._last_delivery: tuple[EntryKey, int] | None = None  # (entry, batch index)
        self._edge: EntryKey | None = None  # the highest entry that ever arrived
        self._reach = 0  # entries past the edge still to watch for holes
        self._suspected: tuple[EntryKey, EntryKey] | None = None  # the last hole: first id, end
        self._unfilled_holes = 0
        self._missing: EntryKey | None = None
        self._lowest_instead: EntryKey = (0, 0)  # to arrive while `_missing` was missing
        self._tries = 0
        self.owed_arrived: int = 0

    @property
    def outstanding(self) -> int:
        return len(self._owed)

    def owes_through(self, key: EntryKey) -> bool:
        """Return True if this entry, or one before it, has not arrived again."""
        return bool(self._owed) and self._owed.first()[0] <= key

    def begin(
        self,
        partial: Iterable[tuple[EntryKey, int]] = (),
        whole: Sequence[EntryKey] = (),
        *,
        in_order: bool = False,
    ) -> None:
        """Note that a rewind is about to be requested.

        Args:
            partial: Entries with acked messages: key and lowest unacked batch index.
            whole: Entries without acked messages; sorted if `in_order`.
        """
        if whole:
            self._owed.add_all(whole, in_order=in_order)
            self._reached(self._owed.last())
        for key, index in partial:
            self._owe(key, index)
        self._awaiting_rewind = bool(self._owed)
        self._reach = _REACH

    def forget(self) -> None:
        """Forget everything: a new connection or a seek starts the subscription afresh."""
        self._owed.clear()
        self._awaiting_rewind = False
        self._last_delivery = None
        self._edge = None
        self._reach = 0
        self._suspected = None
        self._missing, self._tries = None, 0

    def trust_holes(self) -> None:
        """Do not suspect holes, which chunks, markers or compaction make here."""
        self._contiguous = False

    def give_up(self) -> int:
        gone = len(self._owed)
        self._owed.clear()
        self._awaiting_rewind = False
        return gone

    def settled(self, key: EntryKey) -> None:
        if self._owed:
            self._owed.pop(key)
            self._awaiting_rewind = self._awaiting_rewind and bool(self._owed)

    def settled_through(self, key: EntryKey) -> None:
        self._owed.drop_below((key[0], key[1] + 1))
        self._awaiting_rewind = self._awaiting_rewind and bool(self._owed)

    def settled_part(self, key: EntryKey, lowest: int) -> None:
        if key in self._owed:
            self._owed.set(key, lowest)

    @property
    def idle(self) -> bool:
        """True if nothing is owed and no hole is watched for: every delivery is admitted."""
        return not (self._owed or self._reach)

    def passed(self, key: EntryKey) -> None:
        """Note unbatched entries that arrived while idle, the last of them `key`."""
        self._last_delivery = (key, 0)
        self._edge = key

    def judge(self, key: EntryKey, index: int) -> Admission:
        """Decide on a delivery from batch index `index` on, 0 for an unbatched message."""
        before, self._last_delivery = self._last_delivery, (key, index)
        if not (self._owed or self._reach):  # nearly always
            self._edge = key
            return Admission.ADMIT
        # RACE: deliveries from before the rewind still arrive. The stream only goes forward, so a
        # step back shows that the rewind has begun. A rewind to a place past the last delivery
        # looks like the stream going on, which does no harm: every owed entry lies before it.
        if before is not None and (key, index) <= before:
            self._awaiting_rewind = False
        self._suspect_hole(key)
        outstanding = self._owed
        if outstanding:
            head, lowest = outstanding.first()
            if self._awaiting_rewind:
                if (key, index) > (head, lowest):
                    self._owe(key, index)
                    return Admission.DROP
                self._awaiting_rewind = key != head
            elif head < key and self._try_again(head, key):
                self._owe(key, index)
                self._awaiting_rewind = True
                return Admission.REWIND
            self.owed_arrived += outstanding.pop(key) is not None
            self._awaiting_rewind = self._awaiting_rewind and bool(outstanding)
        self._reached(key)
        return Admission.ADMIT

    def _owe(self, key: EntryKey, index: int) -> None:
        self._owed.set(key, min(self._owed.get(key, index), index))
        self._reached(key)

    def _reached(self, key: EntryKey) -> None:
        if self._edge is None or key > self._edge:
            self._edge = key
            if self._reach:
                self._reach -= 1

    def _suspect_hole(self, key: EntryKey) -> None:
        edge = self._edge
        if not (self._contiguous and self._reach and edge is not None and key > edge):
            return
        ledger, entry = key
        after = (edge[0], edge[1] + 1)
        if after == key:
            return
        first = after[1]
        if ledger != edge[0]:  # it is unknown where the ledger before ends
            self._owed.set(after, 0)
            first = 0
        for missing in range(first, min(entry, first + _REACH)):
            self._owed.set((ledger, missing), 0)
        self._suspected = (after, key)

    def _try_again(self, missing: EntryKey, key: EntryKey) -> bool:
        """Return True if another rewind shall be tried for the owed entry `missing`.

        After `_TRIES`, give up all owed entries before the lowest one that arrived meanwhile. Owed
        entries after it have their own tries.
        """
        if missing != self._missing:
            self._missing, self._tries, self._lowest_instead = missing, 0, key
        self._lowest_instead = min(self._lowest_instead, key)
        if self._tries < _TRIES:
            self._tries += 1
            return True
        hole = self._suspected
        if hole is not None and hole[0] <= missing < hole[1] and missing[0] == key[0]:
            self._unfilled_holes += 1
            self._contiguous = self._contiguous and self._unfilled_holes < _HOLES
        self._owed.drop_below(self._lowest_instead)
        head = self._owed.first()[0] if self._owed else key
        return head < key and self._try_again(head, key)

    def _check(self) -> None:
        assert not self._awaiting_rewind or self._owed
        last = max((key for key, _ in self._owed.items()), default=None)
        assert last is None or (self._edge is not None and last <= self._edge)
