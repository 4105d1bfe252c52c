"""What a rewind owes: on Exclusive and Failover, nothing is handed out past a hole.

Owns `Rewind`, one for each source of such a subscription. A broker that is asked to rewind while a
read is running lets that read move its position on, and skips a block
(`docs/notes/wire-protocol.md#rewind-during-a-read`); and what the client had queued before still
comes first. So what was given back is remembered as owed, in order:
- until a rewind is seen to begin (the stream goes back), what lies past the first owed entry is
  from before: it is dropped, and owed as well;
- a delivery that comes while an earlier owed one is missing means rewind again;
- past everything seen so far entry ids follow each other; a hole is suspect for as long as the race
  can reach (markers and compaction make holes too, so a source where some stay is trusted).
What does not come in `_TRIES` more rewinds is gone from the topic (trimmed, expired, acked by
somebody else) and no longer waited for. Pure: no clock; the shell asks again after a silence.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from .entry import EntryKey

# How often one missing entry may cause another rewind; one healed it whenever it was tried.
_TRIES: Final = 2
# The race reaches no further than a few reads of the broker (100 entries each) past what was sent.
_REACH: Final = 5_000
# After so many holes that no rewind filled, holes are what this topic has, and none is suspect.
_HOLES: Final = 3
_TRIM: Final = 1_000  # removed keys in front of a list, before they are cut off


class Admission(Enum):
    """What to do with a delivery."""

    ADMIT = 0
    DROP = 1  # from before the rewind: it comes again
    REWIND = 2  # an earlier one is missing: drop it, and rewind again


class _Owed:
    """Entries in order, each with the lowest batch index to come.

    A dict for membership, and a sorted list of keys from which removed ones go lazily. A rewind
    adds 45,000 keys in one step, in order: that is a `list.extend`, where a sorted container takes
    a microsecond for each.
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
        """Each of many, with the lowest index 0; `in_order` if they are known to be sorted."""
        if self._lowest:
            self._lowest.update(dict.fromkeys(keys, 0))
            keys, in_order = list(self._lowest), False
        else:
            self._lowest = dict.fromkeys(keys, 0)
        self._keys = list(keys) if in_order else sorted(keys)
        self._at = 0

    def last(self) -> EntryKey:
        """The last entry that was added; after `add_all`."""
        return self._keys[-1]

    def pop(self, key: EntryKey) -> int | None:
        lowest = self._lowest.pop(key, None)
        if not self._lowest:
            self._keys.clear()
            self._at = 0
        return lowest

    def first(self) -> tuple[EntryKey, int]:
        """The first entry; there must be one."""
        keys, lowest = self._keys, self._lowest
        while keys[self._at] not in lowest:
            self._at += 1
        if self._at > _TRIM and 2 * self._at > len(keys):
            del keys[: self._at]
            self._at = 0
        return keys[self._at], lowest[keys[self._at]]

    def items(self) -> list[tuple[EntryKey, int]]:
        """All of them, in order; for tests."""
        return sorted(self._lowest.items())

    def drop_below(self, key: EntryKey) -> None:
        """Remove every entry before `key`."""
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
    """Follows one source through its rewinds.

    Args:
        contiguous: Entry ids follow each other unless something is wrong (no read of a compacted
            topic).
    """

    __slots__ = (
        "_at",
        "_contiguous",
        "_edge",
        "_instead",
        "_missing",
        "_owed",
        "_reach",
        "_stayed",
        "_suspected",
        "_tries",
        "_waiting",
        "came",
    )

    def __init__(self, *, contiguous: bool = True) -> None:
        self._contiguous = contiguous
        # Entry -> the lowest batch index to come, 0 for a message that is no batch.
        self._owed = _Owed()
        self._waiting = False  # a rewind was asked for, and the stream has not gone back yet
        self._at: tuple[EntryKey, int] | None = None  # the last delivery: entry, batch index
        self._edge: EntryKey | None = None  # the highest entry that ever came
        self._reach = 0  # entries past the edge that are still to be watched for holes
        self._suspected: tuple[EntryKey, EntryKey] | None = None  # the last hole: first id, end
        self._stayed = 0  # holes that no rewind filled
        self._missing: EntryKey | None = None
        self._instead: EntryKey = (0, 0)  # the lowest that came while that is missing
        self._tries = 0
        self.came: int = 0  # of what was owed; to tell whether a rewind brings anything

    @property
    def owed(self) -> int:
        """Entries given back that have not come again."""
        return len(self._owed)

    def begin(
        self,
        given_back: Iterable[tuple[EntryKey, int]] = (),
        whole: Sequence[EntryKey] = (),
        *,
        in_order: bool = False,
    ) -> None:
        """A rewind is about to be asked for.

        Args:
            given_back: What leaves this client with it: entry, lowest unacked batch index.
            whole: Entries that leave with it as a whole.
            in_order: Whether `whole` is known to be sorted, which saves a look at each.
        """
        if whole:
            self._owed.add_all(whole, in_order=in_order)
            self._reached(self._owed.last())
        for key, index in given_back:
            self._owe(key, index)
        self._waiting = bool(self._owed)
        self._reach = _REACH

    def forget(self) -> None:
        """The subscription starts afresh (a new connection, a seek): nothing races with that."""
        self._owed.clear()
        self._waiting = False
        self._at = None
        self._edge = None
        self._reach = 0
        self._suspected = None
        self._missing, self._tries = None, 0

    def trust_holes(self) -> None:
        """Entry ids of this source do not follow each other: chunks, markers, compaction."""
        self._contiguous = False

    def give_up(self) -> int:
        """What is owed will not come; returns how many entries that are."""
        gone = len(self._owed)
        self._owed.clear()
        self._waiting = False
        return gone

    def settled(self, key: EntryKey) -> None:
        """The entry was acked: nobody waits for it."""
        if self._owed:
            self._owed.pop(key)
            self._waiting = self._waiting and bool(self._owed)

    def settled_through(self, key: EntryKey) -> None:
        """Everything up to the entry was acked."""
        self._forget_below((key[0], key[1] + 1))
        self._waiting = self._waiting and bool(self._owed)

    def settled_part(self, key: EntryKey, lowest: int) -> None:
        """Part of the entry was acked; `lowest` is what is unacked of it now."""
        if key in self._owed:
            self._owed.set(key, lowest)

    @property
    def idle(self) -> bool:
        """Nothing is owed, and no hole is watched for: whatever comes is admitted."""
        return not (self._owed or self._reach)

    def passed(self, key: EntryKey) -> None:
        """Entries that are no batches came while it was idle, this one last: as `judge` of each."""
        self._at = (key, 0)
        self._edge = key

    def judge(self, key: EntryKey, index: int) -> Admission:
        """A delivery came: an entry from batch index `index` on (0 for a message without one)."""
        before, self._at = self._at, (key, index)
        if not (self._owed or self._reach):  # nearly always
            self._edge = key
            return Admission.ADMIT
        # A stream only goes forward. A rewind that begins past the last delivery cannot be told
        # from the stream going on, and need not be: all that is owed lies before that.
        if before is not None and (key, index) <= before:
            self._waiting = False
        self._suspect_hole(key)
        owed = self._owed
        if owed:
            head, lowest = owed.first()
            if self._waiting:
                if (key, index) > (head, lowest):
                    self._owe(key, index)
                    return Admission.DROP
                self._waiting = key != head
            elif head < key and not self._is_gone(head, key):
                self._owe(key, index)
                self._waiting = True
                return Admission.REWIND
            self.came += owed.pop(key) is not None
            self._waiting = self._waiting and bool(owed)
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
        """Past the edge, ids that were jumped over are owed like those that were seen."""
        edge = self._edge
        if not (self._contiguous and self._reach and edge is not None and key > edge):
            return
        ledger, entry = key
        after = (edge[0], edge[1] + 1)
        if after == key:
            return
        first = after[1]
        if ledger != edge[0]:  # nor is it known where the ledger before ends
            self._owed.set(after, 0)
            first = 0
        for missing in range(first, min(entry, first + _REACH)):
            self._owed.set((ledger, missing), 0)
        self._suspected = (after, key)

    def _is_gone(self, missing: EntryKey, key: EntryKey) -> bool:
        """Whether all that is owed before `key`, from `missing` on, was asked for often enough.

        No rewind brought anything between `missing` and the lowest of what came instead: all of
        that is given up. What only the last one did not bring has tries of its own.
        """
        if missing != self._missing:
            self._missing, self._tries, self._instead = missing, 0, key
        self._instead = min(self._instead, key)
        if self._tries < _TRIES:
            self._tries += 1
            return False
        hole = self._suspected
        if hole is not None and hole[0] <= missing < hole[1] and missing[0] == key[0]:
            self._stayed += 1
            self._contiguous = self._contiguous and self._stayed < _HOLES
        self._forget_below(self._instead)
        head = self._owed.first()[0] if self._owed else key
        return head >= key or self._is_gone(head, key)

    def _forget_below(self, key: EntryKey) -> None:
        self._owed.drop_below(key)

    def _check(self) -> None:
        """Walk the invariants; for tests."""
        assert not self._waiting or self._owed
        last = max((key for key, _ in self._owed.items()), default=None)
        assert last is None or (self._edge is not None and last <= self._edge)
